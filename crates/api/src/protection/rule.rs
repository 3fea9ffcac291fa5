//! A protection as rules that can be asked: converted once, when it is read.

use std::fmt;

use serde_json::json;

use super::{Action, Exemptions, LabelChanges, Mode, Pattern, Selector, Spec};
use crate::kinds::is_transient;

/// One selector of a protection, with all that its answer needs.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The protection's name.
    pub protection: String,
    pub selector: Selector,
    /// What it is not for.
    pub except: Vec<Selector>,
    pub mode: Mode,
    pub action: Action,
    pub message: Option<String>,
    pub exempt: Exemptions,
    /// The JSON patch operation that adds a user to the exemptions: its path, and whether the path is a list.
    pub exempting: Exempting,
    /// Whether its action is also taken when a change of labels would end an object's protection.
    pub guards_labels: bool,
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
        let except = entry.except.iter().map(|selector| Selector::of(selector, &[]));
        let except = except.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
        for selector in &entry.resource_selector {
            let selector = Selector::of(selector, &entry.resource_names).map_err(unreadable)?;
            let by_label = selector.labels.is_some() || except.iter().any(|except| except.labels.is_some());
            rules.push(Rule {
                protection: name.to_owned(),
                selector,
                except: except.clone(),
                mode: spec.mode,
                action: spec.action,
                message: spec.message.clone().filter(|message| !message.trim().is_empty()),
                exempt: Exemptions::of(spec.exempt.as_ref()),
                exempting: match &spec.exempt {
                    None => Exempting::Nobody,
                    Some(exempt) if exempt.users.is_empty() => Exempting::NoUsers,
                    Some(_) => Exempting::Users,
                },
                guards_labels: by_label && spec.label_changes == LabelChanges::Guard,
            });
        }
    }
    Ok(rules)
}

impl Target {
    fn is_for(&self, group: &str, kind: &str) -> bool {
        match self {
            Self::Kind { group: g, kind: k } => g == group && k == kind,
            Self::Every { group: g } => g.as_ref().is_none_or(|g| g == group),
        }
    }
}

impl Rule {
    /// Whether it is for a kind. `Every` is for all but what comes and goes by itself.
    pub fn is_for(&self, group: &str, kind: &str) -> bool {
        let target = &self.selector.target;
        target.is_for(group, kind) && !(matches!(target, Target::Every { .. }) && is_transient(group, kind))
    }

    /// Whether it is for an object of its kind, as far as the object itself can tell: the labels of its namespace are
    /// another question, which [`Self::selects_in`] answers.
    pub fn selects<'a>(
        &self,
        (group, kind): (&str, &str),
        namespace: Option<&str>,
        name: &str,
        labels: impl Fn(&str) -> Option<&'a str>,
    ) -> bool {
        let excepts = |except: &Selector| {
            except.namespace_labels.is_none()
                && except.target.is_for(group, kind)
                && except.matches(namespace, name, &labels)
        };
        self.selector.matches(namespace, name, &labels) && !self.except.iter().any(excepts)
    }

    /// Whether it is for an object that it [selects](Self::selects), given the labels of the object's namespace.
    pub fn selects_in<'a, 'b>(
        &self,
        (group, kind): (&str, &str),
        namespace: Option<&str>,
        name: &str,
        labels: impl Fn(&str) -> Option<&'a str>,
        namespace_labels: impl Fn(&str) -> Option<&'b str>,
    ) -> bool {
        let wanted = |selector: &Selector| {
            selector.namespace_labels.as_ref().is_none_or(|wanted| wanted.matches(&namespace_labels))
        };
        let excepts = |except: &Selector| {
            except.namespace_labels.is_some()
                && except.target.is_for(group, kind)
                && except.matches(namespace, name, &labels)
                && wanted(except)
        };
        wanted(&self.selector) && !self.except.iter().any(excepts)
    }

    /// Whether it asks for the labels of an object's namespace.
    pub fn asks_for_namespace_labels(&self) -> bool {
        let mut selectors = std::iter::once(&self.selector).chain(&self.except);
        selectors.any(|selector| selector.namespace_labels.is_some())
    }

    /// Whether it is for whatever there is: for every kind, or for a kind and nothing more. One that also names a namespace,
    /// names or labels means just those objects.
    pub fn is_broad(&self) -> bool {
        let Selector { target, namespace, labels, namespace_labels, .. } = &self.selector;
        match target {
            Target::Every { .. } => true,
            Target::Kind { .. } => {
                let anywhere = namespace.as_ref().is_none_or(|namespace| *namespace == Pattern::new("*"));
                anywhere && labels.is_none() && namespace_labels.is_none() && self.selector.names().is_none()
            }
        }
    }

    /// Whether it says that pods are what it is for.
    pub fn names_pods(&self) -> bool {
        matches!(&self.selector.target, Target::Kind { group, kind } if group.is_empty() && kind == "Pod")
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
        rules.iter().any(|rule| {
            rule.is_for(group, kind) && rule.selects((group, kind), namespace, name, look_up(&labels))
        })
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
