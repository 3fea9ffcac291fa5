//! Flow controls as accounts: who counts a deletion, and what came of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::Api;
use palisade_api::action::Action;
use palisade_api::flow::{Control, Stamp, Status};
use palisade_api::versions::PolicyKind;
use palisade_engine::json::Malformed;
use palisade_engine::{Answer, Object, Throttled, User, Withdrawal};
use tokio::time::{Instant, sleep, timeout};

use super::advance::{Advance, TERMS, Taken};
use super::clock::Clock;
use super::refusals::note_refusals;
use super::window::{Beyond, Charged, Removal, Windows};
use super::{Flows, Known, flow_resource};
use crate::commit::{self, Account, CALL, Decided, Entry, Tasks};
use crate::live::{METADATA, get, segment};
use crate::objects::exist;
use crate::sync::lock;

/// How long a request waits for the watch to bring a flow control that is there.
const CATCH_UP: Duration = Duration::from_secs(2);
/// How long refusals are gathered before they are written down.
const GATHER: Duration = Duration::from_millis(500);
/// How often it is looked whether what was charged in advance is over.
const SETTLED: Duration = Duration::from_millis(50);
/// What is written down without anybody waiting for it may take so long.
const PATIENCE: Duration = Duration::from_secs(10);
/// While something counts, a host's clock is told again after one part in so many of the longest interval, so that
/// whoever comes new knows how old it is.
const TOLD: i64 = 40;

/// What is asked of a flow control.
pub(crate) enum Ask {
    Charge {
        removal: Removal,
        /// Whether it is noted if it is beyond the limit.
        noted: bool,
    },
    /// What was charged with a stamp is not needed.
    Release(String, Stamp),
    /// So many were refused.
    Note(u64),
    /// What was charged in advance is over.
    Settle,
}

/// What a deletion came to.
pub(crate) enum Outcome {
    /// It counts; if it did not before, it may be given back by a stamp.
    Charged(Option<Stamp>),
    /// It counts, and is let pass beyond the limit.
    Passed(Option<Stamp>, Throttled),
    Refused(Throttled),
}

/// What is known of a pod whose deletion was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It is there, and not going.
    On,
    /// It is going, or gone.
    Over,
    Unknown,
}

impl Flows {
    /// The flow controls that count a deletion, and whether they do so beyond their limits.
    pub(crate) async fn concerned(&self, withdrawal: &Withdrawal<'_>) -> Answer<Vec<(Arc<Known>, bool)>> {
        let Some(user) = withdrawal.removed_by else { return Ok(Vec::new()) };
        let mut controls = self.controls();
        if controls.is_empty() && withdrawal.expects.flow && self.exist().await? {
            // One that was created just now, and the watch is about to bring.
            let mut seen = self.seen();
            let brought = async { while self.controls().is_empty() && seen.changed().await.is_ok() {} };
            // Without it, it has gone again in the meantime.
            let _ = timeout(CATCH_UP, brought).await;
            controls = self.controls();
        }
        let namespace = withdrawal.pod.namespace.as_deref().unwrap_or_default();
        let mut labelled = None;
        let mut concerned = Vec::new();
        for known in controls {
            let control = known.control.as_ref();
            let control = control
                .map_err(|why| commit::unknown::<Self>(format!("flow control {}: {why}", known.name)))?;
            if control
                .white_list
                .as_ref()
                .is_some_and(|list| list.matches(|key| withdrawal.pod.labels.get(key)))
            {
                continue;
            }
            if let Some(selected) = &control.namespaces {
                let text = match &labelled {
                    Some(text) => text,
                    None => labelled.insert(self.namespace(namespace).await?),
                };
                let unreadable = |error: Malformed| commit::unknown::<Self>(error.to_string());
                let object = Object::parse(text.as_bytes()).map_err(unreadable)?;
                if !selected.matches(|key| object.metadata.labels.get(key)) {
                    continue;
                }
            }
            let forced = known.forces(user);
            concerned.push((known, forced));
        }
        Ok(concerned)
    }

