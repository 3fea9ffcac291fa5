//! Which API groups are searched: `--search-groups core,apps,example.com`.
//!
//! Whoever wants to grant fewer rights than `list` on every kind names the groups that Palisade may list. What is outside
//! is never listed or watched, and everything that would have looked there says that it did not.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::{budget, protection};

/// How the core group is called where its own name, which is empty, could not be read.
pub const CORE: &str = "core";
/// Every group.
const ALL: &str = "*";

/// Palisade's own groups: always searched.
const OWN: [&str; 2] = [protection::GROUP, budget::GROUP];

/// Kinds that are read whatever the groups are, since budgets and copied labels need them: `(group, kind, plural)`. They
/// are in the part of the role that does not depend on the groups.
pub const ALWAYS_READ: [(&str, &str, &str); 11] = [
    ("", "Node", "nodes"),
    ("", "ReplicationController", "replicationcontrollers"),
    ("apps", "DaemonSet", "daemonsets"),
    ("apps", "Deployment", "deployments"),
    ("apps", "ReplicaSet", "replicasets"),
    ("apps", "StatefulSet", "statefulsets"),
    ("apps.kruise.io", "CloneSet", "clonesets"),
    ("apps.kruise.io", "StatefulSet", "statefulsets"),
    ("apps.kruise.io", "UnitedDeployment", "uniteddeployments"),
    ("batch", "CronJob", "cronjobs"),
    ("batch", "Job", "jobs"),
];

/// The groups that are searched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchGroups(Named);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Named {
    #[default]
    All,
    Some(BTreeSet<String>),
}

impl SearchGroups {
    /// Whether a group is searched.
    pub fn contain(&self, group: &str) -> bool {
        match &self.0 {
            Named::All => true,
            Named::Some(groups) => groups.contains(group) || OWN.contains(&group),
        }
    }

    /// Whether objects of a kind may be read by name, to follow owners.
    pub fn may_read(&self, group: &str, kind: &str) -> bool {
        self.contain(group) || ALWAYS_READ.iter().any(|(g, k, _)| *g == group && *k == kind)
    }

    /// The same of one that is known by its plural.
    pub fn may_read_plural(&self, group: &str, plural: &str) -> bool {
        self.contain(group) || ALWAYS_READ.iter().any(|(g, _, p)| *g == group && *p == plural)
    }

    /// The groups as a role names them; `None` for all.
    pub fn named(&self) -> Option<Vec<&str>> {
        match &self.0 {
            Named::All => None,
            Named::Some(groups) => {
                let mut all: BTreeSet<&str> = groups.iter().map(String::as_str).collect();
                all.extend(OWN);
                Some(all.into_iter().collect())
            }
        }
    }
}

/// A group as people write it: `core` for the one without a name.
pub fn group_name(group: &str) -> &str {
    if group.is_empty() { CORE } else { group }
}

impl fmt::Display for SearchGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Named::All => f.write_str(ALL),
            Named::Some(groups) => {
                let groups: Vec<&str> = groups.iter().map(|group| group_name(group)).collect();
                f.write_str(&groups.join(","))
            }
        }
    }
}

impl FromStr for SearchGroups {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == ALL {
            return Ok(Self(Named::All));
        }
        let groups: Result<BTreeSet<String>, String> =
            text.split(',').map(|word| group(word.trim())).collect();
        Ok(Self(Named::Some(groups?)))
    }
}

fn group(word: &str) -> Result<String, String> {
    match word {
        CORE => Ok(String::new()),
        ALL => Err("* is every group, and stands alone".to_owned()),
        "" => Err("a group has no name; the core group is called core".to_owned()),
        _ => match word.split_once('/') {
            Some((group, _)) => Err(format!("\"{word}\": name the group without a version, as in {group}")),
            None if is_group(word) => Ok(word.to_owned()),
            None => Err(format!(
                "\"{word}\" is not the name of an API group; expected a list such as core,apps,example.com"
            )),
        },
    }
}

/// A DNS subdomain, as Kubernetes asks of a group's name.
fn is_group(word: &str) -> bool {
    let part = |part: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-')
    };
    word.len() <= 253 && word.split('.').all(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("*", &["", "apps", "example.com"], &[])]
    #[case("core,apps", &["", "apps"], &["batch", "example.com", "core"])]
    #[case(" core , example.com ", &["", "example.com"], &["apps"])]
    fn groups_are_searched_or_not(#[case] text: &str, #[case] inside: &[&str], #[case] outside: &[&str]) {
        let groups: SearchGroups = text.parse().unwrap();
        assert!(inside.iter().chain(&OWN).all(|group| groups.contain(group)));
        assert!(!outside.iter().any(|group| groups.contain(group)));
        assert_eq!(groups.to_string().parse(), Ok(groups), "what is published is read again");
    }

    #[rstest]
    #[case("", "has no name")]
    #[case("core,,apps", "has no name")]
    #[case("core,*", "stands alone")]
    #[case("apps/v1", "without a version, as in apps")]
    #[case("*.example.com", "is not the name of an API group")]
    #[case("Apps", "is not the name of an API group")]
    #[case("a b", "is not the name")]
    #[case("'; drop", "is not the name")]
    fn a_value_that_is_no_list_of_groups_is_an_error(#[case] text: &str, #[case] why: &str) {
        let told = text.parse::<SearchGroups>();
        assert!(told.as_ref().is_err_and(|told| told.contains(why)), "{told:?}");
    }

    #[test]
    fn a_role_names_what_is_searched() {
        assert_eq!(SearchGroups::default().named(), None);
        let groups: SearchGroups = "core,apps".parse().unwrap();
        assert_eq!(groups.named(), Some(vec!["", "apps", "palisade.dev", "policy.kruise.io"]));
        assert!(groups.may_read("batch", "Job") && !groups.may_read("batch", "Other"));
    }
}
