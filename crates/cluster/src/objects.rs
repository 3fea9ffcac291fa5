//! The objects of one of our own kinds, watched.

use futures::StreamExt;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt, watcher};
use serde::de::DeserializeOwned;

/// What a watch brings.
pub(crate) enum Change {
    /// These are all.
    All(Vec<DynamicObject>),
    Put(DynamicObject),
    Gone(DynamicObject),
}

/// How to talk about a kind with a client.
pub(crate) fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

/// Whether there is an object; none, if the cluster does not know the kind.
pub(crate) async fn exist(api: &Api<DynamicObject>) -> kube::Result<bool> {
    match api.list_metadata(&ListParams::default().limit(1)).await {
        Ok(list) => Ok(!list.items.is_empty()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}

/// The status of an object; an empty one, where it cannot be read: it is written anew.
pub(crate) fn status_of<T: DeserializeOwned + Default>(object: &DynamicObject) -> T {
    let status = object.data.get("status");
    status.and_then(|status| serde_json::from_value(status.clone()).ok()).unwrap_or_default()
}

/// Watches all objects of a kind, for ever. The first that it tells is all of them; none, if the cluster does not know
/// the kind.
pub(crate) async fn watch_objects(
    client: Client,
    resource: &ApiResource,
    mut take: impl FnMut(Change) + Send,
) {
    let api: Api<DynamicObject> = Api::all_with(client, resource);
    let mut events = watcher(api, Config::default().timeout(60)).default_backoff().boxed();
    let mut listing = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listing.clear(),
            Ok(Event::InitApply(object)) => listing.push(object),
            Ok(Event::InitDone) => take(Change::All(std::mem::take(&mut listing))),
            Ok(Event::Apply(object)) => take(Change::Put(object)),
            Ok(Event::Delete(object)) => take(Change::Gone(object)),
            // The kind itself is not there: neither are objects of it.
            Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) if status.code == 404 => {
                take(Change::All(Vec::new()));
            }
            // What was last known goes on protecting.
            Err(error) => tracing::warn!(%error, kind = resource.kind, "watching"),
        }
    }
}