    /// Whether there is one, asked of the API server.
    async fn exist(&self) -> Answer<bool> {
        let api = Api::all_with(self.client.clone(), &flow_resource());
        commit::call::<Self, _>(exist(&api, PolicyKind::FlowControl)).await
    }

    /// The metadata of a namespace, as text.
    async fn namespace(&self, namespace: &str) -> Answer<String> {
        let unknown = |why: String| commit::unknown::<Self>(format!("the labels of its namespace: {why}"));
        let request = get(&format!("/api/v1/namespaces/{}", segment(namespace)), METADATA);
        let request = request.map_err(|why| unknown(why.text))?;
        commit::call::<Self, _>(self.client.request_text(request)).await.map_err(|error| unknown(error.why))
    }

    /// What would come of a deletion: as the API server has it now, if `fresh`, or by what is known.
    pub(crate) async fn peek(
        &self,
        known: &Known,
        removal: &Removal,
        user: &User<'_>,
        fresh: bool,
    ) -> Answer<Outcome> {
        let read = if fresh { commit::call::<Self, _>(self.read(&known.name)).await? } else { None };
        let known = read.as_ref().unwrap_or(known);
        let Ok(control) = &known.control else { return Ok(Outcome::Charged(None)) };
        let (mut status, reading) = (known.status.clone(), self.clock.read());
        let (charged, _) = Windows::open(control, &mut status, &reading).charge(removal);
        Ok(outcome(known, control, user, charged))
    }

    /// Counts a deletion.
    pub(crate) async fn charge(
        self: &Arc<Self>,
        known: &Known,
        removal: Removal,
        user: &User<'_>,
        deadline: Instant,
    ) -> Answer<Outcome> {
        let Ok(control) = &known.control else { return Ok(Outcome::Charged(None)) };
        if let Some(taken) = self.take_in_advance(known, &removal) {
            (self.count)(Entry::Reserved(1));
            return Ok(Outcome::Charged(match taken {
                Taken::New(stamp) => Some(stamp),
                Taken::Again => None,
            }));
        }
        let noted = !exempts(control, user);
        let charged = commit::ask(self, &known.name, Ask::Charge { removal, noted }, deadline).await?;
        if matches!(charged, Charged::No(_)) {
            self.note(&known.name);
        }
        Ok(outcome(known, control, user, charged))
    }

    /// Gives back what was charged with a stamp. If that fails it comes back by itself: the pod is seen to live on.
    pub(crate) async fn release(self: &Arc<Self>, known: &Known, uid: &str, stamp: Stamp, deadline: Instant) {
        if !self.advances.give_back(&known.name, uid, &stamp) {
            let _ = commit::ask(self, &known.name, Ask::Release(uid.to_owned(), stamp), deadline).await;
        }
    }

    /// Admits a deletion from slots that are charged already, if there are any.
    fn take_in_advance(&self, known: &Known, removal: &Removal) -> Option<Taken> {
        let Known { status, uid, generation, .. } = known;
        if status.pending.contains_key(&removal.uid) || status.lived_on.contains_key(&removal.uid) {
            return None;
        }
        self.advances.take(&known.name, |advance| {
            let same = advance.uid == *uid && advance.generation == *generation;
            if same { advance.take(removal, Clock::now()) } else { None }
        })
    }

    /// Settles what was charged in advance when it is over. Never ends.
    pub(super) async fn settle_advances(self: &Arc<Self>) {
        loop {
            self.advanced.notified().await;
            while !self.advances.is_empty() {
                sleep(SETTLED).await;
                let settled = self.advances.over(Clock::now()).into_iter().map(async |name| {
                    let _ = commit::ask(self, &name, Ask::Settle, Instant::now() + PATIENCE).await;
                    // The flow control is gone, or could not be asked: what it counts stays counted.
                    self.advances.forget(&name, Clock::now());
                });
                futures::future::join_all(settled).await;
            }
        }
    }

