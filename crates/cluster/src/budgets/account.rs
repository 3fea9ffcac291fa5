//! A budget's account, without any I/O: what is counted, what is admitted, and what is let go of.
//!
//! ```text
//! available = pods that it chose, are wanted and available, less those whose loss is reserved
//! desired   = what its limit asks for, of all that the workloads want
//! allowed   = available − desired
//! ```
//!
//! A reservation is made when the loss of a pod is admitted ([`admit`]), and dropped once the loss has been seen
//! ([`sweep`]); then `observedPodsResourceVersion` says how much one must have seen to count rightly without it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use palisade_api::budget::{Budget, Chosen, Status, Target};

use crate::budgets::pods::{Controller, Labels, NamespacePods, Pod};
use crate::budgets::workloads::{End, Workload, Workloads};
use crate::feed::number;

/// A reservation that is asked about again after this long is made anew, so that it does not end too soon.
const FRESH: SignedDuration = SignedDuration::from_secs(5);
/// Longer than any chain of owners that means something.
const DEEPEST: usize = 8;

/// What workloads are known: from watches, and from questions asked because the watches did not tell yet.
pub(crate) struct Owners<'a> {
    pub(crate) watched: &'a Workloads,
    /// `None`: there is no such object any more.
    pub(crate) asked: &'a HashMap<Box<str>, Option<Workload>>,
}

/// Who looks after a pod, from its own controller up.
#[derive(Debug)]
struct Chain<'a> {
    links: Vec<(&'a Controller, &'a Workload)>,
    /// Whether one of them is gone or going, and the pod with it.
    ending: bool,
}

impl<'a> Owners<'a> {
    /// The chain above a controller, or the link that nobody knows yet.
    fn chain(&self, controller: &'a Controller) -> Result<Chain<'a>, &'a Controller> {
        let mut chain = Chain { links: Vec::new(), ending: false };
        let mut next = Some(controller);
        while let Some(controller) = next.filter(|_| chain.links.len() < DEEPEST) {
            // A static pod's.
            if &*controller.kind == "Node" && controller.group.is_empty() {
                break;
            }
            let known = match self.watched.get(&controller.uid) {
                Some(workload) => Some(workload),
                None => self.asked.get(&controller.uid).ok_or(controller)?.as_ref(),
            };
            let Some(workload) = known else {
                chain.ending = true;
                break;
            };
            match workload.end {
                Some(End::Orphaned) => break,
                Some(End::Collected) => chain.ending = true,
                None => {}
            }
            chain.links.push((controller, workload));
            next = workload.controller.as_deref();
        }
        Ok(chain)
    }
}

impl Chain<'_> {
    /// The part of the chain up to a target, if it is in it.
    fn up_to(mut self, target: &Target) -> Option<Self> {
        let found = self.links.iter().position(|(controller, _)| {
            *controller.group == *target.group
                && *controller.kind == *target.kind
                && *controller.name == *target.name
        })?;
        self.links.truncate(found + 1);
        Some(self)
    }

    /// The highest that says how many pods it wants: its uid, and how many.
    fn wants(&self) -> Option<(&str, i64)> {
        self.links.iter().rev().find_map(|(controller, workload)| Some((&*controller.uid, workload.wants?)))
    }

    /// Whether a pod is one that the workload no longer wants.
    fn is_surplus(&self, pod: &str) -> bool {
        let Some((_, workload)) = self.links.first() else { return false };
        let (Some(first), Some(wants)) = (workload.first_ordinal, workload.wants) else { return false };
        let ordinal = pod.rsplit_once('-').and_then(|(_, ordinal)| ordinal.parse::<i64>().ok());
        ordinal.is_some_and(|ordinal| ordinal >= first + wants)
    }
}

/// What a pod is to a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Membership {
    None,
    /// It is chosen, but its workload does not want it any more.
    Unwanted,
    Member,
}

/// What a pod is to a budget, judged by itself.
pub(crate) fn membership(
    budget: &Budget,
    name: &str,
    label: impl Fn(&str) -> Option<String>,
    controller: Option<&Controller>,
    owners: &Owners<'_>,
) -> Result<Membership, Controller> {
    if let Chosen::Selected(rule) = &budget.pods {
        let labels: HashMap<&str, Option<String>> =
            rule.expressions().iter().map(|each| (each.key.as_str(), label(&each.key))).collect();
        if !rule.matches(|key| labels.get(key).and_then(Option::as_deref)) {
            return Ok(Membership::None);
        }
    }
    let chain = controller.map(|controller| owners.chain(controller)).transpose().map_err(Clone::clone)?;
    let chain = match (&budget.pods, chain) {
        (Chosen::Selected(_), None) => return Ok(Membership::Member),
        (Chosen::Selected(_), Some(chain)) => chain,
        (Chosen::Of(_), None) => return Ok(Membership::None),
        (Chosen::Of(target), Some(chain)) => match chain.up_to(target) {
            Some(chain) => chain,
            None => return Ok(Membership::None),
        },
    };
    let unwanted =
        chain.ending || chain.is_surplus(name) || chain.wants().is_some_and(|(_, wants)| wants == 0);
    Ok(if unwanted { Membership::Unwanted } else { Membership::Member })
}

