//! The namespaces in which a pod carries a protection label now.
//!
//! An eviction carries no labels of the pod, so no `objectSelector` can tell which evictions concern us.
//! Metadata watches, selected by label, say in which namespaces one might.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::sync;
use futures::stream::{StreamExt, select_all};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use palisade_api::marks;
use tokio::sync::watch;

/// A dead connection is noticed after this time and five seconds more.
const WATCH_SECONDS: u32 = 60;

/// Which pods of which namespaces one label selector shows. Plain and synchronous: watches feed it.
#[derive(Debug, Default)]
pub struct PodNamespaces {
    listed: bool,
    current: HashMap<String, HashSet<String>>,
    listing: HashMap<String, HashSet<String>>,
}

impl PodNamespaces {
    /// A list begins: what it does not show is gone when it ends.
    pub fn reset(&mut self) {
        self.listing.clear();
    }

    /// A list shows a pod.
    pub fn list(&mut self, namespace: String, pod: String) {
        self.listing.entry(namespace).or_default().insert(pod);
    }

    /// The list is complete.
    pub fn listed(&mut self) {
        self.listed = true;
        self.current = std::mem::take(&mut self.listing);
    }

    pub fn apply(&mut self, namespace: String, pod: String) {
        self.current.entry(namespace).or_default().insert(pod);
    }

    pub fn delete(&mut self, namespace: &str, pod: &str) {
        if let Some(pods) = self.current.get_mut(namespace) {
            pods.remove(pod);
            if pods.is_empty() {
                self.current.remove(namespace);
            }
        }
    }

    /// The namespaces; `None` before the first list is complete.
    pub fn namespaces(&self) -> Option<impl Iterator<Item = &String>> {
        self.listed.then(|| self.current.keys())
    }

    fn feed(&mut self, event: Event<PartialObjectMeta<Pod>>) {
        let key = |pod: &PartialObjectMeta<Pod>| (pod.namespace().unwrap_or_default(), pod.name_any());
        match event {
            Event::Init => self.reset(),
            Event::InitApply(pod) => {
                let (namespace, name) = key(&pod);
                self.list(namespace, name);
            }
            Event::InitDone => self.listed(),
            Event::Apply(pod) => {
                let (namespace, name) = key(&pod);
                self.apply(namespace, name);
            }
            Event::Delete(pod) => {
                let (namespace, name) = key(&pod);
                self.delete(&namespace, &name);
            }
        }
    }
}

/// Watches the labels that can protect a pod, for ever, and publishes the namespaces in which one does:
/// `None` until every watch has listed.
pub async fn watch_protected_pods(client: Client, namespaces: watch::Sender<Option<BTreeSet<String>>>) {
    let selectors = marks::protecting_selectors();
    let pods: Api<PartialObjectMeta<Pod>> = Api::all(client);
    let mut indices: Vec<PodNamespaces> = selectors.iter().map(|_| PodNamespaces::default()).collect();
    let mut events = select_all(selectors.iter().enumerate().map(|(number, selector)| {
        let config = Config::default().labels(selector).timeout(WATCH_SECONDS);
        watcher(pods.clone(), config).default_backoff().map(move |event| (number, event)).boxed()
    }));
    while let Some((number, event)) = events.next().await {
        match event {
            Ok(event) => indices[number].feed(event),
            // Evictions stay registered as they were: the last complete answer holds until there is a newer one.
            Err(error) => tracing::warn!(%error, "watching protected pods"),
        }
        let all: Option<Vec<_>> = indices.iter().map(PodNamespaces::namespaces).collect();
        let all = all.map(|sets| sets.into_iter().flatten().cloned().collect());
        sync::send_new(&namespaces, all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn namespaces(index: &PodNamespaces) -> Option<BTreeSet<String>> {
        index.namespaces().map(|names| names.cloned().collect())
    }

    fn set(name: &str) -> BTreeSet<String> {
        BTreeSet::from([name.to_owned()])
    }

    #[test]
    fn nothing_is_known_before_the_first_list_is_complete() {
        let mut index = PodNamespaces::default();
        index.reset();
        index.list("a".into(), "x".into());
        assert_eq!(namespaces(&index), None);
        index.listed();
        assert_eq!(namespaces(&index), Some(set("a")));
    }

    #[test]
    fn what_a_new_list_does_not_show_is_gone_when_it_is_complete() {
        let mut index = PodNamespaces::default();
        index.listed();
        index.apply("a".into(), "x".into());
        index.reset();
        index.list("b".into(), "y".into());
        assert_eq!(namespaces(&index), Some(set("a")), "the old answer holds while a list runs");
        index.listed();
        assert_eq!(namespaces(&index), Some(set("b")));
    }

    proptest! {
        #[test]
        fn a_namespace_is_named_exactly_while_it_has_a_pod(
            events in prop::collection::vec((any::<bool>(), 0..3usize, 0..3usize), 0..60)
        ) {
            let mut index = PodNamespaces::default();
            index.listed();
            let mut model = BTreeSet::new();
            for (added, namespace, pod) in events {
                let (namespace, pod) = (format!("n{namespace}"), format!("p{pod}"));
                if added {
                    index.apply(namespace.clone(), pod.clone());
                    model.insert((namespace, pod));
                } else {
                    index.delete(&namespace, &pod);
                    model.remove(&(namespace, pod));
                }
                let expected: BTreeSet<String> = model.iter().map(|(namespace, _)| namespace.clone()).collect();
                prop_assert_eq!(namespaces(&index), Some(expected));
            }
        }
    }
}
