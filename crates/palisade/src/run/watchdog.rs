//! Ends the process when its runtime is stuck, so that whoever supervises it starts another.
//!
//! ```text
//! runtime   heartbeat task ─▶ counter          workers ─▶ tokio's counters of each worker
//!                                 └──────┬────────────────┘
//! OS thread, every second:       has anything moved since I last woke up?
//! ```
//!
//! A thread of its own looks, since a stuck runtime can't. It counts its own wake-ups, not seconds on a clock: a process
//! that was stopped (SIGSTOP), a machine that slept, or one that is so busy that this thread does not get to run either,
//! has missed nothing.
//!
//! Two things are stuck: a runtime that no longer gets round to a task that only counts, and a worker thread that is in
//! the middle of one poll for all that time, while others go on. A task that waits for something that never comes is
//! not stuck in this sense; calls of ours have deadlines for that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, RuntimeMetrics};

/// What the process exits with: `EX_SOFTWARE` of sysexits.h.
pub(super) const STUCK: u8 = 70;

/// How often the watchdog wakes up.
const LOOK: Duration = Duration::from_secs(1);
/// A wake-up that comes so late tells nothing: this thread did not get to run either.
const LATE: Duration = Duration::from_secs(3);
const HEARTBEAT: Duration = Duration::from_millis(250);

/// Watches the runtime that it is called on. `stuck` is called, on a thread of its own, with what has not moved for
/// so many wake-ups in a row as `patience` has seconds.
pub(super) fn watch(patience: Duration, stuck: impl FnOnce(&str) + Send + 'static) -> std::io::Result<()> {
    let beats = Arc::new(AtomicU64::new(0));
    let runtime = Handle::current();
    runtime.spawn({
        let beats = beats.clone();
        async move {
            loop {
                beats.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(HEARTBEAT).await;
            }
        }
    });
    let metrics = runtime.metrics();
    let look = LOOK.min(patience / 2);
    let missed_at_most = u32::try_from(patience.as_millis() / look.as_millis().max(1)).unwrap_or(u32::MAX);
    std::thread::Builder::new().name("watchdog".to_owned()).spawn(move || {
        let mut watched = Watched::default();
        loop {
            let slept = Instant::now();
            std::thread::sleep(look);
            if slept.elapsed() > look + LATE {
                watched.forgive();
            }
            let now = Signs::read(beats.load(Ordering::Relaxed), &metrics);
            if let Some(what) = watched.look(now, missed_at_most) {
                stuck(&what);
                return;
            }
        }
    })?;
    Ok(())
}

/// What shows that a runtime makes progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Signs {
    beats: u64,
    workers: Vec<Worker>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Worker {
    /// It waits for work.
    parked: bool,
    /// Moves when it parks, and every few dozen tasks while it does not.
    moves: (u64, Duration),
}

impl Signs {
    fn read(beats: u64, metrics: &RuntimeMetrics) -> Self {
        let worker = |number| {
            let parkings = metrics.worker_park_unpark_count(number);
            // An odd count: parked and not unparked since.
            Worker {
                parked: parkings % 2 == 1,
                moves: (parkings, metrics.worker_total_busy_duration(number)),
            }
        };
        Self { beats, workers: (0..metrics.num_workers()).map(worker).collect() }
    }
}

/// What was last seen, and how many wake-ups in a row nothing has moved.
#[derive(Debug, Default)]
struct Watched {
    last: Signs,
    runtime_missed: u32,
    workers_missed: Vec<u32>,
}

impl Watched {
    fn forgive(&mut self) {
        self.runtime_missed = 0;
        self.workers_missed.fill(0);
    }

