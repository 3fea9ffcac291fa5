//! `ComponentProtection`s, and what there is of parents and components.
//!
//! ```text
//! protections ─ watch ─▶ Guarded ─▶ which changes are worth a question
//!                                    │
//!                 question: what a parent is in the middle of, whose a claim is (live)
//! parents, workloads ─ watches ─▶ Sighted ─▶ registration and status (the leader's)
//! ```

mod question;
mod sight;

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::api::{ApiResource, DynamicObject};
use kube::{Client, ResourceExt};
use palisade_api::components::{self, Components, GroupKind, Status};
use palisade_api::versions::PolicyKind;
use palisade_engine::ProtectedComponents;
use tokio::sync::watch;

use crate::objects::{Change, resource, status_of, watch_policies};
use crate::progress::PolicyProgress;
use crate::sync;

pub(crate) use question::list_protections;
pub use sight::{Scaled, Sighted, watch_components};

/// A `ComponentProtection`, as it was last seen.
#[derive(Clone, Debug)]
pub struct Known {
    pub uid: String,
    /// When it was created, as Kubernetes writes it.
    pub created: String,
    pub generation: Option<i64>,
    pub protected: Arc<ProtectedComponents>,
    pub status: Status,
}

/// All of them by name, and etcd-druid's, if it is switched on.
#[derive(Clone, Debug, Default)]
pub struct Guarded {
    pub by_name: BTreeMap<String, Known>,
    pub built_in: Option<Arc<ProtectedComponents>>,
}

/// How to talk about `ComponentProtection`s with a client.
pub fn component_resource() -> ApiResource {
    resource(components::GROUP, components::VERSION, components::KIND, components::PLURAL)
}

impl Guarded {
    pub fn all(&self) -> impl Iterator<Item = &Arc<ProtectedComponents>> {
        self.built_in.iter().chain(self.by_name.values().map(|known| &known.protected))
    }

    /// Those that can be read, by the name that they have in messages.
    pub fn readable(&self) -> impl Iterator<Item = (Option<&str>, &Components)> {
        self.all()
            .filter_map(|protected| Some((protected.name.as_deref(), protected.components.as_ref().ok()?)))
    }

    pub(crate) fn about(&self, kind: &GroupKind) -> Vec<Arc<ProtectedComponents>> {
        let is_about = |protected: &&Arc<ProtectedComponents>| {
            protected
                .components
                .as_ref()
                .is_ok_and(|components| components.kind(&kind.group, &kind.kind).is_some())
        };
        self.all().filter(is_about).cloned().collect()
    }
}

/// Watches `ComponentProtection`s, for ever, and publishes them; `None` before the first list is complete.
pub async fn watch_protections(
    client: Client,
    progress: Arc<PolicyProgress>,
    built_in: Option<Arc<ProtectedComponents>>,
    published: watch::Sender<Option<Guarded>>,
) {
    let mut current = Guarded { built_in, ..Guarded::default() };
    let resource = component_resource();
    watch_policies(client, PolicyKind::ComponentProtection, &resource, &progress, |change| {
        let named = |object: &DynamicObject, before: &BTreeMap<String, Known>| {
            let name = object.name_any();
            let known = read(object, before.get(&name));
            (name, known)
        };
        match change {
            Change::All(objects) => {
                current.by_name = objects.iter().map(|object| named(object, &current.by_name)).collect();
            }
            Change::Put(object) => {
                let (name, known) = named(&object, &current.by_name);
                current.by_name.insert(name, known);
            }
            Change::Gone(object) => drop(current.by_name.remove(&object.name_any())),
        }
        sync::send(&published, Some(current.clone()));
    })
    .await;
}

/// What is asked for stays the same one while only the status changes: watches go by it.
fn read(object: &DynamicObject, before: Option<&Known>) -> Known {
    let (uid, generation) = (object.uid().unwrap_or_default(), object.metadata.generation);
    let same = before.filter(|before| before.uid == uid && before.generation == generation);
    let anew = || {
        let components = Components::read(object.data.get("spec").unwrap_or(&serde_json::Value::Null));
        Arc::new(ProtectedComponents { name: Some(object.name_any()), components })
    };
    let protected = same.map_or_else(anew, |before| before.protected.clone());
    let created = object.creation_timestamp().map(|created| created.0.to_string()).unwrap_or_default();
    Known { uid, created, generation, protected, status: status_of(object) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_asked_for_stays_the_same_one_while_only_the_status_changes() {
        let object = |generation: i64, refused: u64| -> DynamicObject {
            let metadata = json!({"name": "pg", "uid": "u", "generation": generation});
            let spec = json!({"parent": {"apiVersion": "db.example/v1", "kind": "Postgres"}, "ownedByParent": true,
                "kinds": [{"apiVersion": "v1", "kind": "Service"}], "operators": ["x"]});
            serde_json::from_value(
                json!({"metadata": metadata, "spec": spec, "status": {"refused": refused}}),
            )
            .unwrap()
        };
        let first = read(&object(1, 0), None);
        let counted = read(&object(1, 7), Some(&first));
        assert!(Arc::ptr_eq(&first.protected, &counted.protected));
        assert_eq!(counted.status.refused, 7);
        let changed = read(&object(2, 7), Some(&counted));
        assert!(!Arc::ptr_eq(&changed.protected, &counted.protected));
    }
}
