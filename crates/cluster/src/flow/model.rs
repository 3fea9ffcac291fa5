//! A model of many replicas that charge one flow control: their clocks have nothing to do with each other, what they
//! see is late, they conflict, die and come back elsewhere, and deletions that were admitted come to nothing.
//!
//! Whatever happens in whatever order: in no interval of real time have more pods gone than the limit allows.

use std::collections::{BTreeSet, HashMap};

use jiff::Timestamp;
use palisade_api::flow::{Control, Stamp, Status};
use proptest::prelude::*;
use serde_json::json;

use super::advance::{Advance, Taken, Terms};
use super::clock::Offsets;
use super::departures::Departure;
use super::window::{Charged, Removal, Windows};

const REPLICAS: usize = 3;
const PODS: usize = 40;
/// Slots are charged in advance also where there are few.
const TERMS: Terms = Terms { busy: 1, ample: 2, share: 2, most: 2, lasting: 60 };
const RULES: [(&str, i64, i64); 2] = [("4s", 4_000, 3), ("30s", 30_000, 8)];

#[derive(Clone, Debug)]
enum Step {
    /// Real time goes by.
    Pass(i64),
    /// A replica sees the newest.
    See(usize),
    /// A replica is asked about a pod. `others` is what other accounts say about it, if there are any.
    Ask { replica: usize, pod: usize, others: Option<bool> },
    /// A write arrives, or conflicts.
    Settle(usize),
    /// A release of what others refused arrives.
    Release(usize),
    /// A replica looks after the status: what it has seen go, who lives on, and whether it tells all in its own clock.
    Tend { replica: usize, fold: bool },
    /// A replica dies, and comes back on the same host or on another.
    Crash { replica: usize, moves: bool },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop_oneof![0_i64..30, 0_i64..2_000, 0_i64..40_000].prop_map(Step::Pass),
        4 => (0..REPLICAS).prop_map(Step::See),
        8 => (0..REPLICAS, prop_oneof![0..8_usize, 0..PODS], proptest::option::of(any::<bool>()))
            .prop_map(|(replica, pod, others)| Step::Ask { replica, pod, others }),
        8 => any::<usize>().prop_map(Step::Settle),
        3 => any::<usize>().prop_map(Step::Release),
        2 => (0..REPLICAS, any::<bool>()).prop_map(|(replica, fold)| Step::Tend { replica, fold }),
        1 => (0..REPLICAS, any::<bool>()).prop_map(|(replica, moves)| Step::Crash { replica, moves }),
    ]
}

/// A clock that has nothing to do with real time but that it goes on, a little too fast or too slowly.
#[derive(Clone, Copy, Debug)]
struct Host {
    id: usize,
    start: i64,
    /// In parts of a million.
    too_fast: i64,
}

impl Host {
    fn new(id: usize) -> Self {
        let spread = i64::try_from(id).unwrap();
        Self { id, start: spread * 7_777_777 % 5_000_000, too_fast: (spread * 331 % 9 - 4) * 100 }
    }

    fn name(self) -> String {
        format!("host{}", self.id)
    }

    fn at(self, real: i64) -> i64 {
        self.start + real + real * self.too_fast / 1_000_000
    }
}

#[derive(Clone)]
struct Replica {
    host: Host,
    offsets: Offsets,
    /// The revision and the status that it last saw.
    copy: (u64, Status),
    /// What it has charged in advance, and what of that it has not settled yet.
    active: Option<Advance>,
    settling: Option<Advance>,
}

/// A decision on its way to the API server.
#[derive(Clone)]
struct Flight {
    replica: usize,
    pod: usize,
    others: Option<bool>,
    base: u64,
    status: Status,
    charged: Charged,
    at: i64,
    decided: Option<Advance>,
    settling: Option<Advance>,
}

struct Model {
    control: Control,
    now: i64,
    stored: (u64, Status),
    replicas: Vec<Replica>,
    hosts: usize,
    flights: Vec<Flight>,
    releases: Vec<(usize, usize, Stamp)>,
    /// When each pod was last admitted, and how often.
    admitted: HashMap<usize, (i64, usize)>,
    /// Pods that went, and when they were admitted for it.
    gone: HashMap<usize, i64>,
}

impl Model {
    fn new() -> Self {
        let rules: Vec<_> =
            RULES.iter().map(|(interval, _, limit)| json!({"interval": interval, "limit": limit})).collect();
        let control = Control::read(&json!({"limitRules": rules})).unwrap();
        // Two replicas share a host.
        let host = |replica: usize| Host::new(replica / 2);
        let replica = |replica| Replica {
            host: host(replica),
            offsets: Offsets::default(),
            copy: (1, Status::default()),
            active: None,
            settling: None,
        };
        Self {
            control,
            now: 0,
            stored: (1, Status::default()),
            replicas: (0..REPLICAS).map(replica).collect(),
            hosts: REPLICAS,
            flights: Vec::new(),
            releases: Vec::new(),
            admitted: HashMap::new(),
            gone: HashMap::new(),
        }
    }

