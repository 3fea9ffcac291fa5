//! What keeps the index: a watch of budgets always, of pods and workloads while there are budgets.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kube::api::{Api, DynamicObject};
use kube::{Client, ResourceExt};
use palisade_api::versions::PolicyKind;
use tokio::sync::{oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, interval, sleep};

use crate::budgets::owners::{is_workload, scale_of};
use crate::budgets::workloads::Scale;
use crate::budgets::{Index, KindKey, Known, budget_resource};
use crate::discovery::{Discovery, served_otherwise, watchable};
use crate::feed::{Broken, Fed, Source, feed, follow, list};
use crate::live::{WHOLE, segment};
use crate::objects::{Change, list_policies, watch_policies};
use crate::progress::PolicyProgress;
use crate::sync::{self, lock, read, write};

/// The workloads that nearly every cluster has.
pub(crate) const ALWAYS_WATCHED: &[(&str, &str)] =
    &[("apps", "Deployment"), ("apps", "ReplicaSet"), ("apps", "StatefulSet"), ("", "ReplicationController")];

/// How long the watches outlive the last budget: whoever replaces one deletes it first.
const LINGER: Duration = Duration::from_secs(60);
/// How often it is looked whether a kind is still needed. Its watch ends when it was not, twice in a row.
const TIDY: Duration = Duration::from_secs(15);

