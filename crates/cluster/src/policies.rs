//! The `ResourceDeletionProtection`s that exist, kept by a watch.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use palisade_api::protection::{self, Rule, Spec, Status, UnreadableProtection, rules_of};
use palisade_engine::Protections;
use tokio::sync::watch;

/// One protection, as it was last seen.
#[derive(Clone, Debug)]
pub struct Policy {
    pub uid: String,
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
    let gvk = GroupVersionKind::gvk(protection::GROUP, protection::VERSION, protection::KIND);
    ApiResource::from_gvk_with_plural(&gvk, protection::PLURAL)
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
            generation: object.metadata.generation,
            rules,
            // A status that cannot be read is written anew.
            status: object
                .data
                .get("status")
                .and_then(|status| serde_json::from_value(status.clone()).ok())
                .unwrap_or_default(),
        }
    }
}

impl Policies {
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
    match api.list(&kube::api::ListParams::default()).await {
        Ok(list) => {
            let policies = list.items.iter().map(|object| (object.name_any(), Policy::read(object)));
            Ok(Policies::new(policies.collect()))
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Policies::default()),
        Err(error) => Err(error),
    }
}

/// Watches protections, for ever, and publishes them; `None` before the first list is complete.
pub async fn watch_protections(client: Client, published: watch::Sender<Option<Policies>>) {
    let api: Api<DynamicObject> = Api::all_with(client, &protection_resource());
    let mut events = watcher(api, Config::default().timeout(60)).default_backoff().boxed();
    let mut current: Option<BTreeMap<String, Policy>> = None;
    let mut listing = BTreeMap::new();
    while let Some(event) = events.next().await {
        let changed = match event {
            Ok(Event::Init) => {
                listing.clear();
                false
            }
            Ok(Event::InitApply(object)) => {
                listing.insert(object.name_any(), Policy::read(&object));
                false
            }
            Ok(Event::InitDone) => {
                current = Some(std::mem::take(&mut listing));
                true
            }
            Ok(Event::Apply(object)) => {
                if let Some(current) = &mut current {
                    current.insert(object.name_any(), Policy::read(&object));
                }
                true
            }
            Ok(Event::Delete(object)) => {
                if let Some(current) = &mut current {
                    current.remove(&object.name_any());
                }
                true
            }
            // The kind itself is not there: neither are objects of it.
            Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) if status.code == 404 => {
                current = Some(BTreeMap::new());
                true
            }
            Err(error) => {
                // What was last known goes on protecting.
                tracing::warn!(%error, "watching ResourceDeletionProtections");
                false
            }
        };
        if changed {
            published.send_replace(current.clone().map(Policies::new));
        }
    }
}