    /// How often a pod must be admitted before it goes: some are refused by something else, each time or once.
    fn takes(pod: usize) -> usize {
        match pod % 5 {
            0 => usize::MAX,
            1 => 2,
            _ => 1,
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Pass(millis) => self.now += millis,
            Step::See(replica) => self.see(replica),
            Step::Ask { replica, pod, others } => self.ask(replica, pod, others, true),
            Step::Settle(number) if !self.flights.is_empty() => {
                let flight = self.flights.swap_remove(number % self.flights.len());
                self.settle(flight);
            }
            Step::Release(number) if !self.releases.is_empty() => {
                let (replica, pod, stamp) = self.releases[number % self.releases.len()].clone();
                self.release(replica, pod, &stamp);
            }
            Step::Tend { replica, fold } => self.tend(replica, fold),
            Step::Crash { replica, moves } => {
                self.flights.retain(|flight| flight.replica != replica);
                self.releases.retain(|(by, _, _)| *by != replica);
                if moves {
                    self.replicas[replica].host = Host::new(self.hosts);
                    self.hosts += 1;
                }
                let Replica { offsets, active, settling, .. } = &mut self.replicas[replica];
                (*offsets, *active, *settling) = (Offsets::default(), None, None);
                self.see(replica);
            }
            Step::Settle(_) | Step::Release(_) => {}
        }
    }

    fn see(&mut self, replica: usize) {
        let (now, stored) = (self.now, self.stored.clone());
        let Replica { host, offsets, copy, .. } = &mut self.replicas[replica];
        offsets.observe(&host.name(), host.at(now), stored.0, &stored.1.clocks);
        *copy = stored;
    }

