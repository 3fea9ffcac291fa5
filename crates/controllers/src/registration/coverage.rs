//! What the API server must ask about for the protections to hold, and what it cannot be asked.

use std::collections::{BTreeMap, BTreeSet};

use palisade_api::labels::LabelRule;
use palisade_api::protection::{Pattern, Rule, Target};
use palisade_cluster::Discovery;
use palisade_engine::Protections;

/// Some namespaces, or all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Namespaces {
    Some(BTreeSet<String>),
    All,
}

/// What protections make necessary.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// The resources that rules name, as `(group, plural)`, by the namespaces that they concern.
    pub resources: BTreeMap<Namespaces, BTreeSet<(String, String)>>,
    /// The rules for every kind.
    pub every: Vec<Every>,
    /// Whose labels must not change so that a rule no longer selects them: by its labels and its namespaces, the
    /// resources as `(group, plural)`. `*` stands for every group or every kind.
    pub label_changes: BTreeMap<(LabelRule, Namespaces), BTreeSet<(String, String)>>,
    /// What must not be made a controller's, which could delete it: the resources of rules for whatever there is.
    pub adoptions: BTreeMap<Namespaces, BTreeSet<(String, String)>>,
    /// Where pods are protected.
    pub pods: Option<Namespaces>,
}

/// A rule for every kind of a group, or of all.
#[derive(Clone, Debug)]
pub struct Every {
    pub protection: String,
    pub group: Option<String>,
    pub namespace: Option<String>,
    /// What the names of namespaces begin with, where a pattern tells them.
    pub namespace_prefix: Option<String>,
    pub labels: Option<LabelRule>,
    /// `None` where it is for every name, or for names of which nothing can be told.
    pub names: Option<Names>,
}

/// Names, and what names begin with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    pub exact: BTreeSet<String>,
    pub prefixes: BTreeSet<String>,
}

impl Every {
    fn of(rule: &Rule, group: Option<&String>) -> Self {
        let prefix =
            |pattern: &Pattern| Some(pattern.prefix().to_owned()).filter(|prefix| !prefix.is_empty());
        let names = rule.selector.names().and_then(|patterns| {
            let mut names = Names::default();
            for pattern in patterns {
                match pattern.exact() {
                    Some(name) => names.exact.insert(name.to_owned()),
                    None => names.prefixes.insert(prefix(&pattern)?),
                };
            }
            Some(names)
        });
        Self {
            protection: rule.protection.clone(),
            group: group.cloned(),
            namespace: rule.selector.only_namespace().map(str::to_owned),
            namespace_prefix: rule.selector.namespace.as_ref().and_then(prefix),
            labels: rule.selector.labels.clone(),
            names,
        }
    }

    /// As a rule of a webhook says it.
    pub(super) fn group(&self) -> String {
        self.group.clone().unwrap_or_else(|| "*".to_owned())
    }

    pub(super) fn labels(&self) -> Option<&LabelRule> {
        self.labels.as_ref()
    }
}

/// How the rules of one protection resolve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolution {
    /// `deployments.apps`
    pub kinds: BTreeSet<String>,
    /// `Widget of example.com`: kinds that the cluster does not serve.
    pub unserved: BTreeSet<String>,
    /// `Node in namespace "shop"`: a namespace for what has none.
    pub impossible: BTreeSet<String>,
    /// `flunders.wardle.example.com`: served by another API server.
    pub aggregated: BTreeSet<String>,
}

impl Coverage {
    /// Puts the rules for every kind in the order of their protections' age: what does not fit is left out from the end.
    #[must_use]
    pub fn in_order(mut self, age: impl Fn(&str) -> String) -> Self {
        self.every.sort_by_cached_key(|rule| (age(&rule.protection), rule.protection.clone()));
        self
    }

    /// What all rules together need, as far as their kinds are served.
    pub fn of(protections: &Protections, discovery: &Discovery) -> Self {
        let mut coverage = Self::default();
        let mut namespaces: BTreeMap<(String, String), Namespaces> = BTreeMap::new();
        for rule in protections.iter() {
            let concerned = match rule.selector.only_namespace() {
                Some(namespace) => Namespaces::Some(BTreeSet::from([namespace.to_owned()])),
                None => Namespaces::All,
            };
            if rule.is_for("", "Pod") {
                coverage.pods = Some(match coverage.pods.take() {
                    Some(pods) => pods.and(concerned.clone()),
                    None => concerned.clone(),
                });
            }
            let labels = changing_labels(rule);
            let mut guard_changes = |group: &str, plural: &str| {
                let resource = (group.to_owned(), plural.to_owned());
                for labels in &labels {
                    let resources = coverage.label_changes.entry(((*labels).clone(), concerned.clone()));
                    resources.or_default().insert(resource.clone());
                }
                if rule.is_broad() {
                    coverage.adoptions.entry(concerned.clone()).or_default().insert(resource);
                }
            };
            match &rule.selector.target {
                Target::Every { group } => {
                    guard_changes(group.as_deref().unwrap_or("*"), "*");
                    coverage.every.push(Every::of(rule, group.as_ref()));
                }
                Target::Kind { group, kind } => {
                    for served in discovery
                        .resources
                        .iter()
                        .filter(|served| served.group == *group && served.kind == *kind)
                    {
                        if !served.namespaced && rule.selector.is_namespaced() {
                            continue;
                        }
                        guard_changes(group, &served.plural);
                        let key = (group.clone(), served.plural.clone());
                        let all = match namespaces.remove(&key) {
                            Some(known) => known.and(concerned.clone()),
                            None => concerned.clone(),
                        };
                        namespaces.insert(key, all);
                    }
                }
            }
        }
        for (resource, concerned) in namespaces {
            coverage.resources.entry(concerned).or_default().insert(resource);
        }
        coverage
    }
}

