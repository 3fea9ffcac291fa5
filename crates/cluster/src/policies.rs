//! The `ResourceDeletionProtection`s that exist, kept by a watch.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::api::{Api, ApiResource, DynamicObject};
use kube::{Client, ResourceExt};
use palisade_api::protection::{self, Rule, Spec, Status, UnreadableProtection, rules_of};
use palisade_api::versions::PolicyKind;
use palisade_engine::Protections;
use tokio::sync::watch;

use crate::objects::{Change, list_policies, resource, status_of, watch_policies};
use crate::progress::PolicyProgress;
use crate::sync;

/// One protection, as it was last seen.
#[derive(Clone, Debug)]
pub struct Policy {
    pub uid: String,
    /// When it was created, as Kubernetes writes it.
    pub created: String,
    pub generation: Option<i64>,
    pub rules: Result<Vec<Rule>, UnreadableProtection>,
    pub status: Status,
}

/// All protections by name, and their rules as guards ask them.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    pub by_name: BTreeMap<String, Policy>,
    pub protections: Arc<Protections>,
}

/// How to talk about protections with a client.
pub fn protection_resource() -> ApiResource {
    resource(protection::GROUP, protection::VERSION, protection::KIND, protection::PLURAL)
}

impl Policy {
    fn read(object: &DynamicObject) -> Self {
        let name = object.name_any();
        let spec = object.data.get("spec").cloned().unwrap_or_default();
        let rules = serde_json::from_value::<Spec>(spec)
            .map_err(|error| UnreadableProtection { name: name.clone(), why: error.to_string() })
            .and_then(|spec| rules_of(&name, &spec));
        Self {
            uid: object.uid().unwrap_or_default(),
            created: object.creation_timestamp().map(|created| created.0.to_string()).unwrap_or_default(),
            generation: object.metadata.generation,
            rules,
            status: status_of(object),
        }
    }
}

impl Policies {
    /// When a protection was created.
    pub fn created(&self, name: &str) -> String {
        self.by_name.get(name).map(|policy| policy.created.clone()).unwrap_or_default()
    }

    /// From what there is.
    pub fn new(by_name: BTreeMap<String, Policy>) -> Self {
        let rules = by_name.values().filter_map(|policy| policy.rules.as_ref().ok()).flatten().cloned();
        let unreadable = by_name.values().filter_map(|policy| policy.rules.as_ref().err()).cloned().collect();
        let protections = Arc::new(Protections::new(rules, unreadable));
        Self { by_name, protections }
    }
}

/// Reads all protections once; none if the cluster does not know the kind.
pub async fn list_protections(client: Client) -> kube::Result<Policies> {
    let api: Api<DynamicObject> = Api::all_with(client, &protection_resource());
    let policies = list_policies(&api, PolicyKind::Protection).await?;
    Ok(Policies::new(policies.iter().map(|object| (object.name_any(), Policy::read(object))).collect()))
}

/// Watches protections, for ever, and publishes them; `None` before the first list is complete.
pub async fn watch_protections(
    client: Client,
    progress: Arc<PolicyProgress>,
    published: watch::Sender<Option<Policies>>,
) {
    let mut current: BTreeMap<String, Policy> = BTreeMap::new();
    let resource = protection_resource();
    watch_policies(client, PolicyKind::Protection, &resource, &progress, |change| {
        match change {
            Change::All(objects) => {
                current = objects.iter().map(|object| (object.name_any(), Policy::read(object))).collect();
            }
            Change::Put(object) => drop(current.insert(object.name_any(), Policy::read(&object))),
            Change::Gone(object) => drop(current.remove(&object.name_any())),
        }
        sync::send(&published, Some(Policies::new(current.clone())));
    })
    .await;
}
