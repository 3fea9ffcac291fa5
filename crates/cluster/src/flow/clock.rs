//! Time that nobody can set, shared by replicas whose clocks have nothing to do with each other.
//!
//! A moment is what a host's clock showed: the time since that host started, which no administrator and no time server
//! ever steps. What another host's clock shows means nothing here, but when a status arrives that says "mine shows X",
//! then X is in the past. So the other clock is at least so far ahead of ours, or behind; the smallest of all such
//! differences is kept, and with it everything is at least as old as we take it to be. An error makes windows longer,
//! never shorter.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use palisade_api::flow::Stamp;

use crate::sync::lock;

/// Two clocks may run apart by one part in so many.
const DRIFT: i64 = 1_000;

/// This host's clock, and what is known of others.
#[derive(Debug)]
pub(super) struct Clock {
    id: String,
    others: Mutex<Offsets>,
}

impl Clock {
    pub(super) fn of_this_host() -> Self {
        Self { id: host::id(), others: Mutex::default() }
    }

    /// Takes note of what clocks showed when a status of a revision was written.
    pub(crate) fn observe(&self, revision: u64, clocks: &BTreeMap<String, i64>) {
        lock(&self.others).observe(&self.id, host::now(), revision, clocks);
    }

    pub(crate) fn read(&self) -> Reading {
        lock(&self.others).read(&self.id, host::now())
    }

    /// What it shows.
    pub(super) fn now() -> i64 {
        host::now()
    }
}

/// What is known of other clocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offsets(HashMap<String, Other>);

#[derive(Clone, Copy, Debug)]
struct Other {
    /// Ours, less theirs, at most.
    offset: i64,
    /// When that was found.
    since: i64,
    /// What it last showed, and the revision that said so.
    shown: i64,
    revision: u64,
}

impl Other {
    fn offset_at(&self, now: i64) -> i64 {
        self.offset + (now - self.since).max(0) / DRIFT
    }
}

impl Offsets {
    pub(crate) fn observe(&mut self, own: &str, now: i64, revision: u64, clocks: &BTreeMap<String, i64>) {
        for (id, &shown) in clocks.iter().filter(|(id, _)| *id != own) {
            let new = Other { offset: now - shown, since: now, shown, revision };
            let Some(known) = self.0.get_mut(id) else {
                self.0.insert(id.clone(), new);
                continue;
            };
            // A host that was restored to an earlier moment: nothing that was known of it holds.
            let went_back = revision > known.revision && shown < known.shown;
            if went_back || new.offset <= known.offset_at(now) {
                (known.offset, known.since) = (new.offset, now);
            }
            if revision > known.revision {
                (known.shown, known.revision) = (shown, revision);
            }
        }
    }

    pub(crate) fn read(&self, own: &str, now: i64) -> Reading {
        let offsets = self.0.iter().map(|(id, other)| (id.clone(), other.offset_at(now)));
        Reading { clock: own.to_owned(), now, offsets: offsets.collect() }
    }
}

/// What a clock shows, and how others relate to it.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) clock: String,
    pub(crate) now: i64,
    offsets: HashMap<String, i64>,
}

impl Reading {
    /// How old something is, at least.
    pub(crate) fn age(&self, clock: &str, at: i64) -> i64 {
        self.now - self.by_own(clock, at)
    }

    pub(crate) fn age_of(&self, stamp: &Stamp) -> i64 {
        self.age(&stamp.clock, stamp.at)
    }

    /// When something was by our own clock, at the latest.
    pub(crate) fn by_own(&self, clock: &str, at: i64) -> i64 {
        let at = if clock == self.clock {
            at
        } else {
            // Of a clock that was never seen nothing is known but that it is in the past.
            self.offsets.get(clock).map_or(self.now, |offset| at + offset)
        };
        at.min(self.now)
    }
}

#[cfg(target_os = "linux")]
mod host {
    use rustix::time::{ClockId, clock_gettime};

