//! Sliding windows, without any I/O: what is admitted, what it counts for, and what is let go of.
//!
//! Each rule keeps what was admitted in its interval as at most [`BATCHES`] batches of a host's clock. A batch counts
//! whole until its last pod is old enough, so that a slot frees up to a fortieth of the interval late, and never early.

use std::collections::{BTreeSet, HashMap};

use jiff::{SignedDuration, Timestamp};
use palisade_api::flow::{Batch, Control, Interval, Pending, RuleStatus, Stamp, Status};

use super::advance::{Advance, Terms};
use super::clock::Reading;
use super::departures::Departure;
use super::refusals::keep_refusals;
use crate::seconds;

/// A batch spans one part in so many of its interval.
const BATCHES: i64 = 40;
/// What other hosts' clocks showed is told in our own where there would be more of them.
const MOST_CLOCKS: usize = 3;
/// Above this, the oldest are given up: they stay counted, whatever comes of them.
const MOST_PENDING: usize = 1_000;
/// A deletion that is asked about again within this time is the same request: a forced one asks three times.
const SAME: i64 = 500;
/// Within this time it may be, on a busy API server.
const FRESH: i64 = 5_000;
/// So long a pod is known that is gone at once: a deletion without grace is asked about again while the pod goes.
const LINGER: i64 = 2_000;
/// How long a pod of which nothing came leaves the last slot to others.
const COOLING: i64 = 10_000;

/// A pod whose deletion is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Removal {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Whether it is counted beyond the limit, too.
    pub(crate) forced: bool,
    /// Whether somebody else may still refuse it.
    pub(crate) tentative: bool,
    /// Whether it stays counted though the pod is there: its status says that it has ended, or is not ready.
    pub(crate) lasting: bool,
}

/// A rule that does not allow more now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Beyond {
    pub(crate) interval: String,
    pub(crate) limit: i64,
    pub(crate) used: i64,
    /// After how many milliseconds it does; never, if it stops all.
    pub(crate) next: Option<i64>,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Charged {
    /// It counts now; if it did not before, it may be given back by its stamp.
    Yes(Option<Stamp>),
    /// It counts, though a rule does not allow it.
    Forced(Option<Stamp>, Beyond),
    No(Beyond),
}

/// A flow control's counts, at a moment.
pub(crate) struct Windows<'a> {
    status: &'a mut Status,
    reading: &'a Reading,
    lengths: Vec<i64>,
}

impl<'a> Windows<'a> {
    /// Brings a status up to now, and in step with what its control asks for. A rule with a new interval takes over
    /// what is known from the longest that there was.
    pub(crate) fn open(control: &Control, status: &'a mut Status, reading: &'a Reading) -> Self {
        let millis = |rule: &RuleStatus| Interval::read(&rule.interval).map_or(0, |interval| interval.millis);
        let before: Vec<(i64, RuleStatus)> =
            std::mem::take(&mut status.rules).into_iter().map(|rule| (millis(&rule), rule)).collect();
        let longest = before.iter().max_by_key(|(length, _)| *length);
        status.rules = control
            .rules
            .iter()
            .map(|rule| {
                let same = before.iter().find(|(length, _)| *length == rule.interval.millis);
                let mut admitted =
                    same.or(longest).map(|(_, rule)| rule.admitted.clone()).unwrap_or_default();
                admitted.retain(|batch| reading.age(&batch.clock, batch.until) < rule.interval.millis);
                RuleStatus {
                    interval: rule.interval.to_string(),
                    limit: rule.limit,
                    next_slot_at: same.and_then(|(_, rule)| rule.next_slot_at.clone()),
                    admitted,
                    ..RuleStatus::default()
                }
            })
            .collect();
        status.lived_on.retain(|_, stamp| reading.age_of(stamp) < COOLING);
        Self { status, reading, lengths: control.rules.iter().map(|rule| rule.interval.millis).collect() }
    }

    /// Counts a deletion, if every rule allows it. Says also whether anything changed.
    pub(crate) fn charge(&mut self, removal: &Removal) -> (Charged, bool) {
        if let Some(pending) = self.status.pending.get(&removal.uid) {
            return self.charge_again(&pending.clone(), removal);
        }
        let cooling =
            self.status.lived_on.get(&removal.uid).map(|stamp| COOLING - self.reading.age_of(stamp));
        let beyond = match (self.beyond(1), cooling) {
            (None, Some(cooling)) => self.beyond(2).map(|beyond| Beyond { next: Some(cooling), ..beyond }),
            (beyond, _) => beyond,
        };
        match beyond {
            Some(beyond) if !removal.forced => (Charged::No(beyond), false),
            beyond => {
                self.status.lived_on.remove(&removal.uid);
                let stamp = self.count(removal, i64::MIN, 0);
                let charged = match beyond {
                    Some(beyond) => Charged::Forced(Some(stamp), beyond),
                    None => Charged::Yes(Some(stamp)),
                };
                (charged, true)
            }
        }
    }

