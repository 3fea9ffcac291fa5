//! A namespace of workloads and pods, for tests of what is counted and admitted.

use std::collections::{HashMap, HashSet};

use palisade_api::budget::{Budget, Status};
use palisade_engine::Object;
use serde_json::{Value, json};

use super::account::Numbers;
use super::census::{Census, Owners, census};
use super::pods::Pods;
use super::workloads::{Scale, Workload, Workloads};
use crate::feed::Fed;

/// A namespace of workloads and pods.
#[derive(Default)]
pub(super) struct Shop {
    pub(super) workloads: Workloads,
    pub(super) pods: Pods,
    gone: HashMap<Box<str>, Option<Workload>>,
    number: u64,
}

fn owner(kind: &str, name: &str) -> Value {
    let (kind, group) = kind.split_once('.').unwrap_or((kind, "apps"));
    json!([{"apiVersion": format!("{group}/v1"), "kind": kind, "name": name, "uid": name, "controller": true}])
}

impl Shop {
    /// A workload: `kind`, name, how many it wants, and the `kind` and name of its owner.
    pub(super) fn workload(
        mut self,
        kind: &str,
        name: &str,
        wants: i64,
        above: Option<(&str, &str)>,
    ) -> Self {
        self = self.workload_with(kind, name, &json!({"replicas": wants}), above, &json!({}));
        self
    }

    pub(super) fn workload_with(
        mut self,
        kind: &str,
        name: &str,
        spec: &Value,
        above: Option<(&str, &str)>,
        metadata: &Value,
    ) -> Self {
        let (kind, group) = kind.split_once('.').unwrap_or((kind, "apps"));
        let mut object = json!({"metadata": {"name": name, "namespace": "shop", "uid": name, "resourceVersion": "1"},
            "spec": spec, "status": {"replicas": 1}});
        if let Some((kind, name)) = above {
            object["metadata"]["ownerReferences"] = owner(kind, name);
        }
        for (key, value) in metadata.as_object().unwrap() {
            object["metadata"][key] = value.clone();
        }
        let text = object.to_string();
        let object = Object::parse(text.as_bytes()).unwrap();
        let scale = Scale::known(group, kind).unwrap_or(Scale(None));
        self.workloads.take(
            &Fed::Applied(&object),
            &(group.into(), kind.into()),
            &scale,
            &mut HashSet::new(),
        );
        self
    }

    /// The workload is deleted, as a watch tells it.
    pub(super) fn deleted(mut self, kind: &str, name: &str) -> Self {
        let (kind, group) = kind.split_once('.').unwrap_or((kind, "apps"));
        let text =
            json!({"metadata": {"name": name, "namespace": "shop", "uid": name, "resourceVersion": "2"}});
        let text = text.to_string();
        let object = Object::parse(text.as_bytes()).unwrap();
        let key = (group.into(), kind.into());
        self.workloads.take(&Fed::Deleted(&object), &key, &Scale(None), &mut HashSet::new());
        self
    }

    /// So many pods of a workload, available or not.
    pub(super) fn pods(mut self, count: usize, available: bool, of: Option<(&str, &str)>) -> Self {
        for _ in 0..count {
            self.number += 1;
            let name = format!("{}-{}", of.map_or("pod", |(_, name)| name), self.number - 1);
            self = self.pod(&name, available, of, &json!({}));
        }
        self
    }

    pub(super) fn pod(
        mut self,
        name: &str,
        available: bool,
        of: Option<(&str, &str)>,
        metadata: &Value,
    ) -> Self {
        let ready = if available { "True" } else { "False" };
        let mut object = json!({"metadata": {"name": name, "namespace": "shop", "uid": name, "resourceVersion": "9",
                "labels": {"app": "web"}},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}});
        if let Some((kind, name)) = of {
            object["metadata"]["ownerReferences"] = owner(kind, name);
        }
        for (key, value) in metadata.as_object().unwrap() {
            object["metadata"][key] = value.clone();
        }
        let text = object.to_string();
        self.pods.take(&Fed::Applied(&Object::parse(text.as_bytes()).unwrap()), &mut HashSet::new());
        self
    }

    pub(super) fn gone(mut self, uid: &str) -> Self {
        self.gone.insert(uid.into(), None);
        self
    }

    /// Total, available and desired.
    pub(super) fn count(&self, spec: &Value) -> (i64, i64, i64) {
        let budget = Budget::read(spec).unwrap();
        let census = self.census(&budget);
        let Numbers { available, desired, total, .. } = Numbers::of(&budget, &census, &Status::default());
        (total, available, desired)
    }

    pub(super) fn owners(&self) -> Owners<'_> {
        Owners { watched: &self.workloads, asked: &self.gone }
    }

    pub(super) fn census(&self, budget: &Budget) -> Census {
        census(budget, "shop", self.pods.of_namespace("shop"), &self.owners()).unwrap()
    }
}
