//! Warnings for people who set a protection label or annotation where it is copied, or where it protects nothing.
//!
//! They are told the moment they do it, and nothing is ever refused: while nobody answers, nobody is warned.

use k8s_openapi::api::admissionregistration::v1::{RuleWithOperations, ValidatingWebhook};
use palisade_api::kinds::TRANSIENT_KINDS;
use palisade_api::marks;

use super::cel::{self, Expression, cel};
use super::{NAMESPACE_NAME, Wanted, annotated, protecting_labels, requirement, rule, selector};

/// Where Nodes write their Leases, every few seconds each. No selector reads annotations, so that every write of these
/// kinds is looked at by an expression; these are most of them, and nobody else's.
const HEARTBEATS: &str = "kube-node-lease";

/// The kinds whose templates' labels are copied: `(group, plural)`.
const TEMPLATED: [(&str, &str); 12] = [
    ("apps", "deployments"),
    ("apps", "statefulsets"),
    ("apps", "daemonsets"),
    ("apps", "replicasets"),
    ("batch", "jobs"),
    ("batch", "cronjobs"),
    ("", "replicationcontrollers"),
    ("apps.kruise.io", "clonesets"),
    ("apps.kruise.io", "statefulsets"),
    ("apps.kruise.io", "daemonsets"),
    ("apps.kruise.io", "broadcastjobs"),
    ("apps.kruise.io", "advancedcronjobs"),
];

impl Wanted<'_> {
    pub(super) fn label_advice(&self) -> Vec<ValidatingWebhook> {
        let mut webhooks = vec![ValidatingWebhook {
            rules: Some(TEMPLATED.iter().map(|(group, plural)| written(group, plural)).collect()),
            match_conditions: Some(vec![
                not_made_by_a_controller().condition("not-made-by-a-controller"),
                template_labelled().condition("template-labelled"),
            ]),
            ..self.advising("template-labels-advice")
        }];
        for (name, requirements) in protecting_labels() {
            let kinds = TRANSIENT_KINDS.iter().map(|kind| written(kind.group, kind.plural));
            webhooks.push(ValidatingWebhook {
                rules: Some(kinds.collect()),
                object_selector: Some(selector(&requirements)),
                match_conditions: Some(vec![by_somebody_else().condition("by-somebody-else")]),
                ..self.advising(&format!("{name}-advice"))
            });
        }
        let kinds = TRANSIENT_KINDS.iter().map(|kind| written(kind.group, kind.plural));
        let elsewhere = [self.own_namespace.to_owned(), HEARTBEATS.to_owned()];
        webhooks.push(ValidatingWebhook {
            rules: Some(kinds.collect()),
            namespace_selector: Some(selector(&[requirement(NAMESPACE_NAME, "NotIn", &elsewhere)])),
            match_conditions: Some(vec![newly_annotated().condition("newly-annotated")]),
            ..self.advising("disable-cascading-deletion-annotation-advice")
        });
        webhooks
    }

    fn advising(&self, name: &str) -> ValidatingWebhook {
        ValidatingWebhook {
            failure_policy: Some("Ignore".to_owned()),
            ..self.webhook_at(name, "/admit/advice")
        }
    }
}

fn written(group: &str, plural: &str) -> RuleWithOperations {
    let operations = Some(vec!["CREATE".to_owned(), "UPDATE".to_owned()]);
    RuleWithOperations { operations, ..rule("", group, plural) }
}

/// That nobody's controller made it: a `ReplicaSet` of a Deployment is no news.
fn not_made_by_a_controller() -> Expression {
    cel!("!object.metadata.?ownerReferences.orValue([]).exists(owner, owner.?controller.orValue(false))")
}

/// That Kubernetes' controllers, which copy a Service's labels, are not the ones who ask.
pub(super) fn by_somebody_else() -> Expression {
    cel!(
        "!(request.userInfo.username in ['system:kube-controller-manager', 'system:apiserver'] \
         || request.userInfo.username.startsWith('system:serviceaccount:kube-system:') \
         || request.userInfo.username.startsWith('system:node:'))"
    )
}

/// That somebody sets the annotation, or changes it.
fn newly_annotated() -> Expression {
    let key = cel::string(marks::DISABLE_CASCADING_DELETION);
    let was = cel!(
        "(request.operation == 'UPDATE' && has(oldObject.metadata.annotations) \
         && {0} in oldObject.metadata.annotations \
         && oldObject.metadata.annotations[{0}] == object.metadata.annotations[{0}])",
        key
    );
    cel!("{} && !{} && {}", annotated(&cel!("object")), was, by_somebody_else())
}

/// That a template has a protection label that it did not have before.
fn template_labelled() -> Expression {
    let keys = [marks::DELETE_PROTECTION, marks::DELETION_PROTECTED, marks::DISABLE_CASCADING_DELETION];
    let templates = keys.into_iter().flat_map(|key| {
        let label = |template: &Expression| cel!("{}.?metadata.?labels[?{}]", template, cel::string(key));
        let sets = |(new, old): (Expression, Expression)| {
            let (new, old) = (label(&new), label(&old));
            cel!("({0}.hasValue() && (request.operation == 'CREATE' || {1} != {0}))", new, old)
        };
        let claims = |templates: Expression| {
            let claim = label(&cel!("claim"));
            cel!("{}.orValue([]).exists(claim, {}.hasValue())", templates, claim)
        };
        let (new, old) = (
            claims(cel!("object.?spec.?volumeClaimTemplates")),
            claims(cel!("oldObject.?spec.?volumeClaimTemplates")),
        );
        let of_claims = cel!("({} && (request.operation == 'CREATE' || !{}))", new, old);
        templates().into_iter().map(sets).chain([of_claims]).collect::<Vec<_>>()
    });
    cel::any(templates)
}

/// The pod and job templates of a workload, new and old.
fn templates() -> [(Expression, Expression); 3] {
    [
        (cel!("object.?spec.?template"), cel!("oldObject.?spec.?template")),
        (cel!("object.?spec.?jobTemplate"), cel!("oldObject.?spec.?jobTemplate")),
        (
            cel!("object.?spec.?jobTemplate.?spec.?template"),
            cel!("oldObject.?spec.?jobTemplate.?spec.?template"),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use crate::registration::plan::plan;
    use crate::registration::plan::tests::plan_as;

    #[test]
    fn nobody_is_held_up_for_a_warning() {
        let webhooks = plan_as(plan);
        let advising: Vec<_> = webhooks
            .iter()
            .filter(|webhook| webhook.client_config.url.as_ref().is_some_and(|url| url.contains("/advice")))
            .collect();
        assert_eq!(advising.len(), 5);
        for webhook in advising {
            assert_eq!(webhook.failure_policy.as_deref(), Some("Ignore"), "{}", webhook.name);
            let selects = webhook.object_selector.as_ref().unwrap().match_expressions.is_some();
            assert!(selects || webhook.match_conditions.is_some(), "{} asks about everything", webhook.name);
        }
    }
}