/// Watches budgets, for ever.
pub async fn watch_budgets(client: Client, progress: Arc<PolicyProgress>, index: Arc<Index>) {
    let resource = budget_resource();
    watch_policies(client, PolicyKind::Budget, &resource, &progress, |change| match change {
        Change::All(objects) => {
            let mut budgets: BTreeMap<String, BTreeMap<String, Arc<Known>>> = BTreeMap::new();
            for known in objects.iter().map(|object| index.reader.read(object)) {
                let names = budgets.entry(known.key.namespace.clone()).or_default();
                names.insert(known.key.name.clone(), Arc::new(known));
            }
            index.replace_budgets(budgets);
        }
        Change::Put(object) => index.put_budget(index.reader.read(&object)),
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

/// The budgets and pods of one namespace as they are now, for one question. `least` is how many pods a budget that no
/// administrator wrote lets go at least.
pub async fn snapshot(client: &Client, namespace: &str, least: u32) -> Result<Index, String> {
    let index = Index::new(least);
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &budget_resource());
    let listed = list_policies(&api, PolicyKind::Budget).await;
    let budgets = listed.map_err(|error| format!("listing budgets: {error}"))?;
    let known = budgets.iter().map(|object| index.reader.read(object));
    let known = known.map(|known| (known.key.name.clone(), Arc::new(known)));
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
    let mut fed: HashMap<KindKey, (AbortHandle, oneshot::Receiver<()>)> = HashMap::new();
    let mut unused: HashSet<KindKey> = HashSet::new();
    let mut tidy = interval(TIDY);
    loop {
        let changed = index.kinds_changed.notified();
        let kinds: Vec<KindKey> =
            lock(&index.kinds).iter().filter(|kind| !fed.contains_key(*kind)).cloned().collect();
        for kind in kinds {
            tracing::info!(group = &*kind.0, kind = &*kind.1, "watching workloads");
            let feeding = feed_kind(client.clone(), index.clone(), discovery.clone(), kind.clone());
            let (running, ended) = oneshot::channel();
            let handle = feeds.spawn(async move {
                let _running: oneshot::Sender<()> = running;
                feeding.await;
            });
            fed.insert(kind, (handle, ended));
        }
        tokio::select! {
            () = changed => {}
            _ = tidy.tick() => {
                let in_use = index.kinds_in_use();
                let always = |kind: &KindKey| ALWAYS_WATCHED.contains(&(&*kind.0, &*kind.1));
                let now: HashSet<KindKey> =
                    fed.keys().filter(|kind| !always(kind) && !in_use.contains(*kind)).cloned().collect();
                let over: HashSet<KindKey> = unused.intersection(&now).cloned().collect();
                for (handle, ended) in over.iter().filter_map(|kind| fed.remove(kind)) {
                    handle.abort();
                    // Nothing is sent: it ends with the task, and only then nothing more is written by it.
                    let _ = ended.await;
                }
                for (group, kind) in &over {
                    tracing::info!(%group, %kind, "no longer watching workloads: no pod under a budget has them for owners");
                }
                index.drop_kinds(&over);
                unused = now;
            }
        }
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
        let Some(served) = watchable(&discovery, &kind.0, &kind.1).filter(is_workload) else {
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
        let source = Source { client: &client, path: &path, query: &[], metadata_only: scale.0.is_none() };
        let feeding = follow(&source, |fed| {
            let mut touched = HashSet::new();
            let mut take = |fed: Fed<'_>| index.write_workloads().take(&fed, &kind, &scale, &mut touched);
            match fed {
                Ok(fed) => take(fed),
                Err(Broken::NotServed) => {
                    take(Fed::Begin);
                    take(Fed::Complete(0));
                }
                // Nobody waits for what may never be listed: each owner is asked for by name, and what is not told is refused.
                Err(Broken::Forbidden(why)) if !index.workloads().is_listed(&kind) => {
                    tracing::warn!(path, why, "may not list and watch workloads");
                    take(Fed::Begin);
                    take(Fed::Complete(0));
                }
                // What was seen last holds on.
                Err(broken) => return tracing::warn!(path, why = %broken, "watching workloads"),
            }
            index.touch_all(touched);
        });
        tokio::select! {
            () = feeding => {}
            () = served_otherwise(&mut discovery, &served) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use palisade_engine::Object;
    use serde_json::{Value, json};

    fn kind(group: &str, kind: &str) -> KindKey {
        (group.into(), kind.into())
    }

    fn pod(namespace: &str, name: &str, owner: (&str, &str)) -> Value {
        json!({"metadata": {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "5",
            "ownerReferences": [{"apiVersion": owner.0, "kind": owner.1, "name": "x", "uid": "x", "controller": true}]}})
    }

    fn take_pod(index: &Index, pod: &Value) {
        let text = pod.to_string();
        let object = Object::parse(text.as_bytes()).unwrap();
        index.write_pods().take(&Fed::Applied(&object), &mut HashSet::new());
    }

    #[test]
    fn kinds_are_in_use_while_a_pod_under_a_budget_has_one_for_an_owner() {
        let index = Index::default();
        index.replace_budgets(BTreeMap::from([("shop".to_owned(), BTreeMap::new())]));
        take_pod(&index, &pod("shop", "a", ("example.com/v1", "Herd")));
        take_pod(&index, &pod("elsewhere", "b", ("example.com/v1", "Flock")));
        assert_eq!(index.kinds_in_use(), HashSet::from([kind("example.com", "Herd")]));
        let herd = json!({"metadata": {"name": "x", "namespace": "shop", "uid": "x", "resourceVersion": "1",
            "ownerReferences": [{"apiVersion": "example.com/v1", "kind": "Farm", "name": "y", "uid": "y", "controller": true}]}});
        let text = herd.to_string();
        let fed = Fed::Applied(&Object::parse(text.as_bytes()).unwrap());
        index.write_workloads().take(&fed, &kind("example.com", "Herd"), &Scale(None), &mut HashSet::new());
        let both = HashSet::from([kind("example.com", "Herd"), kind("example.com", "Farm")]);
        assert_eq!(index.kinds_in_use(), both, "and the owner's owner");

        index.want_kind(kind("example.com", "Herd"));
        index.drop_kinds(&HashSet::from([kind("example.com", "Herd")]));
        assert!(!lock(&index.kinds).contains(&kind("example.com", "Herd")));
        assert_eq!(index.workloads().count(), 0);
    }

    #[test]
    fn only_workloads_are_watched() {
        use crate::discovery::Served;
        let served = |group: &str, kind: &str, scalable: bool| {
            is_workload(&Served { scalable, ..Served::new(group, "v1", kind, "x", true) })
        };
        assert!(served("example.com", "Herd", true));
        assert!(served("batch", "Job", false) && served("apps", "DaemonSet", false));
        assert!(!served("", "Secret", false) && !served("", "ConfigMap", false));
        assert!(!served("example.com", "Herd", false));
    }
}
