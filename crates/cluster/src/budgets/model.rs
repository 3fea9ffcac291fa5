//! A model of the whole: replicas that see pods late, a status that is written by compare-and-swap, deletions and
//! updates that are admitted, carried out, refused by others or cut short by a crash, in any order.
//!
//! Whatever happens: never fewer pods are available than the budget desires; and once all is quiet, exactly as many may
//! be lost as can be.

use std::collections::HashSet;

use jiff::Timestamp;
use palisade_api::budget::{Budget, Status};
use palisade_engine::Object;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::account::{Admitted, Life, Loser, Numbers, Seen, admit, has_seen_enough, sweep};
use super::census::{Census, Owners, census};
use super::pods::Pods;
use super::workloads::{Scale, Workloads};
use crate::feed::Fed;

const REPLICAS: usize = 3;
const WANTED: usize = 6;
/// When a reservation's pod is asked after, and the longest that anything takes from question to effect.
const EXPIRY: i64 = 60;
const LONGEST: i64 = 55;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Available,
    Down,
    Terminating,
    Gone,
}

/// A deletion or an update on its way.
#[derive(Clone, Debug)]
struct Request {
    pod: usize,
    /// The revision of the pod that was asked about.
    revision: u64,
    goes: bool,
    replica: usize,
    stage: Stage,
    born: i64,
}

#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there are few of them")]
enum Stage {
    /// The replica has decided on a status that it read, and is about to write.
    Decided { base: u64, status: Status },
    /// It wrote, and the API server is told yes.
    Granted,
    /// Carried out, but not all of it: an update that the kubelet has not acted on.
    Stored,
}

struct Cluster {
    budget: Budget,
    workloads: Workloads,
    /// The truth.
    pods: Vec<State>,
    revisions: Vec<u64>,
    revision: u64,
    /// What has happened to pods, for whoever watches.
    events: Vec<Value>,
    /// How many of the events each replica has seen, and what it knows of pods.
    seen: Vec<(usize, Pods)>,
    /// The status that is stored, and its version; and the copies that replicas have.
    stored: (u64, Status),
    copies: Vec<(u64, Status)>,
    requests: Vec<Request>,
    leader: usize,
    /// What the leader is about to write, and since when.
    sweeping: Option<(u64, Status, i64)>,
    /// Seconds.
    clock: i64,
}

impl Cluster {
    fn new(spec: &Value) -> Self {
        let mut workloads = Workloads::default();
        let set =
            json!({"metadata": {"name": "web", "namespace": "shop", "uid": "rs", "resourceVersion": "1"},
            "spec": {"replicas": WANTED}})
            .to_string();
        let kind = ("apps".into(), "ReplicaSet".into());
        let scale = Scale::known("apps", "ReplicaSet").unwrap();
        let object = Object::parse(set.as_bytes()).unwrap();
        workloads.take(&Fed::Applied(&object), &kind, &scale, &mut HashSet::new());
        let mut cluster = Self {
            budget: Budget::read(spec).unwrap(),
            workloads,
            pods: Vec::new(),
            revisions: Vec::new(),
            revision: 1,
            events: Vec::new(),
            seen: (0..REPLICAS).map(|_| (0, Pods::default())).collect(),
            stored: (1, Status::default()),
            copies: vec![(1, Status::default()); REPLICAS],
            requests: Vec::new(),
            leader: 0,
            sweeping: None,
            clock: 0,
        };
        for _ in 0..WANTED {
            cluster.pods.push(State::Available);
            cluster.tell(cluster.pods.len() - 1);
        }
        for replica in 0..REPLICAS {
            cluster.seen[replica].1.take(&Fed::Begin, &mut HashSet::new());
            cluster.seen[replica].1.take(&Fed::Complete(1), &mut HashSet::new());
            cluster.catch_up(replica);
        }
        cluster
    }

