//! A budget that is being created should hold from its first moment on.
//!
//! The registration names the namespaces that have budgets, so the first budget of a namespace comes before its rules
//! do. Whichever replica is asked to admit such a budget therefore writes the namespace into an annotation of the
//! registration first, and answers once the leader has put the rules in place and API servers have taken them up.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use palisade_api::names;
use tokio::time::sleep;

use super::TAKEN_UP;
use super::plan::{NAMESPACE_NAME, POD_DELETION};

const LOOK: Duration = Duration::from_millis(50);

/// Waits until the registration covers the pods of a namespace, and makes it so. Gives up on any error: then the
/// budget holds once the leader has seen it, as its status says.
pub async fn announce(client: Client, namespace: String) {
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client);
    let mut asked = false;
    loop {
        let live = match configurations.get_opt(names::PALISADE).await {
            Ok(Some(live)) => live,
            Ok(None) => return,
            Err(error) => return tracing::warn!(%error, namespace, "announcing a budget"),
        };
        if covers(&live, &namespace) {
            if asked {
                sleep(TAKEN_UP).await;
            }
            return;
        }
        asked = true;
        let mut expected = expected(&live);
        if expected.insert(namespace.clone()) {
            let mut announced = live;
            announced.annotations_mut().insert(names::EXPECTED_BUDGETS.to_owned(), written(&expected));
            match configurations.replace(names::PALISADE, &PostParams::default(), &announced).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return tracing::warn!(%error, namespace, "announcing a budget"),
            }
        }
        sleep(LOOK).await;
    }
}

/// The namespaces in which budgets are being created.
pub(super) fn expected(live: &ValidatingWebhookConfiguration) -> BTreeSet<String> {
    let written = live.annotations().get(names::EXPECTED_BUDGETS);
    written
        .into_iter()
        .flat_map(|names| names.split(','))
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

pub(super) fn written(expected: &BTreeSet<String>) -> String {
    expected.iter().cloned().collect::<Vec<_>>().join(",")
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
