//! The webhooks that the API server should know, from what there is to guard.
//!
//! Every field is written out, also where it is Kubernetes' default, so that what is in place can be compared
//! with what should be, field by field.

pub mod cel;
mod churn;
mod components;
mod critical;
mod disabled;
mod every;
mod label_advice;
mod label_changes;
mod outage;
mod owners;
mod pods;
#[cfg(test)]
mod sizes;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    RuleWithOperations, ServiceReference, ValidatingWebhook, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use palisade_api::gates::FeatureGates;
use palisade_api::kinds::{TRANSIENT_KINDS, TransientKind};
use palisade_api::labels::{self, LabelExpression, LabelRule, Operator};
use palisade_api::marks;
use palisade_api::versions::{PolicyKind, PolicyVersions};

use super::coverage::{Coverage, Namespaces};
use cel::{Expression, cel, string};

use every::{EveryKind, EveryKinds};

pub use components::Managed;
pub use critical::Providers;
pub(super) use critical::{CRITICAL, PROVIDER_CONDITION};
pub use owners::Owners;

/// How long the API server waits for an answer.
const TIMEOUT_SECONDS: i32 = 5;
/// How long an expression may be: the API server takes 100,000 characters.
const LONGEST_EXPRESSION: usize = 64 << 10;
/// How many names an expression holds. It costs the API server next to nothing up to here, and is refused
/// somewhere below ten times as many.
const NAMES_TOLD: usize = 2_000;
pub(super) const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// How many webhooks there are for the kinds that protections name, one for each list of namespaces.
const KIND_WEBHOOKS: usize = 4;
/// How many bytes a list of namespaces may have: a thousand names of twenty letters.
const LARGEST_LIST: usize = 24 << 10;

/// The webhook for deletions of pods.
pub(super) const POD_DELETION: &str = "pod-deletion";
/// The webhook for deletions of pods in all namespaces.
pub(super) const FLOW: &str = "flow";

/// Where the API server reaches us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Outside of the cluster: `https://host:port`, without a path.
    Url(String),
    Service {
        namespace: String,
        name: String,
    },
}

/// What becomes of a deletion when nobody answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    /// It is refused: for a protection, a minute of refusing loses nothing.
    #[default]
    Fail,
    /// It is let through.
    Ignore,
}

/// The namespaces that flow controls govern.
#[derive(Clone, Debug)]
pub enum Governed {
    All,
    /// Those that one of these selects.
    Selected(Vec<LabelRule>),
}

/// What the registration is derived from.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    pub endpoint: &'a Endpoint,
    /// PEM.
    pub authorities: &'a str,
    pub own_namespace: &'a str,
    pub gates: FeatureGates,
    pub failure_policy: FailurePolicy,
    /// Where a pod carries a protection label now.
    pub eviction_namespaces: &'a BTreeSet<String>,
    /// Where a budget is now.
    pub budget_namespaces: &'a BTreeSet<String>,
    /// Whose pods flow controls are for; `None` without any.
    pub flow: Option<&'a Governed>,
    /// The providers of critical services.
    pub providers: &'a Providers,
    /// What operators manage.
    pub managed: Managed<'a>,
    /// What protections make necessary.
    pub coverage: &'a Coverage,
    /// The owners of something protected.
    pub owners: Owners<'a>,
    /// How new the policies are that all this is derived from.
    pub versions: &'a PolicyVersions,
}

/// All webhooks, in a fixed order.
pub fn plan(wanted: &Wanted<'_>) -> Vec<ValidatingWebhook> {
    outage::spare(plan_guards(wanted))
}

fn plan_guards(wanted: &Wanted<'_>) -> Vec<ValidatingWebhook> {
    let mut webhooks = Vec::new();
    webhooks.extend(wanted.budgets());
    webhooks.extend(wanted.flow());
    webhooks.extend(wanted.critical());
    webhooks.extend(wanted.components());
    webhooks.extend(wanted.disabled());
    if !wanted.gates.resources_deletion_protection {
        webhooks.extend(wanted.evictions());
        return webhooks;
    }
    if wanted.gates.cascade_protection {
        webhooks.push(wanted.cascade());
        webhooks.extend(wanted.owners());
    }
    for (name, requirements) in protecting_labels() {
        webhooks.push(wanted.labelled(name, &requirements));
    }
    webhooks.push(wanted.annotated());
    webhooks.extend(wanted.label_advice());
    webhooks.extend(wanted.protected());
    webhooks.extend(wanted.label_changes());
    webhooks.extend(wanted.adoptions());
    webhooks.extend(wanted.evictions());
    webhooks
}

