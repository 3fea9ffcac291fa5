//! A budget's account, without any I/O: what is admitted of what was counted, and what is let go of.
//!
//! ```text
//! available = pods that it chose, are wanted and available, less those whose loss is reserved
//! desired   = what its limit asks for, of all that the workloads want
//! allowed   = available − desired
//! ```
//!
//! A reservation is made when the loss of a pod is admitted ([`admit`]), and dropped once the loss has been seen
//! ([`sweep`]); then `observedPodsResourceVersion` says how much one must have seen to count rightly without it.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use palisade_api::budget::{Budget, Status};

use crate::budgets::census::Census;
use crate::budgets::pods::NamespacePods;
use crate::feed::number;

/// A reservation that is asked about again within this time is the same request: a forced delete asks three times.
const FRESH: SignedDuration = SignedDuration::from_secs(5);
/// How long a pod of which nothing came leaves the last slot to others.
const COOLING: SignedDuration = SignedDuration::from_secs(10);
/// How many losses may be admitted that have not been seen yet. It bounds the status, which all of them are kept in: more
/// are refused until some have been seen.
const MOST_RESERVED: usize = 1_000;
/// How much two replicas' clocks may differ.
const SKEW: SignedDuration = SignedDuration::from_secs(60);

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
        Self { census, available, desired: budget.desired(census.total) }
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
    /// Whether somebody else may still refuse it.
    pub(crate) tentative: bool,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admitted {
    /// It is reserved now, as of a time by which it can be given back.
    Reserved(Timestamp),
    /// It was reserved already.
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
            // Whoever asked first must not give back what somebody else relies on: that takes another time.
            let since =
                (status.tentative.remove(uid) || !fresh).then(|| later(status.reserved_at.get(uid), now));
            if since.is_some() || !same {
                reserve(status, loser, since);
                changed = true;
            }
            return Admitted::Yes;
        }
        let last = status.lived_on.get(uid).is_some_and(|at| is_within(at, now, COOLING));
        let full = status.deleted_pods.len() + status.unavailable_pods.len() >= MOST_RESERVED;
        if full || !balance.take(uid, last) {
            return Admitted::No(Numbers { allowed: 0, ..balance.numbers() });
        }
        status.lived_on.remove(uid);
        reserve(status, loser, Some(now));
        if loser.tentative {
            status.tentative.insert(uid.to_owned());
        }
        changed = true;
        Admitted::Reserved(now)
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

