//! What goes on while no replica answers, whatever the failure policy is.
//!
//! - An object that has a `deletionTimestamp` is deleted to the end: no webhook is asked about its deletion.
//! - Pods that a cluster needs in order to be mended are not held up. Each webhook that may be asked about pods leaves
//!   them out, and a twin of it with `failurePolicy: Ignore` is asked about them and nothing else. So they count as
//!   ever while a replica answers.

use k8s_openapi::api::admissionregistration::v1::{MatchCondition, RuleWithOperations, ValidatingWebhook};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use super::cel::{Expression, all, any, cel, string, strings};
use super::{LONGEST_EXPRESSION, NAMESPACE_NAME};

const KUBE_SYSTEM: &str = "kube-system";

/// Whether nobody has begun to delete the object.
pub(super) fn not_terminating() -> Expression {
    cel!("!has(oldObject.metadata.deletionTimestamp)")
}

/// An eviction carries no pod, so that its namespace is all there is to tell it by.
fn system_eviction() -> Expression {
    cel!("request.namespace == 'kube-system'")
}

/// A critical pod, a pod of a `DaemonSet` of `kube-system`, or a pod that the scheduler preempts.
fn system_pod() -> Expression {
    cel!(
        "(request.userInfo.username == 'system:kube-scheduler' \
         || has(oldObject.spec.priorityClassName) \
         && oldObject.spec.priorityClassName in ['system-cluster-critical', 'system-node-critical'] \
         || request.namespace == 'kube-system' && has(oldObject.metadata.ownerReferences) \
         && oldObject.metadata.ownerReferences.exists(o, has(o.controller) && o.controller \
         && o.kind == 'DaemonSet' && o.apiVersion.startsWith('apps/')))"
    )
}

/// The webhooks, and their twins behind them.
pub(super) fn spare(mut webhooks: Vec<ValidatingWebhook>) -> Vec<ValidatingWebhook> {
    webhooks.iter_mut().for_each(exclude_terminating);
    let mut twins: Vec<Twin> = Vec::new();
    for webhook in &mut webhooks {
        let Some(twin) = split_off_system_pods(webhook) else { continue };
        match twins.iter_mut().find(|other| other.differs_in_labels_only(&twin)) {
            Some(other) => other.selectors.extend(twin.selectors),
            None => twins.push(twin),
        }
    }
    webhooks.extend(twins.into_iter().map(Twin::finish));
    webhooks
}

fn exclude_terminating(webhook: &mut ValidatingWebhook) {
    let mut operations =
        webhook.rules.iter().flatten().flat_map(|rule| rule.operations.iter().flatten()).map(String::as_str);
    let deletes = operations.any(|operation| matches!(operation, "DELETE" | "*"));
    let excluded = |condition: &MatchCondition| condition.expression == not_terminating().as_str();
    if deletes && !webhook.match_conditions.iter().flatten().any(excluded) {
        add(webhook, "not-terminating", cel!("request.operation != 'DELETE' || {}", not_terminating()));
    }
}

fn add(webhook: &mut ValidatingWebhook, name: &'static str, expression: Expression) {
    webhook.match_conditions.get_or_insert_default().push(expression.condition(name));
}

/// A webhook for system pods. One that differs from another only in the labels that it selects is joined with it.
struct Twin {
    webhook: ValidatingWebhook,
    selectors: Vec<LabelSelector>,
}

/// Leaves system pods out of a webhook, and returns one that is asked about them.
fn split_off_system_pods(webhook: &mut ValidatingWebhook) -> Option<Twin> {
    if webhook.failure_policy.as_deref() != Some("Fail") {
        return None;
    }
    let rules: Vec<RuleWithOperations> = webhook.rules.iter().flatten().filter_map(of_pods).collect();
    let system_pod = is_system_pod(&rules, webhook.namespace_selector.as_ref())?;
    let is_pod = cel!("request.resource.group == '' && request.resource.resource == 'pods'");
    let mut twin = ValidatingWebhook {
        name: webhook.name.replacen('.', "-system-pods.", 1),
        rules: Some(rules),
        failure_policy: Some("Ignore".to_owned()),
        object_selector: Some(LabelSelector::default()),
        ..webhook.clone()
    };
    add(&mut twin, "system-pod", system_pod.clone());
    add(webhook, "not-system-pod", cel!("!({} && ({}))", is_pod, system_pod));
    Some(Twin { webhook: twin, selectors: vec![webhook.object_selector.clone().unwrap_or_default()] })
}

