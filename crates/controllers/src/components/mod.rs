//! The status of `ComponentProtection`s.
//!
//! The leader says how each resolves and whether the registration carries it; every replica adds what it has refused.

mod plan;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, DynamicObject};
use palisade_api::components::Status;
use palisade_api::search_groups::SearchGroups;
use palisade_cluster::components::{Guarded, Sighted, component_resource};
use palisade_cluster::sync;
use palisade_cluster::{Discovery, seconds};
use palisade_engine::{Reason, Verdict};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::leadership::Leadership;
use crate::registration::Carried;
use crate::status::update;

/// At most one write in this time for what was refused.
const FLUSH: Duration = Duration::from_secs(5);
const ROUND: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_secs(1);

/// What the status is derived from.
#[derive(Clone)]
pub struct Inputs {
    pub leadership: watch::Receiver<Leadership>,
    pub guarded: watch::Receiver<Option<Guarded>>,
    pub sighted: watch::Receiver<Option<Sighted>>,
    pub discovery: watch::Receiver<Option<Discovery>>,
    pub carried: watch::Receiver<Carried>,
    pub groups: SearchGroups,
}

/// Keeps the status of all protections while leading. Never ends.
pub async fn keep_status(client: Client, mut inputs: Inputs) {
    let api: Api<DynamicObject> = Api::all_with(client, &component_resource());
    let mut next = Instant::now();
    loop {
        tokio::select! {
            Ok(()) = inputs.leadership.changed() => {}
            Ok(()) = inputs.guarded.changed() => {}
            Ok(()) = inputs.sighted.changed() => {}
            Ok(()) = inputs.discovery.changed() => {}
            Ok(()) = inputs.carried.changed() => {}
            () = sleep_until(next) => {}
        }
        next = Instant::now() + ROUND;
        if !sync::newest(&mut inputs.leadership).leading {
            continue;
        }
        let Some(guarded) = sync::newest(&mut inputs.guarded) else { continue };
        let Some(discovery) = sync::newest(&mut inputs.discovery) else { continue };
        let Some(sighted) = sync::newest(&mut inputs.sighted) else { continue };
        let carried = sync::newest(&mut inputs.carried);
        let view = plan::View {
            discovery: &discovery,
            sighted: &sighted,
            carried: &carried,
            groups: &inputs.groups,
        };
        for (name, known) in &guarded.by_name {
            let planned = |status: &Status| view.status(status, name, known, Timestamp::now());
            if planned(&known.status) == known.status {
                continue;
            }
            match update(&api, name, |status: Status| planned(&status)).await {
                Ok(()) => {}
                // It is gone.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => {
                    tracing::warn!(%error, protection = name, "writing a status");
                    next = Instant::now() + RETRY;
                }
            }
        }
    }
}

/// What a replica has refused and not written yet, by protection. Synchronous: a review adds to it on its way out.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<BTreeMap<String, (u64, Timestamp)>>);

impl Refusals {
    /// Counts the protections that refused.
    pub fn add(&self, verdict: &Verdict, now: Timestamp) {
        for finding in &verdict.findings {
            if let Reason::Managed(managed) = &finding.reason
                && let Some(name) = &managed.protection
            {
                self.put(name, 1, now);
            }
        }
    }

    fn put(&self, name: &str, count: u64, last: Timestamp) {
        // A panic while it was held cannot have left counts that are worse than none.
        let mut all = sync::lock(&self.0);
        let (refused, latest) = all.entry(name.to_owned()).or_insert((0, last));
        *refused += count;
        *latest = (*latest).max(last);
    }

    fn take(&self) -> BTreeMap<String, (u64, Timestamp)> {
        std::mem::take(&mut *sync::lock(&self.0))
    }
}

/// Adds what this replica refuses to the status of the protections, every few seconds. Never ends.
pub async fn keep_counts(client: Client, refusals: &Refusals) {
    let api: Api<DynamicObject> = Api::all_with(client, &component_resource());
    loop {
        sleep(FLUSH).await;
        for (name, (count, last)) in refusals.take() {
            let written = update(&api, &name, |mut status: Status| {
                status.refused += count;
                status.last_refused = Some(seconds(last));
                status
            });
            match written.await {
                Ok(()) => {}
                // Counted for a protection that is gone.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => {
                    tracing::warn!(%error, protection = name, "writing counts; they are kept");
                    refusals.put(&name, count, last);
                }
            }
        }
    }
}