/// The labels that protect, each with what selects it.
fn protecting_labels() -> [(&'static str, Vec<LabelSelectorRequirement>); 3] {
    [
        ("delete-protection", vec![requirement(marks::DELETE_PROTECTION, "Exists", &[])]),
        (
            "deletion-protected",
            vec![requirement(marks::DELETION_PROTECTED, "In", &[marks::ALWAYS.to_owned()])],
        ),
        (
            "disable-cascading-deletion",
            vec![
                requirement(marks::DISABLE_CASCADING_DELETION, "Exists", &[]),
                requirement(marks::DISABLE_CASCADING_DELETION, "NotIn", &["false".to_owned()]),
            ],
        ),
    ]
}

impl Wanted<'_> {
    /// Deletions of anything that carries a label.
    fn labelled(&self, name: &str, requirements: &[LabelSelectorRequirement]) -> ValidatingWebhook {
        ValidatingWebhook {
            rules: Some(vec![rule("DELETE", "*", "*")]),
            object_selector: Some(selector(requirements)),
            match_conditions: Some(vec![lasting().condition("lasting")]),
            ..self.webhook(name)
        }
    }

    /// Deletions of anything that carries the annotation. No selector reads annotations, so this one is told apart by an
    /// expression, which the API server evaluates for every deletion.
    fn annotated(&self) -> ValidatingWebhook {
        let annotated = cel!("{} && {}", annotated(&cel!("oldObject")), lasting());
        ValidatingWebhook {
            rules: Some(vec![rule("DELETE", "*", "*")]),
            match_conditions: Some(vec![annotated.condition("annotated")]),
            ..self.webhook("disable-cascading-deletion-annotation")
        }
    }

    /// Deletions of what may hold protected objects. They are rare, so each is looked at.
    fn cascade(&self) -> ValidatingWebhook {
        let (definitions, namespaces) = ("customresourcedefinitions", "namespaces");
        ValidatingWebhook {
            rules: Some(vec![
                rule("DELETE", "", namespaces),
                rule("DELETE", "apiextensions.k8s.io", definitions),
            ]),
            ..self.webhook_at("cascade", "/admit/cascade")
        }
    }

    /// Deletions of the kinds that protections name, where they name them.
    fn protected(&self) -> Vec<ValidatingWebhook> {
        let kinds = merged(&self.coverage.resources).into_iter().map(|(namespaces, resources)| {
            let groups: BTreeSet<&String> = resources.iter().map(|(group, _)| group).collect();
            let of_group = |group: &String| RuleWithOperations {
                resources: Some(
                    resources
                        .iter()
                        .filter(|(of, _)| of == group)
                        .map(|(_, plural)| plural.clone())
                        .collect(),
                ),
                ..rule("DELETE", group, "")
            };
            ValidatingWebhook {
                rules: Some(groups.into_iter().map(of_group).collect()),
                namespace_selector: Some(self.namespaces(&namespaces)),
                ..self.counted_webhook("")
            }
        });
        let every = EveryKinds::of(&self.coverage.every).webhooks.into_iter().map(|every| {
            let EveryKind { groups, namespaces, labels, condition } = every;
            let mut conditions =
                vec![lasting().condition("lasting"), churn::not_churn().condition("not-churn")];
            conditions.extend(condition.map(|condition| condition.condition("selected")));
            ValidatingWebhook {
                rules: Some(groups.iter().map(|group| of_every_kind(group, &namespaces)).collect()),
                namespace_selector: Some(self.namespaces(&namespaces)),
                object_selector: Some(if labels.is_empty() {
                    LabelSelector::default()
                } else {
                    selector(&labels)
                }),
                match_conditions: Some(conditions),
                ..self.counted_webhook("")
            }
        });
        let mut webhooks: Vec<ValidatingWebhook> = kinds.chain(every).collect();
        for (number, webhook) in webhooks.iter_mut().enumerate() {
            webhook.name = format!("protections-{number}.palisade.dev");
        }
        webhooks
    }

    /// Some namespaces, or all; but never our own, or we could not be mended while we are down.
    fn namespaces(&self, namespaces: &Namespaces) -> LabelSelector {
        match namespaces {
            Namespaces::All => {
                selector(&[requirement(NAMESPACE_NAME, "NotIn", &[self.own_namespace.to_owned()])])
            }
            Namespaces::Some(named) => {
                // What can't be the name of a namespace has no objects, and the API server would refuse it all.
                let can_exist = |name: &&String| *name != self.own_namespace && labels::is_value(name);
                let others: Vec<String> = named.iter().filter(can_exist).cloned().collect();
                // Too many to be told: then we are asked about all of them, and decide.
                if list_size(&others) > LARGEST_LIST {
                    return self.namespaces(&Namespaces::All);
                }
                // In nothing, if only our own was named.
                if others.is_empty() {
                    return selector(&[requirement(NAMESPACE_NAME, "DoesNotExist", &[])]);
                }
                selector(&[requirement(NAMESPACE_NAME, "In", &others)])
            }
        }
    }

    /// Policies of a kind of ours that are written.
    fn declared(&self, name: &str, group: &str, plural: &str) -> ValidatingWebhook {
        self.declared_at(name, "/admit/policies", group, plural)
    }

    fn declared_at(&self, name: &str, path: &str, group: &str, plural: &str) -> ValidatingWebhook {
        let operations = Some(vec!["CREATE".to_owned(), "UPDATE".to_owned()]);
        let rules = Some(vec![RuleWithOperations { operations, ..rule("", group, plural) }]);
        ValidatingWebhook { rules, ..self.webhook_at(name, path) }
    }

    fn webhook(&self, name: &str) -> ValidatingWebhook {
        self.webhook_at(name, "/admit/labels")
    }

    /// One whose verdicts count for the protections' status.
    fn counted_webhook(&self, name: &str) -> ValidatingWebhook {
        self.webhook_at(name, "/admit/protections")
    }

    /// A webhook that asks at a path, with how new the policies are that it asks for.
    fn webhook_at(&self, name: &str, path: &str) -> ValidatingWebhook {
        let path = &format!("{path}{}", self.versions.only(&kinds_of(path)).suffix());
        let (url, service) = match self.endpoint {
            Endpoint::Url(url) => (Some(format!("{}{path}", url.trim_end_matches('/'))), None),
            Endpoint::Service { namespace, name } => {
                let service = ServiceReference {
                    namespace: namespace.clone(),
                    name: name.clone(),
                    path: Some(path.to_owned()),
                    port: Some(443),
                };
                (None, Some(service))
            }
        };
        ValidatingWebhook {
            name: format!("{name}.palisade.dev"),
            admission_review_versions: vec!["v1".to_owned()],
            client_config: WebhookClientConfig {
                ca_bundle: Some(ByteString(self.authorities.as_bytes().to_vec())),
                service,
                url,
            },
            failure_policy: Some(match self.failure_policy {
                FailurePolicy::Fail => "Fail".to_owned(),
                FailurePolicy::Ignore => "Ignore".to_owned(),
            }),
            match_conditions: None,
            match_policy: Some("Equivalent".to_owned()),
            namespace_selector: Some(self.namespaces(&Namespaces::All)),
            object_selector: Some(LabelSelector::default()),
            rules: None,
            // Budgets will be written to, and nothing ever is on a dry run.
            side_effects: "NoneOnDryRun".to_owned(),
            timeout_seconds: Some(TIMEOUT_SECONDS),
        }
    }
}

