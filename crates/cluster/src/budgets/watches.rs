//! What keeps the index: a watch of budgets always, of pods and workloads while there are budgets.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kube::api::{Api, DynamicObject, ListParams};
use kube::{Client, ResourceExt};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::budgets::owners::scale_of;
use crate::budgets::workloads::Scale;
use crate::budgets::{Index, KindKey, Known, budget_resource};
use crate::discovery::{Discovery, served_otherwise, watchable};
use crate::feed::{Fed, feed, list};
use crate::live::{WHOLE, segment};
use crate::objects::{Change, watch_objects};
use crate::sync::{self, lock, read, write};

/// The workloads that nearly every cluster has.
pub(crate) const ALWAYS_WATCHED: &[(&str, &str)] =
    &[("apps", "Deployment"), ("apps", "ReplicaSet"), ("apps", "StatefulSet"), ("", "ReplicationController")];

/// How long the watches outlive the last budget: whoever replaces one deletes it first.
const LINGER: Duration = Duration::from_secs(60);

/// Watches budgets, for ever.
pub async fn watch_budgets(client: Client, index: Arc<Index>) {
    watch_objects(client, &budget_resource(), |change| match change {
        Change::All(objects) => {
            let mut budgets: BTreeMap<String, BTreeMap<String, Arc<Known>>> = BTreeMap::new();
            for known in objects.iter().map(Known::read) {
                let names = budgets.entry(known.key.namespace.clone()).or_default();
                names.insert(known.key.name.clone(), Arc::new(known));
            }
            index.replace_budgets(budgets);
        }
        Change::Put(object) => index.put_budget(Known::read(&object)),
        Change::Gone(object) => {
            index.remove_budget(&object.namespace().unwrap_or_default(), &object.name_any());
        }
    })
    .await;
}

impl Index {
    fn replace_budgets(&self, budgets: BTreeMap<String, BTreeMap<String, Arc<Known>>>) {
        let namespaces: HashSet<Arc<str>> = budgets.keys().map(|name| name.as_str().into()).collect();
        *write(&self.budgets) = budgets;
        sync::count_lists(&self.specs);
        self.touch_all(namespaces);
    }

    fn put_budget(&self, known: Known) {
        let namespace = known.key.namespace.clone();
        let mut budgets = write(&self.budgets);
        let spaces = budgets.entry(namespace.clone()).or_default();
        let same = |old: &Arc<Known>| old.uid == known.uid && old.generation == known.generation;
        let changed = !spaces.get(&known.key.name).is_some_and(same);
        spaces.insert(known.key.name.clone(), Arc::new(known));
        drop(budgets);
        if changed {
            sync::count_lists(&self.specs);
        }
        self.touch_all(HashSet::from([namespace.into()]));
    }

    fn remove_budget(&self, namespace: &str, name: &str) {
        let mut budgets = write(&self.budgets);
        if let Some(spaces) = budgets.get_mut(namespace) {
            spaces.remove(name);
            if spaces.is_empty() {
                budgets.remove(namespace);
            }
        }
        drop(budgets);
        sync::count_lists(&self.specs);
    }

    /// Says that there are no budgets, because nobody looks.
    pub fn switch_off(&self) {
        self.replace_budgets(BTreeMap::new());
    }

    /// Whether all that decisions need is known: the budgets, and where there are any, pods and workloads.
    pub fn is_ready(&self) -> bool {
        sync::peek(&self.specs(), Option::is_some) && (!self.has_budgets() || self.is_listed())
    }

    fn has_budgets(&self) -> bool {
        !read(&self.budgets).is_empty()
    }

    /// Lets go of all pods and workloads.
    fn forget(&self) {
        *lock(&self.heard) = None;
        *self.write_pods() = super::Pods::default();
        *self.write_workloads() = super::Workloads::default();
        lock(&self.asked).clear();
    }
}

