//! Webhooks for what operators manage, and for the protections themselves.
//!
//! Operators' own changes, changes that anybody may make and objects that are going never leave the API server: an
//! operator works on while no replica answers.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{RuleWithOperations, ValidatingWebhook};
use palisade_api::components::{self, Chosen, ComponentKind, Components, GroupKind, Part, UserTemplate};
use palisade_cluster::components::{Guarded, Scaled, Sighted};
use palisade_cluster::{Discovery, Served};

use super::cel::{self, Expression, cel, string, strings};
use super::outage::not_terminating;
use super::{LONGEST_EXPRESSION, NAMES_TOLD, Wanted, reselects, rule, sound};
use crate::registration::coverage::Namespaces;

const PATH: &str = "/admit/components";
/// How many protections there are webhooks for, four each.
pub(super) const COMPONENT_PROTECTIONS: usize = 16;
/// How many bytes their webhooks may have.
pub(super) const LARGEST_COMPONENTS: usize = 128 << 10;
/// How many names a claim's is compared with, one after another.
const SETS_TOLD: usize = 100;

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
        let declared = self.declared("component-protections", components::GROUP, components::PLURAL);
        let mut webhooks = vec![declared];
        webhooks.extend(self.fitting_components().0);
        webhooks
    }

    /// The `ComponentProtection`s that there is no room for.
    pub(super) fn components_left_out(&self) -> BTreeSet<String> {
        if self.gates.component_protection { self.fitting_components().1 } else { BTreeSet::new() }
    }

    /// The webhooks of as many protections as there is room for, the oldest first; and those that are left out.
    fn fitting_components(&self) -> (Vec<ValidatingWebhook>, BTreeSet<String>) {
        let guarded = self.managed.guarded;
        let created =
            |name: Option<&str>| name.and_then(|name| guarded.by_name.get(name)).map(|known| &known.created);
        let mut by_age: Vec<(Option<&str>, &Components)> = guarded.readable().collect();
        // etcd-druid's own, which has no name, comes before all.
        by_age.sort_by_key(|(name, _)| (created(*name), *name));
        let (mut webhooks, mut left_out) = (Vec::new(), BTreeSet::new());
        let (mut number, mut left) = (0, LARGEST_COMPONENTS);
        for (name, components) in by_age {
            let prefix = match name {
                Some(_) => format!("components-{}", number + 1),
                None => "etcd-components".to_owned(),
            };
            let none = BTreeSet::new();
            let scaled = self.managed.sighted.scaled.get(&name.map(str::to_owned)).unwrap_or(&none);
            let protection = Protection { wanted: self, components, scaled, prefix };
            let planned: Vec<ValidatingWebhook> = protection.webhooks().into_iter().flatten().collect();
            let size: usize = planned.iter().map(size).sum();
            match name {
                Some(name) if number == COMPONENT_PROTECTIONS || size > left => {
                    left_out.insert(name.to_owned());
                }
                name => {
                    number += usize::from(name.is_some());
                    left = left.saturating_sub(size);
                    webhooks.extend(planned);
                }
            }
        }
        (webhooks, left_out)
    }
}

/// How many bytes of a webhook depend on policies, about.
fn size(webhook: &ValidatingWebhook) -> usize {
    let selectors = [&webhook.namespace_selector, &webhook.object_selector];
    let values =
        selectors.into_iter().flatten().flat_map(|selector| selector.match_expressions.iter().flatten());
    let values = values.map(|each| {
        each.key.len() + each.values.iter().flatten().map(|value| value.len() + 3).sum::<usize>()
    });
    let conditions = webhook.match_conditions.iter().flatten().map(|condition| condition.expression.len());
    values.chain(conditions).sum()
}

