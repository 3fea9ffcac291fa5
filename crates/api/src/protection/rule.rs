//! A protection as rules that can be asked: converted once, when it is read.

use std::collections::HashSet;
use std::fmt;

use serde_json::json;

use super::{Action, Exemptions, LabelChanges, Mode, Pattern, Spec};
use crate::kinds::is_transient;
use crate::labels::LabelRule;

/// One selector of a protection, with all that its answer needs.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The protection's name.
    pub protection: String,
    pub target: Target,
    pub mode: Mode,
    pub action: Action,
    pub message: Option<String>,
    pub exempt: Exemptions,
    /// The JSON patch operation that adds a user to the exemptions: its path, and whether the path is a list.
    pub exempting: Exempting,
    pub namespace: Option<Pattern>,
    /// `None`: every name.
    names: Option<Names>,
    pub labels: Option<LabelRule>,
    /// Whether its action is also taken when an object would no longer be selected by its labels.
    pub guards_labels: bool,
    pub namespace_labels: Option<LabelRule>,
}

/// Where a protection takes another exempt user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exempting {
    /// It has no exemptions yet.
    Nobody,
    /// It has some, but no users.
    NoUsers,
    /// It has a list of users.
    Users,
}

impl Exempting {
    /// The command that exempts a user from a protection.
    pub fn command(self, protection: &str, user: &str) -> String {
        let (path, value) = match self {
            Self::Nobody => ("/spec/exempt", json!({"users": [user]})),
            Self::NoUsers => ("/spec/exempt/users", json!([user])),
            Self::Users => ("/spec/exempt/users/-", json!(user)),
        };
        let operations =
            json!([{"op": "add", "path": path, "value": value}]).to_string().replace('\'', r"'\''");
        format!("kubectl patch rdp {protection} --type=json -p '{operations}'")
    }
}

/// Which kinds a rule is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// One kind, in every version of its group.
    Kind { group: String, kind: String },
    /// Every kind of one group, or of all; but not those that come and go by themselves, such as Events and Leases.
    Every { group: Option<String> },
}

#[derive(Clone, Debug)]
struct Names {
    exact: HashSet<String>,
    patterns: Vec<Pattern>,
}

/// A protection that the schema should not have let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableProtection {
    pub name: String,
    pub why: String,
}

impl fmt::Display for UnreadableProtection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.why)
    }
}

/// The rules of a protection, one for each selector.
pub fn rules_of(name: &str, spec: &Spec) -> Result<Vec<Rule>, UnreadableProtection> {
    let unreadable = |why: String| UnreadableProtection { name: name.to_owned(), why };
    let mut rules = Vec::new();
    for entry in &spec.protected_resources {
        for selector in &entry.resource_selector {
            let group = match selector.api_version.as_deref() {
                None | Some("*") => None,
                Some(version) => match version.split_once('/') {
                    None => Some(""),
                    Some((group, _)) => Some(group),
                },
            };
            let target = match (selector.kind.as_str(), group) {
                ("*", group) => Target::Every { group: group.map(str::to_owned) },
                (_, None) => return Err(unreadable(format!("kind {} without an apiVersion", selector.kind))),
                (kind, Some(group)) => Target::Kind { group: group.to_owned(), kind: kind.to_owned() },
            };
            rules.push(Rule {
                protection: name.to_owned(),
                target,
                mode: spec.mode,
                action: spec.action,
                message: spec.message.clone().filter(|message| !message.trim().is_empty()),
                exempt: Exemptions::of(spec.exempt.as_ref()),
                exempting: match &spec.exempt {
                    None => Exempting::Nobody,
                    Some(exempt) if exempt.users.is_empty() => Exempting::NoUsers,
                    Some(_) => Exempting::Users,
                },
                namespace: selector.namespace.as_deref().map(Pattern::new),
                names: Names::of(selector.name.iter().chain(&entry.resource_names)),
                labels: selector.label_selector.as_ref().map(LabelRule::of),
                guards_labels: selector.label_selector.is_some() && spec.label_changes == LabelChanges::Guard,
                namespace_labels: selector.namespace_selector.as_ref().map(LabelRule::of),
            });
        }
    }
    Ok(rules)
}

