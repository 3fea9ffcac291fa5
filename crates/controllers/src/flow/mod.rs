//! The status of `PodDeletionFlowControl`s.
//!
//! The leader looks at each once a second: it forgets pods that have gone, gives back what pods hold that live on, and
//! writes the numbers when they change, always with the resource version that it read, so that it never undoes what was
//! counted. It says in an Event when a limit is reached, and when there is room again.

mod plan;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use palisade_api::flow::{self, Pending, Stamp, Status};
use palisade_api::names;
use palisade_cluster::flow::{Departure, Flows, Known, Life};
use palisade_cluster::sync;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::leadership::Leadership;
use crate::registration::Carried;

const TICK: Duration = Duration::from_secs(1);
const CALL: Duration = Duration::from_secs(10);
const AT_ONCE: usize = 8;
/// How often in a row somebody else may be faster.
const CONFLICTS: usize = 5;

/// What the status is derived from.
#[derive(Clone)]
pub struct Inputs {
    pub leadership: watch::Receiver<Leadership>,
    pub carried: watch::Receiver<Carried>,
    /// After this long a pod is asked after whose deletion nobody has seen. No request that was admitted goes on for
    /// longer.
    pub expiry: Duration,
}

/// What is told to whoever counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tripped {
    /// So many are beyond a limit now.
    Now(usize),
    /// One more is.
    Another,
}

/// Keeps the status of all flow controls while leading. Never ends.
pub async fn keep_status(
    client: Client,
    flows: Arc<Flows>,
    mut inputs: Inputs,
    count: impl Fn(Tripped) + Send + Sync,
) {
    let mut specs = flows.specs();
    let mut keeper = Keeper { client, flows, expiry: inputs.expiry, since: HashMap::new(), count };
    loop {
        tokio::select! {
            () = sleep(TICK) => {}
            Ok(()) = specs.changed() => {}
            Ok(()) = inputs.carried.changed() => {}
            Ok(()) = inputs.leadership.changed() => {}
        }
        if !sync::newest(&mut inputs.leadership).leading {
            keeper.since.clear();
            (keeper.count)(Tripped::Now(0));
            continue;
        }
        let carried = sync::newest(&mut inputs.carried);
        keeper.keep(&carried).await;
    }
}

struct Keeper<C> {
    client: Client,
    flows: Arc<Flows>,
    expiry: Duration,
    /// Since when each pending deletion has been seen: by control, pod, and the stamp that it was counted with.
    since: HashMap<(String, String, String), Instant>,
    count: C,
}

impl<C: Fn(Tripped) + Send + Sync> Keeper<C> {
    async fn keep(&mut self, carried: &Carried) {
        let controls = self.flows.controls();
        let lives_on = self.resolve(&controls).await;
        let none = HashMap::new();
        for known in &controls {
            let lives_on = lives_on.get(&known.name).unwrap_or(&none);
            match timeout(CALL, self.reconcile(known, lives_on, carried)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(%error, control = known.name, "keeping a flow control's status");
                }
                Err(_) => {
                    tracing::warn!(
                        control = known.name,
                        "keeping a flow control's status: no answer in time"
                    );
                }
            }
        }
        let tripped = self.flows.controls().iter().filter(|known| plan::is_tripped(&known.status)).count();
        (self.count)(Tripped::Now(tripped));
    }

    /// Asks after the pods whose deletion has been pending for long. Returns those that live on, by control.
    async fn resolve(&mut self, controls: &[Arc<Known>]) -> HashMap<String, HashMap<String, Stamp>> {
        let mut there = HashMap::new();
        let mut due: Vec<(String, String, Pending)> = Vec::new();
        for known in controls {
            for (uid, pending) in &known.status.pending {
                let id = (known.name.clone(), uid.clone(), pending.stamp.to_string());
                let since = self.since.get(&id).copied().unwrap_or_else(Instant::now);
                if since.elapsed() >= self.expiry {
                    due.push((known.name.clone(), uid.clone(), pending.clone()));
                }
                there.insert(id, since);
            }
        }
        self.since = there;
        let flows = &self.flows;
        let asked = futures::stream::iter(due).map(|(control, uid, pending)| async move {
            let life = flows.lives_on(&uid, &pending.namespace, &pending.name).await;
            (control, uid, pending.stamp, life)
        });
        let answers: Vec<_> = asked.buffer_unordered(AT_ONCE).collect().await;
        let mut lives_on: HashMap<String, HashMap<String, Stamp>> = HashMap::new();
        for (control, uid, stamp, life) in answers {
            match life {
                Life::On => drop(lives_on.entry(control).or_default().insert(uid, stamp)),
                Life::Over => flows.depart(&uid, Departure::Going),
                // It stays counted until somebody can tell.
                Life::Unknown => {}
            }
        }
        lives_on
    }

    async fn reconcile(
        &self,
        known: &Known,
        lives_on: &HashMap<String, Stamp>,
        carried: &Carried,
    ) -> kube::Result<()> {
        let mut newest = known.clone();
        for _ in 0..CONFLICTS {
            let status =
                plan::status(&newest, self.flows.observe(&newest, lives_on), carried, Timestamp::now());
            if status == newest.status {
                return Ok(());
            }
            match self.flows.write(&newest, &status).await {
                Ok(_) => {
                    self.tell(&newest, &status).await;
                    return Ok(());
                }
                Err(kube::Error::Api(error)) if error.code == 404 => return Ok(()),
                Err(kube::Error::Api(error)) if error.code == 409 => {}
                Err(error) => return Err(error),
            }
            match self.flows.read(&known.name).await? {
                Some(read) if read.uid == known.uid => newest = read,
                _ => return Ok(()),
            }
        }
        // Everybody else is busy writing, and writes the numbers, too.
        Ok(())
    }

    /// Says that a limit is reached, or that there is room again.
    async fn tell(&self, known: &Known, status: &Status) {
        let (type_, reason) = match (plan::is_tripped(&known.status), plan::is_tripped(status)) {
            (false, true) => (EventType::Warning, "LimitReached"),
            (true, false) => (EventType::Normal, "Recovered"),
            _ => return,
        };
        if reason == "LimitReached" {
            (self.count)(Tripped::Another);
        }
        let note = plan::note(known, status);
        tracing::info!(control = known.name, note, "a flow control has {reason}");
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note),
            action: "Delete".to_owned(),
            secondary: None,
        };
        let about = ObjectReference {
            api_version: Some(format!("{}/{}", flow::GROUP, flow::VERSION)),
            kind: Some(flow::KIND.to_owned()),
            name: Some(known.name.clone()),
            uid: Some(known.uid.clone()),
            ..ObjectReference::default()
        };
        let reporter = Reporter { controller: names::PALISADE.to_owned(), instance: None };
        // An Event that is lost loses a line in a list; the condition has it.
        if let Err(error) = Recorder::new(self.client.clone(), reporter).publish(&event, &about).await {
            tracing::warn!(%error, control = known.name, "recording an event");
        }
    }
}
