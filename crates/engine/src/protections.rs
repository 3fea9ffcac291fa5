//! The rules of all `ResourceDeletionProtection`s, ready to be asked.

use std::collections::HashMap;

use palisade_api::protection::{Rule, Target, UnreadableProtection};

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
            match &rule.target {
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

    /// Every rule.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.by_kind.values().flatten().chain(&self.every)
    }
}
