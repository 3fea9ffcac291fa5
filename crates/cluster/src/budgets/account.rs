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

use crate::budgets::pods::{Controller, Labels, NamespacePods, Pod, State};
use crate::budgets::workloads::{End, Workload, Workloads};
use crate::feed::number;

/// A reservation that is asked about again within this time is the same request: a forced delete asks three times.
const FRESH: SignedDuration = SignedDuration::from_secs(5);
/// How long a pod of which nothing came leaves the last slot to others.
const COOLING: SignedDuration = SignedDuration::from_secs(10);
/// How much two replicas' clocks may differ.
const SKEW: SignedDuration = SignedDuration::from_secs(60);
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
            let known = match self.watched.get_as(controller) {
                Some((workload, meant)) => meant.then_some(workload),
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

impl<'a> Chain<'a> {
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

    /// Who says how many pods are wanted: its uid, and how many. It is the lowest that has a say. But a `ReplicaSet` is
    /// one revision of what owns it, and a `UnitedDeployment` has parts; of other owners nobody knows what their scale
    /// counts: Prometheus' is shards.
    fn wants(&self) -> Option<(&'a str, i64)> {
        let says = |at: usize| self.links.get(at).is_some_and(|(_, workload)| workload.wants.is_some());
        let lowest = (0..self.links.len()).find(|at| says(*at))?;
        let is = |at: usize, group: &str, kind: &str| {
            let (controller, _) = self.links[at];
            *controller.group == *group && *controller.kind == *kind
        };
        let own = if is(lowest, "apps", "ReplicaSet") && says(lowest + 1) { lowest + 1 } else { lowest };
        let united =
            (own..self.links.len()).rfind(|at| is(*at, "apps.kruise.io", "UnitedDeployment") && says(*at));
        let (controller, workload) = self.links[united.unwrap_or(own)];
        Some((&*controller.uid, workload.wants?))
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
    /// The pods that are available, and the number of the workload whose they are.
    pub(crate) available: HashMap<Box<str>, usize>,
    /// How many pods each workload wants.
    wants: Vec<i64>,
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
    let mut chains: HashMap<*const Controller, Result<Option<Chain<'_>>, &Controller>> = HashMap::new();
    let mut wanted: HashMap<&str, usize> = HashMap::new();
    // Those that want themselves, each.
    census.wants.push(i64::MAX);
    for (uid, pod) in pods.into_iter().flatten() {
        if let Chosen::Selected(rule) = &budget.pods {
            let matches = |labels: &Labels| rule.matches(|key| find(labels, key));
            if !*selected.entry(pod.labels.as_ptr()).or_insert_with(|| matches(&pod.labels)) {
                continue;
            }
        }
        let chain = match &pod.controller {
            None => None,
            Some(controller) => {
                let known = chains.entry(Arc::as_ptr(controller)).or_insert_with(|| {
                    owners.chain(controller).map(|chain| match &budget.pods {
                        Chosen::Selected(_) => Some(chain),
                        Chosen::Of(target) => chain.up_to(target),
                    })
                });
                match known {
                    Ok(chain) => chain.as_ref(),
                    // A pod that is going tells nothing that the others don't.
                    Err(_) if pod.is_terminating() => None,
                    Err(unknown) => {
                        missing.insert((*unknown).clone());
                        None
                    }
                }
            }
        };
        match (&budget.pods, chain) {
            (Chosen::Of(_), None) => {}
            (_, Some(chain)) if chain.ending => {}
            (_, Some(chain)) => {
                if let Some((workload, wants)) = chain.wants() {
                    let number = *wanted.entry(workload).or_insert_with(|| {
                        census.wants.push(wants);
                        census.wants.len() - 1
                    });
                    if pod.is_available() && wants != 0 && !chain.is_surplus(&pod.name) {
                        census.available.insert(uid.clone(), number);
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
        && let Some(workload) = owners.watched.find(namespace, group, kind, name)
        && workload.end.is_none()
    {
        census.wants.push(workload.wants.unwrap_or_default());
    }
    census.total += census.wants[1..].iter().sum::<i64>();
    Ok(census)
}

impl Census {
    /// A pod that nobody but itself wants.
    fn count_itself(&mut self, uid: &str, pod: &Pod) {
        self.total += i64::from(pod.state != State::Finished);
        if pod.is_available() {
            self.available.insert(uid.into(), 0);
        }
    }
}

fn find<'a>(labels: &'a Labels, key: &str) -> Option<&'a str> {
    labels.iter().find(|(each, _)| &**each == key).map(|(_, value)| &**value)
}

/// The numbers that a status shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// How many more may be lost.
    pub allowed: i64,
    pub available: i64,
    pub desired: i64,
    pub total: i64,
}

impl Numbers {
    pub(crate) fn of(budget: &Budget, census: &Census, status: &Status) -> Self {
        Balance::of(budget, census, status).numbers()
    }

    /// Writes them into a status.
    pub(crate) fn show(&self, status: &mut Status, generation: Option<i64>) {
        status.observed_generation = generation;
        status.unavailable_allowed = self.allowed;
        status.current_available = self.available;
        status.desired_available = self.desired;
        status.total_replicas = self.total;
    }
}

/// What is left to spend, workload by workload: what one has beyond its own wish does not make up for what another
/// lacks, and is free to go.
struct Balance<'a> {
    census: &'a Census,
    /// Available pods of each workload, less those that are reserved.
    available: Vec<i64>,
    desired: i64,
}

impl<'a> Balance<'a> {
    fn of(budget: &Budget, census: &'a Census, status: &Status) -> Self {
        let mut available = vec![0; census.wants.len()];
        for (_, &number) in census.available.iter().filter(|(uid, _)| !status.reserves(uid)) {
            available[number] += 1;
        }
        Self { census, available, desired: budget.limit.desired(census.total) }
    }

    /// How many of those that are wanted may be lost.
    fn spare(&self) -> i64 {
        let counted: i64 =
            self.available.iter().zip(&self.census.wants).map(|(has, wants)| has.min(wants)).sum();
        counted - self.desired
    }

    fn numbers(&self) -> Numbers {
        let beyond: i64 =
            self.available.iter().zip(&self.census.wants).map(|(has, wants)| (has - wants).max(0)).sum();
        Numbers {
            allowed: beyond + self.spare().max(0),
            available: self.available.iter().sum(),
            desired: self.desired,
            total: self.census.total,
        }
    }

    /// Takes a pod out, if that is allowed.
    fn take(&mut self, uid: &str, last: bool) -> bool {
        // Whoever comes last leaves a slot for another.
        let left = i64::from(last);
        let Some(&number) = self.census.available.get(uid) else {
            // The review knows better than the index that it is available, and so one more is than was counted.
            return self.spare() >= left;
        };
        let free = self.available[number] > self.census.wants[number] || self.spare() > left;
        self.available[number] -= i64::from(free);
        free
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
    let mut balance = Balance::of(budget, census, status);
    let mut changed = false;
    let admitted = losers.iter().map(|loser| {
        let uid = &*loser.uid;
        if status.reserves(uid) {
            let deleted = status.deleted_pods.get(uid);
            let held = if loser.goes { deleted } else { deleted.or(status.unavailable_pods.get(uid)) };
            // Another revision is another request: what comes of the first must not end the second.
            let same = held.is_some_and(|revision| **revision == *loser.revision);
            let fresh = status.reserved_at.get(uid).is_some_and(|at| is_within(at, now, FRESH));
            // Nothing came of it, and it is asked for again. Whoever tries again and again does not hold a slot for
            // ever: it must end first, unless there is another.
            if held.is_some() && !fresh && balance.spare() < 1 {
                return Admitted::No(Numbers { allowed: 0, ..balance.numbers() });
            }
            if !fresh || !same {
                reserve(status, loser, if fresh { None } else { Some(now) });
                changed = true;
            }
            return Admitted::Yes;
        }
        let last = status.lived_on.get(uid).is_some_and(|at| is_within(at, now, COOLING));
        if !balance.take(uid, last) {
            return Admitted::No(Numbers { allowed: 0, ..balance.numbers() });
        }
        status.lived_on.remove(uid);
        reserve(status, loser, Some(now));
        changed = true;
        Admitted::Yes
    });
    let admitted = admitted.collect();
    (admitted, balance.numbers(), changed)
}

/// Whether something was no longer ago than that.
fn is_within(at: &str, now: Timestamp, longest: SignedDuration) -> bool {
    let age = at.parse::<Timestamp>().map(|at| now.duration_since(at));
    // Another replica's clock may be ahead of ours.
    age.is_ok_and(|age| age > -SKEW && age < longest)
}

/// Reserves; `since` is given where it begins anew.
fn reserve(status: &mut Status, loser: &Loser, since: Option<Timestamp>) {
    let (uid, revision) = (loser.uid.to_string(), loser.revision.to_string());
    if let Some(since) = since {
        status.reserved_at.insert(uid.clone(), since.to_string());
    }
    if loser.goes {
        status.unavailable_pods.remove(&uid);
        status.deleted_pods.insert(uid, revision);
    } else if let Some(known) = status.deleted_pods.get_mut(&uid) {
        // It goes all the same.
        *known = revision;
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

/// How a pod is that turned out to live on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Available,
    /// It is there, but does not serve: what was admitted may have been what took it down.
    Down,
}

/// Drops the reservations whose loss has been seen, and those of pods that turned out to live on.
pub(crate) fn sweep(status: &mut Status, seen: Seen<'_>, lives_on: &HashMap<String, Life>, now: Timestamp) {
    let mut dropped: Vec<String> = Vec::new();
    let mut by_sight = false;
    let reservations = status.deleted_pods.iter().map(|(uid, revision)| (uid, revision, true));
    let reservations =
        reservations.chain(status.unavailable_pods.iter().map(|(uid, revision)| (uid, revision, false)));
    for (uid, revision, goes) in reservations {
        let asked = number(revision);
        let pod = seen.pods.and_then(|pods| pods.get(uid.as_str()));
        let lost = match pod {
            Some(pod) if goes => pod.is_terminating(),
            // What was seen before it was asked says nothing about what came of it.
            Some(pod) => pod.is_terminating() || (pod.revision > asked && !pod.is_available()),
            None => seen.revision >= asked,
        };
        let lives = lives_on.get(uid);
        // That it is down must have been seen, or it would be counted as available without its reservation.
        let down = lives == Some(&Life::Down) && pod.is_some_and(|pod| !pod.is_available());
        if lost || down || lives == Some(&Life::Available) {
            by_sight |= lost || down;
            dropped.push(uid.clone());
        }
    }
    status.lived_on.retain(|_, at| is_within(at, now, COOLING));
    for uid in &dropped {
        release(status, uid);
        if lives_on.contains_key(uid) {
            status.lived_on.insert(uid.clone(), now.to_string());
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budgets::pods::Pods;
    use crate::budgets::workloads::Scale;
    use crate::feed::Fed;
    use palisade_engine::Object;
    use rstest::rstest;
    use serde_json::{Value, json};

    /// A namespace of workloads and pods.
    #[derive(Default)]
    struct Shop {
        workloads: Workloads,
        pods: Pods,
        gone: HashMap<Box<str>, Option<Workload>>,
        number: u64,
    }

    fn owner(kind: &str, name: &str) -> Value {
        let (kind, group) = kind.split_once('.').unwrap_or((kind, "apps"));
        json!([{"apiVersion": format!("{group}/v1"), "kind": kind, "name": name, "uid": name, "controller": true}])
    }

    impl Shop {
        /// A workload: `kind`, name, how many it wants, and the `kind` and name of its owner.
        fn workload(mut self, kind: &str, name: &str, wants: i64, above: Option<(&str, &str)>) -> Self {
            self = self.workload_with(kind, name, &json!({"replicas": wants}), above, &json!({}));
            self
        }

        fn workload_with(
            mut self,
            kind: &str,
            name: &str,
            spec: &Value,
            above: Option<(&str, &str)>,
            metadata: &Value,
        ) -> Self {
            let (kind, group) = kind.split_once('.').unwrap_or((kind, "apps"));
            let mut object = json!({"metadata": {"name": name, "namespace": "shop", "uid": name, "resourceVersion": "1"},
                "spec": spec, "status": {"replicas": 1}});
            if let Some((kind, name)) = above {
                object["metadata"]["ownerReferences"] = owner(kind, name);
            }
            for (key, value) in metadata.as_object().unwrap() {
                object["metadata"][key] = value.clone();
            }
            let text = object.to_string();
            let object = Object::parse(text.as_bytes()).unwrap();
            let scale = Scale::known(group, kind).unwrap_or(Scale(None));
            self.workloads.take(
                &Fed::Applied(&object),
                &(group.into(), kind.into()),
                &scale,
                &mut HashSet::new(),
            );
            self
        }

        /// So many pods of a workload, available or not.
        fn pods(mut self, count: usize, available: bool, of: Option<(&str, &str)>) -> Self {
            for _ in 0..count {
                self.number += 1;
                let name = format!("{}-{}", of.map_or("pod", |(_, name)| name), self.number - 1);
                self = self.pod(&name, available, of, &json!({}));
            }
            self
        }

        fn pod(mut self, name: &str, available: bool, of: Option<(&str, &str)>, metadata: &Value) -> Self {
            let ready = if available { "True" } else { "False" };
            let mut object = json!({"metadata": {"name": name, "namespace": "shop", "uid": name, "resourceVersion": "9",
                    "labels": {"app": "web"}},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}});
            if let Some((kind, name)) = of {
                object["metadata"]["ownerReferences"] = owner(kind, name);
            }
            for (key, value) in metadata.as_object().unwrap() {
                object["metadata"][key] = value.clone();
            }
            let text = object.to_string();
            self.pods.take(&Fed::Applied(&Object::parse(text.as_bytes()).unwrap()), &mut HashSet::new());
            self
        }

        fn gone(mut self, uid: &str) -> Self {
            self.gone.insert(uid.into(), None);
            self
        }

        /// Total, available and desired.
        fn count(&self, spec: &Value) -> (i64, i64, i64) {
            let budget = Budget::read(spec).unwrap();
            let owners = Owners { watched: &self.workloads, asked: &self.gone };
            let census = census(&budget, "shop", self.pods.of_namespace("shop"), &owners).unwrap();
            let Numbers { available, desired, total, .. } = Numbers::of(&budget, &census, &Status::default());
            (total, available, desired)
        }
    }

    fn all() -> Value {
        json!({"selector": {"app": "web"}, "maxUnavailable": 1})
    }

    fn of(api: &str, kind: &str, name: &str) -> Value {
        json!({"targetRef": {"apiVersion": api, "kind": kind, "name": name}, "maxUnavailable": 1})
    }

    #[test]
    fn a_deployment_in_the_middle_of_a_roll_counts_once() {
        let shop = Shop::default()
            .workload("Deployment", "web", 10, None)
            .workload("ReplicaSet", "web-1", 8, Some(("Deployment", "web")))
            .workload("ReplicaSet", "web-2", 5, Some(("Deployment", "web")))
            .pods(8, true, Some(("ReplicaSet", "web-1")))
            .pods(5, false, Some(("ReplicaSet", "web-2")));
        assert_eq!(shop.count(&all()), (10, 8, 9));
        assert_eq!(shop.count(&of("apps", "Deployment", "web")), (10, 8, 9));
        assert_eq!(
            shop.count(&of("apps/v1", "ReplicaSet", "web-1")),
            (8, 8, 7),
            "a target stands for itself"
        );
        assert_eq!(shop.count(&of("apps/v1", "Deployment", "other")), (0, 0, 0));
        assert_eq!(
            shop.count(&of("apps.kruise.io", "Deployment", "web")),
            (0, 0, 0),
            "another group is another kind"
        );
    }

    #[test]
    fn several_workloads_add_up_and_pods_without_one_count_themselves() {
        let shop = Shop::default()
            .workload("StatefulSet", "db", 3, None)
            .workload("CloneSet.apps.kruise.io", "clones", 4, None)
            .pods(3, true, Some(("StatefulSet", "db")))
            .pods(4, true, Some(("CloneSet.apps.kruise.io", "clones")))
            .pods(2, true, None)
            .pod("down", false, None, &json!({}))
            .pod("going", true, None, &json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}));
        assert_eq!(shop.count(&all()), (3 + 4 + 4, 3 + 4 + 2, 10));
    }

    #[test]
    fn the_highest_that_says_how_many_it_wants_decides() {
        let united = ("UnitedDeployment.apps.kruise.io", "ud");
        let shop = Shop::default()
            .workload("UnitedDeployment.apps.kruise.io", "ud", 10, None)
            .workload("StatefulSet", "ud-a", 4, Some(united))
            .workload("StatefulSet", "ud-b", 4, Some(united))
            .pods(4, true, Some(("StatefulSet", "ud-a")));
        assert_eq!(shop.count(&of("apps.kruise.io/v1alpha1", "UnitedDeployment", "ud")), (10, 4, 9));
        assert_eq!(shop.count(&all()), (10, 4, 9));
        let operator = ("Kafka.example.com", "k");
        let shop = Shop::default()
            .workload("Kafka.example.com", "k", 99, None)
            .workload("StatefulSet", "brokers", 3, Some(operator))
            .pods(3, true, Some(("StatefulSet", "brokers")));
        assert_eq!(shop.count(&of("example.com/v1", "Kafka", "k")), (3, 3, 2), "its own kind has no scale");
    }

    #[test]
    fn a_target_without_pods_wants_them_all_the_same() {
        let shop = Shop::default().workload("Deployment", "web", 10, None);
        assert_eq!(shop.count(&of("apps", "Deployment", "web")), (10, 0, 9));
    }

    #[rstest]
    #[case::deployment_gone("web", json!({}), true)]
    #[case::deleted_in_the_foreground("", json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["foregroundDeletion"]}), true)]
    #[case::orphaning("", json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["orphan"]}), false)]
    fn a_workload_that_goes_takes_its_pods(#[case] gone: &str, #[case] metadata: Value, #[case] free: bool) {
        let mut shop = Shop::default();
        if gone.is_empty() {
            shop = shop.workload_with("Deployment", "web", &json!({"replicas": 3}), None, &metadata);
        }
        let shop = shop
            .workload("ReplicaSet", "web-1", 3, Some(("Deployment", "web")))
            .pods(3, true, Some(("ReplicaSet", "web-1")))
            .gone("web");
        assert_eq!(shop.count(&all()), if free { (0, 0, 0) } else { (3, 3, 2) });
    }

    #[test]
    fn what_a_workload_no_longer_wants_is_not_counted_on() {
        let of_db = Some(("StatefulSet", "db"));
        let shop = Shop::default()
            .workload("StatefulSet", "db", 2, None)
            .pod("db-0", false, of_db, &json!({}))
            .pod("db-1", true, of_db, &json!({}))
            .pod("db-2", true, of_db, &json!({}));
        assert_eq!(shop.count(&all()), (2, 1, 1));
        let budget = Budget::read(&all()).unwrap();
        let owners = Owners { watched: &shop.workloads, asked: &shop.gone };
        let db = Controller {
            uid: "db".into(),
            group: "apps".into(),
            kind: "StatefulSet".into(),
            name: "db".into(),
        };
        let is =
            |name: &str| membership(&budget, name, |_| Some("web".to_owned()), Some(&db), &owners).unwrap();
        assert_eq!(
            (is("db-1"), is("db-2"), is("db-10")),
            (Membership::Member, Membership::Unwanted, Membership::Unwanted)
        );
        let none =
            Shop::default().workload("Deployment", "web", 0, None).pods(3, true, Some(("Deployment", "web")));
        assert_eq!(none.count(&all()), (0, 0, 0));
    }

    #[test]
    fn an_owner_that_nobody_knows_is_asked_for_but_not_for_a_pod_that_goes() {
        let budget = Budget::read(&all()).unwrap();
        let count = |shop: &Shop| {
            let owners = Owners { watched: &shop.workloads, asked: &shop.gone };
            census(&budget, "shop", shop.pods.of_namespace("shop"), &owners)
        };
        let shop = Shop::default().pods(2, true, Some(("ReplicaSet", "web-1")));
        assert_eq!(count(&shop).unwrap_err().iter().map(|owner| &*owner.name).collect::<Vec<_>>(), ["web-1"]);
        let going = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        // In whatever order they come.
        for number in 0..8 {
            let name = format!("going-{number}");
            let shop = Shop::default().pod(&name, true, Some(("ReplicaSet", "web-1")), &going).pods(
                1,
                true,
                Some(("ReplicaSet", "web-1")),
            );
            assert!(count(&shop).is_err(), "{name}");
        }
        let shop = Shop::default().pod("x", true, Some(("ReplicaSet", "web-1")), &going);
        assert_eq!(count(&shop).map(|census| (census.total, census.available.len())), Ok((0, 0)));
    }

    fn loser(uid: &str, goes: bool) -> Loser {
        Loser { uid: uid.into(), revision: "9".into(), goes }
    }

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn as_many_are_admitted_as_are_allowed_and_each_once() {
        let budget = Budget::read(&json!({"selector": {}, "maxUnavailable": 2})).unwrap();
        let shop =
            Shop::default().workload("Deployment", "web", 4, None).pods(4, true, Some(("Deployment", "web")));
        let owners = Owners { watched: &shop.workloads, asked: &shop.gone };
        let census = census(&budget, "shop", shop.pods.of_namespace("shop"), &owners).unwrap();
        let mut status = Status::default();
        let losers: Vec<Loser> = ["web-0", "web-0", "web-1", "web-2"].map(|uid| loser(uid, true)).into();
        let (admitted, numbers, changed) = admit(&budget, &census, &mut status, &losers, second(100));
        let spent = Numbers { allowed: 0, available: 2, desired: 2, total: 4 };
        assert_eq!(admitted, [Admitted::Yes, Admitted::Yes, Admitted::Yes, Admitted::No(spent)]);
        assert_eq!((numbers, changed), (spent, true));
        assert_eq!(status.deleted_pods.keys().collect::<Vec<_>>(), ["web-0", "web-1"]);
        let again = |status: &mut Status, loser: &Loser, at| {
            admit(&budget, &census, status, std::slice::from_ref(loser), second(at))
        };
        assert!(!again(&mut status, &losers[0], 104).2, "asked again at once: nothing to write");
        let spent = Admitted::No(Numbers { allowed: 0, available: 2, desired: 2, total: 4 });
        assert_eq!(again(&mut status, &losers[0], 105).0, [spent], "nothing came of it: others have a turn");
        let unseen = again(&mut status, &loser("just-ready", true), 105);
        assert_eq!(unseen.0, [Admitted::Yes], "the review knows that it is available, and so one more is");
    }

    #[test]
    fn whoever_nothing_came_of_leaves_the_last_slot_to_others() {
        let budget = Budget::read(&json!({"selector": {}, "maxUnavailable": 2})).unwrap();
        let shop =
            Shop::default().workload("Deployment", "web", 4, None).pods(4, true, Some(("Deployment", "web")));
        let owners = Owners { watched: &shop.workloads, asked: &shop.gone };
        let census = census(&budget, "shop", shop.pods.of_namespace("shop"), &owners).unwrap();
        let ask = |status: &mut Status, uid: &str, at| {
            admit(&budget, &census, status, &[loser(uid, true)], second(at)).0 == [Admitted::Yes]
        };
        let cooling = |uid: &str| Status {
            lived_on: [(uid.to_owned(), second(100).to_string())].into(),
            ..Status::default()
        };
        assert!(ask(&mut cooling("web-0"), "web-0", 101), "there are two slots");
        let mut status = cooling("web-0");
        assert!(ask(&mut status, "web-1", 101));
        assert!(!ask(&mut status, "web-0", 101), "the last one is for others");
        assert!(ask(&mut status.clone(), "web-2", 102));
        assert!(ask(&mut status, "web-0", 110), "or for it, if nobody wanted it");
    }

    #[test]
    fn what_one_workload_has_too_many_does_not_make_up_for_what_another_lacks() {
        let shop = Shop::default()
            .workload("Deployment", "a", 3, None)
            .workload("Deployment", "b", 3, None)
            .pods(5, true, Some(("Deployment", "a")))
            .pods(1, true, Some(("Deployment", "b")))
            .pods(2, false, Some(("Deployment", "b")));
        let budget = Budget::read(&json!({"selector": {}, "maxUnavailable": 1})).unwrap();
        let owners = Owners { watched: &shop.workloads, asked: &shop.gone };
        let census = census(&budget, "shop", shop.pods.of_namespace("shop"), &owners).unwrap();
        let mut status = Status::default();
        let losers: Vec<Loser> = ["b-5", "a-0", "a-1", "a-2"].map(|uid| loser(uid, true)).into();
        let (admitted, numbers, _) = admit(&budget, &census, &mut status, &losers, second(0));
        let refused: Vec<bool> = admitted.iter().map(|admitted| *admitted != Admitted::Yes).collect();
        assert_eq!(refused, [true, false, false, true], "a scale-down goes on, and no further");
        assert_eq!((numbers.allowed, numbers.available, numbers.desired, numbers.total), (0, 4, 5, 6));
    }

    #[test]
    fn a_scale_that_counts_something_else_is_not_taken_for_pods() {
        let prometheus = ("Prometheus.example.com", "p");
        let mut shop = Shop::default().workload("StatefulSet", "p-0", 4, Some(prometheus)).pods(
            4,
            true,
            Some(("StatefulSet", "p-0")),
        );
        let text = json!({"metadata": {"name": "p", "namespace": "shop", "uid": "p", "resourceVersion": "1"}, "spec": {"shards": 1}}).to_string();
        let object = Object::parse(text.as_bytes()).unwrap();
        let kind = ("example.com".into(), "Prometheus".into());
        shop.workloads.take(&Fed::Applied(&object), &kind, &Scale::at(".spec.shards"), &mut HashSet::new());
        assert_eq!(shop.count(&all()), (4, 4, 3));
        assert_eq!(shop.count(&of("example.com/v1", "Prometheus", "p")), (4, 4, 3));
    }

    #[test]
    fn an_owner_by_another_name_is_none() {
        let shop = Shop::default().workload("ReplicaSet", "web-1", 3, None);
        let owners = Owners { watched: &shop.workloads, asked: &shop.gone };
        let budget = Budget::read(&all()).unwrap();
        let is = |kind: &str, name: &str| {
            let forged = Controller {
                uid: "web-1".into(),
                group: "apps".into(),
                kind: kind.into(),
                name: name.into(),
            };
            membership(&budget, "x", |_| Some("web".to_owned()), Some(&forged), &owners).unwrap()
        };
        assert_eq!(
            (is("ReplicaSet", "web-1"), is("ReplicaSet", "web-2"), is("Deployment", "web-1")),
            (Membership::Member, Membership::Unwanted, Membership::Unwanted)
        );
    }

    #[test]
    fn a_loss_that_has_been_seen_is_no_longer_reserved() {
        let of_web = Some(("Deployment", "web"));
        let going = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "12"});
        let shop = Shop::default()
            .pod("staying", true, of_web, &json!({}))
            .pod("going", false, of_web, &going)
            .pod("down", false, of_web, &json!({"resourceVersion": "13"}))
            .pod("down-before", false, of_web, &json!({"resourceVersion": "9"}));
        let mut status = Status::default();
        for (uid, goes) in [
            ("staying", true),
            ("going", true),
            ("gone", true),
            ("down", false),
            ("down-before", false),
            ("up", false),
        ] {
            reserve(&mut status, &loser(uid, goes), Some(second(0)));
        }
        let seen = Seen { pods: shop.pods.of_namespace("shop"), revision: 20, event_revision: 13 };
        let lives_on = HashMap::from([("down-before".to_owned(), Life::Available)]);
        sweep(&mut status, seen, &lives_on, second(0));
        assert_eq!(status.lived_on.keys().collect::<Vec<_>>(), ["down-before"]);
        assert_eq!(status.deleted_pods.keys().collect::<Vec<_>>(), ["staying"]);
        assert!(status.unavailable_pods.is_empty());
        assert_eq!(status.reserved_at.len(), 1);
        assert_eq!(status.observed_pods_resource_version.as_deref(), Some("13"));
        assert!(has_seen_enough(&status, 13) && !has_seen_enough(&status, 12));
    }
}