/// The expression that tells a system pod; `None` if the rules are never asked about one.
fn is_system_pod(rules: &[RuleWithOperations], namespaces: Option<&LabelSelector>) -> Option<Expression> {
    let of_evictions = |rule: &RuleWithOperations| {
        rule.resources.iter().flatten().all(|resource| resource == "pods/eviction")
    };
    let evictions = rules.iter().any(of_evictions) && may_select(namespaces, KUBE_SYSTEM);
    match (evictions, rules.iter().any(|rule| !of_evictions(rule))) {
        (false, false) => None,
        (true, false) => Some(system_eviction()),
        (false, true) => Some(cel!("request.operation != 'CREATE' && {}", system_pod())),
        (true, true) => {
            Some(cel!("request.operation == 'CREATE' ? {} : {}", system_eviction(), system_pod()))
        }
    }
}

/// The part of a rule that is about pods.
fn of_pods(rule: &RuleWithOperations) -> Option<RuleWithOperations> {
    if !rule.api_groups.iter().flatten().any(|group| matches!(group.as_str(), "" | "*")) {
        return None;
    }
    let resources = rule.resources.iter().flatten().filter_map(|resource| match resource.as_str() {
        "*" => Some("pods".to_owned()),
        "*/*" => Some("pods/*".to_owned()),
        "pods" => Some(resource.clone()),
        _ if resource.starts_with("pods/") => Some(resource.clone()),
        _ => None,
    });
    let resources: Vec<String> = resources.collect();
    (!resources.is_empty()).then(|| RuleWithOperations {
        api_groups: Some(vec![String::new()]),
        resources: Some(resources),
        ..rule.clone()
    })
}

/// Whether a selector of namespaces may select the one of this name.
fn may_select(selector: Option<&LabelSelector>, namespace: &str) -> bool {
    let requirements =
        selector.and_then(|selector| selector.match_expressions.as_ref()).into_iter().flatten();
    requirements.filter(|requirement| requirement.key == NAMESPACE_NAME).all(|requirement| {
        let named = requirement.values.iter().flatten().any(|value| value == namespace);
        match requirement.operator.as_str() {
            "In" => named,
            "NotIn" => !named,
            "DoesNotExist" => false,
            _ => true,
        }
    })
}

impl Twin {
    fn differs_in_labels_only(&self, other: &Self) -> bool {
        let without_name =
            |webhook: &ValidatingWebhook| ValidatingWebhook { name: String::new(), ..webhook.clone() };
        without_name(&self.webhook) == without_name(&other.webhook)
    }

    fn finish(mut self) -> ValidatingWebhook {
        self.selectors.sort_by_key(|selector| format!("{selector:?}"));
        self.selectors.dedup();
        if let [selector] = &self.selectors[..] {
            self.webhook.object_selector = Some(selector.clone());
            return self.webhook;
        }
        // Only `oldObject` is read: what is deleted has no other, and an update that sets a label is asked about by the
        // labels that it had.
        let selected = any(self.selectors.iter().map(|selector| cel!("({})", selected_by(selector))));
        // Without it, all system pods are asked about.
        if selected.len() <= LONGEST_EXPRESSION {
            add(&mut self.webhook, "selected", selected);
        }
        self.webhook
    }
}

/// A selector, as an expression.
fn selected_by(selector: &LabelSelector) -> Expression {
    let labels = selector.match_labels.iter().flatten().map(|(key, value)| LabelSelectorRequirement {
        key: key.clone(),
        operator: "In".to_owned(),
        values: Some(vec![value.clone()]),
    });
    let requirements = labels.chain(selector.match_expressions.iter().flatten().cloned());
    let all_of_them = all(requirements.map(|requirement| required_by(&requirement)));
    if all_of_them.is_empty() { cel!("true") } else { all_of_them }
}

