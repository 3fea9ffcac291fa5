//! Webhooks for providers of `CriticalService`s, for what takes them down, and for the services themselves.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{RuleWithOperations, ValidatingWebhook};
use palisade_api::critical::{self, Provider};
use palisade_cluster::Discovery;

use super::cel::{Expression, cel, strings};
use super::{LONGEST_EXPRESSION, NAMES_TOLD, Wanted, rule};
use crate::registration::coverage::Namespaces;

/// The webhook for deletions of providers.
pub(in crate::registration) const CRITICAL: &str = "critical";
/// Its condition on the names of providers.
pub(in crate::registration) const PROVIDER_CONDITION: &str = "provider";
const PATH: &str = "/admit/critical";

/// The providers that there are, as far as their kinds are served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Providers {
    /// `(group, plural)`
    resources: BTreeSet<(String, String)>,
    namespaces: BTreeSet<String>,
    names: BTreeSet<String>,
    /// Where pods are providers.
    pub(super) pods: BTreeSet<String>,
}

impl Providers {
    pub fn of<'a>(providers: impl IntoIterator<Item = &'a Provider>, discovery: &Discovery) -> Self {
        let mut all = Self::default();
        for provider in providers {
            let Some(served) = discovery.resolve(&provider.resource).filter(|served| served.namespaced)
            else {
                continue;
            };
            if served.group.is_empty() && served.kind == "Pod" {
                all.pods.insert(provider.namespace.clone());
            }
            all.resources.insert((served.group.clone(), served.plural.clone()));
            all.namespaces.insert(provider.namespace.clone());
            all.names.insert(provider.name.clone());
        }
        all
    }
}

impl Wanted<'_> {
    pub(super) fn critical(&self) -> Vec<ValidatingWebhook> {
        if !self.gates.critical_service {
            return Vec::new();
        }
        let operations = ["CREATE", "UPDATE", "DELETE"].map(str::to_owned);
        let declared = ValidatingWebhook {
            rules: Some(vec![RuleWithOperations {
                operations: Some(operations.to_vec()),
                ..rule("", critical::GROUP, critical::PLURAL)
            }]),
            ..self.webhook_at("critical-services", PATH)
        };
        let Providers { resources, namespaces, names, pods: _ } = self.providers;
        if namespaces.iter().all(|namespace| namespace == self.own_namespace) {
            return vec![declared];
        }
        let mut rules = vec![rule("DELETE", "", "namespaces")];
        rules.extend(resources.iter().map(|(group, plural)| rule("DELETE", group, plural)));
        let of_namespace = cel!("request.resource.group == '' && request.resource.resource == 'namespaces'");
        let providers = ValidatingWebhook {
            rules: Some(rules),
            // A Namespace is selected by its own labels.
            namespace_selector: Some(self.namespaces(&Namespaces::Some(namespaces.clone()))),
            match_conditions: named(names)
                .map(|named| vec![cel!("{} || {}", of_namespace, named).condition(PROVIDER_CONDITION)]),
            ..self.webhook_at(CRITICAL, PATH)
        };
        // The objects of a definition vanish with it, unasked. No definition has a group without a dot.
        let definitions: BTreeSet<String> = resources
            .iter()
            .filter(|(group, _)| group.contains('.'))
            .map(|(group, plural)| format!("{plural}.{group}"))
            .collect();
        let definitions = (!definitions.is_empty()).then(|| ValidatingWebhook {
            rules: Some(vec![rule("DELETE", "apiextensions.k8s.io", "customresourcedefinitions")]),
            match_conditions: named(&definitions).map(|named| vec![named.condition("of-provider")]),
            ..self.webhook_at("critical-definitions", PATH)
        });
        [Some(declared), Some(providers), definitions].into_iter().flatten().collect()
    }
}

