//! The workloads that own pods, slim: how many pods each wants, and who owns it in turn.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use palisade_engine::Object;
use palisade_engine::json::{Cursor, Malformed};

use crate::budgets::pods::Controller;
use crate::feed::{Fed, number};

/// All that is kept of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    pub namespace: Box<str>,
    pub name: Box<str>,
    pub controller: Option<Arc<Controller>>,
    /// How many pods it wants; `None` if its kind has no say in that.
    pub wants: Option<i64>,
    /// The number of its first pod, where pods are numbered without gaps.
    pub first_ordinal: Option<i64>,
    pub end: Option<End>,
}

/// What becomes of the dependents of a workload that is going.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// They go with it.
    Collected,
    /// They stay.
    Orphaned,
}

/// A kind, as `(group, kind)`.
pub type KindKey = (Box<str>, Box<str>);

/// Where a kind says how many pods it wants: the keys that lead there. `None`: nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scale(pub(crate) Option<Vec<String>>);

impl Scale {
    /// That of the kinds which everybody knows.
    pub(crate) fn known(group: &str, kind: &str) -> Option<Self> {
        let path = match (group, kind) {
            ("apps", "Deployment" | "ReplicaSet" | "StatefulSet")
            | ("", "ReplicationController")
            | ("apps.kruise.io", "CloneSet" | "StatefulSet" | "UnitedDeployment") => {
                Some(["spec", "replicas"])
            }
            ("apps", "DaemonSet") => Some(["status", "desiredNumberScheduled"]),
            ("batch", "Job") | ("", "Node") => None,
            _ => return None,
        };
        Some(Self(path.map(|path| path.map(str::to_owned).to_vec())))
    }

    /// From a definition's `specReplicasPath`: `.spec.replicas`.
    pub(crate) fn at(path: &str) -> Self {
        let keys: Vec<String> = path.split('.').filter(|key| !key.is_empty()).map(str::to_owned).collect();
        Self((!keys.is_empty()).then_some(keys))
    }
}

impl Workload {
    pub(crate) fn read(object: &Object<'_>, kind: &KindKey, scale: &Scale) -> Result<Self, Malformed> {
        let metadata = &object.metadata;
        let wants = match &scale.0 {
            None => None,
            // Unset is 1, as everywhere in Kubernetes; of somebody's own kind nobody knows what it is.
            Some(path) => {
                let unset = Scale::known(&kind.0, &kind.1).map(|_| 1);
                number_at(object, path)?.or(unset).map(|wants| wants.max(0))
            }
        };
        Ok(Self {
            namespace: metadata.namespace.as_deref().unwrap_or_default().into(),
            name: (&*metadata.name).into(),
            controller: Controller::of(metadata).map(Arc::new),
            wants,
            first_ordinal: first_ordinal(object, kind)?,
            end: metadata.deletion_timestamp.is_some().then_some(if metadata.orphans() {
                End::Orphaned
            } else {
                End::Collected
            }),
        })
    }
}

fn number_at(object: &Object<'_>, path: &[String]) -> Result<Option<i64>, Malformed> {
    let (part, keys) = match path {
        [first, rest @ ..] if first == "spec" => (object.spec(), rest),
        [first, rest @ ..] if first == "status" => (object.status(), rest),
        _ => return Ok(None),
    };
    part.map_or(Ok(None), |part| descend(&mut Cursor::new(part), keys))
}

fn descend(cursor: &mut Cursor<'_>, keys: &[String]) -> Result<Option<i64>, Malformed> {
    let Some((first, rest)) = keys.split_first() else { return cursor.value() };
    let mut found = None;
    cursor.object_or_null(|key, value| {
        if key == *first {
            found = descend(value, rest)?;
            Ok(())
        } else {
            value.skip()
        }
    })?;
    Ok(found)
}

/// A `StatefulSet` numbers its pods, from `spec.ordinals.start` on. Kruise's may leave some out.
fn first_ordinal(object: &Object<'_>, (group, kind): &KindKey) -> Result<Option<i64>, Malformed> {
    if &**kind != "StatefulSet" || !matches!(&**group, "apps" | "apps.kruise.io") {
        return Ok(None);
    }
    let mut gaps = false;
    if let Some(spec) = object.spec() {
        Cursor::new(spec).object(|key, value| {
            if key != "reserveOrdinals" {
                return value.skip();
            }
            value.list(|ordinal| {
                gaps = true;
                ordinal.skip()
            })
        })?;
    }
    let path = ["spec", "ordinals", "start"].map(str::to_owned);
    Ok(if gaps { None } else { Some(number_at(object, &path)?.unwrap_or(0)) })
}

