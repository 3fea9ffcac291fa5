//! What a protection's status should say.

use jiff::Timestamp;
use palisade_api::protection::Status;
use palisade_api::search_groups::SearchGroups;
use palisade_cluster::{Discovery, Policy};

use crate::conditions::set_condition;
use crate::not_searched::{self, NOT_SEARCHED, left_out_by_rules};
use crate::registration::{Carried, REGISTRATION_FULL, Resolution};

/// The condition that says that somebody else must ask us.
const AGGREGATED: &str = "Aggregated";

/// What is not guarded then.
const ONLY_THEMSELVES: &str = "the objects themselves are kept, and a Namespace, a CustomResourceDefinition or an owner \
                               that takes them down is let go with a warning";

/// What it is derived from.
pub(super) struct View<'a> {
    pub(super) discovery: &'a Discovery,
    pub(super) carried: &'a Carried,
    pub(super) groups: &'a SearchGroups,
}

impl View<'_> {
    /// The status that follows from what is known, with what was counted left as it is.
    pub(super) fn status(&self, old: &Status, name: &str, policy: &Policy, now: Timestamp) -> Status {
        let Self { discovery, carried, groups } = *self;
        let mut status = old.clone();
        status.observed_generation = policy.generation;
        let mut set = |kind: &str, holds: bool, reason: &str, message: String| {
            set_condition(&mut status.conditions, kind, holds, reason, message, policy.generation, now);
        };
        let rules = match &policy.rules {
            Ok(rules) => rules,
            Err(unreadable) => {
                set("Enforced", false, "Unreadable", unreadable.why.clone());
                return status;
            }
        };
        let left_out = left_out_by_rules(groups, rules, discovery);
        if carried.holds(name, &policy.uid, policy.generation) && !left_out.is_empty() {
            set("Enforced", false, NOT_SEARCHED, not_searched::message(&left_out, ONLY_THEMSELVES));
        } else if carried.holds(name, &policy.uid, policy.generation) {
            set(
                "Enforced",
                true,
                "Registered",
                "the API server asks about all that it protects and is served".to_owned(),
            );
        } else if let Some(why) = carried.has_no_room_for(name) {
            set("Enforced", false, REGISTRATION_FULL, why.to_owned());
        } else {
            set("Enforced", false, "NotRegistered", "the registration does not carry it yet".to_owned());
        }
        let resolution = Resolution::of(rules, discovery);
        let join =
            |names: &std::collections::BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(", ");
        let mut wrong = Vec::new();
        if !resolution.unserved.is_empty() {
            wrong.push(format!("not served, so protected once they are: {}", join(&resolution.unserved)));
        }
        if !resolution.impossible.is_empty() {
            wrong.push(format!("a selector can't match: {}", join(&resolution.impossible)));
        }
        if wrong.is_empty() {
            set("Resolved", true, "Resolved", "every kind that it names is served".to_owned());
        } else {
            let reason = if resolution.unserved.is_empty() { "CannotMatch" } else { "NotServed" };
            set("Resolved", false, reason, wrong.join("; "));
        }
        if !resolution.aggregated.is_empty() {
            let message = format!(
                "{}: served by another API server, which asks about deletions only if it runs admission webhooks itself; one \
                 that runs none can't be guarded",
                join(&resolution.aggregated)
            );
            set(AGGREGATED, true, "AnotherServer", message);
        }
        status
            .conditions
            .retain(|condition| condition.r#type != AGGREGATED || !resolution.aggregated.is_empty());
        status.rules = rules.len();
        status.kinds = resolution.kinds.into_iter().collect();
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use palisade_api::condition::Condition;
    use palisade_api::protection::rules_of;
    use serde_json::json;

    fn policy(generation: i64) -> Policy {
        let spec = json!({"protectedResources": [{"resourceSelector": [{"apiVersion": "example.com/v1", "kind": "Widget"}]}]});
        let rules = rules_of("sample", &serde_json::from_value(spec).unwrap());
        Policy {
            uid: "u".to_owned(),
            created: String::new(),
            generation: Some(generation),
            rules,
            status: Status::default(),
        }
    }

    fn planned(old: &Status, policy: &Policy, carried: &Carried, second: i64) -> Status {
        let now = Timestamp::from_second(second).unwrap();
        let (discovery, groups) = (Discovery::default(), SearchGroups::default());
        View { discovery: &discovery, carried, groups: &groups }.status(old, "sample", policy, now)
    }

    fn condition<'a>(status: &'a Status, kind: &str) -> &'a Condition {
        status.conditions.iter().find(|condition| condition.r#type == kind).unwrap()
    }

    #[test]
    fn it_is_enforced_once_the_registration_carries_this_generation() {
        let carried = Carried::of([("sample", "u", Some(1))]);
        let first = planned(&Status::default(), &policy(1), &carried, 10);
        assert_eq!(condition(&first, "Enforced").status, "True");
        let changed = planned(&first, &policy(2), &carried, 20);
        assert_eq!(condition(&changed, "Enforced").status, "False");
        let recreated = Carried::of([("sample", "another", Some(1))]);
        assert_eq!(condition(&planned(&first, &policy(1), &recreated, 20), "Enforced").status, "False");
    }

    #[test]
    fn it_is_not_enforced_while_its_group_is_not_searched() {
        let carried = Carried::of([("sample", "u", Some(1))]);
        let enforced = |groups: &str, policy: &Policy| {
            let (discovery, groups) = (Discovery::default(), groups.parse().unwrap());
            let view = View { discovery: &discovery, carried: &carried, groups: &groups };
            let status = view.status(&Status::default(), "sample", policy, Timestamp::UNIX_EPOCH);
            let enforced = condition(&status, "Enforced");
            (enforced.reason.clone(), enforced.message.clone())
        };
        assert_eq!(enforced("core,example.com", &policy(1)).0, "Registered");
        let (reason, message) = enforced("core", &policy(1));
        assert_eq!(reason, "NotSearched");
        assert!(message.starts_with("--search-groups leaves out example.com: "), "{message}");
        assert_eq!(enforced("core", &policy(2)).0, "NotRegistered");
    }

    #[test]
    fn nothing_is_written_when_nothing_changed() {
        let carried = Carried::of([("sample", "u", Some(1))]);
        let first = planned(&Status::default(), &policy(1), &carried, 10);
        assert_eq!(planned(&first, &policy(1), &carried, 99), first);
    }

    #[test]
    fn a_kind_that_is_not_served_is_named() {
        let status = planned(&Status::default(), &policy(1), &Carried::default(), 10);
        let resolved = condition(&status, "Resolved");
        assert_eq!((resolved.status.as_str(), resolved.reason.as_str()), ("False", "NotServed"));
        assert!(resolved.message.contains("Widget of example.com"));
        assert_eq!(status.rules, 1);
    }

    #[test]
    fn a_kind_that_another_server_serves_is_named() {
        let served = palisade_cluster::Served::new("example.com", "v1", "Widget", "widgets", true);
        let aggregated = ["example.com".to_owned()].into();
        let discovery = Discovery { resources: vec![served], aggregated, ..Discovery::default() };
        let now = Timestamp::UNIX_EPOCH;
        let groups = SearchGroups::default();
        let view = View { discovery: &discovery, carried: &Carried::default(), groups: &groups };
        let status = view.status(&Status::default(), "sample", &policy(1), now);
        assert!(condition(&status, "Aggregated").message.starts_with("widgets.example.com: "));
        let later = planned(&status, &policy(1), &Carried::default(), 10);
        assert!(later.conditions.iter().all(|condition| condition.r#type != "Aggregated"), "no longer");
    }

    #[test]
    fn counts_are_left_alone() {
        let old = Status { denied: 7, ..Status::default() };
        assert_eq!(planned(&old, &policy(1), &Carried::default(), 10).denied, 7);
    }
}