    /// Notes a refusal. They are written down together, a moment later.
    fn note(self: &Arc<Self>, name: &str) {
        let first = {
            let mut refused = lock(&self.refused);
            let count = refused.entry(name.to_owned()).or_default();
            *count += 1;
            *count == 1
        };
        if first {
            let (flows, name) = (self.clone(), name.to_owned());
            tokio::spawn(async move {
                sleep(GATHER).await;
                let count = lock(&flows.refused).remove(&name).unwrap_or_default();
                // A count that is lost is one less in a column.
                let _ = commit::ask(&flows, &name, Ask::Note(count), Instant::now() + PATIENCE).await;
            });
        }
    }

    /// How a flow control stands now, for its status, and whether that is worth a write. `lives_on` are pods that were
    /// seen to live on, and the stamps that they were counted with.
    pub fn observe(&self, known: &Known, lives_on: &HashMap<String, Stamp>) -> Option<Status> {
        let control = known.control.as_ref().ok()?;
        let (mut status, reading) = (known.status.clone(), self.clock.read());
        let mut windows = Windows::open(control, &mut status, &reading);
        self.sweep(&mut windows, lives_on);
        let longest = control.rules.iter().map(|rule| rule.interval.millis).max().unwrap_or_default();
        let told = known.status.clocks.iter().map(|(clock, &shown)| reading.age(clock, shown)).min();
        let tell = !windows.is_empty() && told.is_none_or(|age| age > (longest / TOLD).max(60_000));
        if tell {
            windows.fold(false);
        }
        windows.show(known.generation, Timestamp::now());
        // That our clock goes on is not worth a write.
        if !tell {
            let shown = std::mem::replace(&mut status.clocks, known.status.clocks.clone());
            if status != known.status {
                status.clocks = shown;
            }
        }
        Some(status)
    }

    fn sweep(&self, windows: &mut Windows<'_>, lives_on: &HashMap<String, Stamp>) {
        windows.sweep(|uid| lock(&self.departures).of(uid), lives_on);
    }

    /// Whether a pod is there, and not going. Nobody's word is nothing.
    pub async fn lives_on(&self, uid: &str, namespace: &str, name: &str) -> Life {
        let path = format!("/api/v1/namespaces/{}/pods/{}", segment(namespace), segment(name));
        let Ok(request) = get(&path, METADATA) else { return Life::Unknown };
        let text = match timeout(CALL, self.client.request_text(request)).await {
            Ok(Ok(text)) => text,
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => return Life::Over,
            Ok(Err(_)) | Err(_) => return Life::Unknown,
        };
        match Object::parse(text.as_bytes()) {
            Ok(pod) if pod.metadata.uid == uid && pod.metadata.deletion_timestamp.is_none() => Life::On,
            Ok(_) => Life::Over,
            Err(_) => Life::Unknown,
        }
    }
}

fn outcome(known: &Known, control: &Control, user: &User<'_>, charged: Charged) -> Outcome {
    match charged {
        Charged::Yes(stamp) => Outcome::Charged(stamp),
        Charged::Forced(stamp, _) if exempts(control, user) => Outcome::Charged(stamp),
        Charged::Forced(stamp, beyond) => Outcome::Passed(stamp, known.throttled(beyond)),
        Charged::No(beyond) => Outcome::Refused(known.throttled(beyond)),
    }
}

impl Account for Flows {
    type Key = String;
    type Known = Known;
    type Status = Status;
    type Ask = Ask;
    type Said = Charged;

    const QUESTION: &'static str = "whether flow controls allow it";

    fn tasks(&self) -> &Tasks<Self> {
        &self.tasks
    }

    fn watched(&self, key: &String) -> Option<Arc<Known>> {
        self.control(key)
    }

    fn version(known: &Known) -> (&str, &str) {
        (&known.uid, &known.resource_version)
    }

