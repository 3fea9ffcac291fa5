//! Webhooks for what takes pods down: where there are budgets, flow controls, and pods that are protected.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{RuleWithOperations, ValidatingWebhook};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use palisade_api::{budget, flow};

use super::cel::{Expression, cel, string};
use super::outage::not_terminating;
use super::{
    FLOW, Governed, NAMESPACE_NAME, POD_DELETION, Wanted, as_requirement, requirement, reselects, rule,
    selector,
};
use crate::registration::coverage::Namespaces;

impl Wanted<'_> {
    /// Evictions where a pod is labelled or a provider, protections name pods, there is a budget, or flow control. An eviction carries
    /// no labels, so namespaces are all there is to select by.
    pub(super) fn evictions(&self) -> Option<ValidatingWebhook> {
        let protected = match &self.coverage.pods {
            _ if !self.gates.resources_deletion_protection => Namespaces::Some(BTreeSet::new()),
            Some(Namespaces::All) => Namespaces::All,
            Some(Namespaces::Some(named)) => Namespaces::Some(named | self.eviction_namespaces),
            None => Namespaces::Some(self.eviction_namespaces.clone()),
        };
        let budgets =
            if self.gates.pod_unavailable_budget { self.budget_namespaces.clone() } else { BTreeSet::new() };
        let flow =
            if self.flow_is_everywhere() { Namespaces::All } else { Namespaces::Some(BTreeSet::new()) };
        let providers =
            if self.gates.critical_service { self.providers.pods.clone() } else { BTreeSet::new() };
        let namespaces = protected.and(Namespaces::Some(&budgets | &providers)).and(flow);
        if let Namespaces::Some(named) = &namespaces
            && named.iter().all(|name| name == self.own_namespace)
        {
            return None;
        }
        Some(ValidatingWebhook {
            rules: Some(vec![rule("CREATE", "", "pods/eviction")]),
            namespace_selector: Some(self.namespaces(&namespaces)),
            ..self.webhook_at(
                "eviction",
                if self.flow_is_everywhere() {
                    "/admit/protections/evictions/flow"
                } else {
                    "/admit/protections/evictions"
                },
            )
        })
    }

    /// Budgets that are written, by administrators and by others. The API server knows who may do what, so that we need no
    /// right to ask it: who can write budgets in all namespaces is an administrator.
    fn declared_budgets(&self) -> [ValidatingWebhook; 2] {
        let may = |verb: &str| {
            cel!(
                "authorizer.group({}).resource({}).check({}).allowed()",
                string(budget::GROUP),
                string(budget::PLURAL),
                string(verb)
            )
        };
        let administrator = || cel!("({} && {})", may("create"), may("update"));
        let by =
            |name: &str, path: &str, condition: &'static str, expression: Expression| ValidatingWebhook {
                match_conditions: Some(vec![expression.condition(condition)]),
                ..self.declared_at(name, path, budget::GROUP, budget::PLURAL)
            };
        [
            by("budgets", "/admit/policies", "not-by-administrator", cel!("!{}", administrator())),
            by(
                "budgets-by-administrators",
                "/admit/policies/administrator",
                "by-administrator",
                administrator(),
            ),
        ]
    }

    /// What takes pods down where there are budgets, and budgets that are written.
    pub(super) fn budgets(&self) -> Vec<ValidatingWebhook> {
        if !self.gates.pod_unavailable_budget {
            return Vec::new();
        }
        let declared = self.declared_budgets();
        if self.budget_namespaces.iter().all(|name| name == self.own_namespace) {
            return declared.into();
        }
        let of_pods = |name: &str,
                       rules: &[RuleWithOperations],
                       (condition, expression): (&'static str, Expression)| {
            ValidatingWebhook {
                rules: Some(rules.to_vec()),
                namespace_selector: Some(self.namespaces(&Namespaces::Some(self.budget_namespaces.clone()))),
                match_conditions: Some(vec![expression.condition(condition)]),
                ..self.webhook_at(
                    name,
                    if self.flow_is_everywhere() { "/admit/budgets/flow" } else { "/admit/budgets" },
                )
            }
        };
        // A label may say that a pod is unavailable; labels and owners are what a budget chose it by.
        let parting = reselects();
        // The kubelet says how things are, and it says so often.
        let closing = cel!(
            "(!(has(request.userInfo.groups) && 'system:nodes' in request.userInfo.groups) \
            && has(oldObject.spec.readinessGates) && has(oldObject.status.conditions) \
            && oldObject.spec.readinessGates.exists(gate, \
            oldObject.status.conditions.exists(old, old.type == gate.conditionType && old.status == 'True') \
            && !(has(object.status.conditions) && object.status.conditions.exists(new, \
            new.type == gate.conditionType && new.status == 'True'))))"
        );
        let [by_others, by_administrators] = declared;
        vec![
            by_others,
            by_administrators,
            of_pods(POD_DELETION, &[rule("DELETE", "", "pods")], ("staying", not_terminating())),
            of_pods(
                "pod-update",
                &[rule("UPDATE", "", "pods"), rule("UPDATE", "", "pods/resize")],
                ("changed", cel!("{} && (object.spec != oldObject.spec || {})", not_terminating(), parting)),
            ),
            of_pods(
                "pod-status",
                &[rule("UPDATE", "", "pods/status")],
                (
                    "closing",
                    cel!("{} && ({} || {} || {})", not_terminating(), parting, closing, ended_by_status()),
                ),
            ),
        ]
    }

    fn flow_is_everywhere(&self) -> bool {
        self.gates.pod_deletion_flow_control && matches!(self.flow, Some(Governed::All))
    }

    /// Deletions of pods where there is flow control, and flow controls that are written. Where there are budgets, the
    /// pods are asked about already; where only some namespaces are governed, evictions are asked about here.
    pub(super) fn flow(&self) -> Vec<ValidatingWebhook> {
        if !self.gates.pod_deletion_flow_control {
            return Vec::new();
        }
        let declared = self.declared("flow-controls", flow::GROUP, flow::PLURAL);
        let of_pods = |name: &str, rules: &[RuleWithOperations], namespaces: LabelSelector| {
            ValidatingWebhook {
                rules: Some(rules.to_vec()),
                namespace_selector: Some(namespaces),
                match_conditions: Some(vec![
                    cel!(
                        "request.operation == 'CREATE' || !(has(oldObject.status) && has(oldObject.status.phase) \
                         && oldObject.status.phase in ['Succeeded', 'Failed'])"
                    )
                    .condition("unfinished"),
                    cel!(
                        "request.operation != 'UPDATE' || {} && {}",
                        not_terminating(),
                        ended_by_status()
                    )
                    .condition("ending"),
                ]),
                ..self.webhook_at(name, "/admit/flow")
            }
        };
        let (deletion, status) = (rule("DELETE", "", "pods"), rule("UPDATE", "", "pods/status"));
        let eviction = rule("CREATE", "", "pods/eviction");
        let own = requirement(NAMESPACE_NAME, "NotIn", &[self.own_namespace.to_owned()]);
        let mut webhooks = vec![declared];
        match self.flow {
            None => {}
            Some(Governed::All) => {
                let mut elsewhere = vec![self.own_namespace.to_owned()];
                if self.gates.pod_unavailable_budget {
                    elsewhere.extend(
                        self.budget_namespaces.iter().filter(|name| *name != self.own_namespace).cloned(),
                    );
                }
                let elsewhere = selector(&[requirement(NAMESPACE_NAME, "NotIn", &elsewhere)]);
                webhooks.push(of_pods(FLOW, &[deletion, status], elsewhere));
            }
            Some(Governed::Selected(rules)) => {
                webhooks.extend(rules.iter().enumerate().map(|(number, rule)| {
                    let mut requirements = vec![own.clone()];
                    requirements.extend(rule.expressions().iter().map(as_requirement));
                    let rules = [deletion.clone(), status.clone(), eviction.clone()];
                    of_pods(&format!("{FLOW}-{number}"), &rules, selector(&requirements))
                }));
            }
        }
        webhooks
    }
}

/// A status by which somebody other than Kubernetes says that a pod has another phase, or is not ready any more. Whether
/// that takes it down is for the guards to decide.
fn ended_by_status() -> Expression {
    let ready = |object: Expression| {
        cel!(
            "(has({}.status) && has({}.status.conditions) \
             && {}.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True'))",
            object,
            object,
            object
        )
    };
    let phase = |object: Expression| {
        cel!("(has({}.status) && has({}.status.phase) ? {}.status.phase : '')", object, object, object)
    };
    let (old, new) = (|| cel!("oldObject"), || cel!("object"));
    cel!(
        "(!(has(request.userInfo.groups) && 'system:nodes' in request.userInfo.groups) \
         && !request.userInfo.username.startsWith('system:serviceaccount:kube-system:') \
         && !(request.userInfo.username in \
         ['system:kube-controller-manager', 'system:kube-scheduler', 'system:cloud-controller-manager']) \
         && ({} != {} || {} && !{}))",
        phase(old()),
        phase(new()),
        ready(old()),
        ready(new())
    )
}