/// What selects every object that a change of labels may take away from a rule, before or after it: the rule's own
/// selector, or those of its exceptions.
fn changing_labels(rule: &Rule) -> Vec<&LabelRule> {
    match &rule.selector.labels {
        _ if !rule.guards_labels => Vec::new(),
        Some(labels) => vec![labels],
        None => rule.except.iter().filter_map(|except| except.labels.as_ref()).collect(),
    }
}

impl Namespaces {
    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Some(mut one), Self::Some(other)) => {
                one.extend(other);
                Self::Some(one)
            }
            _ => Self::All,
        }
    }
}

impl Resolution {
    /// How the rules of one protection resolve.
    pub fn of(rules: &[Rule], discovery: &Discovery) -> Self {
        let mut resolution = Self::default();
        for rule in rules {
            let (group, kind) = match &rule.selector.target {
                Target::Every { group } => {
                    resolution
                        .kinds
                        .insert(group.as_ref().map_or("*".to_owned(), |group| format!("*.{group}")));
                    continue;
                }
                Target::Kind { group, kind } => (group, kind),
            };
            let mut served =
                discovery.resources.iter().filter(|served| served.group == *group && served.kind == *kind);
            match served.next() {
                None => {
                    let group = if group.is_empty() { "the core group" } else { group };
                    resolution.unserved.insert(format!("{kind} of {group}"));
                }
                Some(served) if !served.namespaced && rule.selector.is_namespaced() => {
                    resolution.impossible.insert(format!("{kind} has no namespace"));
                }
                Some(served) => {
                    if discovery.aggregated.contains(group) {
                        resolution.aggregated.insert(served.resource());
                    }
                    resolution.kinds.insert(served.resource());
                }
            }
        }
        resolution
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use palisade_api::protection::rules_of;
    use palisade_cluster::Served;
    use serde_json::{Value, json};

    fn served(group: &str, kind: &str, plural: &str, namespaced: bool) -> Served {
        Served::new(group, "v1", kind, plural, namespaced)
    }

    fn discovery() -> Discovery {
        let resources = vec![
            served("", "Pod", "pods", true),
            served("", "Node", "nodes", false),
            served("", "ConfigMap", "configmaps", true),
            served("apps", "Deployment", "deployments", true),
        ];
        Discovery { resources, ..Discovery::default() }
    }

    fn rules(selectors: &Value) -> Vec<Rule> {
        let spec = json!({"protectedResources": [{"resourceSelector": selectors}]});
        rules_of("sample", &serde_json::from_value(spec).unwrap()).unwrap()
    }

    fn coverage(selectors: &Value) -> Coverage {
        Coverage::of(&Protections::new(rules(selectors), Vec::new()), &discovery())
    }

    fn some(names: &[&str]) -> Namespaces {
        Namespaces::Some(names.iter().map(|&name| name.to_owned()).collect())
    }

    fn resource(group: &str, plural: &str) -> (String, String) {
        (group.to_owned(), plural.to_owned())
    }

    #[test]
    fn a_kind_is_asked_about_only_where_a_rule_concerns_it() {
        let coverage = coverage(&json!([
            {"apiVersion": "v1", "kind": "ConfigMap", "namespace": "a"},
            {"apiVersion": "v1", "kind": "ConfigMap", "namespace": "b"},
            {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "a"},
            {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "prod-*"},
            {"apiVersion": "example.com/v1", "kind": "Widget"},
        ]));
        let expected: BTreeMap<_, _> = [
            (some(&["a", "b"]), BTreeSet::from([resource("", "configmaps")])),
            (Namespaces::All, BTreeSet::from([resource("apps", "deployments")])),
        ]
        .into();
        assert_eq!(coverage.resources, expected);
        assert_eq!(coverage.pods, None);
    }

    #[test]
    fn evictions_are_asked_about_where_pods_are_protected() {
        assert_eq!(
            coverage(&json!([{"apiVersion": "v1", "kind": "Pod", "namespace": "a"}])).pods,
            Some(some(&["a"]))
        );
        assert_eq!(coverage(&json!([{"apiVersion": "v1", "kind": "Pod"}])).pods, Some(Namespaces::All));
        assert_eq!(coverage(&json!([{"kind": "*", "namespace": "b"}])).pods, Some(some(&["b"])));
    }

    #[test]
    fn what_cannot_be_asked_is_named() {
        let resolution = Resolution::of(
            &rules(&json!([
                {"apiVersion": "apps/v1", "kind": "Deployment"},
                {"apiVersion": "apps/v9", "kind": "Deployment"},
                {"apiVersion": "example.com/v1", "kind": "Widget"},
                {"apiVersion": "v1", "kind": "Node", "namespace": "a"},
                {"apiVersion": "apps/v1", "kind": "*", "name": "x"},
            ])),
            &discovery(),
        );
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(resolution.kinds, set(&["deployments.apps", "*.apps"]));
        assert_eq!(resolution.unserved, set(&["Widget of example.com"]));
        assert_eq!(resolution.impossible, set(&["Node has no namespace"]));
    }
}