/// One protection, on its way to webhooks.
struct Protection<'a> {
    wanted: &'a Wanted<'a>,
    components: &'a Components,
    /// Those that can be scaled.
    scaled: &'a BTreeSet<Scaled>,
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
        conditions: Vec<(&'static str, Expression)>,
    ) -> Option<ValidatingWebhook> {
        // All of them only narrow what is asked about.
        let conditions = conditions
            .into_iter()
            .filter(|(_, expression)| expression.len() <= LONGEST_EXPRESSION)
            .map(|(name, expression)| expression.condition(name))
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
        let mut conditions = vec![("stripping", reselects()), staying(), self.not_by_operator()];
        conditions.extend(self.chosen_by_owner());
        self.selected(self.webhook("-status", rules.collect(), conditions)?)
    }

    /// A scale has no labels, so workloads that are components are told by their names.
    fn scales(&self) -> Option<ValidatingWebhook> {
        let is_there = |served: &Served| {
            self.scaled.iter().any(|each| each.group == served.group && each.plural == served.plural)
        };
        let kinds = self.kinds().filter(|(served, _)| is_there(served));
        let rules =
            kinds.map(|(served, _)| rule("UPDATE", &served.group, &format!("{}/scale", served.plural)));
        let mut conditions = vec![self.not_by_operator()];
        if self.scaled.len() <= NAMES_TOLD {
            let names: BTreeSet<String> =
                self.scaled.iter().map(|each| format!("{}/{}", each.namespace, each.name)).collect();
            conditions
                .push(("component", cel!("(request.namespace + '/' + request.name) in {}", strings(names))));
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
        conditions.extend(self.named_like_a_claim());
        let webhook =
            self.webhook("-claims", vec![rule("DELETE", "", "persistentvolumeclaims")], conditions)?;
        let namespaces = self.wanted.namespaces(&Namespaces::Some(namespaces));
        Some(ValidatingWebhook { namespace_selector: Some(namespaces), ..webhook })
    }

    /// `TEMPLATE-SET-ORDINAL` of a workload that is a component, where they are few enough to be told.
    fn named_like_a_claim(&self) -> Option<(&'static str, Expression)> {
        let names: BTreeSet<String> = self.scaled.iter().map(|each| format!("-{}-", each.name)).collect();
        let expression = cel!("{}.exists(n, oldObject.metadata.name.contains(n))", strings(&names));
        (!names.is_empty() && names.len() <= SETS_TOLD).then_some(("named-like-a-claim", expression))
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

    fn not_by_operator(&self) -> (&'static str, Expression) {
        let operators: BTreeSet<&String> = self.components.operators.iter().collect();
        ("not-by-operator", cel!("!(request.userInfo.username in {})", strings(operators)))
    }

    fn chosen_by_owner(&self) -> Option<(&'static str, Expression)> {
        (self.components.chosen == Chosen::Owned).then(|| ("owned", self.owner(&cel!("true"))))
    }

    /// Whether there is an owner that is a parent, of which something holds.
    fn owner(&self, holds: &Expression) -> Expression {
        let GroupKind { group, kind } = &self.components.parent;
        let version = if group.is_empty() {
            cel!("!o.apiVersion.contains('/')")
        } else {
            cel!("o.apiVersion.startsWith({})", string(&format!("{group}/")))
        };
        cel!(
            "(has(oldObject.metadata.ownerReferences) && oldObject.metadata.ownerReferences.exists(o, \
             o.kind == {} && {} && {}))",
            string(kind),
            version,
            holds
        )
    }

    /// What anybody named may update at any time is not asked about.
    fn not_free(&self) -> Vec<(&'static str, Expression)> {
        let mut frees = Vec::new();
        for free in &self.components.free_updates {
            let kinds: Vec<Expression> = free
                .kinds
                .iter()
                .filter_map(|kind| self.served(kind))
                .map(|served| {
                    cel!(
                        "request.resource.group == {} && request.resource.resource == {}",
                        string(&served.group),
                        string(&served.plural)
                    )
                })
                .collect();
            if kinds.is_empty() {
                continue;
            }
            let users = free.users.iter().map(|user| self.user(user));
            frees.push(cel!("({}) && ({})", cel::any(kinds), cel::any(users)));
        }
        if frees.is_empty() {
            return Vec::new();
        }
        vec![("not-free", cel!("!(request.operation == 'UPDATE' && ({}))", cel::any(frees)))]
    }

    fn user(&self, template: &UserTemplate) -> Expression {
        let filled = |parent: &Expression| {
            let parts = template.parts().iter().map(|part| match part {
                Part::Text(given) => string(given),
                Part::Namespace => cel!("request.namespace"),
                Part::Parent => parent.clone(),
            });
            cel!("request.userInfo.username == {}", cel::sum(parts))
        };
        match &self.components.parent_label {
            Some(label) => {
                let (labels, label) = (cel!("oldObject.metadata.labels"), string(label));
                let filled = filled(&cel!("{}[{}]", labels, label));
                cel!("(has({0}) && {1} in {0} && {2})", labels, label, filled)
            }
            None => self.owner(&filled(&cel!("o.name"))),
        }
    }

    /// Those that are labelled are asked about already, where that can be said.
    fn not_labelled(&self) -> Option<(&'static str, Expression)> {
        let Chosen::Labelled(rule) = &self.components.chosen else { return None };
        let labels = cel!("oldObject.metadata.labels");
        let equal = rule.expressions().iter().map(|expression| match &expression.values[..] {
            [value] if expression.operator == palisade_api::labels::Operator::In => {
                let (key, value) = (string(&expression.key), string(value));
                Some(cel!("{0} in {1} && {1}[{0}] == {2}", key, labels, value))
            }
            _ => None,
        });
        let equal = equal.collect::<Option<Vec<_>>>()?;
        Some(("not-labelled", cel!("!(has({}) && {})", labels, cel::all(equal))))
    }
}

fn staying() -> (&'static str, Expression) {
    ("staying", not_terminating())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registration::plan::plan;
    use crate::registration::plan::tests::plan_as;
    use palisade_api::components::{Components, druid};
    use palisade_engine::ProtectedComponents;
    use std::sync::Arc;

    fn served(group: &str, kind: &str, plural: &str, scalable: bool) -> Served {
        Served { scalable, ..Served::new(group, "v1", kind, plural, true) }
    }

    fn discovery() -> Discovery {
        let resources = vec![
            served("", "Service", "services", false),
            served("", "PersistentVolumeClaim", "persistentvolumeclaims", false),
            served("apps", "StatefulSet", "statefulsets", true),
            served("coordination.k8s.io", "Lease", "leases", false),
        ];
        Discovery { resources, ..Discovery::default() }
    }

    fn planned(components: Components, sighted: &Sighted) -> Vec<ValidatingWebhook> {
        let built_in = Some(Arc::new(ProtectedComponents { name: None, components: Ok(components) }));
        let guarded = Guarded { built_in, ..Guarded::default() };
        let managed = Managed { guarded: &guarded, sighted, discovery: &discovery() };
        let webhooks = plan_as(|wanted| plan(&Wanted { managed, ..wanted.clone() }));
        webhooks.into_iter().filter(|webhook| webhook.name.starts_with("etcd-components")).collect()
    }

    fn names(webhooks: &[ValidatingWebhook]) -> Vec<&str> {
        webhooks.iter().map(|webhook| webhook.name.trim_end_matches(".palisade.dev")).collect()
    }

    fn condition<'a>(webhook: &'a ValidatingWebhook, name: &str) -> Option<&'a str> {
        let conditions = webhook.match_conditions.as_ref()?;
        conditions.iter().find(|condition| condition.name == name).map(|condition| &*condition.expression)
    }

    fn etcds() -> Components {
        druid::components("druid", &[], &[])
    }

    #[test]
    fn nothing_is_asked_about_without_a_protection() {
        let guarded = Guarded::default();
        let managed = Managed { guarded: &guarded, sighted: &Sighted::default(), discovery: &discovery() };
        let webhooks = plan_as(|wanted| plan(&Wanted { managed, ..wanted.clone() }));
        assert!(!webhooks.iter().any(|webhook| webhook.name.starts_with("components")));
    }

    #[test]
    fn scales_and_claims_are_asked_about_where_there_are_components() {
        assert_eq!(
            names(&planned(etcds(), &Sighted::default())),
            ["etcd-components", "etcd-components-status"]
        );
        let mut sighted = Sighted::default();
        sighted.parents.insert(etcds().parent, [("shop".to_owned(), "main".to_owned())].into());
        let main = Scaled {
            group: "apps".to_owned(),
            plural: "statefulsets".to_owned(),
            namespace: "shop".to_owned(),
            name: "main".to_owned(),
        };
        let theirs = Scaled { name: "theirs".to_owned(), ..main.clone() };
        sighted.scaled.insert(Some("another".to_owned()), [theirs].into());
        sighted.scaled.insert(None, [main].into());
        let webhooks = planned(etcds(), &sighted);
        let all =
            ["etcd-components", "etcd-components-status", "etcd-components-scale", "etcd-components-claims"];
        assert_eq!(names(&webhooks), all);
        assert_eq!(
            condition(&webhooks[2], "component"),
            Some(r#"(request.namespace + '/' + request.name) in ["shop/main"]"#)
        );
        let like = condition(&webhooks[3], "named-like-a-claim");
        assert_eq!(like, Some(r#"["-main-"].exists(n, oldObject.metadata.name.contains(n))"#));
        let namespaces = webhooks[3].namespace_selector.as_ref().unwrap().match_expressions.as_ref().unwrap();
        assert_eq!(namespaces[0].values.as_deref(), Some(&["shop".to_owned()][..]));
    }

    #[test]
    fn operators_and_members_are_not_asked_about() {
        let webhooks = planned(etcds(), &Sighted::default());
        for webhook in &webhooks {
            assert_eq!(
                condition(webhook, "not-by-operator"),
                Some(r#"!(request.userInfo.username in ["druid"])"#)
            );
            assert_eq!(condition(webhook, "staying"), Some("!has(oldObject.metadata.deletionTimestamp)"));
            assert!(
                webhook.object_selector.as_ref().unwrap().match_expressions.is_some(),
                "{}",
                webhook.name
            );
        }
        let free = condition(&webhooks[0], "not-free").unwrap();
        assert!(free.contains(r#"request.resource.resource == "leases""#), "{free}");
        assert!(free.contains(r#""system:serviceaccount:" + request.namespace + ":" + oldObject.metadata.labels["app.kubernetes.io/part-of"]"#), "{free}");
    }

    #[test]
    fn owned_components_are_told_by_an_expression() {
        let owned = Components { chosen: Chosen::Owned, parent_label: None, ..etcds() };
        let webhooks = planned(owned, &Sighted::default());
        let expression = condition(&webhooks[0], "owned").unwrap();
        assert!(
            expression
                .contains(r#"o.kind == "Etcd" && o.apiVersion.startsWith("druid.gardener.cloud/") && true"#),
            "{expression}"
        );
        assert!(webhooks[0].object_selector.as_ref().unwrap().match_expressions.is_none());
    }
}
