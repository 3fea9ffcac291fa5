//! How far this replica's watches of policies have come.

use std::collections::BTreeMap;

use palisade_api::versions::{PolicyKind, PolicyVersions};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::sync;

/// How far the watch of one kind has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KindProgress {
    /// All that was written up to this resourceVersion has been seen; `None` before the first list.
    pub reached: Option<u64>,
    /// The newest resourceVersion at which a policy of the kind was new, or had a new spec.
    pub newest_spec: u64,
    /// The kind's definition is there, but the kind is not served: what is stored can't be read.
    pub unserved: bool,
}

/// How far the watches of all kinds have come. A store is changed first, and its progress is noted after that.
#[derive(Debug)]
pub struct PolicyProgress(BTreeMap<PolicyKind, watch::Sender<KindProgress>>);

impl Default for PolicyProgress {
    fn default() -> Self {
        let start = |kind| (kind, watch::channel(KindProgress::default()).0);
        Self(PolicyKind::ALL.into_iter().map(start).collect())
    }
}

/// A kind that this replica does not know well enough to decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    pub kind: PolicyKind,
    pub unserved: bool,
}

impl PolicyProgress {
    pub fn of(&self, kind: PolicyKind) -> KindProgress {
        self.0.get(&kind).map(|sender| sync::current(&sender.subscribe())).unwrap_or_default()
    }

    /// Nobody decides by the kind: its feature is off.
    pub fn switch_off(&self, kind: PolicyKind) {
        self.note(kind, |progress| progress.reached = Some(u64::MAX));
    }

    pub(crate) fn note(&self, kind: PolicyKind, note: impl FnOnce(&mut KindProgress)) {
        if let Some(sender) = self.0.get(&kind) {
            sync::change(sender, |progress| {
                let before = progress.clone();
                note(progress);
                (*progress != before).then_some(())
            });
        }
    }

    /// The newest specs of all kinds.
    pub fn newest_specs(&self) -> PolicyVersions {
        let mut versions = PolicyVersions::default();
        for kind in PolicyKind::ALL {
            versions.raise(kind, self.of(kind).newest_spec);
        }
        versions
    }

    /// The kinds that are stored, not served, and were never read.
    pub fn unserved(&self) -> Vec<PolicyKind> {
        let is_unserved = |kind: &PolicyKind| {
            let KindProgress { reached, unserved, .. } = self.of(*kind);
            reached.is_none() && unserved
        };
        PolicyKind::ALL.into_iter().filter(is_unserved).collect()
    }

    /// A kind of which these are newer than what this replica has seen.
    pub fn behind(&self, versions: &PolicyVersions) -> Option<Behind> {
        versions.iter().find_map(|(kind, version)| {
            let KindProgress { reached, unserved, .. } = self.of(kind);
            reached.is_none_or(|reached| reached < version).then_some(Behind { kind, unserved })
        })
    }

    /// Waits until every kind has listed, or can't be because it is not served.
    pub async fn settled(&self) {
        for sender in self.0.values() {
            let is_settled = |progress: &KindProgress| progress.reached.is_some() || progress.unserved;
            // The sender is here, and so the channel is open.
            let _ = sender.subscribe().wait_for(is_settled).await;
        }
    }

    /// Waits until this replica knows some kinds, and has seen of each what the versions say. What can't be waited for
    /// is told at once.
    pub async fn until(
        &self,
        kinds: &[PolicyKind],
        versions: &PolicyVersions,
        deadline: Instant,
    ) -> Result<(), Behind> {
        for (&kind, sender) in &self.0 {
            let version = versions.get(kind);
            if version == 0 && !kinds.contains(&kind) {
                continue;
            }
            let is_there =
                |progress: &KindProgress| progress.reached.is_some_and(|reached| reached >= version);
            let mut progress = sender.subscribe();
            let is_told = progress.wait_for(|progress| is_there(progress) || progress.unserved);
            // The sender is here, and so the channel is open.
            drop(timeout_at(deadline, is_told).await);
            let now = self.of(kind);
            if !is_there(&now) {
                return Err(Behind { kind, unserved: now.unserved });
            }
        }
        Ok(())
    }
}

/// Which policies have been seen, by uid: a new one, or a new generation of one, is a new spec. A status is not.
#[derive(Debug, Default)]
pub(crate) struct Generations(BTreeMap<String, Option<i64>>);

impl Generations {
    /// Notes a policy as it was written, and returns whether its spec is new.
    pub(crate) fn see(&mut self, uid: &str, generation: Option<i64>) -> bool {
        self.0.insert(uid.to_owned(), generation) != Some(generation)
    }

    pub(crate) fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    pub(crate) fn keep_only<'a>(&mut self, uids: impl Iterator<Item = &'a str>) {
        let there: std::collections::BTreeSet<&str> = uids.collect();
        self.0.retain(|uid, _| there.contains(uid.as_str()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    const KIND: PolicyKind = PolicyKind::Budget;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(4)
    }

    fn versions(version: u64) -> PolicyVersions {
        let mut versions = PolicyVersions::default();
        versions.raise(KIND, version);
        versions
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_is_behind_waits_until_its_watch_has_come_so_far() {
        let progress = Arc::new(PolicyProgress::default());
        progress.note(KIND, |kind| kind.reached = Some(7));
        assert_eq!(progress.until(&[KIND], &versions(7), soon()).await, Ok(()));
        assert_eq!(progress.behind(&versions(8)), Some(Behind { kind: KIND, unserved: false }));
        let waits = tokio::spawn({
            let progress = progress.clone();
            async move { progress.until(&[], &versions(9), soon()).await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        progress.note(KIND, |kind| kind.reached = Some(8));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!waits.is_finished());
        progress.note(KIND, |kind| kind.reached = Some(10));
        assert_eq!(waits.await.unwrap(), Ok(()));
        let behind = Behind { kind: KIND, unserved: false };
        assert_eq!(progress.until(&[], &versions(11), soon()).await, Err(behind), "not for ever");
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_is_stored_and_not_served_is_not_waited_for() {
        let progress = PolicyProgress::default();
        progress.note(KIND, |kind| kind.unserved = true);
        let behind = Behind { kind: KIND, unserved: true };
        assert_eq!(progress.until(&[KIND], &PolicyVersions::default(), soon()).await, Err(behind));
        assert_eq!(progress.until(&[], &versions(1), soon()).await, Err(behind));
        assert_eq!(progress.until(&[], &PolicyVersions::default(), soon()).await, Ok(()));
        assert_eq!(progress.unserved(), [KIND]);
        // What was read before it went out of service is known still.
        progress.note(KIND, |kind| kind.reached = Some(5));
        assert_eq!(progress.until(&[KIND], &versions(5), soon()).await, Ok(()));
        assert!(progress.unserved().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_is_switched_off_is_never_behind() {
        let progress = PolicyProgress::default();
        progress.switch_off(KIND);
        assert_eq!(progress.until(&[KIND], &versions(u64::MAX), soon()).await, Ok(()));
    }

    #[test]
    fn a_status_is_no_new_spec() {
        let mut seen = Generations::default();
        assert!(seen.see("a", Some(1)));
        assert!(!seen.see("a", Some(1)));
        assert!(seen.see("a", Some(2)));
        assert!(seen.see("b", Some(1)));
        seen.keep_only(["b"].into_iter());
        assert!(seen.see("a", Some(2)), "it went, and is back");
        seen.forget("b");
        assert!(seen.see("b", Some(1)));
    }
}
