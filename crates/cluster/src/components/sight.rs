//! The parents that there are, and the workloads that are components: metadata only, for registration and status.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::Client;
use palisade_api::components::{Chosen, GroupKind};
use palisade_api::search_groups::SearchGroups;
use palisade_engine::{Object, ProtectedComponents, component_parent};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::Guarded;
use crate::discovery::{Discovery, Served};
use crate::feed::{Fed, Mirror, Source, follow};
use crate::sync::{self, lock};

/// How long to gather changes before they are told.
const GATHER: Duration = Duration::from_millis(300);

/// What the watches show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sighted {
    /// Parents by kind, as namespace and name; a namespace is empty for what has none.
    pub parents: BTreeMap<GroupKind, BTreeSet<(String, String)>>,
    /// Components that can be scaled and whose parents are there, by protection.
    pub scaled: BTreeMap<Option<String>, BTreeSet<Scaled>>,
}

/// A component that can be scaled.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scaled {
    pub group: String,
    pub plural: String,
    pub namespace: String,
    pub name: String,
}

/// One watch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Feed {
    path: String,
    selector: Option<String>,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Parents(GroupKind),
    /// Of a protection, by group and plural.
    Scaled(Option<String>, String, String),
}

/// By namespace and name, with the parent's name.
type Names = Arc<Mutex<Mirror<(String, String), String>>>;