    async fn decide(&self, known: &Known, asked: &[&Ask]) -> Answer<Decided<Self>> {
        let control = known.control.as_ref();
        let control =
            control.map_err(|why| commit::unknown::<Self>(format!("flow control {}: {why}", known.name)))?;
        let (mut status, reading, now) = (known.status.clone(), self.clock.read(), Timestamp::now());
        let (mut beyond, mut admitted) = (0, 0);
        let mut windows = Windows::open(control, &mut status, &reading);
        let mut changed = false;
        if let Some(advance) = self.advances.settle(&known.name).filter(|advance| advance.uid == known.uid) {
            windows.settle(&advance);
            // Whoever was busy goes on to be.
            admitted += advance.taken.len();
            changed = true;
        }
        for ask in asked {
            if let Ask::Release(uid, stamp) = ask {
                changed |= windows.release(uid, stamp);
            }
        }
        let said = asked.iter().map(|ask| match ask {
            Ask::Release(..) | Ask::Settle => Charged::Yes(None),
            Ask::Note(count) => {
                beyond += count;
                Charged::Yes(None)
            }
            Ask::Charge { removal, noted } => {
                let (outcome, counts) = windows.charge(removal);
                changed |= counts;
                admitted += usize::from(matches!(outcome, Charged::Yes(Some(_))));
                beyond += u64::from(*noted && matches!(outcome, Charged::Forced(..)));
                outcome
            }
        });
        let said = said.collect();
        if !changed && beyond == 0 {
            return Ok((said, None));
        }
        let advance = windows.advance(TERMS, admitted).map(|(stamp, left)| Advance {
            uid: known.uid.clone(),
            generation: known.generation,
            stamp,
            left,
            taken: HashMap::new(),
        });
        self.advances.decide(&known.name, advance);
        self.sweep(&mut windows, &HashMap::new());
        windows.show(known.generation, now);
        if beyond > 0 {
            note_refusals(&mut status, beyond, now);
        }
        Ok((said, Some(status)))
    }

    async fn write(&self, known: &Known, status: &Status) -> kube::Result<Known> {
        let advance = self.advances.write(&known.name);
        let written = Self::write(self, known, status).await;
        match &written {
            Ok(_) => {
                if self.advances.written(&known.name, advance) {
                    self.advanced.notify_one();
                }
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                self.advances.refused(&known.name, advance);
            }
            // It may have been written: what it settled is forgotten, and stays counted if it was not.
            Err(_) => {}
        }
        written
    }

    async fn read(&self, key: &String) -> kube::Result<Option<Known>> {
        Self::read(self, key).await
    }

    fn free() -> Charged {
        Charged::Yes(None)
    }

    fn is_refused(ask: &Ask, said: &Charged) -> Option<bool> {
        matches!(ask, Ask::Charge { .. }).then(|| matches!(said, Charged::No(_)))
    }

    fn count(&self, entry: Entry) {
        (self.count)(entry);
    }
}

impl Known {
    /// Whether a deletion counts also beyond the limit: it warns, it records, or the asker is exempt.
    fn forces(&self, user: &User<'_>) -> bool {
        self.control.as_ref().is_ok_and(|control| control.action != Action::Deny || exempts(control, user))
    }

    fn throttled(&self, beyond: Beyond) -> Throttled {
        let Beyond { interval, limit, used, next } = beyond;
        let seconds = |millis: i64| u32::try_from(millis.max(0).div_euclid(1_000) + 1).unwrap_or(u32::MAX);
        Throttled {
            control: self.name.clone(),
            action: self.control.as_ref().map(|control| control.action).unwrap_or_default(),
            interval,
            limit,
            used,
            next_slot: next.map(seconds),
        }
    }
}

fn exempts(control: &Control, user: &User<'_>) -> bool {
    control.exempt.cover(&user.name, user.groups.iter().map(|group| &**group))
}