/// The kinds of policies that are decided by where the words of a path say what is asked for.
fn kinds_of(path: &str) -> Vec<PolicyKind> {
    let of_word = |word: &str| match word {
        "owners" => vec![PolicyKind::Protection],
        "cascade" => vec![PolicyKind::Protection, PolicyKind::CriticalService],
        // With protections, which are asked for by their own word.
        "evictions" => vec![PolicyKind::Budget, PolicyKind::FlowControl, PolicyKind::CriticalService],
        word => PolicyKind::of_word(word).into_iter().collect(),
    };
    path.split('/').flat_map(of_word).collect()
}

/// The policies that the registration has no room for, by the names by which it carries them, and why.
pub fn left_out(wanted: &Wanted<'_>) -> BTreeMap<String, String> {
    let of_every = format!(
        "the registration has no room for all rules of kind \"*\": together they may name {} KiB of namespaces, and {} KiB of \
         labels and names; the oldest protections come first",
        LARGEST_LIST >> 10,
        every::LARGEST_CONDITION >> 10
    );
    let of_components = format!(
        "the registration has no room for it: {} ComponentProtections and {} KiB of what they select; the oldest come first",
        components::COMPONENT_PROTECTIONS,
        components::LARGEST_COMPONENTS >> 10
    );
    let every = EveryKinds::of(&wanted.coverage.every).left_out.into_iter();
    let every =
        every.filter(|_| wanted.gates.resources_deletion_protection).map(|name| (name, of_every.clone()));
    let components = wanted.components_left_out().into_iter();
    every.chain(components.map(|name| (super::components_name(&name), of_components.clone()))).collect()
}

