//! The parents that there are, and the workloads that are components: metadata only, for registration and status.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::Client;
use palisade_api::components::{Chosen, GroupKind};
use palisade_engine::Object;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::Guarded;
use crate::discovery::Discovery;
use crate::feed::{Fed, Mirror, Source, follow};
use crate::lock;

/// How long to gather changes before they are told.
const GATHER: Duration = Duration::from_millis(300);

/// What the watches show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sighted {
    /// Parents by kind, as namespace and name; a namespace is empty for what has none.
    pub parents: BTreeMap<GroupKind, BTreeSet<(String, String)>>,
    /// Components that can be scaled, as `(group, plural)` and `namespace/name`.
    pub scaled: BTreeMap<(String, String), BTreeSet<String>>,
}

/// One watch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Feed {
    path: String,
    selector: Option<String>,
    /// Only what this kind owns.
    owner: Option<GroupKind>,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Parents(GroupKind),
    Scaled(String, String),
}

type Names = Arc<Mutex<Mirror<(String, String), ()>>>;

struct Watched {
    names: Names,
    task: JoinHandle<()>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Watches parents and workloads while `active` holds, and publishes them. Never ends.
pub async fn watch_components(
    client: Client,
    mut guarded: watch::Receiver<Option<Guarded>>,
    mut discovery: watch::Receiver<Option<Discovery>>,
    mut active: watch::Receiver<bool>,
    published: watch::Sender<Sighted>,
) {
    let (noticed_tx, mut noticed) = watch::channel(());
    let noticed_tx = Arc::new(noticed_tx);
    let mut watched: BTreeMap<Feed, Watched> = BTreeMap::new();
    loop {
        let wanted = match (&*guarded.borrow_and_update(), &*discovery.borrow_and_update()) {
            (Some(guarded), Some(discovery)) if *active.borrow_and_update() => wanted(guarded, discovery),
            _ => BTreeSet::new(),
        };
        watched.retain(|feed, _| wanted.contains(feed));
        for feed in wanted {
            watched.entry(feed.clone()).or_insert_with(|| {
                let names = Names::default();
                let task = tokio::spawn(keep(client.clone(), feed, names.clone(), noticed_tx.clone()));
                Watched { names, task }
            });
        }
        loop {
            publish(&watched, &published);
            tokio::select! {
                Ok(()) = guarded.changed() => break,
                Ok(()) = discovery.changed() => break,
                Ok(()) = active.changed() => break,
                Ok(()) = noticed.changed() => {
                    sleep(GATHER).await;
                    noticed.borrow_and_update();
                }
            }
        }
    }
}

fn publish(watched: &BTreeMap<Feed, Watched>, published: &watch::Sender<Sighted>) {
    let mut sighted = Sighted::default();
    for (feed, Watched { names, .. }) in watched {
        let names = lock(names);
        match &feed.what {
            What::Parents(kind) => {
                sighted.parents.entry(kind.clone()).or_default().extend(names.keys().cloned());
            }
            What::Scaled(group, plural) => {
                let all = names.keys().map(|(namespace, name)| format!("{namespace}/{name}"));
                sighted.scaled.entry((group.clone(), plural.clone())).or_default().extend(all);
            }
        }
    }
    published.send_if_modified(|known| {
        let changed = *known != sighted;
        *known = sighted;
        changed
    });
}

fn wanted(guarded: &Guarded, discovery: &Discovery) -> BTreeSet<Feed> {
    let mut wanted = BTreeSet::new();
    for (_, components) in guarded.readable() {
        let parent = &components.parent;
        if let Some(served) = discovery.find(&parent.group, &parent.kind).filter(|served| served.watchable) {
            let what = What::Parents(parent.clone());
            wanted.insert(Feed { path: served.path(None), selector: None, owner: None, what });
        }
        for kind in components.kinds.iter().filter(|kind| !kind.deletions_only) {
            let served = discovery.find(&kind.of.group, &kind.of.kind);
            let Some(served) = served.filter(|served| served.watchable && served.scalable) else { continue };
            let (selector, owner) = match &components.chosen {
                Chosen::Labelled(rule) => (Some(rule.query()), None),
                Chosen::Owned => (None, Some(parent.clone())),
            };
            let what = What::Scaled(served.group.clone(), served.plural.clone());
            wanted.insert(Feed { path: served.path(None), selector, owner, what });
        }
    }
    wanted
}

async fn keep(client: Client, wanted: Feed, names: Names, noticed: Arc<watch::Sender<()>>) {
    let query: Vec<(&str, &str)> =
        wanted.selector.iter().map(|selector| ("labelSelector", &**selector)).collect();
    let source = Source { client: &client, path: &wanted.path, query: &query, metadata_only: true };
    let owned = |object: &Object<'_>| {
        wanted.owner.as_ref().is_none_or(|kind| {
            object.metadata.owners.iter().any(|owner| {
                let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
                kind.is(group, &owner.kind)
            })
        })
    };
    follow(&source, |fed| match fed {
        Ok(fed) => {
            let key = |object: &Object<'_>| {
                let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
                (namespace.to_owned(), object.metadata.name.to_string())
            };
            let read = |object: &Object<'_>| Ok::<_, ()>(owned(object).then_some(()));
            if !lock(&names).take(&fed, key, read).is_empty() || matches!(fed, Fed::Complete(_)) {
                noticed.send_replace(());
            }
        }
        // What was last known is asked about.
        Err(broken) => tracing::warn!(path = wanted.path, why = %broken, "watching components"),
    })
    .await;
}
