//! What the replicas decide by, for everybody to read: a `ConfigMap` that the leader keeps.
//!
//! It holds flags and no secrets. `palisade why` answers by it.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, ResourceExt};
use palisade_api::names;
use palisade_cluster::sync;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::leadership::Leadership;
use crate::registration::Registered;

/// The key that says whether the API server asks us.
pub const REGISTERED: &str = "registered";

const CALL: Duration = Duration::from_secs(5);
/// After a failure.
const PAUSE: Duration = Duration::from_secs(1);
/// A look without a reason: somebody may have changed or deleted it.
const ROUND: Duration = Duration::from_secs(30);

/// Keeps the `ConfigMap` while leading. Never ends.
pub async fn keep(
    client: Client,
    namespace: &str,
    settings: &BTreeMap<String, String>,
    mut leadership: watch::Receiver<Leadership>,
    mut registered: watch::Receiver<Registered>,
) {
    let maps: Api<ConfigMap> = Api::namespaced(client, namespace);
    loop {
        let Leadership { leading, .. } = sync::newest(&mut leadership);
        let Registered(is_registered) = sync::newest(&mut registered);
        let mut data = settings.clone();
        data.insert(REGISTERED.to_owned(), is_registered.to_string());
        let published = async { if leading { publish(&maps, data).await } else { Ok(()) } };
        let pause = match timeout(CALL, published).await {
            Ok(Ok(())) => ROUND,
            // Reviews do not depend on it: `palisade why` then answers by what was published before, or by defaults.
            Ok(Err(error)) => {
                tracing::warn!(%error, "publishing the settings");
                PAUSE
            }
            Err(_) => {
                tracing::warn!("publishing the settings: the API server did not answer in time");
                PAUSE
            }
        };
        tokio::select! {
            Ok(()) = leadership.changed() => {}
            Ok(()) = registered.changed() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Writes it where it differs. On a conflict somebody else was faster, and the next look finds what they wrote.
async fn publish(maps: &Api<ConfigMap>, data: BTreeMap<String, String>) -> kube::Result<()> {
    let found = maps.get_opt(names::SETTINGS).await?;
    if found.as_ref().is_some_and(|map| map.data.as_ref() == Some(&data)) {
        return Ok(());
    }
    let is_new = found.is_none();
    let mut map = found.unwrap_or_else(|| ConfigMap {
        metadata: ObjectMeta { name: Some(names::SETTINGS.to_owned()), ..ObjectMeta::default() },
        ..ConfigMap::default()
    });
    map.labels_mut().insert(names::MANAGED_BY.0.to_owned(), names::MANAGED_BY.1.to_owned());
    map.data = Some(data);
    let post = PostParams::default();
    if is_new {
        maps.create(&post, &map).await?;
    } else {
        maps.replace(names::SETTINGS, &post, &map).await?;
    }
    Ok(())
}