/// Now, but not the same as before.
fn later(before: Option<&String>, now: Timestamp) -> Timestamp {
    let same = before.is_some_and(|before| *before == now.to_string());
    if same { now.saturating_add(SignedDuration::from_nanos(1)).unwrap_or(now) } else { now }
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

/// Gives back what was reserved at a time, unless somebody relies on it meanwhile.
pub(crate) fn release(status: &mut Status, uid: &str, at: Timestamp) -> bool {
    let held = status.reserved_at.get(uid).is_some_and(|since| *since == at.to_string());
    if held {
        forget(status, uid);
    }
    held
}

fn forget(status: &mut Status, uid: &str) {
    status.deleted_pods.remove(uid);
    status.unavailable_pods.remove(uid);
    status.reserved_at.remove(uid);
    status.tentative.remove(uid);
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
        forget(status, uid);
        if lives_on.contains_key(uid) && status.lived_on.len() < MOST_RESERVED {
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
    use crate::budgets::shop::Shop;
    use serde_json::json;

    fn loser(uid: &str, goes: bool) -> Loser {
        Loser { uid: uid.into(), revision: "9".into(), goes, tentative: false }
    }

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn as_many_are_admitted_as_are_allowed_and_each_once() {
        let budget = Budget::read(&json!({"selector": {}, "maxUnavailable": 2})).unwrap();
        let shop =
            Shop::default().workload("Deployment", "web", 4, None).pods(4, true, Some(("Deployment", "web")));
        let census = shop.census(&budget);
        let mut status = Status::default();
        let losers: Vec<Loser> = ["web-0", "web-0", "web-1", "web-2"].map(|uid| loser(uid, true)).into();
        let (admitted, numbers, changed) = admit(&budget, &census, &mut status, &losers, second(100));
        let spent = Numbers { allowed: 0, available: 2, desired: 2, total: 4 };
        let reserved = Admitted::Reserved(second(100));
        assert_eq!(admitted, [reserved, Admitted::Yes, reserved, Admitted::No(spent)]);
        assert_eq!((numbers, changed), (spent, true));
        assert_eq!(status.deleted_pods.keys().collect::<Vec<_>>(), ["web-0", "web-1"]);
        let again = |status: &mut Status, loser: &Loser, at| {
            admit(&budget, &census, status, std::slice::from_ref(loser), second(at))
        };
        assert!(!again(&mut status, &losers[0], 104).2, "asked again at once: nothing to write");
        let spent = Admitted::No(Numbers { allowed: 0, available: 2, desired: 2, total: 4 });
        assert_eq!(again(&mut status, &losers[0], 105).0, [spent], "nothing came of it: others have a turn");
        let unseen = again(&mut status, &loser("just-ready", true), 105);
        assert_eq!(
            unseen.0,
            [Admitted::Reserved(second(105))],
            "the review knows that it is available, and so one more is"
        );
    }

    #[test]
    fn what_somebody_else_relies_on_is_not_given_back() {
        let budget = Budget::read(&json!({"selector": {}, "maxUnavailable": 1})).unwrap();
        let shop =
            Shop::default().workload("Deployment", "web", 2, None).pods(2, true, Some(("Deployment", "web")));
        let census = shop.census(&budget);
        let mut status = Status::default();
        let asked = Loser { tentative: true, ..loser("web-0", true) };
        let ask = |status: &mut Status| {
            admit(&budget, &census, status, std::slice::from_ref(&asked), second(100)).0
        };
        assert_eq!(ask(&mut status), [Admitted::Reserved(second(100))]);
        assert!(release(&mut status.clone(), "web-0", second(100)), "nobody else wants it");
        assert_eq!(ask(&mut status), [Admitted::Yes]);
        assert!(!release(&mut status, "web-0", second(100)), "somebody does");
        assert!(status.tentative.is_empty());
        assert!(status.reserves("web-0"));
    }

    #[test]
    fn whoever_nothing_came_of_leaves_the_last_slot_to_others() {
        let budget = Budget::read(&json!({"selector": {}, "maxUnavailable": 2})).unwrap();
        let shop =
            Shop::default().workload("Deployment", "web", 4, None).pods(4, true, Some(("Deployment", "web")));
        let census = shop.census(&budget);
        let ask = |status: &mut Status, uid: &str, at| {
            !matches!(
                admit(&budget, &census, status, &[loser(uid, true)], second(at)).0[..],
                [Admitted::No(_)]
            )
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
        let census = shop.census(&budget);
        let mut status = Status::default();
        let losers: Vec<Loser> = ["b-5", "a-0", "a-1", "a-2"].map(|uid| loser(uid, true)).into();
        let (admitted, numbers, _) = admit(&budget, &census, &mut status, &losers, second(0));
        let refused: Vec<bool> =
            admitted.iter().map(|admitted| matches!(admitted, Admitted::No(_))).collect();
        assert_eq!(refused, [true, false, false, true], "a scale-down goes on, and no further");
        assert_eq!((numbers.allowed, numbers.available, numbers.desired, numbers.total), (0, 4, 5, 6));
    }

    #[test]
    fn a_status_stays_small_whatever_is_asked_for() {
        let budget = Budget::read(&json!({"selector": {}, "maxUnavailable": "100%"})).unwrap();
        let shop =
            Shop::default().workload("Deployment", "web", 1, None).pods(1, true, Some(("Deployment", "web")));
        let census = shop.census(&budget);
        let mut status = Status::default();
        let ask = |number: usize| Loser {
            uid: format!("{number:0>128}").into(),
            revision: u64::MAX.to_string().into(),
            goes: number.is_multiple_of(2),
            tentative: true,
        };
        let losers: Vec<Loser> = (0..MOST_RESERVED + 2).map(ask).collect();
        let (admitted, _, _) = admit(&budget, &census, &mut status, &losers, second(0));
        let refused = admitted.iter().filter(|admitted| matches!(admitted, Admitted::No(_))).count();
        assert_eq!(refused, 2);
        assert!(serde_json::to_vec(&status).unwrap().len() < 512 << 10);
        let (again, _, _) = admit(&budget, &census, &mut status, &losers[..1], second(1));
        assert_eq!(again, [Admitted::Yes], "one that is reserved is no more");
        forget(&mut status, &losers[0].uid);
        let (next, _, _) = admit(&budget, &census, &mut status, &losers[MOST_RESERVED..], second(1));
        assert!(matches!(next[..], [Admitted::Reserved(_), Admitted::No(_)]), "one was seen: {next:?}");
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