/// A budget's numbers, without reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) total: i64,
    pub(crate) available: HashSet<Box<str>>,
}

/// Counts the pods of a budget, or tells which owners must be asked about first.
pub(crate) fn census(
    budget: &Budget,
    namespace: &str,
    pods: Option<&NamespacePods>,
    owners: &Owners<'_>,
) -> Result<Census, Vec<Controller>> {
    let mut census = Census::default();
    let mut missing: HashSet<Controller> = HashSet::new();
    let mut selected: HashMap<*const (Arc<str>, Arc<str>), bool> = HashMap::new();
    let mut chains: HashMap<*const Controller, Option<Chain<'_>>> = HashMap::new();
    let mut wanted: HashMap<&str, i64> = HashMap::new();
    for (uid, pod) in pods.into_iter().flatten() {
        if let Chosen::Selected(rule) = &budget.pods {
            let matches = |labels: &Labels| rule.matches(|key| find(labels, key));
            if !*selected.entry(pod.labels.as_ptr()).or_insert_with(|| matches(&pod.labels)) {
                continue;
            }
        }
        let chain = match &pod.controller {
            None => None,
            Some(controller) => chains
                .entry(Arc::as_ptr(controller))
                .or_insert_with(|| match owners.chain(controller) {
                    Ok(chain) => match &budget.pods {
                        Chosen::Selected(_) => Some(chain),
                        Chosen::Of(target) => chain.up_to(target),
                    },
                    Err(unknown) => {
                        // One that is going tells nothing that the others don't.
                        if !pod.terminating {
                            missing.insert(unknown.clone());
                        }
                        None
                    }
                })
                .as_ref(),
        };
        match (&budget.pods, chain) {
            (Chosen::Of(_), None) => {}
            (_, Some(chain)) if chain.ending => {}
            (_, Some(chain)) => {
                if let Some(index) = chain.links.iter().rposition(|(_, workload)| workload.wants.is_some()) {
                    let (controller, workload) = chain.links[index];
                    wanted.insert(&controller.uid, workload.wants.unwrap_or_default());
                    if pod.available && workload.wants != Some(0) && !chain.is_surplus(&pod.name) {
                        census.available.insert(uid.clone());
                    }
                } else {
                    census.count_itself(uid, pod);
                }
            }
            // An unknown owner of a pod that is going: it counts neither way.
            (Chosen::Selected(_), None) if pod.controller.is_some() => {}
            (Chosen::Selected(_), None) => census.count_itself(uid, pod),
        }
    }
    if !missing.is_empty() {
        return Err(missing.into_iter().collect());
    }
    // A target wants its pods also while it has none.
    if let Chosen::Of(Target { group, kind, name }) = &budget.pods
        && wanted.is_empty()
        && let Some((uid, workload)) = owners.watched.find(namespace, group, kind, name)
        && workload.end.is_none()
    {
        wanted.insert(uid, workload.wants.unwrap_or_default());
    }
    census.total += wanted.values().sum::<i64>();
    Ok(census)
}

impl Census {
    /// A pod that nobody but itself wants.
    fn count_itself(&mut self, uid: &str, pod: &Pod) {
        self.total += i64::from(!pod.finished);
        if pod.available {
            self.available.insert(uid.into());
        }
    }
}

fn find<'a>(labels: &'a Labels, key: &str) -> Option<&'a str> {
    labels.iter().find(|(each, _)| &**each == key).map(|(_, value)| &**value)
}

/// The numbers that a status shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    pub available: i64,
    pub desired: i64,
    pub total: i64,
}

impl Numbers {
    pub(crate) fn of(budget: &Budget, census: &Census, status: &Status) -> Self {
        let reserved = census.available.iter().filter(|uid| status.reserves(uid)).count();
        let available = census.available.len() - reserved;
        Self {
            available: i64::try_from(available).unwrap_or(i64::MAX),
            desired: budget.limit.desired(census.total),
            total: census.total,
        }
    }