    /// Appends what is true of a pod to what watches show.
    fn tell(&mut self, pod: usize) {
        self.revision += 1;
        self.revisions.resize(self.pods.len(), 0);
        self.revisions[pod] = self.revision;
        let state = self.pods[pod];
        let mut metadata = json!({"name": format!("web-{pod}"), "namespace": "shop", "uid": format!("u{pod}"),
            "resourceVersion": self.revision.to_string(), "labels": {"app": "web"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": true}]});
        if state == State::Terminating {
            metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let ready = if state == State::Available { "True" } else { "False" };
        let object = json!({"metadata": metadata,
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}});
        self.events.push(json!({"deleted": state == State::Gone, "object": object}));
    }

    fn see_next(&mut self, replica: usize) {
        let (seen, pods) = &mut self.seen[replica];
        let Some(event) = self.events.get(*seen) else { return };
        *seen += 1;
        let text = event["object"].to_string();
        let object = Object::parse(text.as_bytes()).unwrap();
        let fed = if event["deleted"] == true { Fed::Deleted(&object) } else { Fed::Applied(&object) };
        pods.take(&fed, &mut HashSet::new());
    }

    fn catch_up(&mut self, replica: usize) {
        while self.seen[replica].0 < self.events.len() {
            self.see_next(replica);
        }
    }

    /// A replica that starts anew lists.
    fn restart(&mut self, replica: usize) {
        self.requests
            .retain(|request| request.replica != replica || !matches!(request.stage, Stage::Decided { .. }));
        // Whoever was told yes goes on; a yes that was not heard is a no.
        if self.leader == replica {
            self.sweeping = None;
        }
        let mut pods = Pods::default();
        pods.take(&Fed::Begin, &mut HashSet::new());
        self.seen[replica] = (0, pods);
        self.catch_up(replica);
        self.seen[replica].1.take(&Fed::Complete(self.revision), &mut HashSet::new());
        self.copies[replica] = self.stored.clone();
    }

    fn numbers(&self, replica: usize, status: &Status) -> (Numbers, Census) {
        let owners = Owners { watched: &self.workloads, asked: &std::collections::HashMap::new() };
        let census =
            census(&self.budget, "shop", self.seen[replica].1.of_namespace("shop"), &owners).unwrap();
        (Numbers::of(&self.budget, &census, status), census)
    }

    /// A replica decides about a pod that the API server shows it as available. Returns whether it may be.
    fn decide(&mut self, pod: usize, goes: bool, replica: usize, born: i64) -> bool {
        let fresh = self.copies[replica] == self.stored;
        let (base, mut status) = self.copies[replica].clone();
        if !has_seen_enough(&status, self.seen[replica].1.revision()) {
            return false;
        }
        let (_, census) = self.numbers(replica, &status);
        let loser = Loser {
            uid: format!("u{pod}").into(),
            revision: self.revisions[pod].to_string().into(),
            goes,
            tentative: false,
        };
        let (admitted, _, changed) = admit(&self.budget, &census, &mut status, &[loser], self.now());
        if matches!(admitted[..], [Admitted::No(_)]) {
            return false;
        }
        let stage = match (changed, fresh) {
            (true, _) => Stage::Decided { base, status },
            (false, true) => Stage::Granted,
            (false, false) => {
                self.copies[replica] = self.stored.clone();
                return self.decide(pod, goes, replica, born);
            }
        };
        self.requests.push(Request { pod, revision: self.revisions[pod], goes, replica, stage, born });
        true
    }

    fn swap(&mut self, base: u64, status: Status) -> bool {
        let won = self.stored.0 == base;
        if won {
            self.stored = (base + 1, status);
        }
        won
    }

    /// The next step of a request. `carried`: whether nothing else refuses it.
    fn step(&mut self, number: usize, carried: bool) {
        let mut request = self.requests.remove(number);
        match request.stage.clone() {
            Stage::Decided { base, status } => {
                let won = self.swap(base, status);
                self.copies[request.replica] = self.stored.clone();
                if won {
                    request.stage = Stage::Granted;
                    self.requests.push(request);
                } else if self.pods[request.pod] == State::Available {
                    self.decide(request.pod, request.goes, request.replica, request.born);
                }
            }
            Stage::Granted if !carried => {}
            // The API server asks again about what has changed in the meantime.
            Stage::Granted if self.revisions[request.pod] != request.revision => {
                if self.pods[request.pod] == State::Available {
                    self.decide(request.pod, request.goes, request.replica, request.born);
                }
            }
            Stage::Granted => match (self.pods[request.pod], request.goes) {
                (State::Available | State::Down, true) => {
                    self.pods[request.pod] = State::Terminating;
                    self.tell(request.pod);
                }
                (State::Available, false) => {
                    // Stored; the pod still runs.
                    self.tell(request.pod);
                    request.stage = Stage::Stored;
                    self.requests.push(request);
                }
                _ => {}
            },
            Stage::Stored => {
                // A kubelet restarts what it finds: one restart brings all that was stored until then.
                self.requests
                    .retain(|other| other.pod != request.pod || !matches!(other.stage, Stage::Stored));
                if self.pods[request.pod] == State::Available {
                    self.pods[request.pod] = State::Down;
                    self.tell(request.pod);
                }
            }
        }
    }

    /// The leader sweeps, in two steps: it decides, and it writes.
    fn sweep(&mut self) {
        if let Some((base, status, _)) = self.sweeping.take() {
            self.swap(base, status);
            self.copies[self.leader] = self.stored.clone();
            return;
        }
        let (base, mut status) = self.copies[self.leader].clone();
        let now = self.now();
        let is_old = |uid: &str| {
            let made = status.reserved_at.get(uid).and_then(|at| at.parse::<Timestamp>().ok());
            made.is_some_and(|made| now.duration_since(made).as_secs() >= EXPIRY)
        };
        let lives_on = (0..self.pods.len())
            .filter(|pod| is_old(&format!("u{pod}")))
            .filter_map(|pod| match self.pods[pod] {
                State::Available => Some((format!("u{pod}"), Life::Available)),
                State::Down => Some((format!("u{pod}"), Life::Down)),
                State::Terminating | State::Gone => None,
            })
            .collect();
        let pods = &self.seen[self.leader].1;
        let seen = Seen {
            pods: pods.of_namespace("shop"),
            revision: pods.revision(),
            event_revision: pods.event_revision(),
        };
        sweep(&mut status, seen, &lives_on, now);
        if status != self.stored.1 {
            self.sweeping = Some((base, status, self.clock));
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_second(1_000_000 + self.clock).unwrap()
    }

    /// A second passes. Nothing takes for ever: reviews and writes have deadlines, and so has the kubelet.
    fn tick(&mut self) {
        self.clock += 1;
        let is_late = |request: &Request, clock: i64| clock - request.born >= LONGEST;
        while let Some(number) = self.requests.iter().position(|request| is_late(request, self.clock)) {
            if matches!(self.requests[number].stage, Stage::Stored) {
                self.step(number, true);
            } else {
                self.requests.remove(number);
            }
        }
        let clock = self.clock;
        self.sweeping = self.sweeping.take().filter(|(_, _, since)| clock - since < 5);
    }

    /// The workload and the kubelet put things right.
    fn heal(&mut self, pod: usize) {
        match self.pods[pod] {
            State::Terminating => {
                self.pods[pod] = State::Gone;
                self.tell(pod);
                self.pods.push(State::Available);
                self.tell(self.pods.len() - 1);
            }
            State::Down => {
                self.pods[pod] = State::Available;
                self.tell(pod);
            }
            State::Available | State::Gone => {}
        }
    }

    fn available(&self) -> i64 {
        i64::try_from(self.pods.iter().filter(|state| **state == State::Available).count()).unwrap()
    }

    fn desired(&self) -> i64 {
        self.budget.desired(i64::try_from(WANTED).unwrap())
    }

    fn act(&mut self, (action, pick, flag): (u8, usize, bool)) {
        if pick % 3 == 0 {
            self.tick();
        }
        let replica = pick % REPLICAS;
        match action {
            0 | 1 => {
                let serving: Vec<usize> =
                    (0..self.pods.len()).filter(|pod| self.pods[*pod] == State::Available).collect();
                if let Some(&pod) = serving.get(pick % serving.len().max(1)) {
                    self.decide(pod, flag, (pick / 7) % REPLICAS, self.clock);
                }
            }
            2 | 3 if !self.requests.is_empty() => {
                self.step(pick % self.requests.len(), flag || pick % 4 != 0);
            }
            4 | 5 => self.see_next(replica),
            6 => self.copies[replica] = self.stored.clone(),
            7 | 8 => self.sweep(),
            9 => {
                self.sweeping = None;
                self.leader = replica;
            }
            10 => self.restart(replica),
            11 => self.heal(pick % self.pods.len()),
            _ => {}
        }
    }

    /// Lets everything come to rest.
    fn settle(&mut self) {
        while !self.requests.is_empty() {
            self.step(0, true);
        }
        self.clock += 60;
        for replica in 0..REPLICAS {
            self.catch_up(replica);
        }
        for _ in 0..4 {
            self.copies = vec![self.stored.clone(); REPLICAS];
            self.sweep();
        }
        self.copies = vec![self.stored.clone(); REPLICAS];
        self.clock += 60;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]
    #[test]
    fn never_fewer_are_available_than_desired_and_in_the_end_all_that_may_be_lost_can_be(
        allowed in 0..4_u32,
        actions in prop::collection::vec((0..12_u8, 0..1_000_usize, any::<bool>()), 0..250),
    ) {
        let mut cluster = Cluster::new(&json!({"selector": {"app": "web"}, "maxUnavailable": allowed}));
        for action in actions {
            cluster.act(action);
            prop_assert!(cluster.available() >= cluster.desired(), "after {action:?}: {:?}", cluster.pods);
        }
        cluster.settle();
        prop_assert!(cluster.available() >= cluster.desired());
        prop_assert!(!cluster.stored.1.has_reservations(), "{:?}", cluster.stored.1);
        for replica in 0..REPLICAS {
            let (numbers, _) = cluster.numbers(replica, &cluster.stored.1);
            prop_assert_eq!(numbers.available, cluster.available());
            prop_assert!(has_seen_enough(&cluster.stored.1, cluster.seen[replica].1.revision()));
        }
        let may = cluster.available() > cluster.desired();
        let serving = cluster.pods.iter().position(|state| *state == State::Available).unwrap();
        prop_assert_eq!(cluster.decide(serving, true, 0, cluster.clock), may);
    }
}