    /// Counts a deletion that was admitted before, by a stamp, as of now: one pod is one, and goes now if it goes.
    fn charge_again(&mut self, known: &Pending, removal: &Removal) -> (Charged, bool) {
        let stamp = &known.stamp;
        let age = self.reading.age_of(stamp);
        let asked_for = known.asked_for + age;
        let counted =
            self.status.rules.iter().all(|rule| rule.admitted.iter().any(|batch| holds(batch, stamp)));
        // Whoever asked first must not give back what somebody else relies on: that takes another stamp.
        if age < SAME && stamp.clock == self.reading.clock && counted && !known.tentative {
            return (Charged::Yes(None), false);
        }
        // Nothing came of it, and it is asked for again. Whoever tries again and again does not hold a slot for ever:
        // it must end first, unless there is another.
        let another = self.beyond(1);
        if let (true, false, Some(beyond)) = (asked_for >= FRESH, removal.forced, another) {
            return (Charged::No(beyond), false);
        }
        let rules = self.status.rules.clone();
        self.uncount(stamp, 1);
        // Only whoever charged it first may give it back.
        let lasting = removal.lasting || known.lasting;
        let removal = &Removal { tentative: false, lasting, ..removal.clone() };
        let after = if stamp.clock == self.reading.clock { stamp.at } else { i64::MIN };
        match self.beyond(1) {
            Some(beyond) if !removal.forced => {
                self.status.rules = rules;
                (Charged::No(beyond), false)
            }
            Some(beyond) => {
                self.count(removal, after, asked_for);
                (Charged::Forced(None, beyond), true)
            }
            None => {
                self.count(removal, after, asked_for);
                (Charged::Yes(None), true)
            }
        }
    }

    /// Gives back what was charged with a stamp, unless somebody relies on it meanwhile.
    pub(crate) fn release(&mut self, uid: &str, stamp: &Stamp) -> bool {
        self.status.pending.get(uid).is_some_and(|pending| pending.tentative) && self.take_back(uid, stamp)
    }

    fn take_back(&mut self, uid: &str, stamp: &Stamp) -> bool {
        if self.status.pending.get(uid).is_none_or(|pending| pending.stamp != *stamp) {
            return false;
        }
        self.status.pending.remove(uid);
        self.uncount(stamp, 1);
        true
    }

    /// Forgets the pods that have been seen to go, and gives back what those hold that were seen to live on since a
    /// stamp.
    pub(crate) fn sweep(
        &mut self,
        departed: impl Fn(&str) -> Option<Departure>,
        lives_on: &HashMap<String, Stamp>,
    ) -> bool {
        let before = self.status.pending.len();
        self.status.pending.retain(|uid, pending| match departed(uid) {
            // It is known only for as long as the same request may be asked about again.
            None if pending.lasting => pending.tentative || self.reading.age_of(&pending.stamp) < FRESH,
            None => true,
            Some(Departure::Going) => false,
            Some(Departure::Gone) => self.reading.age_of(&pending.stamp) < LINGER,
        });
        let mut changed = self.status.pending.len() != before;
        for (uid, stamp) in lives_on {
            if self.status.pending.get(uid).is_some_and(|pending| pending.lasting) {
                changed |= self.status.pending.remove(uid).is_some();
            } else if self.take_back(uid, stamp) {
                let (clock, at) = (self.reading.clock.clone(), self.reading.now);
                self.status.lived_on.insert(uid.clone(), Stamp { clock, at });
                changed = true;
            }
        }
        changed
    }

