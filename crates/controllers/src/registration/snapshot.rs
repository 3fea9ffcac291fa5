//! What the registration is derived from at one moment, and how that compares with what is registered.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::ResourceExt;
use palisade_api::versions::{PolicyKind, PolicyVersions};
use palisade_cluster::components::{Guarded, Sighted};
use palisade_cluster::critical::Services;
use palisade_cluster::{Discovery, Policies, budgets, flow, sync};

use super::{Carried, Inputs, budget_name, components_name, critical_name, flow_name};

/// Everything that is watched, as it is known now.
pub(super) struct Snapshot {
    /// Where a pod carries a protection label.
    pub(super) namespaces: BTreeSet<String>,
    pub(super) policies: Policies,
    pub(super) discovery: Discovery,
    pub(super) budgets: Vec<Arc<budgets::Known>>,
    pub(super) flows: Vec<Arc<flow::Known>>,
    pub(super) services: Services,
    pub(super) guarded: Guarded,
    pub(super) sighted: Sighted,
}

impl Snapshot {
    /// `None` while something has not been listed. Policies that are stored and can't be read keep all that is registered
    /// as it is; unless nothing that is registered asks for them, and there is nothing to lose.
    pub(super) fn read(inputs: &Inputs, live: Option<&ValidatingWebhookConfiguration>) -> Option<Self> {
        let nothing_to_lose = |kind: PolicyKind| {
            let progress = inputs.progress.of(kind);
            let is_unknown = progress.reached.is_none() && progress.unserved;
            is_unknown && !live.is_some_and(|live| asks_for(live, kind))
        };
        let policies = sync::current(&inputs.policies);
        let budgets = sync::current(&inputs.budgets.specs()).map(|_| inputs.budgets.budgets());
        let flows = sync::current(&inputs.flows.specs()).map(|_| inputs.flows.controls());
        let services = sync::current(&inputs.services);
        let components = sync::current(&inputs.guarded).zip(sync::current(&inputs.sighted));
        let (guarded, sighted) = components.or_else(|| {
            nothing_to_lose(PolicyKind::ComponentProtection).then(|| (Guarded::default(), Sighted::default()))
        })?;
        Some(Self {
            namespaces: sync::current(&inputs.eviction_namespaces)?,
            policies: policies.or_else(|| nothing_to_lose(PolicyKind::Protection).then(Policies::default))?,
            discovery: sync::current(&inputs.discovery)?,
            budgets: budgets.or_else(|| nothing_to_lose(PolicyKind::Budget).then(Vec::new))?,
            flows: flows.or_else(|| nothing_to_lose(PolicyKind::FlowControl).then(Vec::new))?,
            services: services
                .or_else(|| nothing_to_lose(PolicyKind::CriticalService).then(Services::default))?,
            guarded,
            sighted,
        })
    }

    /// All policies, by the names by which the registration carries them.
    pub(super) fn carried(&self) -> Carried {
        let budgets =
            self.budgets.iter().map(|known| (budget_name(&known.key), &known.uid, known.generation));
        let flows = self.flows.iter().map(|known| (flow_name(&known.name), &known.uid, known.generation));
        let services = self.services.0.values();
        let services = services.map(|known| (critical_name(&known.name), &known.uid, known.generation));
        let components = self.guarded.by_name.iter();
        let components =
            components.map(|(name, known)| (components_name(name), &known.uid, known.generation));
        let protections = self.policies.by_name.iter();
        let protections = protections.map(|(name, policy)| (name.clone(), &policy.uid, policy.generation));
        let all: Vec<(String, &String, Option<i64>)> =
            protections.chain(budgets).chain(flows).chain(services).chain(components).collect();
        Carried::of(all.iter().map(|(name, uid, generation)| (name.as_str(), uid.as_str(), *generation)))
    }
}

/// How new the policies are that it carries, by the paths of its webhooks. What it can't have known is not believed:
/// somebody wrote it there, or an etcd was restored.
pub(super) fn versions_of(live: &ValidatingWebhookConfiguration) -> PolicyVersions {
    let written: u64 = live.resource_version().and_then(|version| version.parse().ok()).unwrap_or(u64::MAX);
    let mut versions = PolicyVersions::default();
    for of_path in paths_of(live).filter_map(PolicyVersions::of_path) {
        for (kind, version) in of_path.iter().filter(|(_, version)| *version < written) {
            versions.raise(kind, version);
        }
    }
    versions
}

/// Whether a webhook of it asks for policies of a kind.
fn asks_for(live: &ValidatingWebhookConfiguration, kind: PolicyKind) -> bool {
    paths_of(live).any(|path| path.split('/').any(|word| word == kind.word()))
        || versions_of(live).get(kind) > 0
}

fn paths_of(live: &ValidatingWebhookConfiguration) -> impl Iterator<Item = &str> {
    live.webhooks.iter().flatten().filter_map(|webhook| {
        let config = &webhook.client_config;
        let path = config.service.as_ref().and_then(|service| service.path.as_deref());
        path.or(config.url.as_deref())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registration_says_how_new_its_policies_are() {
        let webhook = |config: serde_json::Value| {
            serde_json::json!({"name": "x.palisade.dev", "clientConfig": config, "sideEffects": "None",
                "admissionReviewVersions": ["v1"]})
        };
        let live = |version: &str| -> ValidatingWebhookConfiguration {
            serde_json::from_value(serde_json::json!({
                "metadata": {"name": "palisade", "resourceVersion": version},
                "webhooks": [
                    webhook(serde_json::json!({"url": "https://127.0.0.1:9443/admit/labels"})),
                    webhook(serde_json::json!({"url": "https://127.0.0.1:9443/admit/budgets/at/budgets-7.flow-5"})),
                    webhook(serde_json::json!({"service": {"namespace": "n", "name": "s",
                        "path": "/admit/flow/at/flow-9"}})),
                    webhook(serde_json::json!({"url": "https://127.0.0.1:1/admit/at/nonsense"})),
                ]
            }))
            .unwrap()
        };
        let read = |version: &str| {
            let versions = versions_of(&live(version));
            (versions.get(PolicyKind::Budget), versions.get(PolicyKind::FlowControl))
        };
        assert_eq!(read("100"), (7, 9));
        assert_eq!(read("8"), (7, 5), "it can't carry what is newer than itself");
    }
}