/// Deletions of every kind of a group. A namespace selector selects all that has no namespace, so that it is left out here.
fn of_every_kind(group: &str, namespaces: &Namespaces) -> RuleWithOperations {
    let rule = rule("DELETE", group, "*");
    match namespaces {
        Namespaces::Some(_) => RuleWithOperations { scope: Some("Namespaced".to_owned()), ..rule },
        Namespaces::All => rule,
    }
}

/// Resources by the namespaces in which they are asked about, with no more than a few lists of namespaces.
fn merged(
    resources: &BTreeMap<Namespaces, BTreeSet<(String, String)>>,
) -> BTreeMap<Namespaces, BTreeSet<(String, String)>> {
    if resources.len() <= KIND_WEBHOOKS {
        return resources.clone();
    }
    let mut merged: BTreeMap<Namespaces, BTreeSet<(String, String)>> = BTreeMap::new();
    let (mut together, mut of_them) = (BTreeSet::new(), BTreeSet::new());
    for (namespaces, kinds) in resources {
        match namespaces {
            Namespaces::All => merged.entry(Namespaces::All).or_default().extend(kinds.iter().cloned()),
            Namespaces::Some(names) => {
                together.extend(names.iter().cloned());
                of_them.extend(kinds.iter().cloned());
            }
        }
    }
    // In a namespace that one rule names, what another rule names is asked about as well.
    let namespaces =
        if list_size(&together) > LARGEST_LIST { Namespaces::All } else { Namespaces::Some(together) };
    merged.entry(namespaces).or_default().extend(of_them);
    merged
}

/// What a list of names takes.
fn list_size<'a>(names: impl IntoIterator<Item = &'a String>) -> usize {
    names.into_iter().map(|name| name.len() + 3).sum()
}

/// A selector without what no label can be, which the API server would refuse; `None` if it can select nothing.
fn sound(expressions: &[LabelExpression]) -> Option<Vec<LabelSelectorRequirement>> {
    let mut requirements = Vec::new();
    for LabelExpression { key, operator, values } in expressions {
        let values: Vec<String> = values.iter().filter(|value| labels::is_value(value)).cloned().collect();
        let has_values = !values.is_empty();
        match (operator, labels::is_key(key)) {
            (Operator::In | Operator::Exists, false) => return None,
            (Operator::In, true) if !has_values => return None,
            // No object has such a label, so all of them pass.
            (Operator::NotIn | Operator::DoesNotExist, false) => {}
            (Operator::NotIn, true) if !has_values => {}
            (_, true) => requirements.push(requirement(key, &format!("{operator:?}"), &values)),
        }
    }
    Some(requirements)
}

/// That an object carries the annotation that protects it.
fn annotated(object: &Expression) -> Expression {
    cel!(
        "has({0}.metadata.annotations) && {1} in {0}.metadata.annotations \
         && {0}.metadata.annotations[{1}] != 'false'",
        object,
        string(marks::DISABLE_CASCADING_DELETION)
    )
}

/// That the kind does not come and go by itself.
fn lasting() -> Expression {
    let kinds = TRANSIENT_KINDS.iter().map(|TransientKind { group, plural, .. }| {
        let (plural, group) = (string(plural), string(group));
        cel!("(request.resource.resource == {} && request.resource.group == {})", plural, group)
    });
    cel!("!({})", cel::any(kinds))
}

/// Whether labels or owner references change, given either in the old object and in the new one.
fn changes((old, new): (Expression, Expression)) -> Expression {
    cel!("(has({0}) ? (!has({1}) || {1} != {0}) : has({1}))", old, new)
}

/// Whether what a policy may choose an object by changes.
fn reselects() -> Expression {
    let labels = (cel!("oldObject.metadata.labels"), cel!("object.metadata.labels"));
    let owners = (cel!("oldObject.metadata.ownerReferences"), cel!("object.metadata.ownerReferences"));
    cel!("{} || {}", changes(labels), changes(owners))
}

fn as_requirement(expression: &LabelExpression) -> LabelSelectorRequirement {
    let LabelExpression { key, operator, values } = expression;
    requirement(key, &format!("{operator:?}"), values)
}

