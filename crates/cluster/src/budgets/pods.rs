//! The pods of the cluster, slim: identity, labels, owner, and whether each is available.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use palisade_engine::{Metadata, Object, PodState, is_available};

use crate::feed::{Fed, number};

/// Labels that many pods share.
pub(super) type Labels = Arc<[(Arc<str>, Arc<str>)]>;

/// All that is kept of a pod.
#[derive(Clone, Debug)]
pub struct Pod {
    pub name: Box<str>,
    pub revision: u64,
    pub labels: Labels,
    pub controller: Option<Arc<Controller>>,
    pub state: State,
    /// Which list saw it last.
    round: bool,
}

/// How a pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Available,
    /// It may become available, again.
    Down,
    Terminating,
    /// Succeeded or Failed.
    Finished,
}

impl Pod {
    pub fn is_available(&self) -> bool {
        self.state == State::Available
    }

    pub fn is_terminating(&self) -> bool {
        self.state == State::Terminating
    }
}

/// The owner that looks after an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Controller {
    pub uid: Box<str>,
    pub group: Box<str>,
    pub kind: Box<str>,
    pub name: Box<str>,
}

impl Controller {
    /// Whom an object names as its controller.
    pub fn of(metadata: &Metadata<'_>) -> Option<Self> {
        metadata.owners.iter().find(|owner| owner.controller).map(|owner| Self {
            uid: (&*owner.uid).into(),
            group: owner.api_version.split_once('/').map_or("", |(group, _)| group).into(),
            kind: (&*owner.kind).into(),
            name: (&*owner.name).into(),
        })
    }
}

/// The pods of one namespace by uid.
pub type NamespacePods = HashMap<Box<str>, Pod>;

/// The pods of the cluster. Plain and synchronous: a watch feeds it.
#[derive(Debug, Default)]
pub struct Pods {
    listed: bool,
    round: bool,
    /// Everything up to here has been seen.
    revision: u64,
    /// The last event, or the list that showed what no event had.
    event_revision: u64,
    /// Shared with whoever counts them at the time, who has no lock then.
    namespaces: HashMap<Arc<str>, Arc<NamespacePods>>,
    pool: Pool,
}

impl Pods {
    /// Whether there has been a list.
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The newest revision that changed something. Whoever watches pods comes to see it.
    pub fn event_revision(&self) -> u64 {
        self.event_revision
    }

    pub fn of_namespace(&self, namespace: &str) -> Option<&NamespacePods> {
        self.namespaces.get(namespace).map(|pods| &**pods)
    }

    /// The same, for use without a lock.
    pub fn share_namespace(&self, namespace: &str) -> Option<Arc<NamespacePods>> {
        self.namespaces.get(namespace).cloned()
    }

    pub fn count(&self) -> usize {
        self.namespaces.values().map(|pods| pods.len()).sum()
    }

    /// Takes what was fed, and returns the namespaces that it changed.
    pub(crate) fn take(&mut self, fed: &Fed<'_>, touched: &mut HashSet<Arc<str>>) {
        match fed {
            Fed::Begin => self.round = !self.round,
            Fed::Listed(pod) => {
                let revision = self.keep(pod, touched);
                self.event_revision = self.event_revision.max(revision);
            }
            Fed::Complete(revision) => {
                let round = self.round;
                let mut gone = false;
                for (namespace, pods) in &mut self.namespaces {
                    if pods.values().any(|pod| pod.round != round) {
                        Arc::make_mut(pods).retain(|_, pod| pod.round == round);
                        gone = true;
                        touched.insert(namespace.clone());
                    }
                }
                self.namespaces.retain(|_, pods| !pods.is_empty());
                // No event told that they went, and whoever waits for one would wait in vain.
                if gone || !self.listed {
                    self.event_revision = *revision;
                }
                self.revision = *revision;
                self.listed = true;
                self.pool.tidy();
            }
            Fed::Applied(pod) => {
                let revision = self.keep(pod, touched);
                self.revision = revision;
                self.event_revision = revision;
            }
            Fed::Deleted(pod) => {
                let revision = number(&pod.metadata.resource_version);
                let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
                if let Some((key, _)) = self.namespaces.get_key_value(namespace) {
                    touched.insert(key.clone());
                }
                if let Some(pods) = self.namespaces.get_mut(namespace) {
                    Arc::make_mut(pods).remove(&*pod.metadata.uid);
                    if pods.is_empty() {
                        self.namespaces.remove(namespace);
                    }
                }
                self.revision = revision;
                self.event_revision = revision;
                self.pool.tidy_sometimes();
            }
            Fed::Reached(revision) => self.revision = *revision,
        }
    }

    fn keep(&mut self, object: &Object<'_>, touched: &mut HashSet<Arc<str>>) -> u64 {
        let metadata = &object.metadata;
        let revision = number(&metadata.resource_version);
        // A state that can't be read counts against the budget: that is the side on which nothing is lost.
        let state = PodState::read(object).unwrap_or_default();
        let pod = Pod {
            name: (&*metadata.name).into(),
            revision,
            labels: self.pool.labels(metadata),
            controller: Controller::of(metadata).map(|controller| self.pool.controller(controller)),
            state: if metadata.deletion_timestamp.is_some() {
                State::Terminating
            } else if state.is_finished() {
                State::Finished
            } else if is_available(object, &state) {
                State::Available
            } else {
                State::Down
            },
            round: self.round,
        };
        let namespace = self.pool.word(metadata.namespace.as_deref().unwrap_or_default());
        touched.insert(namespace.clone());
        let pods = Arc::make_mut(self.namespaces.entry(namespace).or_default());
        pods.insert((&*metadata.uid).into(), pod);
        revision
    }
}

