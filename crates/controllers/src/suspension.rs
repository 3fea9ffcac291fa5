//! The mark on the Lease by which `palisade uninstall` keeps replicas from registering anything.
//!
//! Replicas that run obey it, and so do those that crash and come back. It ends by `palisade resume`, or when
//! Palisade was stopped and is started again: see [`crate::leadership`].

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, ResourceExt};
use palisade_api::names;
use tokio::time::sleep;

/// Between two tries, when the leader renewed the Lease at the same moment.
const AGAIN: Duration = Duration::from_millis(50);

/// What keeps replicas from registering anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspended {
    /// The mark on the Lease.
    ByMark,
    /// Our namespace is terminating or gone: no replica can lead without a Lease, and replicas that see their
    /// namespace go register nothing.
    WithoutNamespace,
}

/// Whether a Lease carries the mark.
pub(crate) fn is_marked(lease: &Lease) -> bool {
    lease.annotations().contains_key(names::SUSPENDED)
}

/// Takes the mark away, if there is one.
pub(crate) fn unmark(lease: &mut Lease) -> bool {
    lease.annotations_mut().remove(names::SUSPENDED).is_some()
}

/// Whether the Lease is marked now, whatever we last saw.
pub(crate) async fn is_suspended(client: Client, namespace: &str) -> kube::Result<bool> {
    let leases: Api<Lease> = Api::namespaced(client, namespace);
    Ok(leases.get_opt(names::PALISADE).await?.is_some_and(|lease| is_marked(&lease)))
}

/// Marks the Lease, so that no replica registers anything. A Lease that is missing is made: a replica that runs would
/// otherwise make one without the mark.
pub async fn suspend(client: Client, namespace: &str) -> kube::Result<Suspended> {
    let leases: Api<Lease> = Api::namespaced(client, namespace);
    let post = PostParams::default();
    loop {
        let found = leases.get_opt(names::PALISADE).await?;
        let is_new = found.is_none();
        let mut lease = found.unwrap_or_else(|| Lease {
            metadata: ObjectMeta { name: Some(names::PALISADE.to_owned()), ..ObjectMeta::default() },
            spec: None,
        });
        lease.annotations_mut().insert(names::SUSPENDED.to_owned(), "true".to_owned());
        let written = if is_new {
            leases.create(&post, &lease).await
        } else {
            leases.replace(names::PALISADE, &post, &lease).await
        };
        match written {
            Ok(_) => return Ok(Suspended::ByMark),
            Err(kube::Error::Api(status)) => match status.code {
                409 => sleep(AGAIN).await,
                // Somebody deleted it just now.
                404 if !is_new => sleep(AGAIN).await,
                404 => return Ok(Suspended::WithoutNamespace),
                403 if is_new && status.message.contains("being terminated") => {
                    return Ok(Suspended::WithoutNamespace);
                }
                _ => return Err(kube::Error::Api(status)),
            },
            Err(error) => return Err(error),
        }
    }
}

/// Takes the mark away, and says whether there was one.
pub async fn resume(client: Client, namespace: &str) -> kube::Result<bool> {
    let leases: Api<Lease> = Api::namespaced(client, namespace);
    loop {
        let Some(mut lease) = leases.get_opt(names::PALISADE).await? else { return Ok(false) };
        if !unmark(&mut lease) {
            return Ok(false);
        }
        match leases.replace(names::PALISADE, &PostParams::default(), &lease).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => sleep(AGAIN).await,
            other => return other.map(|_| true),
        }
    }
}
