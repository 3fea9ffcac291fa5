//! What is watched for generated budgets, and what each change makes worth a look.

use std::collections::HashSet;
use std::sync::Arc;

use palisade_api::generate::{Ask, Flavour, GENERATED};
use palisade_cluster::{Discovery, Fed, Served, feed};
use palisade_engine::Object;
use tokio::sync::watch;

use super::plan::{self, Existing, Kind, Workload, resource};
use super::{Key, Place, Shared};

pub(super) const NAMESPACES: &str = "namespaces";

/// Follows which of the listed keys a list did not show.
#[derive(Default)]
struct Listing<K>(HashSet<K>);

pub(super) async fn watch_namespaces(shared: Arc<Shared>) {
    let mut listing: Listing<Box<str>> = Listing::default();
    feed(&shared.client, "/api/v1/namespaces", &[], |fed| {
        let mut state = shared.state();
        let changed: Vec<Box<str>> = match fed {
            Fed::Begin => {
                listing.0.clear();
                Vec::new()
            }
            Fed::Listed(object) | Fed::Applied(object) => {
                let name: Box<str> = (&*object.metadata.name).into();
                listing.0.insert(name.clone());
                let asks = Flavour::ALL
                    .map(|flavour| Ask::read(flavour, |key| object.metadata.annotations.get(key)));
                let before = if asks.iter().all(Ask::is_empty) {
                    state.namespaces.remove(&name)
                } else {
                    state.namespaces.insert(name.clone(), asks.clone())
                };
                if before.unwrap_or_default() == asks { Vec::new() } else { vec![name] }
            }
            Fed::Complete(_) => {
                state.waiting.remove(NAMESPACES);
                let gone: Vec<Box<str>> =
                    state.namespaces.keys().filter(|name| !listing.0.contains(*name)).cloned().collect();
                state.namespaces.retain(|name, _| listing.0.contains(name));
                shared.queued.notify_one();
                gone
            }
            Fed::Deleted(object) => {
                state.namespaces.remove(&*object.metadata.name);
                Vec::new()
            }
            Fed::Reached(_) => Vec::new(),
        };
        if !changed.is_empty() {
            let keys: Vec<Key> = state
                .workloads
                .keys()
                .filter(|(_, namespace, _)| changed.contains(namespace))
                .cloned()
                .collect();
            state.queue.extend(keys);
            shared.queued.notify_one();
        }
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
    let mut listing: Listing<Place> = Listing::default();
    feed(&shared.client, &path, &[("labelSelector", &format!("{key}={value}"))], |fed| {
        let mut state = shared.state();
        let place = |object: &Object<'_>| -> Place {
            (object.metadata.namespace.as_deref().unwrap_or_default().into(), (&*object.metadata.name).into())
        };
        let changed: Vec<Place> = match fed {
            Fed::Begin => {
                listing.0.clear();
                Vec::new()
            }
            Fed::Listed(object) | Fed::Applied(object) => {
                let (place, existing) = (place(object), Existing::read(object));
                listing.0.insert(place.clone());
                let same = state.generated[number].get(&place) == Some(&existing);
                state.generated[number].insert(place.clone(), existing);
                if same { Vec::new() } else { vec![place] }
            }
            Fed::Complete(_) => {
                state.waiting.remove(word);
                let all = state.generated[number].keys();
                let gone: Vec<Place> = all.filter(|place| !listing.0.contains(*place)).cloned().collect();
                state.generated[number].retain(|place, _| listing.0.contains(place));
                shared.queued.notify_one();
                gone
            }
            Fed::Deleted(object) => {
                state.generated[number].remove(&place(object));
                vec![place(object)]
            }
            Fed::Reached(_) => Vec::new(),
        };
        for (namespace, name) in changed {
            let keys = (0..plan::kinds().len()).map(|kind| (kind, namespace.clone(), name.clone()));
            let known: Vec<Key> = keys.filter(|key| state.workloads.contains_key(key)).collect();
            state.queue.extend(known);
            shared.queued.notify_one();
        }
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
        let known = discovery.borrow_and_update().is_some();
        let Some(served) = served(&discovery, &kind) else {
            if known {
                shared.state().waiting.remove(&word);
                shared.queued.notify_one();
            }
            if discovery.changed().await.is_err() {
                return;
            }
            continue;
        };
        shared.state().waiting.insert(word.clone());
        shared.state().versions.insert(number, format!("{}/{}", served.group, served.version));
        // Installed anew, a kind may come in another version.
        let otherwise = async {
            while self::served(&discovery, &kind).is_none_or(|now| now.version == served.version) {
                if discovery.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            () = feed_workloads(&shared, &served, &word, number, &kind) => {}
            () = otherwise => {}
        }
    }
}

/// The word for a kind of which nobody knows yet what there is.
pub(super) fn waiting_for(number: usize) -> String {
    format!("kind {number}")
}

/// A kind as it is served now.
fn served(discovery: &watch::Receiver<Option<Discovery>>, kind: &Kind) -> Option<Served> {
    let is_it = |served: &&Served| served.group == kind.group && served.kind == kind.kind && served.watchable;
    discovery.borrow().as_ref()?.resources.iter().find(is_it).cloned()
}

async fn feed_workloads(shared: &Shared, served: &Served, word: &str, number: usize, kind: &Kind) {
    let mut listing: Listing<Key> = Listing::default();
    feed(&shared.client, &served.path(None), &[], |fed| {
        let mut state = shared.state();
        let key = |object: &Object<'_>| -> Key {
            (
                number,
                object.metadata.namespace.as_deref().unwrap_or_default().into(),
                (&*object.metadata.name).into(),
            )
        };
        match fed {
            Fed::Begin => listing.0.clear(),
            Fed::Listed(object) | Fed::Applied(object) => {
                let key = key(object);
                listing.0.insert(key.clone());
                match Workload::read(object, kind) {
                    // There are ten such ReplicaSets for each Deployment.
                    Ok(workload) if workload.is_part => {
                        state.forget(key);
                        shared.queued.notify_one();
                    }
                    Ok(workload) => {
                        let known = state.workloads.insert(key.clone(), workload.clone());
                        if known.as_ref() != Some(&workload) {
                            state.queue.insert(key);
                            shared.queued.notify_one();
                        }
                    }
                    // What was known of it holds on.
                    Err(error) => {
                        tracing::warn!(kind = kind.kind, name = &*key.2, %error, "reading a workload");
                    }
                }
            }
            Fed::Complete(_) => {
                let keys = state.workloads.keys().filter(|key| key.0 == number && !listing.0.contains(*key));
                let gone: Vec<Key> = keys.cloned().collect();
                for key in gone {
                    state.forget(key);
                }
                state.waiting.remove(word);
                shared.queued.notify_one();
            }
            Fed::Deleted(object) => {
                state.forget(key(object));
                shared.queued.notify_one();
            }
            Fed::Reached(_) => {}
        }
    })
    .await;
}