/// What many pods have in common, once.
#[derive(Debug, Default)]
struct Pool {
    words: HashSet<Arc<str>>,
    labels: HashSet<Labels>,
    controllers: HashSet<Arc<Controller>>,
    /// Since the last time that it was tidied.
    deleted: usize,
}

/// How many pods may go before what they alone had is dropped.
const UNTIDY: usize = 10_000;

impl Pool {
    fn word(&mut self, word: &str) -> Arc<str> {
        if let Some(known) = self.words.get(word) {
            return known.clone();
        }
        let new: Arc<str> = word.into();
        self.words.insert(new.clone());
        new
    }

    fn labels(&mut self, metadata: &Metadata<'_>) -> Labels {
        let labels: Vec<_> =
            metadata.labels.iter().map(|(key, value)| (self.word(key), self.word(value))).collect();
        if let Some(known) = self.labels.get(labels.as_slice()) {
            return known.clone();
        }
        let new: Labels = labels.into();
        self.labels.insert(new.clone());
        new
    }

    fn controller(&mut self, controller: Controller) -> Arc<Controller> {
        if let Some(known) = self.controllers.get(&controller) {
            return known.clone();
        }
        let new = Arc::new(controller);
        self.controllers.insert(new.clone());
        new
    }

    fn tidy_sometimes(&mut self) {
        self.deleted += 1;
        if self.deleted >= UNTIDY {
            self.tidy();
        }
    }

    fn tidy(&mut self) {
        self.deleted = 0;
        self.labels.retain(|labels| Arc::strong_count(labels) > 1);
        self.controllers.retain(|controller| Arc::strong_count(controller) > 1);
        self.words.retain(|word| Arc::strong_count(word) > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(uid: &str, revision: u64, ready: bool) -> Value {
        let ready = if ready { "True" } else { "False" };
        json!({
            "metadata": {"name": uid, "namespace": "shop", "uid": uid, "resourceVersion": revision.to_string(), "labels": {"app": "web"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "rs", "controller": true}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
        })
    }

    fn take(pods: &mut Pods, fed: impl Fn(&Object<'_>) -> bool, object: &Value) {
        let text = object.to_string();
        let object = Object::parse(text.as_bytes()).unwrap();
        let mut touched = HashSet::new();
        let fed = if fed(&object) { Fed::Applied(&object) } else { Fed::Deleted(&object) };
        pods.take(&fed, &mut touched);
        assert!(touched.contains("shop"));
    }

    fn list(pods: &mut Pods, objects: &[Value], revision: u64) {
        let mut touched = HashSet::new();
        pods.take(&Fed::Begin, &mut touched);
        for object in objects {
            let text = object.to_string();
            pods.take(&Fed::Listed(&Object::parse(text.as_bytes()).unwrap()), &mut touched);
        }
        pods.take(&Fed::Complete(revision), &mut touched);
    }

    fn known(pods: &Pods) -> Vec<(String, bool)> {
        let mut known: Vec<_> = pods
            .of_namespace("shop")
            .into_iter()
            .flatten()
            .map(|(uid, pod)| (uid.to_string(), pod.is_available()))
            .collect();
        known.sort();
        known
    }

    #[test]
    fn events_follow_a_list() {
        let mut pods = Pods::default();
        list(&mut pods, &[pod("a", 3, true)], 10);
        assert_eq!((pods.revision(), pods.event_revision()), (10, 10));
        take(&mut pods, |_| true, &pod("b", 11, false));
        take(&mut pods, |_| false, &pod("a", 12, true));
        assert_eq!(known(&pods), [("b".to_owned(), false)]);
        assert_eq!((pods.revision(), pods.event_revision()), (12, 12));
        pods.take(&Fed::Reached(20), &mut HashSet::new());
        assert_eq!((pods.revision(), pods.event_revision()), (20, 12));
    }

    #[test]
    fn what_a_new_list_does_not_show_is_gone_as_of_that_list() {
        let mut pods = Pods::default();
        list(&mut pods, &[pod("a", 3, true), pod("b", 4, true)], 10);
        list(&mut pods, &[pod("a", 3, true), pod("b", 4, true)], 20);
        assert_eq!(pods.event_revision(), 10, "nothing happened");
        list(&mut pods, &[pod("b", 4, true)], 30);
        assert_eq!(known(&pods), [("b".to_owned(), true)]);
        assert_eq!(pods.event_revision(), 30);
    }

    #[test]
    fn pods_share_what_is_the_same() {
        let mut pods = Pods::default();
        list(&mut pods, &[pod("a", 3, true), pod("b", 4, true)], 10);
        let all: Vec<&Pod> = pods.of_namespace("shop").unwrap().values().collect();
        assert!(Arc::ptr_eq(&all[0].labels, &all[1].labels));
        assert!(Arc::ptr_eq(all[0].controller.as_ref().unwrap(), all[1].controller.as_ref().unwrap()));
    }
}