    pub fn allowed(&self) -> i64 {
        (self.available - self.desired).max(0)
    }

    /// Writes them into a status.
    pub(crate) fn show(&self, status: &mut Status, generation: Option<i64>) {
        status.observed_generation = generation;
        status.unavailable_allowed = self.allowed();
        status.current_available = self.available;
        status.desired_available = self.desired;
        status.total_replicas = self.total;
    }
}

/// A pod whose loss is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Loser {
    pub(crate) uid: Box<str>,
    /// The revision that was asked about.
    pub(crate) revision: Box<str>,
    /// Whether it goes for good, or is only taken down.
    pub(crate) goes: bool,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admitted {
    Yes,
    No(Numbers),
}

/// Admits as many as are allowed, in order, and reserves them. Returns whether there is anything to write.
pub(crate) fn admit(
    budget: &Budget,
    census: &Census,
    status: &mut Status,
    losers: &[Loser],
    now: Timestamp,
) -> (Vec<Admitted>, Numbers, bool) {
    let mut numbers = Numbers::of(budget, census, status);
    let mut changed = false;
    let admitted = losers.iter().map(|loser| {
        let uid = &*loser.uid;
        if status.reserves(uid) {
            let fresh = status.reserved_at.get(uid).is_some_and(|at| is_fresh(at, now));
            let same = !loser.goes || status.deleted_pods.contains_key(uid);
            if !fresh || !same {
                reserve(status, loser, now);
                changed = true;
            }
            return Admitted::Yes;
        }
        // The review knows better than the index whether the pod that it is about is available.
        let counted = census.available.contains(uid);
        let available = numbers.available + i64::from(!counted);
        if available - numbers.desired < 1 {
            return Admitted::No(numbers);
        }
        numbers.available = available - 1;
        reserve(status, loser, now);
        changed = true;
        Admitted::Yes
    });
    let admitted = admitted.collect();
    (admitted, numbers, changed)
}

fn is_fresh(at: &str, now: Timestamp) -> bool {
    let age = at.parse::<Timestamp>().map(|at| now.duration_since(at));
    age.is_ok_and(|age| age >= SignedDuration::ZERO && age < FRESH)
}

fn reserve(status: &mut Status, loser: &Loser, now: Timestamp) {
    let (uid, revision) = (loser.uid.to_string(), loser.revision.to_string());
    status.reserved_at.insert(uid.clone(), now.to_string());
    if loser.goes {
        status.unavailable_pods.remove(&uid);
        status.deleted_pods.insert(uid, revision);
    } else {
        status.unavailable_pods.insert(uid, revision);
    }
}

/// Gives a reservation back, because nothing came of it.
pub(crate) fn release(status: &mut Status, uid: &str) -> bool {
    let held = status.reserves(uid);
    status.deleted_pods.remove(uid);
    status.unavailable_pods.remove(uid);
    status.reserved_at.remove(uid);
    held
}

/// What has been seen of the pods.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    pub(crate) pods: Option<&'a NamespacePods>,
    pub(crate) revision: u64,
    pub(crate) event_revision: u64,
}

/// Drops the reservations whose loss has been seen, and those of pods that turned out to live on.
pub(crate) fn sweep(status: &mut Status, seen: Seen<'_>, lives_on: &HashSet<String>) {
    let mut dropped: Vec<String> = Vec::new();
    let mut by_sight = false;
    let reservations = status.deleted_pods.iter().map(|(uid, revision)| (uid, revision, true));
    let reservations =
        reservations.chain(status.unavailable_pods.iter().map(|(uid, revision)| (uid, revision, false)));
    for (uid, revision, goes) in reservations {
        let asked = number(revision);
        let lost = match seen.pods.and_then(|pods| pods.get(uid.as_str())) {
            Some(pod) if goes => pod.terminating,
            // What was seen before it was asked says nothing about what came of it.
            Some(pod) => pod.terminating || (pod.revision > asked && !pod.available),
            None => seen.revision >= asked,
        };
        if lost || lives_on.contains(uid) {
            by_sight |= lost;
            dropped.push(uid.clone());
        }
    }
    for uid in &dropped {
        release(status, uid);
    }
    if by_sight {
        let known = status.observed_pods_resource_version.as_deref().map_or(0, number);
        status.observed_pods_resource_version = Some(known.max(seen.event_revision).to_string());
    }
}

/// Whether somebody who has seen pods up to a revision may decide by a status.
pub(crate) fn has_seen_enough(status: &Status, revision: u64) -> bool {
    status.observed_pods_resource_version.as_deref().map_or(0, number) <= revision
}
