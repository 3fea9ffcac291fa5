//! Changes of labels by which a protection would no longer select an object.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{RuleWithOperations, ValidatingWebhook};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use palisade_api::labels::LabelRule;

use super::cel::{Expression, cel};
use super::outage::not_terminating;
use super::{Wanted, changes, lasting, rule, selector, sound};
use crate::registration::coverage::Namespaces;

/// So many selectors have a webhook of their own, which costs other updates nothing. More are asked about together:
/// then every change of labels where one of them holds is asked about.
const MOST_SELECTORS: usize = 16;
/// How many bytes they may have together.
const LARGEST_SELECTORS: usize = 32 << 10;

impl Wanted<'_> {
    pub(super) fn label_changes(&self) -> Vec<ValidatingWebhook> {
        let all = &self.coverage.label_changes;
        let size: usize = all.keys().map(|(labels, _)| labels.query().len()).sum();
        let mut webhooks: Vec<ValidatingWebhook> = if all.len() > MOST_SELECTORS || size > LARGEST_SELECTORS {
            let nowhere = Namespaces::Some(BTreeSet::new());
            let namespaces = all.keys().fold(nowhere, |all, (_, namespaces)| all.and(namespaces.clone()));
            let resources = all.values().flatten().cloned().collect();
            vec![self.label_change(&namespaces, LabelSelector::default(), &resources)]
        } else {
            let one = |((labels, namespaces), resources): (&(LabelRule, Namespaces), &_)| {
                // What nothing can have is nothing's to lose.
                let requirements = sound(labels.expressions())?;
                let selected =
                    if requirements.is_empty() { LabelSelector::default() } else { selector(&requirements) };
                Some(self.label_change(namespaces, selected, resources))
            };
            all.iter().filter_map(one).collect()
        };
        for (number, webhook) in webhooks.iter_mut().enumerate() {
            webhook.name = format!("label-changes-{number}.palisade.dev");
        }
        webhooks
    }

    fn label_change(
        &self,
        namespaces: &Namespaces,
        selected: LabelSelector,
        resources: &BTreeSet<(String, String)>,
    ) -> ValidatingWebhook {
        ValidatingWebhook {
            rules: Some(resources.iter().map(|(group, plural)| updated(group, plural)).collect()),
            namespace_selector: Some(self.namespaces(namespaces)),
            object_selector: Some(selected),
            match_conditions: Some(vec![
                relabelled().condition("relabelled"),
                not_terminating().condition("not-terminating"),
                lasting().condition("lasting"),
            ]),
            ..self.counted_webhook("")
        }
    }
}

/// An update of a resource, or through one of its subresources: labels can be taken away through `status`. `pods/*` is
/// both.
pub(super) fn updated(group: &str, plural: &str) -> RuleWithOperations {
    rule("UPDATE", group, &format!("{plural}/*"))
}

/// That labels change.
fn relabelled() -> Expression {
    changes((cel!("oldObject.metadata.labels"), cel!("object.metadata.labels")))
}

#[cfg(test)]
mod tests {
    use palisade_api::protection::rules_of;
    use palisade_cluster::{Discovery, Served};
    use palisade_engine::Protections;
    use serde_json::{Value, json};

    use super::*;
    use crate::registration::coverage::Coverage;
    use crate::registration::plan::plan;
    use crate::registration::plan::tests::plan_as;

    fn planned(selectors: &Value, more: &Value) -> Vec<ValidatingWebhook> {
        let mut spec = json!({"protectedResources": [{"resourceSelector": selectors}]});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let rules = rules_of("sample", &serde_json::from_value(spec).unwrap()).unwrap();
        let resources = vec![
            Served::new("", "v1", "ConfigMap", "configmaps", true),
            Served::new("apps", "v1", "Deployment", "deployments", true),
        ];
        let discovery = Discovery { resources, ..Discovery::default() };
        let coverage = Coverage::of(&Protections::new(rules, Vec::new()), &discovery);
        let webhooks = plan_as(|wanted| plan(&Wanted { coverage: &coverage, ..wanted.clone() }));
        webhooks.into_iter().filter(|webhook| webhook.name.starts_with("label-changes")).collect()
    }

    fn resources(webhook: &ValidatingWebhook) -> Vec<String> {
        let rules = webhook.rules.iter().flatten();
        rules.flat_map(|rule| rule.resources.iter().flatten().cloned()).collect()
    }

    fn by(kind: &str, app: &str) -> Value {
        let group = if kind == "Deployment" { "apps/v1" } else { "v1" };
        json!({"apiVersion": group, "kind": kind, "labelSelector": {"matchLabels": {"app": app}}})
    }

    #[test]
    fn only_what_is_selected_by_label_is_asked_about() {
        assert_eq!(planned(&json!([{"apiVersion": "v1", "kind": "ConfigMap"}]), &json!({})), []);
        assert_eq!(planned(&json!([by("ConfigMap", "web")]), &json!({"labelChanges": "Ignore"})), []);
        let webhooks = planned(&json!([by("ConfigMap", "web"), by("Deployment", "web")]), &json!({}));
        assert_eq!(webhooks.len(), 1, "what is selected alike is asked about together");
        assert_eq!(resources(&webhooks[0]), ["configmaps/*", "deployments/*"]);
        let selected = webhooks[0].object_selector.clone().unwrap().match_expressions.unwrap();
        assert_eq!((selected[0].key.as_str(), selected[0].operator.as_str()), ("app", "In"));
        let every =
            planned(&json!([{"kind": "*", "labelSelector": {"matchLabels": {"app": "web"}}}]), &json!({}));
        assert_eq!(resources(&every[0]), ["*/*"]);
    }

    #[test]
    fn so_many_selectors_have_a_webhook_of_their_own() {
        let all = |count: usize| -> Vec<Value> {
            (0..count).map(|number| by("ConfigMap", &number.to_string())).collect()
        };
        assert_eq!(planned(&json!(all(MOST_SELECTORS)), &json!({})).len(), MOST_SELECTORS);
        let together = planned(&json!(all(MOST_SELECTORS + 1)), &json!({}));
        assert_eq!(together.len(), 1);
        assert_eq!(together[0].object_selector, Some(LabelSelector::default()));
        assert_eq!(resources(&together[0]), ["configmaps/*"]);
    }
}
