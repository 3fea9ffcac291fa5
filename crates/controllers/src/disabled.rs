//! The status of policies whose feature is off: not enforced, reason `FeatureDisabled`.
//!
//! The leader writes that one condition and nothing else, with the resource version that it read. All else that a status
//! holds stays as it is: reservations and counts are there when the feature is on again.

use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use jiff::Timestamp;
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_objects};
use kube::{Client, ResourceExt};
use palisade_api::condition::Condition;
use palisade_api::gates::{FeatureGates, Gate};
use palisade_api::versions::PolicyKind;
use palisade_cluster::budgets::budget_resource;
use palisade_cluster::components::component_resource;
use palisade_cluster::critical::service_resource;
use palisade_cluster::flow::flow_resource;
use palisade_cluster::{protection_resource, sync};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::conditions::set_condition;

const ENFORCED: &str = "Enforced";
/// The reason of the condition `Enforced` of a policy whose feature is off.
const FEATURE_DISABLED: &str = "FeatureDisabled";
const CALL: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_secs(1);
/// How long after a failed write all policies are looked at anew.
const AGAIN: Duration = Duration::from_secs(5);
/// How long one watch lasts, in seconds. It is never silent for much longer.
const WATCH_SECONDS: u32 = 60;

/// Keeps the status of all policies whose feature is off, while leading. Never ends, unless all features are on.
pub async fn keep_status(client: Client, gates: FeatureGates, leading: watch::Receiver<bool>) {
    let kinds = gates.off().filter_map(|gate| Some((gate, resource(gate.policies()?))));
    join_all(kinds.map(|(gate, resource)| {
        let (client, leading) = (client.clone(), leading.clone());
        async move { Policies { client, resource, gate }.keep(leading).await }
    }))
    .await;
}

fn resource(kind: PolicyKind) -> ApiResource {
    match kind {
        PolicyKind::Protection => protection_resource(),
        PolicyKind::Budget => budget_resource(),
        PolicyKind::FlowControl => flow_resource(),
        PolicyKind::CriticalService => service_resource(),
        PolicyKind::ComponentProtection => component_resource(),
    }
}

/// The policies of one kind, whose feature is off.
struct Policies {
    client: Client,
    resource: ApiResource,
    gate: Gate,
}

impl Policies {
    async fn keep(&self, mut leading: watch::Receiver<bool>) {
        loop {
            let leads = sync::newest(&mut leading);
            tokio::select! {
                () = self.follow(), if leads => sleep(RETRY).await,
                changed = leading.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Lists and watches them, and writes where the condition is missing. One that can't be written keeps no other from
    /// being so; it ends a while after that, and all are looked at anew.
    async fn follow(&self) {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &self.resource);
        let config = watcher::Config::default().timeout(WATCH_SECONDS);
        let mut events = watch_objects(api, config).default_backoff().boxed();
        let mut again: Option<Instant> = None;
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => return,
            };
            let policy = match event {
                None => return,
                Some(Ok(Event::Apply(policy) | Event::InitApply(policy))) => policy,
                Some(Ok(Event::Init | Event::InitDone | Event::Delete(_))) => continue,
                Some(Err(error)) => {
                    tracing::warn!(%error, kind = self.resource.kind, "watching policies whose feature is off");
                    continue;
                }
            };
            let Some(planned) = plan(policy, self.gate, Timestamp::now()) else { continue };
            if let Err(why) = self.write(&planned).await {
                let (kind, name) = (&self.resource.kind, planned.name_any());
                tracing::warn!(why, kind, name, "writing the status of a policy whose feature is off");
                again.get_or_insert_with(|| Instant::now() + AGAIN);
            }
        }
    }

    async fn write(&self, policy: &DynamicObject) -> Result<(), String> {
        let api: Api<DynamicObject> = match policy.namespace() {
            Some(namespace) => Api::namespaced_with(self.client.clone(), &namespace, &self.resource),
            None => Api::all_with(self.client.clone(), &self.resource),
        };
        match timeout(CALL, api.replace_status(&policy.name_any(), &PostParams::default(), policy)).await {
            Ok(Ok(_)) => Ok(()),
            // It is gone, or somebody was faster and the watch brings what they wrote.
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the API server did not answer in time".to_owned()),
        }
    }
}

/// The policy with the condition that says that its feature is off; `None` if it has that already.
fn plan(mut policy: DynamicObject, gate: Gate, now: Timestamp) -> Option<DynamicObject> {
    let generation = policy.metadata.generation;
    if !policy.data.get("status").is_some_and(Value::is_object) {
        policy.data["status"] = json!({});
    }
    let conditions = &mut policy.data["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let conditions = conditions.as_array_mut()?;
    let place = conditions.iter().position(|condition| condition["type"] == ENFORCED);
    let old = place.and_then(|place| serde_json::from_value::<Condition>(conditions[place].clone()).ok());
    let mut enforced: Vec<Condition> = old.iter().cloned().collect();
    let message = format!("it refuses nothing: {}", gate.off_message());
    set_condition(&mut enforced, ENFORCED, false, FEATURE_DISABLED, message, generation, now);
    let new = enforced.pop()?;
    if old.as_ref() == Some(&new) {
        return None;
    }
    let new = json!(new);
    match place {
        Some(place) => conditions[place] = new,
        None => conditions.push(new),
    }
    Some(policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(status: &Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "policy.kruise.io/v1alpha1", "kind": "PodUnavailableBudget",
            "metadata": {"name": "web", "namespace": "shop", "generation": 3, "resourceVersion": "7"},
            "spec": {"maxUnavailable": 1}, "status": status,
        }))
        .unwrap()
    }

    fn planned(policy: DynamicObject) -> Option<DynamicObject> {
        plan(policy, Gate::PodUnavailableBudget, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn only_the_condition_is_written() {
        let found =
            json!({"type": "TargetFound", "status": "True", "reason": "Found", "message": "", "more": 1});
        let enforced = json!({"type": "Enforced", "status": "True", "reason": "Registered", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let before = json!({"deletedPods": {"u": "5"}, "unknown": [1], "conditions": [found, enforced]});
        let after = planned(policy(&before)).unwrap();
        let mut expected = before.clone();
        expected["conditions"][1] = json!({
            "type": "Enforced", "status": "False", "reason": "FeatureDisabled", "observedGeneration": 3,
            "lastTransitionTime": "1970-01-01T00:00:00Z",
            "message": "it refuses nothing: feature gate PodUnavailableBudget is off; to turn it on, start palisade run with \
                        --feature-gates=PodUnavailableBudget=true",
        });
        assert_eq!(after.data["status"], expected);
        assert_eq!(after.metadata.resource_version.as_deref(), Some("7"), "nobody's write is undone");
        assert_eq!(planned(after), None, "it is written once");
    }

    #[test]
    fn a_policy_without_a_status_gets_the_condition() {
        for status in [json!(null), json!({}), json!({"conditions": null})] {
            let after = planned(policy(&status)).unwrap();
            assert_eq!(after.data["status"]["conditions"][0]["reason"], FEATURE_DISABLED, "{status}");
        }
    }
}