    /// Compares with what was last seen, and returns what is stuck.
    fn look(&mut self, now: Signs, missed_at_most: u32) -> Option<String> {
        self.workers_missed.resize(now.workers.len(), 0);
        self.runtime_missed = if now.beats == self.last.beats { self.runtime_missed + 1 } else { 0 };
        for (number, worker) in now.workers.iter().enumerate() {
            let is_still = !worker.parked && self.last.workers.get(number) == Some(worker);
            let missed = &mut self.workers_missed[number];
            *missed = if is_still { *missed + 1 } else { 0 };
        }
        self.last = now;
        if self.runtime_missed >= missed_at_most {
            return Some("no task gets to run".to_owned());
        }
        let worker = self.workers_missed.iter().position(|missed| *missed >= missed_at_most)?;
        Some(format!("worker thread {worker} does not come back from a task"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(2);
    const LONG: Duration = Duration::from_secs(60);

    fn runtime(workers: usize) -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build().unwrap()
    }

    /// Watches a runtime, and returns what tells that it is stuck.
    fn watched(runtime: &tokio::runtime::Runtime) -> mpsc::Receiver<String> {
        let (told, hears) = mpsc::channel();
        runtime.block_on(async {
            watch(PATIENCE, move |what| told.send(what.to_owned()).unwrap()).unwrap();
        });
        hears
    }

    /// Occupies so many workers until the channel is dropped, as a lock that is never released would.
    fn block(runtime: &tokio::runtime::Runtime, workers: usize) -> Vec<mpsc::Sender<()>> {
        let block_one = |_| {
            let (release, released) = mpsc::channel::<()>();
            let (blocked, is_blocked) = mpsc::channel();
            runtime.spawn(async move {
                blocked.send(()).unwrap();
                let _ = released.recv();
            });
            is_blocked.recv_timeout(LONG).unwrap();
            release
        };
        (0..workers).map(block_one).collect()
    }

    #[test]
    fn a_runtime_whose_workers_are_all_blocked_is_stuck() {
        let runtime = runtime(2);
        let hears = watched(&runtime);
        let blocked = block(&runtime, 2);
        let what = hears.recv_timeout(LONG).unwrap();
        assert!(what.contains("no task gets to run") || what.contains("worker thread"), "{what}");
        drop(blocked);
    }

    #[test]
    fn a_runtime_with_one_of_two_workers_blocked_is_stuck() {
        let runtime = runtime(2);
        let hears = watched(&runtime);
        let blocked = block(&runtime, 1);
        assert!(hears.recv_timeout(LONG).is_ok());
        drop(blocked);
    }

    #[test]
    fn a_runtime_that_is_idle_or_busy_is_not_stuck() {
        let runtime = runtime(2);
        let hears = watched(&runtime);
        assert!(hears.recv_timeout(2 * PATIENCE).is_err(), "idle");
        for _ in 0..8 {
            runtime.spawn(async {
                loop {
                    // Work without an end, but in small parts.
                    std::hint::black_box((0..1_000).sum::<u64>());
                    tokio::task::yield_now().await;
                }
            });
        }
        assert!(hears.recv_timeout(3 * PATIENCE).is_err(), "busy");
        runtime.shutdown_background();
    }

    #[test]
    fn wake_ups_that_tell_nothing_are_forgiven() {
        let still = || Signs { beats: 7, workers: vec![Worker { parked: false, moves: (2, LONG) }] };
        let mut watched = Watched::default();
        assert_eq!(watched.look(still(), 3), None, "the first look");
        for _ in 0..10 {
            assert_eq!(watched.look(still(), 3), None);
            assert_eq!(watched.look(still(), 3), None);
            watched.forgive();
        }
        assert_eq!(watched.look(still(), 3), None);
        assert_eq!(watched.look(still(), 3), None);
        assert_eq!(watched.look(still(), 3).as_deref(), Some("no task gets to run"));
    }

    #[test]
    fn a_worker_that_is_parked_or_moves_is_not_stuck() {
        let signs =
            |beats, parked, moves| Signs { beats, workers: vec![Worker { parked, moves: (moves, LONG) }] };
        let mut watched = Watched::default();
        for beats in 0..10 {
            assert_eq!(watched.look(signs(beats, true, 3), 3), None, "parked");
        }
        for beats in 10..20 {
            assert_eq!(watched.look(signs(beats, false, beats), 3), None, "busy");
        }
        let stuck: Vec<_> = (20..25).filter_map(|beats| watched.look(signs(beats, false, 4), 3)).collect();
        assert_eq!(stuck[0], "worker thread 0 does not come back from a task");
    }
}
