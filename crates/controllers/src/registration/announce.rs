//! A budget that is being created should hold from its first moment on.
//!
//! The registration names the namespaces that have budgets, so the first budget of a namespace comes before its rules
//! do. Whichever replica is asked to admit such a budget therefore writes the namespace into an annotation of the
//! registration first, and answers once the leader has put the rules in place and API servers have taken them up.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use palisade_api::names;
use serde_json::json;
use tokio::time::sleep;

use super::TAKEN_UP;
use super::plan::{NAMESPACE_NAME, POD_DELETION};

const LOOK: Duration = Duration::from_millis(50);

/// Waits until the registration covers the pods of a namespace, and makes it so. Gives up on any error: then the
/// budget holds once the leader has seen it, as its status says.
///
/// Where the namespace has a budget already, it is covered for as long as that one is there. Otherwise it is announced
/// also if it is covered still: the leader may be about to take the rules of a deleted budget away.
pub async fn announce(client: Client, namespace: String, has_another: bool) {
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client);
    let key = format!("{}{namespace}", names::EXPECTED_BUDGETS);
    // A patch of a key of its own: others who announce do not stand in its way.
    let patch = Patch::Merge(json!({"metadata": {"annotations": {key: Timestamp::now().to_string()}}}));
    let mut waited = false;
    loop {
        let mut live = match configurations.get_opt(names::PALISADE).await {
            Ok(Some(live)) => live,
            Ok(None) => return,
            Err(error) => return tracing::warn!(%error, namespace, "announcing a budget"),
        };
        let covered = covers(&live, &namespace);
        let announced = waited && expected(&live).contains_key(&namespace);
        if !(announced || has_another && covered) {
            live = match configurations.patch(names::PALISADE, &PatchParams::default(), &patch).await {
                Ok(patched) => patched,
                Err(error) => return tracing::warn!(%error, namespace, "announcing a budget"),
            };
        }
        if covers(&live, &namespace) {
            if waited || !covered {
                sleep(TAKEN_UP).await;
            }
            return;
        }
        waited = true;
        sleep(LOOK).await;
    }
}

/// The namespaces in which budgets are being created, by name, and when it was last said.
pub(super) fn expected(live: &ValidatingWebhookConfiguration) -> BTreeMap<String, String> {
    let named = |(key, said): (&String, &String)| {
        Some((key.strip_prefix(names::EXPECTED_BUDGETS)?.to_owned(), said.clone()))
    };
    live.annotations().iter().filter_map(named).collect()
}

fn covers(live: &ValidatingWebhookConfiguration, namespace: &str) -> bool {
    let name = format!("{POD_DELETION}.palisade.dev");
    let webhook = live.webhooks.iter().flatten().find(|webhook| webhook.name == name);
    let selector =
        webhook.and_then(|webhook| webhook.namespace_selector.as_ref()?.match_expressions.as_ref());
    selector.into_iter().flatten().any(|expression| {
        expression.key == NAMESPACE_NAME
            && expression.operator == "In"
            && expression.values.iter().flatten().any(|value| value == namespace)
    })
}