    /// Tells what other hosts' clocks showed in our own. Batches with pods that may come back are left as they are,
    /// unless it is `all` that must be told: then those pods stay counted, whatever comes of them.
    pub(crate) fn fold(&mut self, all: bool) {
        let (reading, own) = (self.reading, &self.reading.clock);
        if all {
            self.status.pending.retain(|_, pending| pending.stamp.clock == *own);
        }
        for stamp in self.status.lived_on.values_mut() {
            stamp.at = reading.by_own(&stamp.clock, stamp.at);
            stamp.clock.clone_from(own);
        }
        let pending: Vec<&Stamp> = self.status.pending.values().map(|pending| &pending.stamp).collect();
        for (rule, length) in self.status.rules.iter_mut().zip(&self.lengths) {
            let stays = |batch: &Batch| {
                batch.clock == *own && !is_folded(batch) || pending.iter().any(|stamp| holds(batch, stamp))
            };
            let (mut staying, mut folded): (Vec<Batch>, Vec<Batch>) =
                std::mem::take(&mut rule.admitted).into_iter().partition(stays);
            for batch in &mut folded {
                batch.until = reading.by_own(&batch.clock, batch.until);
            }
            folded.sort_by_key(|batch| batch.until);
            let mut since = i64::MIN;
            for batch in folded {
                match staying.last_mut() {
                    Some(last)
                        if is_folded(last)
                            && last.clock == *own
                            && batch.until - since <= length / BATCHES =>
                    {
                        *last = fold_batch(last.pods + batch.pods, own, batch.until);
                    }
                    _ => {
                        since = batch.until;
                        staying.push(fold_batch(batch.pods, own, batch.until));
                    }
                }
            }
            rule.admitted = staying;
        }
    }

    /// Writes down how it stands, and what our clock shows.
    pub(crate) fn show(&mut self, generation: Option<i64>, now: Timestamp) {
        for all in [false, true] {
            if self.other_clocks().len() >= MOST_CLOCKS {
                self.fold(all);
            }
        }
        let clocks = self.other_clocks();
        self.status.clocks.retain(|clock, _| clocks.contains(clock));
        self.status.clocks.insert(self.reading.clock.clone(), self.reading.now);
        self.status.observed_generation = generation;
        for number in 0..self.status.rules.len() {
            let used = self.used(number);
            let next = self.next(number, 1).filter(|&next| next > 0);
            let rule = &mut self.status.rules[number];
            (rule.used, rule.remaining) = (used, (rule.limit - used).max(0));
            let next = next.and_then(|next| now.checked_add(SignedDuration::from_millis(next)).ok());
            rule.next_slot_at = next.map(|next| steady(rule.next_slot_at.as_deref(), next));
        }
        if let Some(tightest) = self.status.rules.iter().min_by_key(|rule| rule.remaining) {
            self.status.used = format!("{}/{}", tightest.used, tightest.limit);
            self.status.interval.clone_from(&tightest.interval);
        }
        keep_refusals(self.status, now);
    }

    /// The clocks of other hosts that something is told in.
    fn other_clocks(&self) -> BTreeSet<String> {
        let of_batches = self.status.rules.iter().flat_map(|rule| &rule.admitted).map(|batch| &batch.clock);
        let of_pods = self.status.pending.values().map(|pending| &pending.stamp.clock);
        let of_others = self.status.lived_on.values().map(|stamp| &stamp.clock);
        let all = of_batches.chain(of_pods).chain(of_others);
        all.filter(|clock| **clock != self.reading.clock).cloned().collect()
    }

    /// The rule that will be in the way of so many more for longest.
    pub(crate) fn beyond(&self, needed: i64) -> Option<Beyond> {
        let beyond = (0..self.status.rules.len()).filter_map(|number| {
            let (rule, used) = (&self.status.rules[number], self.used(number));
            (used + needed > rule.limit).then(|| Beyond {
                interval: rule.interval.clone(),
                limit: rule.limit,
                used,
                next: self.next(number, needed),
            })
        });
        beyond.max_by_key(|beyond| beyond.next.unwrap_or(i64::MAX))
    }

    /// Whether something counts.
    pub(crate) fn is_empty(&self) -> bool {
        self.status.rules.iter().all(|rule| rule.admitted.is_empty())
    }

    fn used(&self, number: usize) -> i64 {
        self.status.rules[number].admitted.iter().map(|batch| batch.pods).sum()
    }

    /// After how many milliseconds a rule allows so many more; `None` if it never will.
    fn next(&self, number: usize, needed: i64) -> Option<i64> {
        let (rule, length) = (&self.status.rules[number], self.lengths[number]);
        let mut excess = self.used(number) + needed - rule.limit;
        if excess <= 0 {
            return Some(0);
        }
        let left = |batch: &Batch| (length - self.reading.age(&batch.clock, batch.until), batch.pods);
        let mut batches: Vec<(i64, i64)> = rule.admitted.iter().map(left).collect();
        batches.sort_unstable();
        batches.into_iter().find_map(|(left, pods)| {
            excess -= pods;
            (excess <= 0).then_some(left.max(1))
        })
    }

