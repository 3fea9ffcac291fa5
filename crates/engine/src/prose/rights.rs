//! What is said of groups that are not searched, and of rights that are missing.

use palisade_api::search_groups::group_name;

use super::{NAMES_SHOWN, subject};
use crate::rights::{MissingRights, Right, Verb};
use crate::verdict::About;

/// Kubernetes cuts warnings there.
const LONGEST_WARNING: usize = 256;
/// How many kinds one command grants. Those that are left are named once these are granted.
const GRANTED_AT_ONCE: usize = 100;

/// `namespace "shop": not looked at, since --search-groups leaves them out: apps, example.com and 3 more`
pub(super) fn not_searched(about: &About, groups: &[String]) -> String {
    let it = if groups.len() == 1 { "it" } else { "them" };
    let start = format!("{}: not looked at, since --search-groups leaves {it} out:", subject(about));
    let mut text = start.clone();
    for (number, group) in groups.iter().enumerate() {
        let comma = if number == 0 { "" } else { "," };
        let longer = format!("{text}{comma} {}", group_name(group));
        if longer.chars().count() + more(groups.len() - number - 1).len() > LONGEST_WARNING {
            return if number == 0 {
                format!("{text} {} groups", groups.len())
            } else {
                format!("{text}{}", more(groups.len() - number))
            };
        }
        text = longer;
    }
    text
}

fn more(count: usize) -> String {
    if count == 0 { String::new() } else { format!(" and {count} more") }
}

/// `Palisade may not list widgets.example.com, and no other try changes that: grant it, or leave …`
pub(super) fn sentence(missing: &MissingRights) -> String {
    let may_not: Vec<String> =
        by_verb(missing).into_iter().map(|(verb, rights)| may_not(verb, &rights)).collect();
    format!(
        "Palisade may not {}, and trying again does not change that. Grant it, or leave the group out of --search-groups.",
        may_not.join(", nor ")
    )
}

/// `list configmaps, widgets.example.com and 3 more`
fn may_not(verb: Verb, rights: &[&Right]) -> String {
    let named: Vec<String> = rights.iter().take(NAMES_SHOWN).map(|right| right.resource()).collect();
    let verb = match verb {
        Verb::Get => "get",
        Verb::List => "list",
    };
    format!("{verb} {}{}", named.join(", "), more(rights.len().saturating_sub(NAMES_SHOWN)))
}

fn by_verb(missing: &MissingRights) -> Vec<(Verb, Vec<&Right>)> {
    let of = |verb| (verb, missing.rights.iter().filter(|right| right.verb == verb).collect::<Vec<_>>());
    [Verb::List, Verb::Get].map(of).into_iter().filter(|(_, rights)| !rights.is_empty()).collect()
}

/// The commands that grant them. A role of its own, so that whoever applies our manifests again does not take it away;
/// applied, so that a command can be pasted twice.
pub(super) fn granting(missing: &MissingRights) -> Vec<String> {
    by_verb(missing).into_iter().flat_map(|(verb, rights)| grant(&missing.account, verb, &rights)).collect()
}

fn grant(account: &str, verb: Verb, rights: &[&Right]) -> Vec<String> {
    let resources: Vec<String> = rights.iter().take(GRANTED_AT_ONCE).map(|right| right.resource()).collect();
    let (word, verbs) = match verb {
        Verb::Get => ("get", "get"),
        // Who may list may know at once: owners of protected objects are found by watches.
        Verb::List => ("list", "list,watch"),
    };
    let name = format!("palisade-{word}-{}", resources.first().map_or("", String::as_str));
    let apply = "--dry-run=client -o yaml | kubectl apply -f -";
    vec![
        format!(
            "kubectl create clusterrole {name} --verb={verbs} --resource={} {apply}",
            resources.join(",")
        ),
        format!(
            "kubectl create clusterrolebinding {name} --clusterrole={name} --serviceaccount={account} {apply}"
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn about(name: &str) -> About {
        About {
            kind: "namespace".to_owned(),
            kubectl_name: "namespace".to_owned(),
            namespace: None,
            name: name.to_owned(),
        }
    }

    #[test]
    fn groups_are_named_as_far_as_there_is_room() {
        let few = ["", "example.com"].map(str::to_owned);
        assert_eq!(
            not_searched(&about("shop"), &few),
            "namespace \"shop\": not looked at, since --search-groups leaves them out: core, example.com"
        );
        let many: Vec<String> = (0..100).map(|number| format!("group-{number}.example.com")).collect();
        let told = not_searched(&about("shop"), &many);
        assert!(told.contains("group-0.example.com, group-1") && told.ends_with(" more"), "{told}");
    }

    proptest! {
        #[test]
        fn a_warning_is_not_cut(names in proptest::collection::vec("[a-z.]{1,250}", 1..40)) {
            let told = not_searched(&about("shop"), &names);
            prop_assert!(told.chars().count() <= LONGEST_WARNING, "{}", told);
        }
    }

    #[test]
    fn a_command_grants_all_that_is_missing_and_bears_to_be_repeated() {
        let right = |verb, group: &str, plural: &str| Right {
            verb,
            group: group.to_owned(),
            plural: plural.to_owned(),
        };
        let rights = [
            right(Verb::List, "example.com", "widgets"),
            right(Verb::List, "", "configmaps"),
            right(Verb::Get, "", "pods"),
        ];
        let missing = MissingRights { account: "palisade-system:palisade".to_owned(), rights: rights.into() };
        assert_eq!(
            sentence(&missing),
            "Palisade may not list configmaps, widgets.example.com, nor get pods, and trying again does not change that. Grant it, \
             or leave the group out of --search-groups."
        );
        assert_eq!(
            granting(&missing),
            [
                "kubectl create clusterrole palisade-list-configmaps --verb=list,watch --resource=configmaps,widgets.example.com --dry-run=client -o yaml | kubectl apply -f -",
                "kubectl create clusterrolebinding palisade-list-configmaps --clusterrole=palisade-list-configmaps --serviceaccount=palisade-system:palisade --dry-run=client -o yaml | kubectl apply -f -",
                "kubectl create clusterrole palisade-get-pods --verb=get --resource=pods --dry-run=client -o yaml | kubectl apply -f -",
                "kubectl create clusterrolebinding palisade-get-pods --clusterrole=palisade-get-pods --serviceaccount=palisade-system:palisade --dry-run=client -o yaml | kubectl apply -f -",
            ]
        );
    }
}
