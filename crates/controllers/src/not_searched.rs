//! What a policy says of itself while `--search-groups` leaves a group out that it names.

use std::collections::BTreeSet;

use palisade_api::kinds::is_transient;
use palisade_api::protection::{Action, Rule, Target};
use palisade_api::search_groups::{SearchGroups, group_name};
use palisade_cluster::Discovery;

/// Why it is not enforced.
pub(crate) const NOT_SEARCHED: &str = "NotSearched";
/// How many groups are named.
const GROUPS_TOLD: usize = 20;

/// The groups that are not searched, of those that a policy names.
pub(crate) fn left_out<'a>(
    groups: &SearchGroups,
    named: impl IntoIterator<Item = &'a str>,
) -> BTreeSet<String> {
    named.into_iter().filter(|group| !groups.contain(group)).map(str::to_owned).collect()
}

/// The same of the denying rules of a protection: others guard nothing but the object itself. A rule for every kind names
/// all groups that are served.
pub(crate) fn left_out_by_rules(
    groups: &SearchGroups,
    rules: &[Rule],
    discovery: &Discovery,
) -> BTreeSet<String> {
    let mut named: BTreeSet<&str> = BTreeSet::new();
    for rule in rules.iter().filter(|rule| rule.action == Action::Deny) {
        match &rule.selector.target {
            Target::Kind { group, .. } | Target::Every { group: Some(group) } => {
                named.insert(group);
            }
            Target::Every { group: None } => {
                let protected = discovery
                    .resources
                    .iter()
                    .filter(|served| served.listable && !is_transient(&served.group, &served.kind));
                named.extend(protected.map(|served| served.group.as_str()));
            }
        }
    }
    left_out(groups, named)
}

/// `--search-groups leaves out example.com: what holds …`
pub(crate) fn message(groups: &BTreeSet<String>, so: &str) -> String {
    let named: Vec<&str> = groups.iter().take(GROUPS_TOLD).map(|group| group_name(group)).collect();
    let more = match groups.len().saturating_sub(GROUPS_TOLD) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("--search-groups leaves out {}{more}: {so}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use palisade_api::protection::rules_of;
    use palisade_cluster::Served;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case("core", "Deny", "apps/v1", "Deployment", &["apps"])]
    #[case("core,apps", "Deny", "apps/v1", "Deployment", &[])]
    #[case("core", "Warn", "apps/v1", "Deployment", &[])]
    #[case("core", "Deny", "*", "*", &["apps"])]
    #[case("*", "Deny", "*", "*", &[])]
    fn a_rule_that_denies_names_groups(
        #[case] groups: &str,
        #[case] action: &str,
        #[case] api_version: &str,
        #[case] kind: &str,
        #[case] expected: &[&str],
    ) {
        let resources = vec![
            Served::new("", "v1", "ConfigMap", "configmaps", true),
            Served::new("apps", "v1", "Deployment", "deployments", true),
            // Nothing there is ever protected by a rule for every kind.
            Served::new("coordination.k8s.io", "v1", "Lease", "leases", true),
        ];
        let discovery = Discovery { resources, ..Discovery::default() };
        let mut selector = json!({"kind": kind, "namespace": "shop"});
        if api_version != "*" {
            selector["apiVersion"] = json!(api_version);
        }
        let spec = json!({"protectedResources": [{"resourceSelector": [selector]}], "action": action});
        let rules = rules_of("sample", &serde_json::from_value(spec).unwrap()).unwrap();
        let left_out = left_out_by_rules(&groups.parse().unwrap(), &rules, &discovery);
        assert_eq!(left_out.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn many_groups_are_counted() {
        let groups = (0..25).map(|number| format!("g{number:02}.example.com")).collect();
        let message = message(&groups, "so");
        assert!(message.ends_with("g19.example.com and 5 more: so"), "{message}");
    }
}
