//! Warnings while a feature is off: for whoever writes a policy of it, or deletes what it would protect.
//!
//! Nothing is ever refused here, and nobody waits long: while no replica answers, nobody is warned.

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhook;
use palisade_api::gates::{DISABLED, Gate};

use super::{Wanted, protecting_labels};

/// How long the API server waits for a warning.
const TIMEOUT_SECONDS: i32 = 2;

impl Wanted<'_> {
    pub(super) fn disabled(&self) -> Vec<ValidatingWebhook> {
        self.gates.off().flat_map(|gate| self.disabled_by(gate)).collect()
    }

    fn disabled_by(&self, gate: Gate) -> Vec<ValidatingWebhook> {
        let mut webhooks = Vec::new();
        if let Some(kind) = gate.policies() {
            let (group, plural) = kind.resource();
            webhooks.push(self.declared(kind.word(), group, plural));
        }
        match gate {
            Gate::ResourcesDeletionProtection => {
                let labels = protecting_labels();
                webhooks.extend(labels.iter().map(|(name, requirements)| self.labelled(name, requirements)));
                webhooks.push(self.annotated());
            }
            // While nothing is protected, nothing protected goes with something else.
            Gate::CascadeProtection if self.gates.resources_deletion_protection => {
                webhooks.push(self.cascade());
            }
            _ => {}
        }
        webhooks.into_iter().map(|webhook| self.only_warning(webhook, gate)).collect()
    }

    /// A webhook that asks for a warning in place of a decision.
    fn only_warning(&self, webhook: ValidatingWebhook, gate: Gate) -> ValidatingWebhook {
        let path = format!("/admit/{DISABLED}/{}", gate.word());
        ValidatingWebhook {
            name: webhook.name.replacen('.', "-disabled.", 1),
            client_config: self.webhook_at("", &path).client_config,
            failure_policy: Some("Ignore".to_owned()),
            timeout_seconds: Some(TIMEOUT_SECONDS),
            ..webhook
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use palisade_api::gates::FeatureGates;

    use super::*;
    use crate::registration::Governed;
    use crate::registration::plan::plan;
    use crate::registration::plan::tests::{plan_as, rule_words};

    fn planned(off: &str) -> Vec<ValidatingWebhook> {
        let choices: palisade_api::gates::FeatureGateList = off.parse().unwrap();
        let shop = BTreeSet::from(["shop".to_owned()]);
        plan_as(|wanted| {
            plan(&Wanted {
                gates: FeatureGates::chosen(&choices.0),
                eviction_namespaces: &shop,
                budget_namespaces: &shop,
                flow: Some(&Governed::All),
                ..wanted.clone()
            })
        })
    }

    fn only_warns(webhook: &ValidatingWebhook) -> bool {
        webhook.client_config.url.as_ref().is_some_and(|url| url.contains("/admit/disabled/"))
    }

    #[test]
    fn nobody_is_refused_for_a_feature_that_is_off() {
        let off = Gate::ALL.map(|gate| format!("{}=false", gate.name())).join(",");
        let webhooks = planned(&off);
        assert!(webhooks.iter().all(only_warns), "{webhooks:#?}");
        assert!(webhooks.iter().all(|webhook| webhook.failure_policy.as_deref() == Some("Ignore")));
        let written: Vec<String> =
            webhooks.iter().flat_map(rule_words).filter(|rule| rule.starts_with("CREATE+UPDATE")).collect();
        assert_eq!(written.len(), 5, "one for each kind of policy: {written:?}");
        let names: BTreeSet<&str> = webhooks.iter().map(|webhook| &*webhook.name).collect();
        assert_eq!(names.len(), webhooks.len(), "each has its own name");
    }

    #[test]
    fn each_gate_warns_of_what_it_turns_off_and_nothing_else() {
        for gate in Gate::ALL {
            let warning: Vec<ValidatingWebhook> =
                planned(&format!("{}=false", gate.name())).into_iter().filter(only_warns).collect();
            let end = format!("/admit/disabled/{}", gate.word());
            for webhook in &warning {
                assert!(webhook.client_config.url.as_ref().is_some_and(|url| url.ends_with(&end)));
            }
            let count = match gate {
                Gate::ResourcesDeletionProtection => 5,
                _ => 1,
            };
            assert_eq!(warning.len(), count, "{}", gate.name());
        }
        assert!(!planned("").iter().any(only_warns));
    }

    #[test]
    fn no_two_webhooks_have_the_same_name() {
        for gate in Gate::ALL {
            let webhooks = planned(&format!("{}=false", gate.name()));
            let names: BTreeSet<&str> = webhooks.iter().map(|webhook| &*webhook.name).collect();
            assert_eq!(names.len(), webhooks.len());
        }
    }
}