    /// Changes the status as a replica knows it; nothing comes of it if somebody was faster.
    fn write(&mut self, replica: usize, change: impl FnOnce(&mut Windows<'_>) -> bool) {
        let Replica { host, offsets, copy, .. } = &self.replicas[replica];
        let reading = offsets.read(&host.name(), host.at(self.now));
        let (base, mut status) = copy.clone();
        let mut windows = Windows::open(&self.control, &mut status, &reading);
        let changed = change(&mut windows);
        windows.show(None, Timestamp::UNIX_EPOCH);
        if changed && base == self.stored.0 {
            self.stored = (base + 1, status);
            self.see(replica);
        }
    }

    fn ask(&mut self, replica: usize, pod: usize, others: Option<bool>, may_read: bool) {
        // One decision of a replica is on its way at a time.
        if self.gone.contains_key(&pod) || self.flights.iter().any(|flight| flight.replica == replica) {
            return;
        }
        let (uid, namespace, name) = (format!("u{pod}"), "shop".to_owned(), format!("web-{pod}"));
        let removal =
            Removal { uid, namespace, name, forced: false, tentative: others.is_some(), lasting: false };
        let now = self.now;
        let Replica { host, offsets, copy, active, settling } = &mut self.replicas[replica];
        let is_known =
            copy.1.pending.contains_key(&removal.uid) || copy.1.lived_on.contains_key(&removal.uid);
        let advanced = active.as_mut().filter(|_| !is_known);
        if let Some(taken) = advanced.and_then(|active| active.take(&removal, host.at(now))) {
            match (others, taken) {
                (Some(false), Taken::New(stamp)) => self.releases.push((replica, pod, stamp)),
                (Some(false), Taken::Again) => {}
                _ => self.granted(pod, now),
            }
            return;
        }
        let fresh = copy.0 == self.stored.0;
        let reading = offsets.read(&host.name(), host.at(now));
        let (base, mut status) = copy.clone();
        let mut windows = Windows::open(&self.control, &mut status, &reading);
        let mut writes = false;
        if let Some(advance) = active.take().or(settling.take()) {
            windows.settle(&advance);
            (writes, *settling) = (true, Some(advance));
        }
        let (charged, counts) = windows.charge(&removal);
        writes |= counts;
        let admitted = usize::from(matches!(charged, Charged::Yes(Some(_))));
        let advance = if writes { windows.advance(TERMS, admitted) } else { None };
        let decided = advance.map(|(stamp, left)| Advance {
            uid: String::new(),
            generation: None,
            stamp,
            left,
            taken: HashMap::new(),
        });
        windows.show(None, Timestamp::UNIX_EPOCH);
        if writes {
            let settling = settling.take();
            self.flights.push(Flight {
                replica,
                pod,
                others,
                base,
                status,
                charged,
                at: now,
                decided,
                settling,
            });
        } else if !fresh && may_read {
            self.see(replica);
            self.ask(replica, pod, others, false);
        } else if matches!(charged, Charged::Yes(_)) {
            let at = self.admitted.get(&pod).map_or(now, |(at, _)| *at);
            self.granted(pod, at);
        }
    }

    fn settle(&mut self, flight: Flight) {
        let Flight { replica, pod, others, base, status, charged, at, decided, settling } = flight;
        if base != self.stored.0 {
            self.replicas[replica].settling = settling;
            self.see(replica);
            return self.ask(replica, pod, others, false);
        }
        self.stored = (base + 1, status);
        self.replicas[replica].active = decided;
        self.see(replica);
        match (others, charged) {
            (Some(false), Charged::Yes(Some(stamp))) => self.releases.push((replica, pod, stamp)),
            (Some(false), _) | (_, Charged::No(_)) => {}
            _ => self.granted(pod, at),
        }
    }

    /// Gives back what others refused.
    fn release(&mut self, replica: usize, pod: usize, stamp: &Stamp) {
        if self.flights.iter().any(|flight| flight.replica == replica) {
            return;
        }
        self.releases.retain(|(_, other, at)| *other != pod || at != stamp);
        let uid = format!("u{pod}");
        let Replica { active, settling, .. } = &mut self.replicas[replica];
        if active.as_mut().is_some_and(|active| active.give_back(&uid, stamp)) {
            return;
        }
        let advance = active.take().or(settling.take());
        self.see(replica);
        self.write(replica, |windows| {
            if let Some(advance) = &advance {
                windows.settle(advance);
            }
            windows.release(&uid, stamp) || advance.is_some()
        });
    }

    fn granted(&mut self, pod: usize, at: i64) {
        let (last, times) = self.admitted.entry(pod).or_insert((at, 0));
        (*last, *times) = (at, *times + 1);
        if *times >= Self::takes(pod) {
            self.gone.entry(pod).or_insert(at);
        }
    }

    /// What the leader does. It gives back only what a live read shows to live on, and nothing that is on its way.
    fn tend(&mut self, replica: usize, fold: bool) {
        let pending = self.replicas[replica].copy.1.pending.clone();
        let number = |uid: &str| uid.trim_start_matches('u').parse::<usize>().unwrap();
        let departed: BTreeSet<String> =
            pending.keys().filter(|uid| self.gone.contains_key(&number(uid))).cloned().collect();
        let stays = |uid: &String| {
            let pod = number(uid);
            !self.gone.contains_key(&pod) && Self::takes(pod) == usize::MAX
        };
        let lives_on = pending.iter().filter(|(uid, _)| stays(uid));
        let lives_on: HashMap<String, Stamp> =
            lives_on.map(|(uid, pending)| (uid.clone(), pending.stamp.clone())).collect();
        self.write(replica, |windows| {
            let swept = windows.sweep(|uid| departed.contains(uid).then_some(Departure::Going), &lives_on);
            if fold {
                windows.fold(false);
            }
            swept || fold
        });
    }

    /// The most that went in any interval of this length.
    fn most_within(&self, length: i64) -> i64 {
        // The clocks run apart by less than a thousandth, and show whole milliseconds.
        let length = length - length / 1_000 - 2;
        let within = |end: i64| self.gone.values().filter(|&&at| at <= end && end - at < length).count();
        self.gone.values().map(|&end| within(end)).max().unwrap_or(0).try_into().unwrap()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn never_more_than_the_limit_whatever_happens(steps in proptest::collection::vec(step(), 1..250)) {
        let mut model = Model::new();
        for (number, step) in steps.iter().enumerate() {
            model.step(step);

            for (interval, length, limit) in RULES {
                let most = model.most_within(length);
                prop_assert!(most <= limit, "{most} in {interval} after step {number}: {:?}", model.gone);
            }
        }
    }
}

#[test]
fn left_alone_all_that_can_go_goes_at_the_pace() {
    let mut model = Model::new();
    let can_go = (0..PODS).filter(|pod| Model::takes(*pod) != usize::MAX).count();
    for round in 0..2_000 {
        for replica in 0..REPLICAS {
            model.step(&Step::See(replica));
            model.step(&Step::Ask { replica, pod: (round + replica * 7) % PODS, others: None });
            model.step(&Step::Settle(0));
        }
        model.step(&Step::Tend { replica: 0, fold: round % 50 == 0 });
        model.step(&Step::Pass(100));
    }
    assert_eq!(model.gone.len(), can_go);
    // Eight in thirty seconds: 32 pods take four windows at best.
    let last = model.gone.values().max().unwrap();
    assert!((90_000..200_000).contains(last), "{last}");
}