fn rule(operation: &str, group: &str, resource: &str) -> RuleWithOperations {
    let one = |word: &str| Some(vec![word.to_owned()]);
    RuleWithOperations {
        operations: one(operation),
        api_groups: one(group),
        api_versions: one("*"),
        resources: one(resource),
        scope: Some("*".to_owned()),
    }
}

fn selector(requirements: &[LabelSelectorRequirement]) -> LabelSelector {
    LabelSelector { match_expressions: Some(requirements.to_vec()), match_labels: None }
}

fn requirement(key: &str, operator: &str, values: &[String]) -> LabelSelectorRequirement {
    let values = (!values.is_empty()).then(|| values.to_vec());
    LabelSelectorRequirement { key: key.to_owned(), operator: operator.to_owned(), values }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::registration::coverage::Every;
    use palisade_cluster::components::{Guarded, Sighted};
    use palisade_cluster::{Ancestor, Ancestors};
    use palisade_cluster::{Discovery, Served};
    use palisade_engine::ProtectedComponents;

    const URL: &str = "https://127.0.0.1:9443";

    fn planned_for(endpoint: &Endpoint, namespaces: &[&str], gates: FeatureGates) -> Vec<ValidatingWebhook> {
        planned_with(endpoint, namespaces, &[], gates)
    }

    fn planned_with(
        endpoint: &Endpoint,
        namespaces: &[&str],
        budgets: &[&str],
        gates: FeatureGates,
    ) -> Vec<ValidatingWebhook> {
        planned_with_flow(endpoint, namespaces, budgets, None, gates)
    }

    fn planned_with_flow(
        endpoint: &Endpoint,
        namespaces: &[&str],
        budgets: &[&str],
        flow: Option<&Governed>,
        gates: FeatureGates,
    ) -> Vec<ValidatingWebhook> {
        plan_as(|wanted| {
            plan(&Wanted {
                endpoint,
                gates,
                eviction_namespaces: &namespaces.iter().map(|&name| name.to_owned()).collect(),
                budget_namespaces: &budgets.iter().map(|&name| name.to_owned()).collect(),
                flow,
                ..wanted.clone()
            })
        })
    }

    /// Plans what differs from a cluster with nothing in it.
    pub(in crate::registration) fn plan_as(
        plan: impl FnOnce(&Wanted<'_>) -> Vec<ValidatingWebhook>,
    ) -> Vec<ValidatingWebhook> {
        plan(&Wanted {
            endpoint: &Endpoint::Url(URL.to_owned()),
            authorities: "PEM",
            own_namespace: "palisade-system",
            gates: FeatureGates::default(),
            failure_policy: FailurePolicy::Fail,
            eviction_namespaces: &BTreeSet::new(),
            budget_namespaces: &BTreeSet::new(),
            flow: None,
            providers: &Providers::default(),
            managed: Managed {
                guarded: &Guarded::default(),
                sighted: &Sighted::default(),
                discovery: &Discovery::default(),
            },
            coverage: &Coverage::default(),
            owners: Owners::Registered(&[]),
            versions: &PolicyVersions::default(),
        })
    }

    /// What is planned where every guard has something to do, also with pods.
    pub(in crate::registration::plan) fn planned_for_everything() -> Vec<ValidatingWebhook> {
        let pods = || BTreeSet::from([(String::new(), "pods".to_owned())]);
        let shop = || BTreeSet::from(["shop".to_owned()]);
        let discovery = Discovery {
            resources: vec![
                Served::new("", "v1", "Pod", "pods", true),
                Served::new("apps", "v1", "StatefulSet", "statefulsets", true),
            ],
            ..Discovery::default()
        };
        let provider = critical::tests::provider("", "pods", "shop", "db-0");
        let every = |namespace: Option<&str>| Every {
            protection: "sample".to_owned(),
            group: None,
            namespace: namespace.map(str::to_owned),
            namespace_prefix: None,
            labels: None,
            names: None,
        };
        let coverage = Coverage {
            resources: [(Namespaces::All, pods()), (Namespaces::Some(shop()), pods())].into(),
            every: vec![every(None), every(Some("shop"))],
            label_changes: [((LabelRule::of(&labels::LabelSelector::default()), Namespaces::All), pods())]
                .into(),
            adoptions: [(Namespaces::All, pods())].into(),
            pods: Some(Namespaces::All),
        };
        let components = palisade_api::components::druid::components("druid", &[], &[]);
        let built_in = ProtectedComponents { name: None, components: Ok(components) };
        let guarded = Guarded { built_in: Some(Arc::new(built_in)), ..Guarded::default() };
        let selector = labels::LabelSelector {
            match_labels: [("tier".to_owned(), "prod".to_owned())].into(),
            match_expressions: Vec::new(),
        };
        let owner = Ancestor {
            group: String::new(),
            plural: "pods".to_owned(),
            namespace: Some("shop".to_owned()),
            guarded: true,
        };
        let ancestors = Ancestors([("11111111".to_owned(), owner)].into());
        let of = |flow: &Governed| {
            plan_as(|wanted| {
                plan(&Wanted {
                    eviction_namespaces: &shop(),
                    budget_namespaces: &shop(),
                    flow: Some(flow),
                    providers: &Providers::of([&provider], &discovery),
                    managed: Managed {
                        guarded: &guarded,
                        sighted: &Sighted::default(),
                        discovery: &discovery,
                    },
                    coverage: &coverage,
                    owners: Owners::Known(&ancestors),
                    ..wanted.clone()
                })
            })
        };
        let mut all = of(&Governed::All);
        all.extend(of(&Governed::Selected(vec![LabelRule::of(&selector)])));
        all
    }

    /// `DELETE /pods`
    pub(in crate::registration::plan) fn rule_words(webhook: &ValidatingWebhook) -> Vec<String> {
        let words = |list: &Option<Vec<String>>| list.clone().unwrap_or_default().join("+");
        let rules = webhook.rules.iter().flatten();
        rules
            .map(|rule| {
                format!("{} {}/{}", words(&rule.operations), words(&rule.api_groups), words(&rule.resources))
            })
            .collect()
    }

    fn planned(namespaces: &[&str]) -> Vec<ValidatingWebhook> {
        planned_for(&Endpoint::Url(URL.to_owned()), namespaces, FeatureGates::default())
    }

    fn names(webhooks: &[ValidatingWebhook]) -> Vec<&str> {
        webhooks.iter().map(|webhook| webhook.name.as_str()).collect()
    }

    #[test]
    fn a_delete_of_an_unlabelled_object_never_leaves_the_api_server() {
        let rare = [
            "cascade.palisade.dev",
            "budgets.palisade.dev",
            "budgets-by-administrators.palisade.dev",
            "flow-controls.palisade.dev",
            "critical-services.palisade.dev",
            "component-protections.palisade.dev",
        ];
        for webhook in planned(&[]).into_iter().filter(|webhook| !rare.contains(&webhook.name.as_str())) {
            let selects = webhook.object_selector.as_ref().unwrap().match_expressions.is_some();
            assert!(selects || webhook.match_conditions.is_some(), "{} asks about everything", webhook.name);
        }
    }

    #[test]
    fn the_annotation_is_asked_about_on_every_kind_that_lasts() {
        let webhooks = planned(&[]);
        let name = "disable-cascading-deletion-annotation.palisade.dev";
        let webhook = webhooks.iter().find(|webhook| webhook.name == name).unwrap();
        assert_eq!(rule_words(webhook), ["DELETE */*"]);
        let condition = &webhook.match_conditions.as_ref().unwrap()[0].expression;
        assert!(condition.starts_with("has(oldObject.metadata.annotations) && "), "{condition}");
        assert!(condition.ends_with(lasting().as_str()), "{condition}");
    }

    #[test]
    fn what_no_label_can_be_is_left_out_of_a_selector() {
        let expression = |key: &str, operator: Operator, values: &[&str]| LabelExpression {
            key: key.to_owned(),
            operator,
            values: values.iter().map(|&value| value.to_owned()).collect(),
        };
        let app = |operator: &str| Some(vec![requirement("app", operator, &["web".to_owned()])]);
        assert_eq!(sound(&[expression("app", Operator::In, &["web", "a b"])]), app("In"));
        assert_eq!(sound(&[expression("app", Operator::NotIn, &["web", "a b"])]), app("NotIn"));
        assert_eq!(sound(&[expression("app", Operator::In, &["a b"])]), None, "nothing has it");
        assert_eq!(sound(&[expression("a b", Operator::Exists, &[])]), None, "nothing has it");
        assert_eq!(sound(&[expression("app", Operator::NotIn, &["a b"])]), Some(Vec::new()), "all pass");
        assert_eq!(sound(&[expression("a b", Operator::DoesNotExist, &[])]), Some(Vec::new()), "all pass");
    }

    #[test]
    fn evictions_are_registered_only_where_a_pod_is_labelled() {
        assert!(!names(&planned(&[])).contains(&"eviction.palisade.dev"));
        let webhooks = planned(&["palisade-system", "shop"]);
        let eviction = webhooks.iter().find(|webhook| webhook.name == "eviction.palisade.dev").unwrap();
        assert_eq!(
            eviction.namespace_selector,
            Some(selector(&[requirement(NAMESPACE_NAME, "In", &["shop".to_owned()])]))
        );
        assert!(
            !names(&planned(&["palisade-system"])).contains(&"eviction.palisade.dev"),
            "ours is never looked at"
        );
    }

    #[test]
    fn our_own_namespace_is_never_asked_about() {
        for webhook in planned(&[]) {
            let selector = webhook.namespace_selector.unwrap();
            let excludes = |requirement: &LabelSelectorRequirement| {
                let names = requirement.values.iter().flatten();
                requirement.key == NAMESPACE_NAME
                    && requirement.operator == "NotIn"
                    && names.into_iter().any(|name| name == "palisade-system")
            };
            assert!(selector.match_expressions.iter().flatten().any(excludes), "{}", webhook.name);
        }
    }

    #[test]
    fn a_gate_that_is_off_registers_nothing_that_refuses() {
        let url = Endpoint::Url(URL.to_owned());
        let off = FeatureGates { resources_deletion_protection: false, ..FeatureGates::default() };
        let declared = [
            "budgets.palisade.dev",
            "budgets-by-administrators.palisade.dev",
            "flow-controls.palisade.dev",
            "critical-services.palisade.dev",
            "component-protections.palisade.dev",
        ];
        let refusing = |webhooks: Vec<ValidatingWebhook>| -> Vec<String> {
            let refuses = |webhook: &&ValidatingWebhook| webhook.failure_policy.as_deref() == Some("Fail");
            webhooks.iter().filter(refuses).map(|webhook| webhook.name.clone()).collect()
        };
        assert_eq!(refusing(planned_with(&url, &["shop"], &[], off)), declared);
        let off = FeatureGates { pod_unavailable_budget: false, pod_deletion_flow_control: false, ..off };
        let off = FeatureGates { critical_service: false, component_protection: false, ..off };
        let none = planned_with_flow(&url, &["shop"], &["shop"], Some(&Governed::All), off);
        assert_eq!(refusing(none), [""; 0]);
    }

    #[test]
    fn a_budget_is_written_by_an_administrator_or_by_somebody_else() {
        let all = planned(&[]);
        let condition = |name: &str| {
            let name = format!("{name}.palisade.dev");
            let webhook = all.iter().find(|webhook| webhook.name == name).unwrap();
            let [condition] = &webhook.match_conditions.as_ref().unwrap()[..] else {
                panic!("one condition")
            };
            condition.expression.clone()
        };
        let by_administrators = condition("budgets-by-administrators");
        let may = |verb: &str| {
            format!(
                r#"authorizer.group("policy.kruise.io").resource("podunavailablebudgets").check("{verb}").allowed()"#
            )
        };
        assert_eq!(by_administrators, format!("({} && {})", may("create"), may("update")));
        assert_eq!(condition("budgets"), format!("!{by_administrators}"), "nobody is asked twice");
    }

    #[test]
    fn pods_are_asked_about_only_where_there_are_budgets() {
        let url = Endpoint::Url(URL.to_owned());
        let of_pods = ["pod-deletion.palisade.dev", "pod-update.palisade.dev", "pod-status.palisade.dev"];
        let asks = |webhooks: &[ValidatingWebhook]| {
            of_pods.iter().filter(|name| names(webhooks).contains(name)).count()
        };
        assert_eq!(asks(&planned(&["shop"])), 0);
        assert_eq!(asks(&planned_with(&url, &[], &["palisade-system"], FeatureGates::default())), 0);
        let webhooks = planned_with(&url, &["labelled"], &["shop"], FeatureGates::default());
        assert_eq!(asks(&webhooks), 3);
        let namespaces = |name: &str| {
            let webhook = webhooks.iter().find(|webhook| webhook.name == name).unwrap();
            webhook.namespace_selector.clone().unwrap().match_expressions.unwrap()[0].values.clone().unwrap()
        };
        assert!(of_pods.iter().all(|name| namespaces(name) == ["shop"]));
        assert_eq!(namespaces("eviction.palisade.dev"), ["labelled", "shop"]);
    }

    #[test]
    fn with_flow_control_each_deletion_of_a_pod_is_asked_about_once() {
        let url = Endpoint::Url(URL.to_owned());
        let planned = |flow: &Governed| {
            planned_with_flow(&url, &["labelled"], &["shop"], Some(flow), FeatureGates::default())
        };
        let find = |webhooks: &[ValidatingWebhook], name: &str| {
            let name = format!("{name}.palisade.dev");
            webhooks.iter().find(|webhook| webhook.name == name).cloned()
        };
        let asks = |webhook: &ValidatingWebhook| {
            let path = webhook.client_config.url.as_deref().unwrap().strip_prefix(URL).unwrap().to_owned();
            let expressions = webhook.namespace_selector.clone().unwrap().match_expressions.unwrap();
            let told = expressions.iter().map(|expression| {
                let values = expression.values.clone().unwrap_or_default().join(",");
                format!(
                    "{} {} {values}",
                    expression.key.trim_start_matches("kubernetes.io/"),
                    expression.operator
                )
            });
            (path, told.collect::<Vec<_>>().join("; "))
        };
        let all = planned(&Governed::All);
        let asked = |name: &str| asks(&find(&all, name).unwrap());
        let pair = |path: &str, namespaces: &str| (path.to_owned(), namespaces.to_owned());
        assert_eq!(asked("flow"), pair("/admit/flow", "metadata.name NotIn palisade-system,shop"));
        assert_eq!(asked("pod-deletion"), pair("/admit/budgets/flow", "metadata.name In shop"));
        assert_eq!(
            asked("eviction"),
            pair("/admit/protections/evictions/flow", "metadata.name NotIn palisade-system")
        );

        let selector = labels::LabelSelector {
            match_labels: [("tier".to_owned(), "prod".to_owned())].into(),
            match_expressions: Vec::new(),
        };
        let some = planned(&Governed::Selected(vec![LabelRule::of(&selector)]));
        assert_eq!(
            asks(&find(&some, "flow-0").unwrap()),
            pair("/admit/flow", "metadata.name NotIn palisade-system; tier In prod")
        );
        assert_eq!(
            find(&some, "flow-0").unwrap().rules.unwrap().len(),
            3,
            "deletions, evictions and statuses"
        );
        assert!(find(&some, "flow").is_none());
        assert_eq!(
            asks(&find(&some, "eviction").unwrap()),
            pair("/admit/protections/evictions", "metadata.name In labelled,shop")
        );
    }

    #[test]
    fn each_path_says_how_new_the_policies_are_that_it_asks_for() {
        let mut versions = PolicyVersions::default();
        for (kind, version) in PolicyKind::ALL.into_iter().zip([1, 2, 3, 4, 5]) {
            versions.raise(kind, version);
        }
        let shop = BTreeSet::from(["shop".to_owned()]);
        let all = plan_as(|wanted| {
            plan(&Wanted {
                eviction_namespaces: &shop,
                budget_namespaces: &shop,
                flow: Some(&Governed::All),
                versions: &versions,
                ..wanted.clone()
            })
        });
        let path = |name: &str| {
            let name = format!("{name}.palisade.dev");
            let webhook = all.iter().find(|webhook| webhook.name == name).unwrap();
            webhook.client_config.url.as_deref().unwrap().replace(URL, "")
        };
        assert_eq!(path("delete-protection"), "/admit/labels");
        assert_eq!(path("budgets"), "/admit/policies");
        assert_eq!(path("budgets-by-administrators"), "/admit/policies/administrator");
        assert_eq!(path("cascade"), "/admit/cascade/at/protections-1.critical-4");
        assert_eq!(path("pod-deletion"), "/admit/budgets/flow/at/budgets-2.flow-3");
        assert_eq!(path("flow"), "/admit/flow/at/flow-3");
        assert_eq!(
            path("eviction"),
            "/admit/protections/evictions/flow/at/protections-1.budgets-2.flow-3.critical-4"
        );
    }

    #[test]
    fn a_service_is_called_by_reference_and_a_url_by_address() {
        let config = |webhooks: Vec<ValidatingWebhook>| webhooks[0].client_config.clone();
        assert_eq!(config(planned(&[])).url.as_deref(), Some("https://127.0.0.1:9443/admit/policies"));
        let endpoint = Endpoint::Service { namespace: "palisade-system".into(), name: "palisade".into() };
        let service = config(planned_for(&endpoint, &[], FeatureGates::default()));
        assert_eq!(service.url, None);
        assert_eq!(service.service.unwrap().path.as_deref(), Some("/admit/policies"));
    }
}
