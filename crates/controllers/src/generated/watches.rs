//! What is watched for generated budgets, and what each change makes worth a look.

use std::convert::Infallible;
use std::sync::Arc;

use palisade_api::generate::{Ask, Flavour, GENERATED};
use palisade_cluster::sync;
use palisade_cluster::{Discovery, Served, feed, served_otherwise, watchable};
use palisade_engine::Object;
use tokio::sync::watch;

use super::plan::{Existing, Kind, Workload, resource};
use super::{Key, Place, Shared};

pub(super) const NAMESPACES: &str = "namespaces";

pub(super) async fn watch_namespaces(shared: Arc<Shared>) {
    feed(&shared.client, "/api/v1/namespaces", &[], |fed| {
        let name = |object: &Object<'_>| -> Box<str> { (&*object.metadata.name).into() };
        shared.change(|state| {
            let changed = state.namespaces.take(&fed, name, |object| {
                let asks = Flavour::ALL
                    .map(|flavour| Ask::read(flavour, |key| object.metadata.annotations.get(key)));
                Ok::<_, Infallible>((!asks.iter().all(Ask::is_empty)).then_some(asks))
            });
            let is_in = |(_, (namespace, _)): &Key| changed.iter().any(|(name, _)| name == namespace);
            let keys: Vec<Key> = state.keys().filter(is_in).collect();
            state.queue.extend(keys);
            state.listed(&fed, NAMESPACES);
        });
    })
    .await;
}

pub(super) async fn watch_generated(shared: Arc<Shared>, flavour: Flavour) {
    let (api_version, _, plural) = resource(flavour);
    let path = format!("/apis/{api_version}/{plural}");
    let (key, value) = GENERATED;
    let (number, word) = match flavour {
        Flavour::Unavailable => (0, "pub"),
        Flavour::Disruption => (1, "pdb"),
    };
    feed(&shared.client, &path, &[("labelSelector", &format!("{key}={value}"))], |fed| {
        shared.change(|state| {
            let changed = state.generated[number]
                .take(&fed, place, |object| Ok::<_, Infallible>(Some(Existing::read(object))));
            for (place, _) in changed {
                let keys: Vec<Key> = state.named(&place).map(|(kind, _)| (kind, place.clone())).collect();
                state.queue.extend(keys);
            }
            state.listed(&fed, word);
        });
    })
    .await;
}

pub(super) async fn watch_workloads(
    shared: Arc<Shared>,
    mut discovery: watch::Receiver<Option<Discovery>>,
    number: usize,
    kind: Kind,
) {
    let word = waiting_for(number);
    loop {
        let known = sync::peek_newest(&mut discovery, Option::is_some);
        let Some(served) = watchable(&discovery, kind.group, kind.kind) else {
            if known {
                shared.change(|state| {
                    state.waiting.remove(&word);
                });
            }
            if discovery.changed().await.is_err() {
                return;
            }
            continue;
        };
        shared.state().waiting.insert(word.clone());
        shared.state().versions.insert(number, format!("{}/{}", served.group, served.version));
        tokio::select! {
            () = feed_workloads(&shared, &served, &word, number, &kind) => {}
            () = served_otherwise(&mut discovery, &served) => {}
        }
    }
}

/// The word for a kind of which nobody knows yet what there is.
pub(super) fn waiting_for(number: usize) -> String {
    format!("kind {number}")
}

async fn feed_workloads(shared: &Shared, served: &Served, word: &str, number: usize, kind: &Kind) {
    feed(&shared.client, &served.path(None), &[], |fed| {
        shared.change(|state| {
            let changed = state.workloads[number].take(&fed, place, |object| {
                let read = Workload::read(object, kind).inspect_err(|error| {
                    tracing::warn!(kind = kind.kind, name = &*object.metadata.name, %error, "reading a workload");
                });
                // There are ten ReplicaSets for each Deployment, and they are parts of it.
                read.map(|workload| Some(workload).filter(|workload| !workload.is_part))
            });
            for (place, before) in changed {
                let key = (number, place);
                if let (None, Some(before)) = (state.workload(&key), before) {
                    state.gone.insert(key.clone(), before.uid);
                }
                state.queue.extend([key]);
            }
            state.listed(&fed, word);
        });
    })
    .await;
}

fn place(object: &Object<'_>) -> Place {
    (object.metadata.namespace.as_deref().unwrap_or_default().into(), (&*object.metadata.name).into())
}