    /// Where a process sees the host's own time, and not one of its namespace.
    const INITIAL_TIME_NAMESPACE: &str = "time:[4026531834]";

    /// The time since the host started, in milliseconds; also while it slept.
    pub(super) fn now() -> i64 {
        let time = clock_gettime(ClockId::Boottime);
        time.tv_sec * 1_000 + time.tv_nsec / 1_000_000
    }

    /// The same for every process of this host until it starts anew.
    pub(super) fn id() -> String {
        let shared = || {
            let namespace = std::fs::read_link("/proc/self/ns/time").ok();
            if namespace.is_some_and(|namespace| namespace.as_os_str() != INITIAL_TIME_NAMESPACE) {
                return None;
            }
            let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
            let id = boot.split('-').next().filter(|id| id.len() == 8)?;
            id.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| id.to_lowercase())
        };
        shared().unwrap_or_else(super::id_of_this_process)
    }
}

#[cfg(not(target_os = "linux"))]
mod host {
    use std::sync::LazyLock;
    use std::time::Instant;

    static START: LazyLock<Instant> = LazyLock::new(Instant::now);

    pub(super) fn now() -> i64 {
        START.elapsed().as_millis().try_into().unwrap_or(i64::MAX)
    }

    pub(super) fn id() -> String {
        super::id_of_this_process()
    }
}

fn id_of_this_process() -> String {
    use std::hash::{BuildHasher, RandomState};
    format!("{:016x}", RandomState::new().hash_one(std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shows(id: &str, at: i64) -> BTreeMap<String, i64> {
        BTreeMap::from([(id.to_owned(), at)])
    }

    #[test]
    fn something_is_at_least_as_old_as_the_quickest_word_of_its_clock() {
        let mut offsets = Offsets::default();
        // The other clock is 1,000 ahead, and its words take 50, then 10, then 30.
        offsets.observe("own", 1_050, 1, &shows("other", 2_000));
        assert_eq!(offsets.read("own", 1_050).age("other", 2_000), 0);
        offsets.observe("own", 1_110, 2, &shows("other", 2_100));
        offsets.observe("own", 1_230, 3, &shows("other", 2_200));
        assert_eq!(offsets.read("own", 1_310).age("other", 2_000), 300, "310, less 10 that its word took");
        assert_eq!(offsets.read("own", 1_310).age("own", 1_300), 10);
        assert_eq!(offsets.read("own", 1_310).age("own", 1_400), 0, "nothing is in the future");
        assert_eq!(offsets.read("own", 1_310).age("never seen", 0), 0);
    }

    #[test]
    fn clocks_may_run_apart() {
        let mut offsets = Offsets::default();
        offsets.observe("own", 0, 1, &shows("other", 0));
        assert_eq!(offsets.read("own", 86_400_000).age("other", 0), 86_400_000 - 86_400);
        offsets.observe("own", 86_400_000, 2, &shows("other", 86_399_000));
        assert_eq!(
            offsets.read("own", 86_400_000).age("other", 86_399_000),
            0,
            "a newer word is better by now"
        );
    }

    #[test]
    fn a_clock_that_went_back_is_known_anew_and_an_old_word_means_nothing() {
        let mut offsets = Offsets::default();
        offsets.observe("own", 1_000, 5, &shows("other", 9_000));
        offsets.observe("own", 1_100, 4, &shows("other", 8_000));
        assert_eq!(offsets.read("own", 1_100).age("other", 9_000), 100, "an older revision");
        offsets.observe("own", 1_200, 6, &shows("other", 500));
        assert_eq!(offsets.read("own", 1_300).age("other", 500), 100);
    }

    #[test]
    fn this_hosts_clock_goes_on_and_is_the_same_for_all_its_processes() {
        assert_eq!(host::id().len(), host::id().len());
        let before = host::now();
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!((4..5_000).contains(&(host::now() - before)));
        #[cfg(target_os = "linux")]
        assert_eq!(host::id(), host::id());
    }
}