impl Rule {
    /// Whether it is for a kind. `Every` is for all but what comes and goes by itself.
    pub fn is_for(&self, group: &str, kind: &str) -> bool {
        match &self.target {
            Target::Kind { group: g, kind: k } => g == group && k == kind,
            Target::Every { group: g } => g.as_ref().is_none_or(|g| g == group) && !is_transient(group, kind),
        }
    }

    /// Whether it is for an object of its kind, as far as the object itself can tell: the labels of its namespace
    /// are another question.
    pub fn selects<'a>(
        &self,
        namespace: Option<&str>,
        name: &str,
        labels: impl Fn(&str) -> Option<&'a str>,
    ) -> bool {
        let in_namespace = match (&self.namespace, namespace) {
            (None, _) => true,
            (Some(pattern), Some(namespace)) => pattern.matches(namespace),
            (Some(_), None) => false,
        };
        in_namespace
            && (self.namespace_labels.is_none() || namespace.is_some())
            && self.names.as_ref().is_none_or(|names| names.contain(name))
            && self.labels.as_ref().is_none_or(|rule| rule.matches(labels))
    }

    /// Whether it asks for a namespace, which cluster-scoped objects do not have.
    pub fn is_namespaced(&self) -> bool {
        self.namespace.is_some() || self.namespace_labels.is_some()
    }

    /// The names that it is for; `None` for every name.
    pub fn names(&self) -> Option<impl Iterator<Item = Pattern>> {
        let Names { exact, patterns } = self.names.as_ref()?;
        Some(exact.iter().map(|name| Pattern::new(name)).chain(patterns.iter().cloned()))
    }

    /// The one namespace that it is for, if it is for one.
    pub fn only_namespace(&self) -> Option<&str> {
        self.namespace.as_ref().and_then(Pattern::exact)
    }
}

