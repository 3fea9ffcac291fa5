//! The rules of all `ResourceDeletionProtection`s, ready to be asked.

use std::collections::HashMap;

use palisade_api::protection::{Action, Pattern, Rule, Target, UnreadableProtection};

use crate::review::Kind;

/// All rules, by the kind they are for.
#[derive(Clone, Debug, Default)]
pub struct Protections {
    by_kind: HashMap<(String, String), Vec<Rule>>,
    every: Vec<Rule>,
    /// Protections that are there and could not be read: nobody knows what they protect.
    pub unreadable: Vec<UnreadableProtection>,
}

impl Protections {
    pub fn new(rules: impl IntoIterator<Item = Rule>, unreadable: Vec<UnreadableProtection>) -> Self {
        let mut protections = Self { unreadable, ..Self::default() };
        for rule in rules {
            match &rule.selector.target {
                Target::Every { .. } => protections.every.push(rule),
                Target::Kind { group, kind } => {
                    protections.by_kind.entry((group.clone(), kind.clone())).or_default().push(rule);
                }
            }
        }
        protections
    }

    /// The rules that are for a kind.
    pub fn of_kind(&self, kind: &Kind<'_>) -> impl Iterator<Item = &Rule> {
        let named = self.by_kind.get(&(kind.group.to_string(), kind.kind.to_string()));
        let every = self.every.iter().filter(|rule| rule.is_for(&kind.group, &kind.kind));
        named.into_iter().flatten().chain(every)
    }

    /// Whether a rule that denies may select an object of a kind, or of any kind of a group, in a namespace or in any.
    pub fn may_deny(&self, group: &str, kind: Option<&str>, namespace: Option<&str>) -> bool {
        self.iter().any(|rule| {
            let is_for_kind = match (&rule.selector.target, kind) {
                (_, Some(kind)) => rule.is_for(group, kind),
                (Target::Kind { group: named, .. }, None) => named == group,
                (Target::Every { group: named }, None) => named.as_ref().is_none_or(|named| named == group),
            };
            let in_namespace =
                |pattern: &Pattern| namespace.is_none_or(|namespace| pattern.matches(namespace));
            let namespaces = &rule.selector.namespace;
            rule.action == Action::Deny && is_for_kind && namespaces.as_ref().is_none_or(in_namespace)
        })
    }

    /// Every rule.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.by_kind.values().flatten().chain(&self.every)
    }
}
