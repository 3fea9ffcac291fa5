//! What the status of a `ComponentProtection` should say.

use jiff::Timestamp;
use palisade_api::components::{GroupKind, Status};
use palisade_api::search_groups::SearchGroups;
use palisade_cluster::Discovery;
use palisade_cluster::components::{Known, Sighted};

use crate::conditions::{Holds, set_condition};
use crate::not_searched::{self, NOT_SEARCHED, left_out};
use crate::registration::{Carried, REGISTRATION_FULL, components_name};

/// What it is derived from.
pub(super) struct View<'a> {
    pub(super) discovery: &'a Discovery,
    pub(super) sighted: &'a Sighted,
    pub(super) carried: &'a Carried,
    pub(super) groups: &'a SearchGroups,
}

impl View<'_> {
    /// The status that follows from what is known, with what was counted left as it is.
    pub(super) fn status(&self, old: &Status, name: &str, known: &Known, now: Timestamp) -> Status {
        let mut status = old.clone();
        status.observed_generation = known.generation;
        let mut set = |kind: &str, holds: Holds, reason: &str, message: &str| {
            let (message, generation) = (message.to_owned(), known.generation);
            set_condition(&mut status.conditions, kind, holds, reason, message, generation, now);
        };
        let components = match &known.protected.components {
            Ok(components) => components,
            Err(why) => {
                set("Enforced", Holds::No, "Unreadable", why);
                return status;
            }
        };
        let named = components.kinds.iter().map(|kind| &kind.of).chain([&components.parent]);
        let left_out = left_out(self.groups, named.map(|kind| kind.group.as_str()));
        let is_carried = self.carried.holds(&components_name(name), &known.uid, known.generation);
        if is_carried && !left_out.is_empty() {
            let so = if self.groups.contain(&components.parent.group) {
                "of components there, only a scale is not noticed"
            } else {
                "without its parent a component is anybody's to change"
            };
            set("Enforced", Holds::No, NOT_SEARCHED, &not_searched::message(&left_out, so));
        } else if is_carried {
            set(
                "Enforced",
                Holds::Yes,
                "Registered",
                "the API server asks about changes of all components that are served",
            );
        } else if let Some(why) = self.carried.has_no_room_for(&components_name(name)) {
            set("Enforced", Holds::No, REGISTRATION_FULL, why);
        } else {
            set("Enforced", Holds::No, "NotRegistered", "the registration does not carry it yet");
        }
        let served = |kind: &GroupKind| self.discovery.find(&kind.group, &kind.kind);
        let kinds = || components.kinds.iter().map(|kind| &kind.of);
        let unserved: Vec<String> = kinds()
            .chain([&components.parent])
            .filter(|kind| served(kind).is_none())
            .map(|GroupKind { group, kind }| {
                let group = if group.is_empty() { "the core group" } else { group };
                format!("{kind} of {group}")
            })
            .collect();
        if unserved.is_empty() {
            set("Resolved", Holds::Yes, "Resolved", "every kind that it names is served");
        } else {
            let message = format!("not served, so protected once they are: {}", unserved.join(", "));
            set("Resolved", Holds::No, "NotServed", &message);
        }
        status.kinds = kinds().filter_map(|kind| Some(served(kind)?.resource())).collect();
        status.resolved = format!("{}/{}", status.kinds.len(), components.kinds.len());
        status.parents =
            self.sighted.parents.get(&components.parent).map_or(0, |parents| parents.len() as u64);
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use palisade_api::components::Components;
    use palisade_engine::ProtectedComponents;
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn it_says_how_it_resolves_and_leaves_the_counts_alone() {
        let components = Components::read(&json!({
            "parent": {"apiVersion": "db.example/v1", "kind": "Postgres"},
            "kinds": [{"apiVersion": "apps/v1", "kind": "StatefulSet"}],
            "ownedByParent": true, "operators": ["pg"],
        }));
        let protected = Arc::new(ProtectedComponents { name: Some("pg".to_owned()), components });
        let (uid, created) = ("u".to_owned(), String::new());
        let known = Known { uid, created, generation: Some(1), protected, status: Status::default() };
        let mut sighted = Sighted::default();
        let parents = [("a".to_owned(), "x".to_owned()), ("b".to_owned(), "x".to_owned())];
        sighted.parents.insert(GroupKind::new("db.example", "Postgres"), parents.into());
        let (discovery, carried) = (Discovery::default(), Carried::of([("components:pg", "u", Some(1))]));
        let groups = SearchGroups::default();
        let view = View { discovery: &discovery, sighted: &sighted, carried: &carried, groups: &groups };
        let old = Status { refused: 7, ..Status::default() };
        let status = view.status(&old, "pg", &known, Timestamp::UNIX_EPOCH);
        assert_eq!((status.refused, status.parents, &*status.resolved), (7, 2, "0/1"));
        let told: Vec<String> =
            status.conditions.iter().map(|c| format!("{}={} {}", c.r#type, c.status, c.message)).collect();
        assert_eq!(
            told,
            [
                "Enforced=True the API server asks about changes of all components that are served",
                "Resolved=False not served, so protected once they are: StatefulSet of apps, Postgres of db.example",
            ]
        );
        assert_eq!(view.status(&status, "pg", &known, Timestamp::from_second(99).unwrap()), status);
        let groups = "apps".parse().unwrap();
        let status = View { groups: &groups, ..view }.status(&old, "pg", &known, Timestamp::UNIX_EPOCH);
        assert_eq!(
            (&*status.conditions[0].reason, &*status.conditions[0].message),
            (
                NOT_SEARCHED,
                "--search-groups leaves out db.example: without its parent a component is anybody's to change"
            )
        );
    }
}
