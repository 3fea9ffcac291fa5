//! Webhooks for what operators manage, and for the protections themselves.
//!
//! Operators' own changes, changes that anybody may make and objects that are going never leave the API server: an
//! operator works on while no replica answers.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{MatchCondition, RuleWithOperations, ValidatingWebhook};
use palisade_api::components::{self, Chosen, ComponentKind, Components, GroupKind, Part, UserTemplate};
use palisade_cluster::components::{Guarded, Sighted};
use palisade_cluster::{Discovery, Served};
use serde_json::Value;

use super::{NAMES_TOLD, Wanted, changes, rule, sound};
use crate::registration::coverage::Namespaces;

const PATH: &str = "/admit/components";

/// What there is of components, and how it is served.
#[derive(Clone, Copy, Debug)]
pub struct Managed<'a> {
    pub guarded: &'a Guarded,
    pub sighted: &'a Sighted,
    pub discovery: &'a Discovery,
}

impl Wanted<'_> {
    pub(super) fn components(&self) -> Vec<ValidatingWebhook> {
        if !self.gates.component_protection {
            return Vec::new();
        }
        let declared = ValidatingWebhook {
            rules: Some(vec![RuleWithOperations {
                operations: Some(vec!["CREATE".to_owned(), "UPDATE".to_owned()]),
                ..rule("", components::GROUP, components::PLURAL)
            }]),
            ..self.webhook("component-protections")
        };
        let mut webhooks = vec![declared];
        let mut number = 0;
        for (name, components) in self.managed.guarded.readable() {
            number += usize::from(name.is_some());
            let prefix =
                if name.is_some() { format!("components-{number}") } else { "etcd-components".to_owned() };
            let protection = Protection { wanted: self, components, prefix };
            webhooks.extend(protection.webhooks().into_iter().flatten());
        }
        webhooks
    }
}

/// One protection, on its way to webhooks.
struct Protection<'a> {
    wanted: &'a Wanted<'a>,
    components: &'a Components,
    prefix: String,
}