/// How many deleted workloads are remembered in each namespace.
const DELETED_REMEMBERED: usize = 1_000;

/// The workloads of the cluster by uid. Plain and synchronous: watches feed it.
#[derive(Debug, Default)]
pub struct Workloads {
    by_uid: HashMap<Box<str>, (Workload, KindKey, bool)>,
    /// Workloads that are gone, but had a controller: their pods may still be wanted by that one.
    deleted: HashMap<Box<str>, (Workload, KindKey)>,
    /// The uids of those, by namespace, oldest first.
    deletions: HashMap<Box<str>, VecDeque<Box<str>>>,
    /// Which list of a kind saw what last.
    rounds: HashMap<KindKey, bool>,
    listed: HashSet<KindKey>,
}

impl Workloads {
    /// The workload with a controller's uid, and whether it is the one that is meant: if not, that one is gone.
    pub(crate) fn get_as(&self, controller: &Controller) -> Option<(&Workload, bool)> {
        let (workload, (group, kind), _) = self.by_uid.get(&controller.uid)?;
        let meant =
            *group == controller.group && *kind == controller.kind && workload.name == controller.name;
        Some((workload, meant))
    }

    /// A workload that was deleted, and had a controller.
    pub(crate) fn deleted(&self, controller: &Controller) -> Option<&Workload> {
        let (workload, (group, kind)) = self.deleted.get(&controller.uid)?;
        let meant =
            *group == controller.group && *kind == controller.kind && workload.name == controller.name;
        meant.then_some(workload)
    }

    fn remember(&mut self, uid: &str, workload: Workload, kind: KindKey) {
        if workload.controller.is_none() {
            return;
        }
        let uids = self.deletions.entry(workload.namespace.clone()).or_default();
        uids.push_back(uid.into());
        if uids.len() > DELETED_REMEMBERED
            && let Some(oldest) = uids.pop_front()
        {
            self.deleted.remove(&oldest);
        }
        self.deleted.insert(uid.into(), (workload, kind));
    }

    /// A workload by its name. Rare: it looks at all.
    pub fn find(&self, namespace: &str, group: &str, kind: &str, name: &str) -> Option<&Workload> {
        self.by_uid.values().find_map(|(workload, (of_group, of_kind), _)| {
            (&*workload.name == name
                && &*workload.namespace == namespace
                && &**of_group == group
                && &**of_kind == kind)
                .then_some(workload)
        })
    }

    /// Whom workloads name as their controllers.
    pub(crate) fn controllers(&self) -> impl Iterator<Item = &Controller> {
        self.by_uid.values().filter_map(|(workload, ..)| workload.controller.as_deref())
    }

    /// Lets go of all workloads of a kind that nobody watches any more.
    pub(crate) fn forget(&mut self, kind: &KindKey) {
        self.by_uid.retain(|_, (_, of_kind, _)| of_kind != kind);
        self.rounds.remove(kind);
        self.listed.remove(kind);
    }

    pub fn is_listed(&self, kind: &KindKey) -> bool {
        self.listed.contains(kind)
    }

    pub fn count(&self) -> usize {
        self.by_uid.len()
    }