    /// Counts a pod as deleted now, and returns the moment that it is known by: no two have the same, and none comes
    /// before the one that it was known by.
    fn count(&mut self, removal: &Removal, after: i64, asked_for: i64) -> Stamp {
        let stamp = self.add(self.reading.now, after, 1);
        let Removal { uid, namespace, name, tentative, lasting, .. } = removal.clone();
        let pending = Pending { namespace, name, stamp: stamp.clone(), asked_for, tentative, lasting };
        self.await_departure(uid, pending);
        stamp
    }

    /// Counts pods as of a moment of our own clock, or the next that nothing is known by.
    fn add(&mut self, at: i64, after: i64, pods: i64) -> Stamp {
        let clock = &self.reading.clock;
        let newest = self.status.rules.iter().flat_map(|rule| &rule.admitted);
        let newest = newest.filter(|batch| batch.clock == *clock).map(|batch| batch.until).max();
        let at = at.max(newest.map_or(after, |newest| newest.max(after)).saturating_add(1));
        for (rule, length) in self.status.rules.iter_mut().zip(&self.lengths) {
            let mut own = rule.admitted.iter_mut().filter(|batch| batch.clock == *clock && !is_folded(batch));
            match own.by_ref().max_by_key(|batch| batch.until) {
                Some(batch) if at - batch.from <= length / BATCHES => {
                    batch.pods += pods;
                    batch.until = at;
                }
                _ => rule.admitted.push(Batch { pods, clock: clock.clone(), from: at, until: at }),
            }
        }
        Stamp { clock: clock.clone(), at }
    }

    fn await_departure(&mut self, uid: String, pending: Pending) {
        self.status.pending.insert(uid, pending);
        if self.status.pending.len() > MOST_PENDING {
            let age = |pending: &Pending| self.reading.age_of(&pending.stamp);
            let oldest = self.status.pending.iter().max_by_key(|(_, pending)| age(pending));
            if let Some(oldest) = oldest.map(|(uid, _)| uid.clone()) {
                self.status.pending.remove(&oldest);
            }
        }
    }

    /// Charges slots in advance, if there are plenty, after so many were admitted at once.
    pub(crate) fn advance(&mut self, terms: Terms, admitted: usize) -> Option<(Stamp, i64)> {
        let rules = 0..self.status.rules.len();
        let least = rules.map(|number| self.status.rules[number].limit - self.used(number)).min()?;
        let pods = (least / terms.share).min(terms.most);
        if admitted < terms.busy || least < terms.ample || pods < 1 {
            return None;
        }
        let lasting = self.lengths.iter().map(|length| length / BATCHES).min()?.min(terms.lasting);
        Some((self.add(self.reading.now + lasting, i64::MIN, pods), pods))
    }

    /// Writes down who was admitted in advance, and gives back what was not used.
    pub(crate) fn settle(&mut self, advance: &Advance) {
        let mut unused = advance.left;
        for (uid, taken) in &advance.taken {
            let mut pending = taken.clone();
            // Another replica was asked about it, too. One pod is one, from when it was last admitted on.
            if let Some(other) = self.status.pending.get(uid).cloned() {
                if self.reading.age_of(&other.stamp) < self.reading.age_of(&taken.stamp) {
                    unused += 1;
                    pending = other;
                } else {
                    self.uncount(&other.stamp, 1);
                }
                pending.tentative = false;
            }
            self.await_departure(uid.clone(), pending);
        }
        self.uncount(&advance.stamp, unused);
    }

    /// Takes pods out of the batch that they were counted in, where that is there still.
    fn uncount(&mut self, stamp: &Stamp, pods: i64) {
        for rule in &mut self.status.rules {
            if let Some(batch) = rule.admitted.iter_mut().find(|batch| holds(batch, stamp)) {
                batch.pods -= pods;
            }
            rule.admitted.retain(|batch| batch.pods > 0);
        }
    }
}

/// A batch that was told in another host's clock before: it counts, but nobody knows any more which pods it holds.
fn fold_batch(pods: i64, clock: &str, until: i64) -> Batch {
    Batch { pods, clock: clock.to_owned(), from: until.saturating_add(1), until }
}

fn is_folded(batch: &Batch) -> bool {
    batch.from > batch.until
}

