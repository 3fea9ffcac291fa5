//! Statuses that are read, changed and written back.

use std::time::Duration;

use kube::api::{Api, DynamicObject, PostParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::sleep;

const TRIES: usize = 5;
const PAUSE: Duration = Duration::from_millis(20);

/// Changes a status, again where somebody else was faster.
pub(crate) async fn update<T: Clone + Default + PartialEq + DeserializeOwned + Serialize>(
    api: &Api<DynamicObject>,
    name: &str,
    change: impl Fn(T) -> T,
) -> kube::Result<()> {
    for attempt in 1.. {
        let mut object = api.get(name).await?;
        let status = object.data.get("status").and_then(|status| serde_json::from_value(status.clone()).ok());
        let status: T = status.unwrap_or_default();
        let changed = change(status.clone());
        if changed == status {
            return Ok(());
        }
        object.data["status"] = serde_json::to_value(changed).map_err(kube::Error::SerdeError)?;
        match api.replace_status(name, &PostParams::default(), &object).await {
            Err(kube::Error::Api(status)) if status.code == 409 && attempt < TRIES => sleep(PAUSE).await,
            other => return other.map(drop),
        }
    }
    Ok(())
}
