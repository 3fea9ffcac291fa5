//! The status of `CriticalService`s, and Events about what their providers leave behind.
//!
//! The leader watches what criteria name and says how each stands; whichever replica lets a provider go before its
//! time says so in an Event.

mod plan;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::api::{Api, DynamicObject};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use palisade_api::critical::{self, Criterion, Service, Status};
use palisade_api::names;
use palisade_api::search_groups::SearchGroups;
use palisade_cluster::critical::{Dependents, Services, service_resource};
use palisade_cluster::sync;
use palisade_engine::{Verdict, prose};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use crate::leadership::Leadership;
use crate::registration::Carried;
use crate::status::update;

/// A look without a reason: a watch may have fallen silent.
const ROUND: Duration = Duration::from_secs(20);
const RETRY: Duration = Duration::from_secs(1);
/// Events that may wait to be written.
const WAITING: usize = 100;
/// What the note of an Event has room for.
const LONGEST_NOTE: usize = 1_000;

/// What the status is derived from.
#[derive(Clone)]
pub struct Inputs {
    pub leadership: watch::Receiver<Leadership>,
    pub services: watch::Receiver<Option<Services>>,
    pub dependents: Arc<Dependents>,
    pub carried: watch::Receiver<Carried>,
    pub groups: SearchGroups,
    pub own_namespace: String,
}

/// Keeps the status of all services while leading. Never ends.
pub async fn keep_status(client: Client, mut inputs: Inputs) {
    let api: Api<DynamicObject> = Api::all_with(client, &service_resource());
    let mut changes = inputs.dependents.changes();
    let mut next = Instant::now();
    loop {
        tokio::select! {
            Ok(()) = inputs.leadership.changed() => {}
            Ok(()) = inputs.services.changed() => {}
            Ok(()) = inputs.carried.changed() => {}
            Ok(()) = changes.changed() => {}
            () = sleep_until(next) => {}
        }
        next = Instant::now() + ROUND;
        if !sync::newest(&mut inputs.leadership).leading {
            continue;
        }
        let Some(services) = sync::newest(&mut inputs.services) else { continue };
        let carried = sync::newest(&mut inputs.carried);
        changes.mark_unchanged();
        let view = plan::View {
            services: &services,
            carried: &carried,
            groups: &inputs.groups,
            own_namespace: &inputs.own_namespace,
        };
        for known in services.0.values() {
            let observed = known.service.as_ref().map(|service| observe(service, &inputs.dependents));
            let planned = |status: &Status| match &observed {
                Ok((service, observed)) => view.status(status, known, service, observed, Timestamp::now()),
                Err(why) => plan::unreadable(status, known, why, Timestamp::now()),
            };
            if planned(&known.status) == known.status {
                continue;
            }
            match update(&api, &known.name, |status: Status| planned(&status)).await {
                Ok(()) => {}
                // It is gone.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => {
                    tracing::warn!(%error, service = known.name, "writing a status");
                    next = Instant::now() + RETRY;
                }
            }
        }
    }
}

/// What the watches show of a service.
fn observe<'a>(service: &'a Service, dependents: &Dependents) -> (&'a Service, plan::Observed) {
    let criterion =
        |criterion: &Criterion| (dependents.name_of(criterion.resource()), dependents.of(criterion));
    let observed = plan::Observed {
        provider: dependents.object(&service.provider.target()),
        criteria: service.criteria.iter().map(criterion).collect(),
    };
    (service, observed)
}

/// What is to be told about providers that went before their time.
#[derive(Clone)]
pub struct Partings(mpsc::Sender<Parting>);

struct Parting {
    service: String,
    uid: String,
    note: String,
}

impl Partings {
    /// Somewhere to tell them, and what writes them down, for ever.
    pub fn new(client: Client) -> (Self, impl Future<Output = ()>) {
        let (sender, mut partings) = mpsc::channel(WAITING);
        let keep = async move {
            let reporter = Reporter { controller: names::PALISADE.to_owned(), instance: None };
            let recorder = Recorder::new(client, reporter);
            while let Some(parting) = partings.recv().await {
                record(&recorder, parting).await;
            }
        };
        (Self(sender), keep)
    }

    /// Tells what a verdict lets go.
    pub fn tell(&self, verdict: &Verdict) {
        let Some(about) = &verdict.about else { return };
        for left in &verdict.left_behind {
            let note = prose::left_behind(about, left);
            tracing::warn!(service = left.needed.service, note, "a provider was let go");
            let note = note.chars().take(LONGEST_NOTE).collect();
            let parting = Parting { service: left.needed.service.clone(), uid: left.uid.clone(), note };
            // Where so many wait, one Event less matters little: the log has it, and so has the client's warning.
            if self.0.try_send(parting).is_err() {
                tracing::warn!(service = left.needed.service, "too many events wait; one is not recorded");
            }
        }
    }
}

async fn record(recorder: &Recorder, Parting { service, uid, note }: Parting) {
    let event = Event {
        type_: EventType::Warning,
        reason: "Orphaned".to_owned(),
        note: Some(note),
        action: "Delete".to_owned(),
        secondary: None,
    };
    let about = ObjectReference {
        api_version: Some(format!("{}/{}", critical::GROUP, critical::VERSION)),
        kind: Some(critical::KIND.to_owned()),
        name: Some(service.clone()),
        uid: Some(uid),
        ..ObjectReference::default()
    };
    // An Event that is lost loses a line in a list; the log and the client's warning have it.
    if let Err(error) = recorder.publish(&event, &about).await {
        tracing::warn!(%error, service, "recording an event");
    }
}
