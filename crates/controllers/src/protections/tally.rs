//! What a replica has counted and not written yet.

use std::collections::BTreeMap;
use std::sync::Mutex;

use jiff::Timestamp;
use palisade_api::protection::Action;
use palisade_cluster::sync::lock;
use palisade_engine::{Verdict, prose};

/// At most this many objects are named in Events between two writes; all are counted.
const OBJECTS_NAMED: usize = 20;

/// Counts by protection. Synchronous: a review adds to it on its way out.
#[derive(Debug, Default)]
pub struct Tally(Mutex<BTreeMap<String, Counts>>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) denied: u64,
    pub(super) warned: u64,
    pub(super) audited: u64,
    pub(super) last: Timestamp,
    pub(super) audited_objects: Vec<String>,
}

impl Tally {
    /// Counts the protections that a verdict came from.
    pub fn add(&self, verdict: &Verdict, now: Timestamp) {
        // A panic while it was held cannot have left counts that are worse than none.
        let mut all = lock(&self.0);
        for matched in &verdict.matched {
            let counts = all.entry(matched.protection.clone()).or_insert_with(|| Counts::none(now));
            counts.last = now;
            match matched.action {
                // Refused for another reason as well, or for want of an answer: refused it was.
                Action::Deny => counts.denied += 1,
                Action::Warn => counts.warned += 1,
                Action::Audit => {
                    counts.audited += 1;
                    if let Some(about) =
                        verdict.about.as_ref().filter(|_| counts.audited_objects.len() < OBJECTS_NAMED)
                    {
                        counts.audited_objects.push(prose::subject(about));
                    }
                }
            }
        }
    }

    pub(super) fn take(&self) -> BTreeMap<String, Counts> {
        std::mem::take(&mut *lock(&self.0))
    }

    /// Returns counts that could not be written.
    pub(super) fn put_back(&self, protection: &str, counts: Counts) {
        let mut all = lock(&self.0);
        let newer = all.entry(protection.to_owned()).or_insert_with(|| Counts::none(counts.last));
        newer.denied += counts.denied;
        newer.warned += counts.warned;
        newer.audited += counts.audited;
        newer.last = newer.last.max(counts.last);
        newer.audited_objects.extend(counts.audited_objects);
        newer.audited_objects.truncate(OBJECTS_NAMED);
    }
}

impl Counts {
    fn none(now: Timestamp) -> Self {
        Self { denied: 0, warned: 0, audited: 0, last: now, audited_objects: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use palisade_engine::Matched;

    #[test]
    fn what_could_not_be_written_is_kept_and_added_to() {
        let tally = Tally::default();
        let matched = |action| Matched { protection: "sample".to_owned(), action };
        let verdict = Verdict { matched: vec![matched(Action::Deny)], ..Verdict::allow() };
        let (early, late) =
            (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(9));
        tally.add(&verdict, early);
        let taken = tally.take();
        tally.add(&verdict, late);
        tally.put_back("sample", taken["sample"].clone());
        let counts = tally.take();
        assert_eq!((counts["sample"].denied, counts["sample"].last), (2, late));
        assert!(tally.take().is_empty());
    }
}