fn required_by(requirement: &LabelSelectorRequirement) -> Expression {
    let (labels, key) = (cel!("oldObject.metadata.labels"), string(&requirement.key));
    let exists = cel!("(has({}) && {} in {})", labels, key, labels);
    let is_one = cel!("{}[{}] in {}", labels, key, strings(requirement.values.iter().flatten()));
    match requirement.operator.as_str() {
        "In" => cel!("({} && {})", exists, is_one),
        "NotIn" => cel!("!({} && {})", exists, is_one),
        "DoesNotExist" => cel!("!{}", exists),
        _ => exists,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registration::plan::tests::{planned_for_everything, rule_words};
    use crate::registration::plan::{requirement, rule, selector};

    fn conditions(webhook: &ValidatingWebhook) -> Vec<(&str, &str)> {
        let all = webhook.match_conditions.iter().flatten();
        all.map(|condition| (&*condition.name, &*condition.expression)).collect()
    }

    fn webhook(name: &str, rules: &[RuleWithOperations], labels: Option<LabelSelector>) -> ValidatingWebhook {
        ValidatingWebhook {
            name: format!("{name}.palisade.dev"),
            rules: Some(rules.to_vec()),
            object_selector: labels,
            failure_policy: Some("Fail".to_owned()),
            ..ValidatingWebhook::default()
        }
    }

    #[test]
    fn no_webhook_is_asked_about_the_deletion_of_what_is_terminating() {
        for webhook in planned_for_everything() {
            let deletes = rule_words(&webhook).iter().any(|rule| rule.contains("DELETE"));
            let excluding = conditions(&webhook)
                .iter()
                .filter(|(_, expression)| expression.ends_with(not_terminating().as_str()))
                .count();
            assert!(!deletes || excluding == 1, "{}: {:?}", webhook.name, conditions(&webhook));
        }
    }

    #[test]
    fn a_webhook_that_may_refuse_pods_while_nobody_answers_leaves_system_pods_to_a_twin() {
        let webhooks = planned_for_everything();
        let mut split = 0;
        for webhook in webhooks.iter().filter(|webhook| webhook.failure_policy.as_deref() == Some("Fail")) {
            let of_pods: Vec<_> = webhook.rules.iter().flatten().filter_map(of_pods).collect();
            if of_pods.is_empty() {
                assert!(!conditions(webhook).iter().any(|(name, _)| *name == "not-system-pod"));
                continue;
            }
            let asked = is_system_pod(&of_pods, webhook.namespace_selector.as_ref());
            assert!(
                asked.is_none() || conditions(webhook).iter().any(|(name, _)| *name == "not-system-pod"),
                "{} holds up system pods",
                webhook.name
            );
            split += usize::from(asked.is_some());
        }
        let twins: Vec<&ValidatingWebhook> =
            webhooks.iter().filter(|webhook| webhook.name.contains("-system-pods.")).collect();
        assert!(split > 5 && twins.len() > 2, "{split} split, {} twins", twins.len());
        for twin in twins {
            assert_eq!(twin.failure_policy.as_deref(), Some("Ignore"));
            assert!(conditions(twin).iter().any(|(name, _)| *name == "system-pod"), "{}", twin.name);
            assert!(rule_words(twin).iter().all(|rule| rule.contains(" /pods")), "{:?}", rule_words(twin));
        }
    }

    #[test]
    fn a_twin_is_asked_about_pods_and_nothing_else() {
        let rules = [
            rule("DELETE", "*", "*"),
            rule("DELETE", "apps", "deployments"),
            rule("UPDATE", "", "pods/status"),
        ];
        let webhooks = spare(vec![webhook("x", &rules, None), webhook("y", &rules[1..2], None)]);
        let names: Vec<&str> = webhooks.iter().map(|webhook| &*webhook.name).collect();
        assert_eq!(names, ["x.palisade.dev", "y.palisade.dev", "x-system-pods.palisade.dev"]);
        assert_eq!(rule_words(&webhooks[2]), ["DELETE /pods", "UPDATE /pods/status"]);
    }

    #[test]
    fn what_lets_everything_through_needs_no_twin() {
        let ignored = ValidatingWebhook {
            failure_policy: Some("Ignore".to_owned()),
            ..webhook("x", &[rule("DELETE", "", "pods")], None)
        };
        assert_eq!(spare(vec![ignored]).len(), 1);
    }

    #[test]
    fn evictions_are_told_by_their_namespace() {
        let evictions = |operator: &str, names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            let namespaces = Some(selector(&[requirement(NAMESPACE_NAME, operator, &names)]));
            let of_evictions = webhook("eviction", &[rule("CREATE", "", "pods/eviction")], None);
            spare(vec![ValidatingWebhook { namespace_selector: namespaces, ..of_evictions }])
        };
        let all = evictions("NotIn", &["palisade-system"]);
        assert_eq!(conditions(&all[1]), [("system-pod", system_eviction().as_str())]);
        assert_eq!(evictions("In", &["shop"]).len(), 1, "there are none of kube-system");
        assert_eq!(evictions("In", &["shop", "kube-system"]).len(), 2);
    }

    #[test]
    fn twins_that_select_other_labels_are_one() {
        let by = |key: &str, operator: &str, values: &[&str]| {
            let values: Vec<String> = values.iter().map(|&value| value.to_owned()).collect();
            Some(selector(&[requirement(key, operator, &values)]))
        };
        let pods = [rule("DELETE", "", "pods")];
        let webhooks = spare(vec![
            webhook("a", &pods, by("x", "Exists", &[])),
            webhook("b", &pods, by("it's", "In", &["1", "2"])),
            webhook("c", &pods, by("x", "Exists", &[])),
        ]);
        assert_eq!(webhooks.len(), 4);
        let (_, expression) = conditions(&webhooks[3])[2];
        assert_eq!(
            expression,
            r#"(((has(oldObject.metadata.labels) && "it's" in oldObject.metadata.labels) && oldObject.metadata.labels["it's"] in ["1", "2"])) || ((has(oldObject.metadata.labels) && "x" in oldObject.metadata.labels))"#
        );
    }
}