/// The budgets and pods of one namespace as they are now, for one question.
pub async fn snapshot(client: &Client, namespace: &str) -> Result<Index, String> {
    let index = Index::default();
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &budget_resource());
    let budgets = match api.list(&ListParams::default()).await {
        Ok(list) => list.items,
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        Err(error) => return Err(format!("listing budgets: {error}")),
    };
    let known = budgets.iter().map(Known::read).map(|known| (known.key.name.clone(), Arc::new(known)));
    let known: BTreeMap<String, Arc<Known>> = known.collect();
    if known.is_empty() {
        index.switch_off();
        return Ok(index);
    }
    index.replace_budgets(BTreeMap::from([(namespace.to_owned(), known)]));
    let path = format!("/api/v1/namespaces/{}/pods", segment(namespace));
    let listed =
        list(client, &path, &[], WHOLE, &mut |fed| index.write_pods().take(&fed, &mut HashSet::new())).await;
    listed.map_err(|broken| format!("listing pods: {broken}"))?;
    // No watch tells about workloads, so that each is asked for.
    for &(group, kind) in ALWAYS_WATCHED {
        index.write_workloads().take(
            &Fed::Complete(0),
            &(group.into(), kind.into()),
            &Scale(None),
            &mut HashSet::new(),
        );
    }
    Ok(index)
}

/// Watches pods and workloads while there are budgets, for ever.
pub async fn keep_index(client: Client, index: Arc<Index>, discovery: watch::Receiver<Option<Discovery>>) {
    let mut specs = index.specs();
    loop {
        while !index.has_budgets() {
            if specs.changed().await.is_err() {
                return;
            }
        }
        {
            let feeding = feed_all(&client, &index, discovery.clone());
            tokio::pin!(feeding);
            loop {
                tokio::select! {
                    () = &mut feeding => {}
                    changed = specs.changed() => if changed.is_err() { return },
                }
                if index.has_budgets() {
                    continue;
                }
                tokio::select! {
                    () = &mut feeding => {}
                    () = sleep(LINGER) => {}
                }
                if !index.has_budgets() {
                    break;
                }
            }
        }
        index.forget();
    }
}

/// Feeds pods, and every kind of workload that is asked for. Never ends; what it started ends with it.
async fn feed_all(client: &Client, index: &Arc<Index>, discovery: watch::Receiver<Option<Discovery>>) {
    let mut feeds = JoinSet::new();
    let (pods, to) = (client.clone(), index.clone());
    feeds.spawn(async move {
        feed(&pods, "/api/v1/pods", &[], |fed| {
            let mut touched = HashSet::new();
            to.write_pods().take(&fed, &mut touched);
            *lock(&to.heard) = Some(Instant::now());
            to.touch_all(touched);
        })
        .await;
    });
    let mut fed: HashSet<KindKey> = HashSet::new();
    loop {
        let changed = index.kinds_changed.notified();
        let kinds: Vec<KindKey> =
            lock(&index.kinds).iter().filter(|kind| !fed.contains(*kind)).cloned().collect();
        for kind in kinds {
            fed.insert(kind.clone());
            feeds.spawn(feed_kind(client.clone(), index.clone(), discovery.clone(), kind));
        }
        changed.await;
    }
}

/// Feeds one kind of workload, once it is served.
async fn feed_kind(
    client: Client,
    index: Arc<Index>,
    mut discovery: watch::Receiver<Option<Discovery>>,
    kind: KindKey,
) {
    loop {
        let Some(served) = watchable(&discovery, &kind.0, &kind.1) else {
            if discovery.changed().await.is_err() {
                return;
            }
            continue;
        };
        let scale = loop {
            match scale_of(&client, &served).await {
                Ok(scale) => break scale,
                Err(why) => {
                    tracing::warn!(kind = served.kind, why, "asking how a kind is scaled");
                    sleep(Duration::from_secs(1)).await;
                }
            }
        };
        let path = served.path(None);
        let feeding = feed(&client, &path, &[], |fed| {
            let mut touched = HashSet::new();
            index.write_workloads().take(&fed, &kind, &scale, &mut touched);
            index.touch_all(touched);
        });
        tokio::select! {
            () = feeding => {}
            () = served_otherwise(&mut discovery, &served) => {}
        }
    }
}
