//! The status of `ResourceDeletionProtection`s.
//!
//! The leader says how each resolves and whether the registration carries it; every replica adds what it has
//! counted. Both read, change and write with the resource version that they read, so neither undoes the other.

mod plan;
mod tally;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::api::{Api, DynamicObject};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use palisade_api::names;
use palisade_api::protection::{self, Status};
use palisade_api::search_groups::SearchGroups;
use palisade_cluster::sync;
use palisade_cluster::{Discovery, Policies, protection_resource, seconds};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

pub use tally::Tally;

use crate::leadership::Leadership;
use crate::registration::Carried;
use crate::status::update;

/// At most one write in this time for what was counted.
const FLUSH: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_secs(1);

/// What the status is derived from.
#[derive(Clone)]
pub struct Inputs {
    pub leadership: watch::Receiver<Leadership>,
    pub policies: watch::Receiver<Option<Policies>>,
    pub discovery: watch::Receiver<Option<Discovery>>,
    pub carried: watch::Receiver<Carried>,
    pub groups: SearchGroups,
}

/// Keeps the status of all protections while leading. Never ends.
pub async fn keep_status(client: Client, mut inputs: Inputs) {
    let api: Api<DynamicObject> = Api::all_with(client, &protection_resource());
    let mut next = Instant::now();
    loop {
        tokio::select! {
            Ok(()) = inputs.leadership.changed() => {}
            Ok(()) = inputs.policies.changed() => {}
            Ok(()) = inputs.discovery.changed() => {}
            Ok(()) = inputs.carried.changed() => {}
            () = sleep_until(next) => {}
        }
        next = Instant::now() + Duration::from_secs(30);
        if !sync::current(&inputs.leadership).leading {
            continue;
        }
        let Some(policies) = sync::current(&inputs.policies) else { continue };
        let Some(discovery) = sync::current(&inputs.discovery) else { continue };
        let carried = sync::current(&inputs.carried);
        for (name, policy) in &policies.by_name {
            let view = plan::View { discovery: &discovery, carried: &carried, groups: &inputs.groups };
            let planned = |status: &Status| view.status(status, name, policy, Timestamp::now());
            if planned(&policy.status) == policy.status {
                continue;
            }
            if let Err(error) = update(&api, name, |status: Status| planned(&status)).await {
                tracing::warn!(%error, protection = name, "writing a status");
                next = Instant::now() + RETRY;
            }
        }
    }
}

/// Adds what this replica counts to the status of the protections, every few seconds. Never ends.
pub async fn keep_counts(client: Client, tally: &Tally, policies: watch::Receiver<Option<Policies>>) {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &protection_resource());
    let recorder = Recorder::new(client, Reporter { controller: names::PALISADE.to_owned(), instance: None });
    loop {
        sleep(FLUSH).await;
        flush(&api, &recorder, tally, &policies).await;
    }
}

async fn flush(
    api: &Api<DynamicObject>,
    recorder: &Recorder,
    tally: &Tally,
    policies: &watch::Receiver<Option<Policies>>,
) {
    for (name, counts) in tally.take() {
        let written = update(api, &name, |mut status: Status| {
            status.denied += counts.denied;
            status.warned += counts.warned;
            status.audited += counts.audited;
            status.last_matched = Some(seconds(counts.last));
            status
        });
        match written.await {
            Ok(()) => {}
            // Counted for a protection that is gone.
            Err(kube::Error::Api(status)) if status.code == 404 => continue,
            Err(error) => {
                tracing::warn!(%error, protection = name, "writing counts; they are kept");
                tally.put_back(&name, counts);
                continue;
            }
        }
        let uid = sync::peek(policies, |policies| Some(policies.as_ref()?.by_name.get(&name)?.uid.clone()));
        for object in &counts.audited_objects {
            let event = Event {
                type_: EventType::Warning,
                reason: "WouldDeny".to_owned(),
                note: Some(format!("{object} was deleted; with action Deny this would have refused it")),
                action: "Delete".to_owned(),
                secondary: None,
            };
            let about = ObjectReference {
                api_version: Some(format!("{}/{}", protection::GROUP, protection::VERSION)),
                kind: Some(protection::KIND.to_owned()),
                name: Some(name.clone()),
                uid: uid.clone(),
                ..ObjectReference::default()
            };
            // An Event that is lost loses a line in a list; the count above has it.
            if let Err(error) = recorder.publish(&event, &about).await {
                tracing::warn!(%error, protection = name, "recording an event");
            }
        }
    }
}