    pub(crate) fn take(
        &mut self,
        fed: &Fed<'_>,
        kind: &KindKey,
        scale: &Scale,
        touched: &mut HashSet<Arc<str>>,
    ) {
        match fed {
            Fed::Begin => {
                let round = self.rounds.entry(kind.clone()).or_default();
                *round = !*round;
            }
            Fed::Listed(object) | Fed::Applied(object) => {
                let uid: Box<str> = (&*object.metadata.uid).into();
                match Workload::read(object, kind, scale) {
                    Ok(workload) if is_history(object, kind, &workload) => drop(self.by_uid.remove(&uid)),
                    Ok(workload) => {
                        let changed = self.by_uid.get(&uid).is_none_or(|(known, ..)| *known != workload);
                        if changed {
                            touched.insert((&*workload.namespace).into());
                        }
                        let round = self.rounds.get(kind).copied().unwrap_or_default();
                        self.by_uid.insert(uid, (workload, kind.clone(), round));
                    }
                    Err(error) => {
                        // What was known of it holds on.
                        tracing::warn!(kind = &*kind.1, name = &*object.metadata.name, %error, "reading a workload");
                    }
                }
            }
            Fed::Complete(_) => {
                let round = self.rounds.get(kind).copied().unwrap_or_default();
                let gone: Vec<_> = self
                    .by_uid
                    .extract_if(|_, (_, of_kind, seen)| of_kind == kind && *seen != round)
                    .collect();
                for (uid, (workload, kind, _)) in gone {
                    touched.insert((&*workload.namespace).into());
                    self.remember(&uid, workload, kind);
                }
                self.listed.insert(kind.clone());
            }
            Fed::Deleted(object) => {
                if let Some((workload, kind, _)) = self.by_uid.remove(&*object.metadata.uid) {
                    self.remember(&object.metadata.uid, workload, kind);
                }
                touched.insert(object.metadata.namespace.as_deref().unwrap_or_default().into());
            }
            Fed::Reached(_) => {}
        }
    }
}

/// A revision that a Deployment keeps to go back to: it has no pods, and wants none. There are ten for each.
fn is_history(object: &Object<'_>, (_, kind): &KindKey, workload: &Workload) -> bool {
    let path = ["status", "replicas"].map(str::to_owned);
    &**kind == "ReplicaSet"
        && workload.wants == Some(0)
        && workload.controller.is_some()
        && matches!(number_at(object, &path), Ok(None | Some(0)))
        && number(&object.metadata.resource_version) > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn read(group: &str, kind: &str, object: &Value) -> Workload {
        let text = object.to_string();
        let object = Object::parse(text.as_bytes()).unwrap();
        let scale = Scale::known(group, kind).unwrap_or_else(|| Scale::at(".spec.size.pods"));
        Workload::read(&object, &(group.into(), kind.into()), &scale).unwrap()
    }

    #[rstest]
    #[case("apps", "Deployment", json!({"spec": {"replicas": 3}}), Some(3))]
    #[case("apps", "Deployment", json!({"spec": {}}), Some(1))]
    #[case("apps", "Deployment", json!({}), Some(1))]
    #[case("apps", "DaemonSet", json!({"spec": {}, "status": {"desiredNumberScheduled": 7}}), Some(7))]
    #[case("batch", "Job", json!({"spec": {"replicas": 3}}), None)]
    #[case("apps.kruise.io", "CloneSet", json!({"spec": {"replicas": 0}}), Some(0))]
    #[case("example.com", "Widget", json!({"spec": {"size": {"pods": 4}}}), Some(4))]
    #[case("example.com", "Widget", json!({"spec": {"size": null}}), None)]
    fn how_many_it_wants(
        #[case] group: &str,
        #[case] kind: &str,
        #[case] object: Value,
        #[case] wants: Option<i64>,
    ) {
        assert_eq!(read(group, kind, &object).wants, wants);
    }

    #[rstest]
    #[case("apps", "StatefulSet", json!({"spec": {}}), Some(0))]
    #[case("apps", "StatefulSet", json!({"spec": {"ordinals": {"start": 5}}}), Some(5))]
    #[case("apps.kruise.io", "StatefulSet", json!({"spec": {"reserveOrdinals": [1]}}), None)]
    #[case("apps.kruise.io", "StatefulSet", json!({"spec": {"reserveOrdinals": []}}), Some(0))]
    #[case("apps", "Deployment", json!({"spec": {}}), None)]
    fn where_its_numbers_begin(
        #[case] group: &str,
        #[case] kind: &str,
        #[case] object: Value,
        #[case] first: Option<i64>,
    ) {
        assert_eq!(read(group, kind, &object).first_ordinal, first);
    }

    #[rstest]
    #[case(json!({}), None)]
    #[case(json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["foregroundDeletion"]}), Some(End::Collected))]
    #[case(json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["orphan"]}), Some(End::Orphaned))]
    fn what_becomes_of_its_pods(#[case] metadata: Value, #[case] end: Option<End>) {
        assert_eq!(read("apps", "Deployment", &json!({"metadata": metadata})).end, end);
    }
}