/// What tells objects of these names; `None` where they are too many to be told.
fn named(names: &BTreeSet<String>) -> Option<Expression> {
    let expression = cel!("oldObject.metadata.name in {}", strings(names));
    (names.len() <= NAMES_TOLD && expression.len() <= LONGEST_EXPRESSION).then_some(expression)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::registration::plan::plan;
    use crate::registration::plan::tests::plan_as;
    use palisade_api::critical::Resource;
    use palisade_cluster::Served;

    fn served(group: &str, kind: &str, plural: &str, namespaced: bool) -> Served {
        Served::new(group, "v1", kind, plural, namespaced)
    }

    pub(in crate::registration::plan) fn provider(
        group: &str,
        word: &str,
        namespace: &str,
        name: &str,
    ) -> Provider {
        Provider {
            resource: Resource { group: group.to_owned(), word: word.to_owned() },
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    fn providers(all: &[(&str, &str, &str, &str)]) -> Providers {
        let resources = vec![
            served("", "Pod", "pods", true),
            served("", "Node", "nodes", false),
            served("apps", "Deployment", "deployments", true),
            served("example.com", "Widget", "widgets", true),
        ];
        let discovery = Discovery { resources, ..Discovery::default() };
        let providers: Vec<Provider> = all
            .iter()
            .map(|&(group, word, namespace, name)| provider(group, word, namespace, name))
            .collect();
        Providers::of(&providers, &discovery)
    }

    const NOT_TERMINATING: &str =
        "request.operation != 'DELETE' || !has(oldObject.metadata.deletionTimestamp)";

    /// A webhook by name: what is asked about, the namespaces, and the expression.
    type Told = (String, Vec<String>, Vec<String>, Vec<String>);

    fn planned(all: &[(&str, &str, &str, &str)]) -> Vec<Told> {
        let providers = providers(all);
        let webhooks = plan_as(|wanted| plan(&Wanted { providers: &providers, ..wanted.clone() }));
        webhooks
            .into_iter()
            .filter(|webhook| webhook.name.starts_with("critical") || webhook.name.starts_with("eviction"))
            .map(|webhook| {
                let rules = webhook.rules.unwrap().into_iter().map(|rule| {
                    format!(
                        "{} {}/{}",
                        rule.operations.unwrap().join("+"),
                        rule.api_groups.unwrap()[0],
                        rule.resources.unwrap()[0]
                    )
                });
                let namespaces = webhook.namespace_selector.unwrap().match_expressions.unwrap().remove(0);
                let namespaces =
                    if namespaces.operator == "In" { namespaces.values.unwrap() } else { Vec::new() };
                let conditions = webhook.match_conditions.unwrap_or_default();
                let conditions = conditions.into_iter().map(|condition| condition.expression).collect();
                (
                    webhook.name.trim_end_matches(".palisade.dev").to_owned(),
                    rules.collect(),
                    namespaces,
                    conditions,
                )
            })
            .collect()
    }

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    fn declared() -> Told {
        let rules = words(&["CREATE+UPDATE+DELETE palisade.dev/criticalservices"]);
        ("critical-services".to_owned(), rules, Vec::new(), words(&[NOT_TERMINATING]))
    }

    #[test]
    fn without_a_service_only_services_are_asked_about() {
        assert_eq!(planned(&[]), [declared()]);
        assert_eq!(planned(&[("apps", "deployments", "palisade-system", "web")]), [declared()], "our own");
        assert_eq!(planned(&[("apps", "deploymentz", "shop", "web")]), [declared()], "not served");
        assert_eq!(planned(&[("", "nodes", "shop", "web")]), [declared()], "without a namespace");
    }

    #[test]
    fn deletions_of_providers_and_of_their_namespaces_are_asked_about_and_of_nothing_else() {
        let condition = "request.resource.group == '' && request.resource.resource == 'namespaces' \
                         || oldObject.metadata.name in [\"db\", \"web\"]";
        assert_eq!(
            planned(&[("apps", "Deployment", "shop", "web"), ("example.com", "widgets", "data", "db")]),
            [
                declared(),
                (
                    "critical".to_owned(),
                    words(&["DELETE /namespaces", "DELETE apps/deployments", "DELETE example.com/widgets"]),
                    words(&["data", "shop"]),
                    words(&[condition, NOT_TERMINATING]),
                ),
                (
                    "critical-definitions".to_owned(),
                    words(&["DELETE apiextensions.k8s.io/customresourcedefinitions"]),
                    Vec::new(),
                    words(&["oldObject.metadata.name in [\"widgets.example.com\"]", NOT_TERMINATING]),
                ),
            ]
        );
    }

    #[test]
    fn evictions_are_asked_about_where_a_pod_is_a_provider() {
        let planned = planned(&[("", "pods", "shop", "web-0")]);
        let eviction = planned.iter().find(|(name, ..)| name == "eviction").unwrap();
        assert_eq!(eviction.2, ["shop"]);
    }
}
