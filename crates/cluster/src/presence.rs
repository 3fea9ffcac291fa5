//! Whether a pod is there that a review tells of.
//!
//! Whoever reaches our port can send a review of a pod that never was, or of a revision that never will be. Nothing is
//! charged for the first, and the second is not believed: a reservation that waits for it would never end.

use kube::Client;
use palisade_engine::{Answer, Metadata, Object};

use crate::budgets::Index;
use crate::commit::{self, Account};
use crate::feed::number;
use crate::live::{METADATA, get, segment};

/// What Kubernetes makes has 36.
const LONGEST_UID: usize = 128;
/// What Kubernetes allows.
const LONGEST_NAME: usize = 253;
const LONGEST_NAMESPACE: usize = 63;

/// The newest revision of the pod that is known; `None` if there is no pod of that name with that uid.
///
/// The API server is asked only where the index does not know the pod, or not the revision that the review tells of: one
/// that came or changed a moment ago. Its cache is asked first, which costs little and can only be too old.
pub(crate) async fn find_pod<A: Account>(
    client: &Client,
    index: &Index,
    pod: &Metadata<'_>,
) -> Answer<Option<u64>> {
    let namespace = pod.namespace.as_deref().unwrap_or_default();
    let too_long =
        pod.uid.len() > LONGEST_UID || pod.name.len() > LONGEST_NAME || namespace.len() > LONGEST_NAMESPACE;
    if pod.uid.is_empty() || too_long {
        return Ok(None);
    }
    let told = number(&pod.resource_version);
    if let Some(known) = indexed(index, namespace, pod, told) {
        return Ok(Some(known));
    }
    let path = format!("/api/v1/namespaces/{}/pods/{}", segment(namespace), segment(&pod.name));
    for (uri, cached) in [(format!("{path}?resourceVersion=0"), true), (path, false)] {
        let request = get(&uri, METADATA).map_err(|why| commit::unknown::<A>(why.text))?;
        let found = commit::call::<A, _>(async {
            match client.request_text(request).await {
                Ok(text) => Ok(Some(text)),
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
                Err(error) => Err(error),
            }
        });
        let Some(text) = found.await? else { continue };
        let unreadable = |error: palisade_engine::json::Malformed| {
            commit::unknown::<A>(format!("the pod could not be read: {error}"))
        };
        let found = Object::parse(text.as_bytes()).map_err(unreadable)?.metadata;
        let newest = number(&found.resource_version);
        if found.uid == pod.uid && (newest >= told || !cached) {
            return Ok(Some(newest));
        }
    }
    Ok(None)
}

/// The newest revision by the index, if it has seen all that the review tells of.
fn indexed(index: &Index, namespace: &str, pod: &Metadata<'_>, told: u64) -> Option<u64> {
    let pods = index.pods();
    let known = pods.of_namespace(namespace)?.get(&*pod.uid)?;
    (*known.name == *pod.name && told <= pods.revision()).then_some(known.revision.max(told))
}