impl Protection<'_> {
    fn webhooks(&self) -> [Option<ValidatingWebhook>; 4] {
        [self.changes(), self.statuses(), self.scales(), self.claims()]
    }

    fn served(&self, kind: &GroupKind) -> Option<&Served> {
        self.wanted.managed.discovery.find(&kind.group, &kind.kind)
    }

    /// The kinds that are served, and whether only their deletions matter.
    fn kinds(&self) -> impl Iterator<Item = (&Served, bool)> {
        let served = |kind: &ComponentKind| Some((self.served(&kind.of)?, kind.deletions_only));
        self.components.kinds.iter().filter_map(served)
    }

    fn webhook(
        &self,
        suffix: &str,
        rules: Vec<RuleWithOperations>,
        conditions: Vec<(&str, String)>,
    ) -> Option<ValidatingWebhook> {
        let conditions = conditions
            .into_iter()
            .map(|(name, expression)| MatchCondition { name: name.to_owned(), expression })
            .collect();
        (!rules.is_empty()).then(|| ValidatingWebhook {
            rules: Some(rules),
            match_conditions: Some(conditions),
            ..self.wanted.webhook_at(&format!("{}{suffix}", self.prefix), PATH)
        })
    }

    fn changes(&self) -> Option<ValidatingWebhook> {
        let rules = self.kinds().map(|(served, deletions_only)| {
            let operations: &[&str] = if deletions_only { &["DELETE"] } else { &["UPDATE", "DELETE"] };
            RuleWithOperations {
                operations: Some(operations.iter().map(|&word| word.to_owned()).collect()),
                ..rule("", &served.group, &served.plural)
            }
        });
        let mut conditions = vec![staying(), self.not_by_operator()];
        conditions.extend(self.chosen_by_owner());
        conditions.extend(self.not_free());
        self.selected(self.webhook("", rules.collect(), conditions)?)
    }

    /// Labels can be stripped there.
    fn statuses(&self) -> Option<ValidatingWebhook> {
        let kinds = self.kinds().filter(|(_, deletions_only)| !deletions_only);
        let rules =
            kinds.map(|(served, _)| rule("UPDATE", &served.group, &format!("{}/status", served.plural)));
        let stripping = format!("{} || {}", changes("labels"), changes("ownerReferences"));
        let mut conditions = vec![("stripping", stripping), staying(), self.not_by_operator()];
        conditions.extend(self.chosen_by_owner());
        self.selected(self.webhook("-status", rules.collect(), conditions)?)
    }

    /// A scale has no labels, so workloads that are components are told by their names.
    fn scales(&self) -> Option<ValidatingWebhook> {
        let of = |served: &Served| {
            let key = (served.group.clone(), served.plural.clone());
            self.wanted.managed.sighted.scaled.get(&key).filter(|names| !names.is_empty())
        };
        let kinds: Vec<(&Served, &BTreeSet<String>)> =
            self.kinds().filter_map(|(served, _)| Some((served, of(served)?))).collect();
        let rules = kinds
            .iter()
            .map(|(served, _)| rule("UPDATE", &served.group, &format!("{}/scale", served.plural)));
        let names: BTreeSet<&String> = kinds.iter().flat_map(|(_, names)| names.iter()).collect();
        let mut conditions = vec![self.not_by_operator()];
        if names.len() <= NAMES_TOLD {
            let names: Vec<String> = names.iter().map(|name| text(name)).collect();
            conditions.push((
                "component",
                format!("(request.namespace + '/' + request.name) in [{}]", names.join(", ")),
            ));
        }
        self.webhook("-scale", rules.collect(), conditions)
    }

    /// Claims that have lost their labels are told by their names, so all are asked about where there are parents.
    fn claims(&self) -> Option<ValidatingWebhook> {
        let claims = self.components.kind("", "PersistentVolumeClaim")?;
        self.components.kind("apps", "StatefulSet")?;
        self.served(&claims.of)?;
        let parents = self.wanted.managed.sighted.parents.get(&self.components.parent)?;
        let namespaces: BTreeSet<String> =
            parents.iter().map(|(namespace, _)| namespace.clone()).filter(|name| !name.is_empty()).collect();
        if namespaces.iter().all(|name| name == self.wanted.own_namespace) {
            return None;
        }
        let mut conditions = vec![staying(), self.not_by_operator()];
        conditions.extend(self.not_labelled());
        let webhook =
            self.webhook("-claims", vec![rule("DELETE", "", "persistentvolumeclaims")], conditions)?;
        let namespaces = self.wanted.namespaces(&Namespaces::Some(namespaces));
        Some(ValidatingWebhook { namespace_selector: Some(namespaces), ..webhook })
    }

    /// With the labels that components have; `None` if nothing can have them.
    fn selected(&self, webhook: ValidatingWebhook) -> Option<ValidatingWebhook> {
        match &self.components.chosen {
            Chosen::Owned => Some(webhook),
            Chosen::Labelled(labels) => {
                let requirements = sound(labels.expressions())?;
                Some(ValidatingWebhook { object_selector: Some(super::selector(&requirements)), ..webhook })
            }
        }
    }

    fn not_by_operator(&self) -> (&'static str, String) {
        let mut operators: Vec<String> = self.components.operators.iter().map(|user| text(user)).collect();
        operators.sort();
        ("not-by-operator", format!("!(request.userInfo.username in [{}])", operators.join(", ")))
    }

    fn chosen_by_owner(&self) -> Option<(&'static str, String)> {
        (self.components.chosen == Chosen::Owned).then(|| ("owned", self.owner("true")))
    }

    /// Whether there is an owner that is a parent, of which something holds.
    fn owner(&self, holds: &str) -> String {
        let GroupKind { group, kind } = &self.components.parent;
        let version = if group.is_empty() {
            "!o.apiVersion.contains('/')".to_owned()
        } else {
            format!("o.apiVersion.startsWith({})", text(&format!("{group}/")))
        };
        format!(
            "(has(oldObject.metadata.ownerReferences) && oldObject.metadata.ownerReferences.exists(o, \
             o.kind == {} && {version} && {holds}))",
            text(kind)
        )
    }

    /// What anybody named may update at any time is not asked about.
    fn not_free(&self) -> Vec<(&'static str, String)> {
        let mut frees = Vec::new();
        for free in &self.components.free_updates {
            let kinds: Vec<String> = free
                .kinds
                .iter()
                .filter_map(|kind| self.served(kind))
                .map(|served| {
                    format!(
                        "request.resource.group == {} && request.resource.resource == {}",
                        text(&served.group),
                        text(&served.plural)
                    )
                })
                .collect();
            if kinds.is_empty() {
                continue;
            }
            let users: Vec<String> = free.users.iter().map(|user| self.user(user)).collect();
            frees.push(format!("({}) && ({})", kinds.join(" || "), users.join(" || ")));
        }
        if frees.is_empty() {
            return Vec::new();
        }
        vec![("not-free", format!("!(request.operation == 'UPDATE' && ({}))", frees.join(" || ")))]
    }

    fn user(&self, template: &UserTemplate) -> String {
        let filled = |parent: &str| {
            let parts = template.parts().iter().map(|part| match part {
                Part::Text(given) => text(given),
                Part::Namespace => "request.namespace".to_owned(),
                Part::Parent => parent.to_owned(),
            });
            format!("request.userInfo.username == {}", parts.collect::<Vec<_>>().join(" + "))
        };
        match &self.components.parent_label {
            Some(label) => {
                let (labels, label) = ("oldObject.metadata.labels", text(label));
                format!("(has({labels}) && {label} in {labels} && {})", filled(&format!("{labels}[{label}]")))
            }
            None => self.owner(&filled("o.name")),
        }
    }

    /// Those that are labelled are asked about already, where that can be said.
    fn not_labelled(&self) -> Option<(&'static str, String)> {
        let Chosen::Labelled(rule) = &self.components.chosen else { return None };
        let labels = "oldObject.metadata.labels";
        let equal = rule.expressions().iter().map(|expression| match &expression.values[..] {
            [value] if expression.operator == palisade_api::labels::Operator::In => {
                let (key, value) = (text(&expression.key), text(value));
                Some(format!("{key} in {labels} && {labels}[{key}] == {value}"))
            }
            _ => None,
        });
        let equal = equal.collect::<Option<Vec<_>>>()?;
        Some(("not-labelled", format!("!(has({labels}) && {})", equal.join(" && "))))
    }
}

fn staying() -> (&'static str, String) {
    ("staying", "!has(oldObject.metadata.deletionTimestamp)".to_owned())
}

/// A text in an expression: JSON's strings are CEL's.
fn text(text: &str) -> String {
    Value::from(text).to_string()
}
