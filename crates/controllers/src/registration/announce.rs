//! A budget or a flow control that is being created should hold from its first moment on.
//!
//! The registration names the namespaces that have budgets, so the first budget of a namespace comes before its rules
//! do, and so does the first flow control. Whichever replica is asked to admit one therefore says so in an annotation of
//! the registration first, and answers once the leader has put the rules in place and API servers have taken them up.

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
use super::plan::{FLOW, NAMESPACE_NAME, POD_DELETION};

const LOOK: Duration = Duration::from_millis(50);
/// What the name of an annotation has room for.
const LONGEST: usize = 63;

/// A policy that is being created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// A budget, by its namespace.
    Budget(String),
    /// A flow control, by its name.
    FlowControl(String),
}

impl Expected {
    fn annotation(&self) -> String {
        match self {
            Self::Budget(namespace) => format!("{}{namespace}", names::EXPECTED_BUDGETS),
            Self::FlowControl(name) => format!("{}{}", names::EXPECTED_FLOW_CONTROLS, shortened(name)),
        }
    }

    /// Whether the registration covers its pods.
    fn is_covered(&self, live: &ValidatingWebhookConfiguration) -> bool {
        let find = |name: &str| {
            let name = format!("{name}.palisade.dev");
            live.webhooks.iter().flatten().find(move |webhook| webhook.name == name)
        };
        let Self::Budget(namespace) = self else { return find(FLOW).is_some() };
        let webhook = find(POD_DELETION);
        let selector =
            webhook.and_then(|webhook| webhook.namespace_selector.as_ref()?.match_expressions.as_ref());
        selector.into_iter().flatten().any(|expression| {
            expression.key == NAMESPACE_NAME
                && expression.operator == "In"
                && expression.values.iter().flatten().any(|value| value == namespace)
        })
    }
}

/// A name as the end of an annotation's, for names that are too long.
pub(super) fn shortened(name: &str) -> &str {
    // Names are of ASCII.
    name.get(..LONGEST).unwrap_or(name).trim_end_matches(['.', '-'])
}

/// Waits until the registration covers the pods of a policy, and makes it so. Gives up on any error: then it holds once
/// the leader has seen it, as its status says.
///
/// Where another one needs the same, it is covered for as long as that one is there. Otherwise it is announced also if
/// it is covered still: the leader may be about to take the rules of a deleted one away.
pub async fn announce(client: Client, announced: Expected, has_another: bool) {
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client);
    let key = announced.annotation();
    // A patch of a key of its own: others who announce do not stand in its way.
    let patch = Patch::Merge(json!({"metadata": {"annotations": {&key: Timestamp::now().to_string()}}}));
    let mut waited = false;
    loop {
        let mut live = match configurations.get_opt(names::PALISADE).await {
            Ok(Some(live)) => live,
            Ok(None) => return,
            Err(error) => return tracing::warn!(%error, key, "announcing a policy"),
        };
        let covered = announced.is_covered(&live);
        let said = waited && live.annotations().contains_key(&key);
        if !(said || has_another && covered) {
            live = match configurations.patch(names::PALISADE, &PatchParams::default(), &patch).await {
                Ok(patched) => patched,
                Err(error) => return tracing::warn!(%error, key, "announcing a policy"),
            };
        }
        if announced.is_covered(&live) {
            if waited || !covered {
                sleep(TAKEN_UP).await;
            }
            return;
        }
        waited = true;
        sleep(LOOK).await;
    }
}

/// What was announced, by annotation, and when it was last said.
pub(super) fn expected(live: &ValidatingWebhookConfiguration) -> BTreeMap<String, String> {
    let announced = live.annotations().iter().filter(|(key, _)| is_announcement(key));
    announced.map(|(key, said)| (key.clone(), said.clone())).collect()
}

pub(super) fn is_announcement(key: &str) -> bool {
    key.starts_with(names::EXPECTED_BUDGETS) || key.starts_with(names::EXPECTED_FLOW_CONTROLS)
}