struct Watched {
    protected: Option<Arc<ProtectedComponents>>,
    names: Names,
    /// Whether it has listed, or failed to.
    listed: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Watches parents and workloads while `active` holds, and publishes them once all are known. Never ends.
pub async fn watch_components(
    client: Client,
    groups: Arc<SearchGroups>,
    mut guarded: watch::Receiver<Option<Guarded>>,
    mut discovery: watch::Receiver<Option<Discovery>>,
    mut active: watch::Receiver<bool>,
    published: watch::Sender<Option<Sighted>>,
) {
    let (noticed_tx, mut noticed) = watch::channel(());
    let noticed_tx = Arc::new(noticed_tx);
    let mut watched: BTreeMap<Feed, Watched> = BTreeMap::new();
    loop {
        let newest = (sync::newest(&mut guarded), sync::newest(&mut discovery), sync::newest(&mut active));
        let wanted = match newest {
            (Some(guarded), Some(discovery), true) => wanted(&groups, &guarded, &discovery),
            _ => BTreeMap::new(),
        };
        // One that asks for something else is watched anew.
        watched.retain(|feed, watched| {
            wanted.get(feed).is_some_and(|protected| match (protected, &watched.protected) {
                (Some(one), Some(other)) => Arc::ptr_eq(one, other),
                (one, other) => one.is_none() && other.is_none(),
            })
        });
        for (feed, protected) in wanted {
            watched.entry(feed.clone()).or_insert_with(|| {
                let (names, listed) = (Names::default(), Arc::new(AtomicBool::new(false)));
                let seen = (names.clone(), listed.clone());
                let task =
                    tokio::spawn(keep(client.clone(), feed, protected.clone(), seen, noticed_tx.clone()));
                Watched { protected, names, listed, task }
            });
        }
        loop {
            // Half an answer would take rules away, and a replica that does not lead has none.
            let listed = watched.values().all(|watched| watched.listed.load(Ordering::Relaxed));
            let is_known = sync::peek(&discovery, Option::is_some) && sync::peek(&guarded, Option::is_some);
            if listed && sync::current(&active) && is_known {
                publish(&watched, &published);
            }
            tokio::select! {
                Ok(()) = guarded.changed() => break,
                Ok(()) = discovery.changed() => break,
                Ok(()) = active.changed() => break,
                Ok(()) = noticed.changed() => {
                    sleep(GATHER).await;
                    noticed.mark_unchanged();
                }
            }
        }
    }
}

fn publish(watched: &BTreeMap<Feed, Watched>, published: &watch::Sender<Option<Sighted>>) {
    let mut sighted = Sighted::default();
    for (feed, Watched { names, .. }) in watched {
        if let What::Parents(kind) = &feed.what {
            sighted.parents.entry(kind.clone()).or_default().extend(lock(names).keys().cloned());
        }
    }
    for (feed, Watched { names, protected, .. }) in watched {
        let (What::Scaled(protection, group, plural), Some(protected)) = (&feed.what, protected) else {
            continue;
        };
        let Ok(components) = &protected.components else { continue };
        // Whoever labels a workload of their own does not make it anybody's.
        let parents = sighted.parents.get(&components.parent);
        let has_parent = |namespace: &str, parent: &str| {
            let is = |namespace: &str| {
                parents.is_some_and(|all| all.contains(&(namespace.to_owned(), parent.to_owned())))
            };
            is(namespace) || is("")
        };
        let names = lock(names);
        let scaled = names.iter().filter(|((namespace, _), parent)| has_parent(namespace, parent)).map(
            |((namespace, name), _)| Scaled {
                group: group.clone(),
                plural: plural.clone(),
                namespace: namespace.clone(),
                name: name.clone(),
            },
        );
        sighted.scaled.entry(protection.clone()).or_default().extend(scaled);
        drop(names);
    }
    sync::send_new(published, Some(sighted));
}

fn wanted(
    groups: &SearchGroups,
    guarded: &Guarded,
    discovery: &Discovery,
) -> BTreeMap<Feed, Option<Arc<ProtectedComponents>>> {
    let is_watched = |served: &&Served| served.watchable && groups.contain(&served.group);
    let mut wanted = BTreeMap::new();
    for protected in guarded.all() {
        let Ok(components) = &protected.components else { continue };
        let parent = &components.parent;
        if let Some(served) = discovery.find(&parent.group, &parent.kind).filter(is_watched) {
            let what = What::Parents(parent.clone());
            wanted.insert(Feed { path: served.path(None), selector: None, what }, None);
        }
        for kind in components.kinds.iter().filter(|kind| !kind.deletions_only) {
            let served = discovery.find(&kind.of.group, &kind.of.kind);
            let Some(served) = served.filter(is_watched).filter(|served| served.scalable) else { continue };
            let selector = match &components.chosen {
                Chosen::Labelled(rule) => Some(rule.query()),
                Chosen::Owned => None,
            };
            let what = What::Scaled(protected.name.clone(), served.group.clone(), served.plural.clone());
            wanted.insert(Feed { path: served.path(None), selector, what }, Some(protected.clone()));
        }
    }
    wanted
}

async fn keep(
    client: Client,
    wanted: Feed,
    protected: Option<Arc<ProtectedComponents>>,
    (names, listed): (Names, Arc<AtomicBool>),
    noticed: Arc<watch::Sender<()>>,
) {
    let query: Vec<(&str, &str)> =
        wanted.selector.iter().map(|selector| ("labelSelector", &**selector)).collect();
    let source = Source { client: &client, path: &wanted.path, query: &query, metadata_only: true };
    let components = protected.as_ref().map(|protected| &protected.components);
    let parent = |object: &Object<'_>| match components {
        None => Some(String::new()),
        Some(Ok(components)) => component_parent(&object.metadata, components),
        Some(Err(_)) => None,
    };
    follow(&source, |fed| match fed {
        Ok(fed) => {
            let key = |object: &Object<'_>| {
                let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
                (namespace.to_owned(), object.metadata.name.to_string())
            };
            let read = |object: &Object<'_>| Ok::<_, ()>(parent(object));
            let complete = matches!(fed, Fed::Complete(_));
            listed.fetch_or(complete, Ordering::Relaxed);
            let changed = !lock(&names).take(&fed, key, read).is_empty();
            if changed || complete {
                sync::send(&noticed, ());
            }
        }
        // What was last known is asked about, and nobody waits for what can't be watched.
        Err(broken) => {
            tracing::warn!(path = wanted.path, why = %broken, "watching components");
            listed.store(true, Ordering::Relaxed);
            sync::send(&noticed, ());
        }
    })
    .await;
}