impl Names {
    fn of<'a>(names: impl Iterator<Item = &'a String>) -> Option<Self> {
        let mut all = Self { exact: HashSet::new(), patterns: Vec::new() };
        for name in names {
            let pattern = Pattern::new(name);
            match pattern.exact() {
                Some(exact) => drop(all.exact.insert(exact.to_owned())),
                None => all.patterns.push(pattern),
            }
        }
        (!all.exact.is_empty() || !all.patterns.is_empty()).then_some(all)
    }

    fn contain(&self, name: &str) -> bool {
        self.exact.contains(name) || self.patterns.iter().any(|pattern| pattern.matches(name))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::labels::look_up;
    use rstest::rstest;
    use serde_json::Value;

    fn rules(spec: Value) -> Vec<Rule> {
        rules_of("sample", &serde_json::from_value(spec).unwrap()).unwrap()
    }

    fn selects(
        rules: &[Rule],
        group: &str,
        kind: &str,
        namespace: Option<&str>,
        name: &str,
        labels: &[(&str, &str)],
    ) -> bool {
        let labels: BTreeMap<String, String> =
            labels.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        rules.iter().any(|rule| rule.is_for(group, kind) && rule.selects(namespace, name, look_up(&labels)))
    }

    fn seed() -> Vec<Rule> {
        rules(json!({"protectedResources": [
            {"resourceSelector": [{"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "sample"}],
             "resourceNames": ["deployment-1", "deployment-2"]},
            {"resourceSelector": [{"apiVersion": "v1", "kind": "Service", "name": "service-1", "namespace": "sample"}],
             "resourceNames": ["service-1"]},
        ]}))
    }

    #[rstest]
    #[case("apps", "Deployment", "sample", "deployment-1", true)]
    #[case("apps", "Deployment", "sample", "deployment-2", true)]
    #[case("apps", "Deployment", "sample", "deployment-3", false)]
    #[case("apps", "Deployment", "other", "deployment-1", false)]
    #[case("extensions", "Deployment", "sample", "deployment-1", false)]
    #[case("apps", "StatefulSet", "sample", "deployment-1", false)]
    #[case("", "Service", "sample", "service-1", true)]
    #[case("", "Service", "sample", "deployment-1", false)]
    fn the_seeds_example(
        #[case] group: &str,
        #[case] kind: &str,
        #[case] namespace: &str,
        #[case] name: &str,
        #[case] expected: bool,
    ) {
        assert_eq!(selects(&seed(), group, kind, Some(namespace), name, &[]), expected);
    }

    #[test]
    fn a_name_and_resource_names_are_one_set() {
        let rules = rules(json!({"protectedResources": [
            {"resourceSelector": [{"apiVersion": "v1", "kind": "Secret", "name": "a"}], "resourceNames": ["b", "c-*"]}]}));
        for (name, expected) in [("a", true), ("b", true), ("c-1", true), ("d", false)] {
            assert_eq!(selects(&rules, "", "Secret", Some("x"), name, &[]), expected, "{name}");
        }
    }

    #[test]
    fn a_namespace_never_matches_what_has_none() {
        let rules = rules(json!({"protectedResources": [
            {"resourceSelector": [{"apiVersion": "v1", "kind": "Node", "namespace": "*"}]}]}));
        assert!(!selects(&rules, "", "Node", None, "node-0", &[]));
    }

    #[rstest]
    #[case(json!({"matchLabels": {"app": "db"}}), &[("app", "db")], true)]
    #[case(json!({"matchLabels": {"app": "db"}}), &[("app", "web")], false)]
    #[case(json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "b"]}]}), &[("app", "b")], true)]
    #[case(json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]}), &[], true)]
    #[case(json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]}), &[("app", "a")], false)]
    #[case(json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}), &[("app", "")], true)]
    #[case(json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}), &[("app", "")], false)]
    #[case(json!({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]}), &[("a", "1")], false)]
    fn label_selectors(#[case] selector: Value, #[case] labels: &[(&str, &str)], #[case] expected: bool) {
        let rules = rules(json!({"protectedResources": [
            {"resourceSelector": [{"apiVersion": "v1", "kind": "ConfigMap", "labelSelector": selector}]}]}));
        assert_eq!(selects(&rules, "", "ConfigMap", Some("x"), "c", labels), expected);
    }

    #[test]
    fn every_kind_is_all_but_what_comes_and_goes_by_itself() {
        let rules = rules(
            json!({"protectedResources": [{"resourceSelector": [{"kind": "*", "namespace": "shop"}]}]}),
        );
        for (group, kind, expected) in [
            ("", "ConfigMap", true),
            ("example.com", "Widget", true),
            ("", "Event", false),
            ("events.k8s.io", "Event", false),
            ("coordination.k8s.io", "Lease", false),
            ("", "Endpoints", false),
            ("discovery.k8s.io", "EndpointSlice", false),
            ("", "Service", true),
            ("example.com", "Lease", true),
        ] {
            assert_eq!(selects(&rules, group, kind, Some("shop"), "x", &[]), expected, "{group} {kind}");
        }
        let apps = self::rules(json!({"protectedResources": [
            {"resourceSelector": [{"apiVersion": "apps/v1", "kind": "*", "name": "x"}]}]}));
        assert!(selects(&apps, "apps", "DaemonSet", Some("a"), "x", &[]));
        assert!(!selects(&apps, "", "ConfigMap", Some("a"), "x", &[]));
    }

    #[test]
    fn exemptions_are_by_user_group_and_service_account() {
        let rules = rules(json!({"exempt": {"users": ["jane"], "groups": ["sre"],
            "serviceAccounts": [{"namespace": "ci", "name": "deployer"}]},
            "protectedResources": [{"resourceSelector": [{"apiVersion": "v1", "kind": "Secret"}]}]}));
        let exempt = &rules[0].exempt;
        assert!(exempt.cover("jane", []));
        assert!(exempt.cover("joe", ["dev", "sre"]));
        assert!(exempt.cover("system:serviceaccount:ci:deployer", []));
        assert!(!exempt.cover("system:serviceaccount:ci:other", ["dev"]));
    }
}
