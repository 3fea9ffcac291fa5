//! The objects of one of our own kinds, watched.

use futures::StreamExt;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt, watcher};

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