/// Whether a pod was counted in a batch.
fn holds(batch: &Batch, stamp: &Stamp) -> bool {
    batch.clock == stamp.clock && batch.from <= stamp.at && stamp.at <= batch.until
}

/// The time that was told before, if it was about the same: a status is not written for a second.
fn steady(before: Option<&str>, now: Timestamp) -> String {
    let same = |before: &&str| {
        let before = before.parse::<Timestamp>();
        before.is_ok_and(|before| now.duration_since(before).abs() < SignedDuration::from_secs(2))
    };
    before.filter(same).map_or_else(|| seconds(now), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::super::advance::TERMS;
    use super::super::clock::Offsets;
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;
    use std::collections::BTreeMap;

    fn control(rules: &[(&str, i64)]) -> Control {
        let rules: Vec<_> =
            rules.iter().map(|(interval, limit)| json!({"interval": interval, "limit": limit})).collect();
        Control::read(&json!({"limitRules": rules})).unwrap()
    }

    fn reading(now: i64) -> Reading {
        Offsets::default().read("own", now)
    }

    fn removal(uid: &str) -> Removal {
        let (uid, namespace, name) = (uid.to_owned(), "shop".to_owned(), uid.to_owned());
        Removal { uid, namespace, name, forced: false, tentative: false, lasting: false }
    }

    fn wall() -> Timestamp {
        Timestamp::from_second(1_000_000).unwrap()
    }

    /// One replica, and its status.
    #[derive(Default)]
    struct Till {
        status: Status,
        number: usize,
    }

    impl Till {
        fn at<T>(&mut self, control: &Control, now: i64, act: impl FnOnce(&mut Windows<'_>) -> T) -> T {
            let reading = reading(now);
            let mut windows = Windows::open(control, &mut self.status, &reading);
            let done = act(&mut windows);
            windows.show(Some(1), wall());
            done
        }

        fn delete(&mut self, control: &Control, now: i64, uid: &str) -> Charged {
            self.at(control, now, |windows| windows.charge(&removal(uid)).0)
        }

        /// Deletes so many pods that were never seen before, and returns how many were admitted.
        fn delete_new(&mut self, control: &Control, now: i64, pods: usize) -> usize {
            let admitted = (0..pods).filter(|_| {
                self.number += 1;
                let uid = format!("pod-{}", self.number);
                matches!(self.delete(control, now, &uid), Charged::Yes(Some(_)))
            });
            admitted.count()
        }
    }

    fn no(interval: &str, limit: i64, used: i64, next: Option<i64>) -> Charged {
        Charged::No(Beyond { interval: interval.to_owned(), limit, used, next })
    }

    #[test]
    fn a_window_slides() {
        let control = control(&[("10s", 3)]);
        let mut till = Till::default();
        assert_eq!(till.delete_new(&control, 0, 2), 2);
        assert_eq!(till.delete_new(&control, 6_000, 2), 1);
        assert_eq!(till.delete(&control, 9_999, "x"), no("10s", 3, 3, Some(2)));
        assert_eq!(till.delete_new(&control, 10_001, 3), 2, "the first two are old enough");
        assert_eq!(
            till.delete(&control, 12_000, "x"),
            no("10s", 3, 3, Some(4_000)),
            "a fixed window would allow it"
        );
        assert_eq!(till.delete_new(&control, 16_000, 2), 1);
    }

    #[test]
    fn the_rule_that_lasts_longest_is_told() {
        let control = control(&[("10s", 2), ("1m", 3), ("1h", 100)]);
        let mut till = Till::default();
        assert_eq!(till.delete_new(&control, 0, 3), 2);
        assert_eq!(till.delete(&control, 1_000, "x"), no("10s", 2, 2, Some(9_001)));
        assert_eq!(till.delete_new(&control, 11_000, 3), 1);
        assert_eq!(till.delete(&control, 12_000, "x"), no("1m", 3, 3, Some(48_001)));
        let told: Vec<(i64, i64)> =
            till.status.rules.iter().map(|rule| (rule.used, rule.remaining)).collect();
        assert_eq!(told, [(1, 1), (3, 0), (3, 97)]);
        assert_eq!((&*till.status.used, &*till.status.interval), ("3/3", "1m"));
    }

    #[test]
    fn zero_stops_all_and_what_is_forced_counts() {
        let control = control(&[("10s", 0)]);
        let mut till = Till::default();
        assert_eq!(till.delete(&control, 0, "x"), no("10s", 0, 0, None));
        let forced = Removal { forced: true, ..removal("x") };
        let charged = till.at(&control, 1_000, |windows| windows.charge(&forced).0);
        assert!(matches!(charged, Charged::Forced(Some(_), Beyond { used: 0, .. })), "{charged:?}");
        assert_eq!(till.status.rules[0].used, 1);
    }

    #[test]
    fn a_pod_counts_once_however_often_it_is_asked() {
        let control = control(&[("1m", 2)]);
        let mut till = Till::default();
        assert!(matches!(till.delete(&control, 0, "a"), Charged::Yes(Some(_))));
        let (again, changed) = till.at(&control, 400, |windows| windows.charge(&removal("a")));
        assert_eq!((again, changed), (Charged::Yes(None), false), "the same request, and nothing to write");
        let (again, changed) = till.at(&control, 3_000, |windows| windows.charge(&removal("a")));
        assert_eq!((again, changed), (Charged::Yes(None), true), "it counts from now on");
        assert_eq!(till.status.rules[0].used, 1);
        assert!(matches!(till.delete(&control, 4_000, "b"), Charged::Yes(Some(_))));
        assert_eq!(
            till.delete(&control, 20_000, "a"),
            no("1m", 2, 2, Some(44_000)),
            "nothing came of it for long"
        );
        assert!(
            matches!(till.delete(&control, 63_000, "c"), Charged::No(_)),
            "it counts from three seconds on"
        );
        assert!(matches!(till.delete(&control, 64_001, "c"), Charged::Yes(Some(_))));
    }

    #[test]
    fn a_pod_that_its_status_ends_stays_counted_though_it_is_there() {
        let control = control(&[("10m", 2)]);
        let mut till = Till::default();
        let ended = Removal { lasting: true, ..removal("a") };
        let charge = |till: &mut Till, now: i64| till.at(&control, now, |windows| windows.charge(&ended).0);
        let Charged::Yes(Some(stamp)) = charge(&mut till, 0) else { panic!("there is room") };
        assert_eq!(charge(&mut till, 100), Charged::Yes(None), "the same request");
        assert_eq!(till.status.rules[0].used, 1);
        let lives_on = HashMap::from([("a".to_owned(), stamp.clone())]);
        till.at(&control, 61_000, |windows| windows.sweep(|_| None, &lives_on));
        assert_eq!((till.status.rules[0].used, till.status.pending.len()), (1, 0));
        // Whoever charged it first may give it back, if another account refuses.
        let tentative = Removal { tentative: true, ..ended.clone() };
        let charged = till.at(&control, 62_000, |windows| windows.charge(&tentative).0);
        let Charged::Yes(Some(stamp)) = charged else { panic!("there is room") };
        assert!(till.at(&control, 62_100, |windows| windows.release("a", &stamp)));
        assert_eq!(till.status.rules[0].used, 1);
    }

    #[test]
    fn a_pod_that_has_gone_is_known_for_a_moment() {
        let control = control(&[("1m", 5)]);
        let mut till = Till::default();
        till.delete(&control, 0, "a");
        till.at(&control, 100, |windows| windows.sweep(|_| Some(Departure::Gone), &HashMap::new()));
        assert_eq!(
            till.delete(&control, 200, "a"),
            Charged::Yes(None),
            "the same deletion, asked about again"
        );
        assert_eq!(till.status.rules[0].used, 1);
        till.at(&control, 2_000, |windows| windows.sweep(|_| Some(Departure::Gone), &HashMap::new()));
        assert!(till.status.pending.is_empty());
    }

    #[test]
    fn whoever_tries_again_and_again_does_not_hold_a_slot_for_ever() {
        let control = control(&[("10m", 1)]);
        let mut till = Till::default();
        till.delete(&control, 0, "a");
        assert_eq!(till.delete(&control, 2_500, "a"), Charged::Yes(None));
        assert_eq!(till.delete(&control, 4_900, "a"), Charged::Yes(None));
        let stamp = till.status.pending["a"].stamp.clone();
        assert_eq!(stamp.at, 4_900);
        assert!(matches!(till.delete(&control, 7_400, "a"), Charged::No(_)));
        assert_eq!(till.status.pending["a"].stamp, stamp, "it is not asked for anew, and ends by itself");
    }

    #[test]
    fn what_is_asked_again_after_its_window_counts_again() {
        let control = control(&[("1s", 1)]);
        let mut till = Till::default();
        till.delete(&control, 0, "a");
        assert!(matches!(till.delete(&control, 1_001, "b"), Charged::Yes(Some(_))));
        assert!(
            matches!(till.delete(&control, 1_200, "a"), Charged::No(_)),
            "admitted just now, but not counted any more"
        );
        assert_eq!(till.status.rules[0].used, 1);
    }

    #[test]
    fn what_nothing_came_of_is_given_back_and_leaves_the_last_slot_to_others() {
        let control = control(&[("1m", 2)]);
        let mut till = Till::default();
        till.delete(&control, 0, "a");
        till.delete(&control, 100, "b");
        let stamp = till.status.pending["a"].stamp.clone();
        let lives_on = HashMap::from([("a".to_owned(), stamp)]);
        till.at(&control, 20_000, |windows| {
            windows.sweep(|uid| (uid == "b").then_some(Departure::Going), &lives_on)
        });
        assert!(till.status.pending.is_empty());
        assert_eq!(till.status.rules[0].used, 1, "b is gone, and counts");
        assert_eq!(till.delete(&control, 21_000, "a"), no("1m", 2, 1, Some(9_000)), "others come first");
        assert!(matches!(till.delete(&control, 22_000, "c"), Charged::Yes(Some(_))));
        till.at(&control, 22_000, |windows| windows.sweep(|_| Some(Departure::Going), &lives_on));
        assert_eq!(till.status.rules[0].used, 2, "and what has gone is not given back");
    }

    #[test]
    fn what_somebody_relies_on_is_not_given_back() {
        let control = control(&[("1m", 1)]);
        let mut till = Till::default();
        let tentative = Removal { tentative: true, ..removal("a") };
        let first = till.at(&control, 0, |windows| windows.charge(&tentative).0);
        let Charged::Yes(Some(stamp)) = first else { panic!("{first:?}") };
        assert_eq!(till.delete(&control, 0, "a"), Charged::Yes(None), "somebody whom nobody else may refuse");
        assert!(!till.at(&control, 1, |windows| windows.release("a", &stamp)));
        assert_eq!(till.status.rules[0].used, 1);
        let mut alone = Till::default();
        let first = alone.at(&control, 0, |windows| windows.charge(&tentative).0);
        let Charged::Yes(Some(stamp)) = first else { panic!("{first:?}") };
        assert!(alone.at(&control, 1, |windows| windows.release("a", &stamp)));
        assert_eq!(alone.status.rules[0].used, 0);
    }

    #[test]
    fn a_changed_limit_keeps_the_count_and_so_does_a_changed_interval() {
        let mut till = Till::default();
        assert_eq!(till.delete_new(&control(&[("1m", 5), ("1h", 100)]), 0, 5), 5);
        assert_eq!(till.delete_new(&control(&[("60s", 6), ("1h", 100)]), 10_000, 5), 1);
        assert_eq!(
            till.delete_new(&control(&[("1m", 3)]), 20_000, 1),
            0,
            "more have gone than are allowed now"
        );
        assert_eq!(till.status.rules[0].remaining, 0);
        assert_eq!(
            till.delete_new(&control(&[("2m", 7)]), 61_000, 5),
            1,
            "of a minute, one is left that counts"
        );
        let mut till = Till::default();
        assert_eq!(till.delete_new(&control(&[("1h", 5)]), 0, 5), 5);
        assert_eq!(
            till.delete_new(&control(&[("10m", 7), ("1h", 100)]), 60_000, 5),
            2,
            "the hour knows of ten minutes"
        );
    }

    #[test]
    fn where_there_is_plenty_slots_are_charged_in_advance_and_what_is_not_used_comes_back() {
        let (few, plenty) =
            (control(&[("1m", 50), ("1h", 10_000)]), control(&[("1m", 5_000), ("1h", 10_000)]));
        let mut till = Till::default();
        assert_eq!(till.at(&few, 0, |windows| windows.advance(TERMS, 32)), None, "a rule has few left");
        assert_eq!(till.at(&plenty, 0, |windows| windows.advance(TERMS, 1)), None, "nobody is in a hurry");
        let (stamp, left) = till.at(&plenty, 1_000, |windows| windows.advance(TERMS, 32)).unwrap();
        assert_eq!((stamp.at, left), (2_000, 100));
        assert_eq!(till.status.rules[0].used, 100);
        let mut advance =
            Advance { uid: String::new(), generation: None, stamp, left, taken: HashMap::new() };
        advance.take(&removal("a"), 1_050);
        advance.take(&removal("b"), 1_060);
        till.at(&plenty, 2_100, |windows| windows.settle(&advance));
        let used: Vec<i64> = till.status.rules.iter().map(|rule| rule.used).collect();
        assert_eq!(used, [2, 2]);
        assert_eq!(till.status.pending.keys().collect::<Vec<_>>(), ["a", "b"]);
        let mut again = Advance { stamp: Stamp { clock: "own".to_owned(), at: 2_200 }, ..advance.clone() };
        again.taken.retain(|uid, _| uid == "a");
        again.taken.values_mut().for_each(|taken| taken.stamp.at = 2_200);
        again.left = 0;
        till.at(&plenty, 2_200, |windows| windows.add(2_200, i64::MIN, 1));
        till.at(&plenty, 2_300, |windows| windows.settle(&again));
        assert_eq!(till.status.rules[0].used, 2, "another replica was asked about it, too");
        let lives_on = HashMap::from([("a".to_owned(), till.status.pending["a"].stamp.clone())]);
        till.at(&plenty, 21_000, |windows| windows.sweep(|_| None, &lives_on));
        assert_eq!(till.status.rules[0].used, 1, "one of them lives on");
    }

    #[test]
    fn the_status_stays_small() {
        let rules = [("1s", 1_000_000), ("1m", 1_000_000), ("1h", 1_000_000), ("24h", 1_000_000)];
        let control = control(&rules);
        let mut till = Till::default();
        let mut now = 0;
        for step in 0..3_000 {
            now += 47 * (step % 400) + 1;
            till.delete_new(&control, now, 1);
            let most = usize::try_from(BATCHES).unwrap() + 2;
            assert!(
                till.status.rules.iter().all(|rule| rule.admitted.len() <= most),
                "{:?}",
                till.status.rules
            );
        }
        assert_eq!(till.status.pending.len(), MOST_PENDING);
        let size = serde_json::to_string(&till.status).unwrap().len();
        assert!(size < 100_000, "{size}");
    }

    #[test]
    fn many_clocks_are_told_in_one() {
        let control = control(&[("1m", 100)]);
        let mut status = Status::default();
        let mut offsets = Offsets::default();
        // Six hosts, each a million apart, one after the other every second.
        for (number, host) in ["a", "b", "c", "d", "e", "f"].into_iter().enumerate() {
            let now = i64::try_from(number).unwrap() * 1_001_000;
            offsets.observe(host, now, u64::try_from(number).unwrap(), &status.clocks);
            let reading = offsets.read(host, now);
            let mut windows = Windows::open(&control, &mut status, &reading);
            assert!(matches!(windows.charge(&removal(host)).0, Charged::Yes(Some(_))));
            windows.show(None, wall());
            assert!(status.clocks.len() <= MOST_CLOCKS, "{:?}", status.clocks);
            assert_eq!(status.rules[0].used, i64::try_from(number).unwrap() + 1);
            offsets = Offsets::default();
        }
    }

    proptest! {
        /// However deletions come: never more than the limit in any interval, and a slot is free again a fortieth of
        /// the interval after it could be.
        #[test]
        fn never_more_than_the_limit_and_hardly_less(
            limits in (1_i64..6, 1_i64..20),
            pauses in proptest::collection::vec(prop_oneof![0_i64..50, 0_i64..3_000, 0_i64..30_000], 1..200),
        ) {
            let (short, long) = (5_000, 40_000);
            let control = control(&[("5s", limits.0), ("40s", limits.1)]);
            let (mut till, mut now, mut admitted) = (Till::default(), 0, Vec::new());
            let within = |admitted: &[i64], now: i64, length: i64| {
                i64::try_from(admitted.iter().filter(|&&at| now - at < length).count()).unwrap()
            };
            for pause in pauses {
                now += pause;
                if till.delete_new(&control, now, 1) == 1 {
                    admitted.push(now);
                } else {
                    let grace = |length: i64| length + length / BATCHES + 50;
                    let full = within(&admitted, now, grace(short)) >= limits.0
                        || within(&admitted, now, grace(long)) >= limits.1;
                    prop_assert!(full, "refused at {now} after {admitted:?}");
                }
                prop_assert!(within(&admitted, now, short) <= limits.0);
                prop_assert!(within(&admitted, now, long) <= limits.1);
            }
        }
    }

    #[test]
    fn the_clock_of_a_host_is_told_with_every_write() {
        let control = control(&[("1m", 5)]);
        let mut till = Till::default();
        till.delete(&control, 77, "a");
        assert_eq!(till.status.clocks, BTreeMap::from([("own".to_owned(), 77)]));
    }
}
