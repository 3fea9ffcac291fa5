//! How new the policies are that the registration carries.
//!
//! The path of a webhook says so, by kind of policy: `/admit/budgets/at/budgets-4711.flow-4690`. Each number is a
//! resourceVersion of a policy of that kind whose spec was new. A replica that has seen less of that kind does not
//! decide by it. The segment is a DNS subdomain, since the API server takes no other in the path of a Service.

use std::collections::BTreeMap;
use std::fmt;

use crate::{budget, components, critical, flow, protection};

/// The word in a path before the versions.
pub const AT: &str = "at";

/// The kinds of policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyKind {
    Protection,
    Budget,
    FlowControl,
    CriticalService,
    ComponentProtection,
}

impl PolicyKind {
    pub const ALL: [Self; 5] =
        [Self::Protection, Self::Budget, Self::FlowControl, Self::CriticalService, Self::ComponentProtection];

    /// The word in a path. No dash is in it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Protection => "protections",
            Self::Budget => "budgets",
            Self::FlowControl => "flow",
            Self::CriticalService => "critical",
            Self::ComponentProtection => "components",
        }
    }

    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }

    /// The API group, and the plural in it.
    pub fn resource(self) -> (&'static str, &'static str) {
        match self {
            Self::Protection => (protection::GROUP, protection::PLURAL),
            Self::Budget => (budget::GROUP, budget::PLURAL),
            Self::FlowControl => (flow::GROUP, flow::PLURAL),
            Self::CriticalService => (critical::GROUP, critical::PLURAL),
            Self::ComponentProtection => (components::GROUP, components::PLURAL),
        }
    }

    /// The name of its `CustomResourceDefinition`.
    pub fn definition(self) -> String {
        let (group, plural) = self.resource();
        format!("{plural}.{group}")
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Protection => protection::KIND,
            Self::Budget => budget::KIND,
            Self::FlowControl => flow::KIND,
            Self::CriticalService => critical::KIND,
            Self::ComponentProtection => components::KIND,
        })
    }
}

/// A resourceVersion for each kind of policy; none is zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyVersions(BTreeMap<PolicyKind, u64>);

impl PolicyVersions {
    pub fn get(&self, kind: PolicyKind) -> u64 {
        self.0.get(&kind).copied().unwrap_or(0)
    }

    /// Takes a version, unless it knows a newer one.
    pub fn raise(&mut self, kind: PolicyKind, version: u64) {
        if version > self.get(kind) {
            self.0.insert(kind, version);
        }
    }

    pub fn raise_all(&mut self, others: &Self) {
        for (kind, version) in others.iter() {
            self.raise(kind, version);
        }
    }

    /// Those of some kinds.
    #[must_use]
    pub fn only(&self, kinds: &[PolicyKind]) -> Self {
        Self(self.0.iter().filter(|(kind, _)| kinds.contains(kind)).map(|(kind, at)| (*kind, *at)).collect())
    }

    pub fn iter(&self) -> impl Iterator<Item = (PolicyKind, u64)> {
        self.0.iter().map(|(kind, version)| (*kind, *version))
    }

    /// What is added to a path; nothing where nothing is known.
    pub fn suffix(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let versions: Vec<String> =
            self.iter().map(|(kind, version)| format!("{}-{version}", kind.word())).collect();
        format!("/{AT}/{}", versions.join("."))
    }

    /// Reads the segment after [`AT`].
    pub fn read(segment: &str) -> Option<Self> {
        let mut versions = Self::default();
        for part in segment.split('.') {
            let (word, version) = part.split_once('-')?;
            versions.raise(PolicyKind::of_word(word)?, version.parse().ok()?);
        }
        Some(versions)
    }

    /// Reads those of a path or an address; none, if it has none.
    pub fn of_path(path: &str) -> Option<Self> {
        match path.rsplit_once(&format!("/{AT}/")) {
            Some((_, segment)) => Self::read(segment),
            None => Some(Self::default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_back_from_a_path_as_they_were() {
        let mut versions = PolicyVersions::default();
        assert_eq!(versions.suffix(), "");
        versions.raise(PolicyKind::Budget, 4711);
        versions.raise(PolicyKind::Protection, 12);
        versions.raise(PolicyKind::Protection, 9);
        assert_eq!(versions.suffix(), "/at/protections-12.budgets-4711");
        let path = format!("https://127.0.0.1:9443/admit/budgets{}", versions.suffix());
        assert_eq!(PolicyVersions::of_path(&path), Some(versions.clone()));
        assert_eq!(PolicyVersions::of_path("/admit/budgets"), Some(PolicyVersions::default()));
        let only = versions.only(&[PolicyKind::Protection, PolicyKind::FlowControl]);
        assert_eq!(only.suffix(), "/at/protections-12");
        let mut all = PolicyVersions::default();
        for (number, kind) in (u64::MAX - 4..=u64::MAX).zip(PolicyKind::ALL) {
            all.raise(kind, number);
        }
        assert_eq!(PolicyVersions::of_path(&all.suffix()), Some(all.clone()));
        assert!(all.suffix().len() < 253, "a DNS subdomain has no more");
    }

    #[test]
    fn what_is_no_version_is_not_read() {
        for segment in
            ["", "budgets", "budgets-", "budgets-x", "budgets--1", "nobody-1", "budgets-1.", "budgets-1.flow"]
        {
            assert_eq!(PolicyVersions::read(segment), None, "{segment}");
        }
    }

    #[test]
    fn every_kind_has_a_word_of_its_own() {
        for kind in PolicyKind::ALL {
            assert_eq!(PolicyKind::of_word(kind.word()), Some(kind));
            assert!(!kind.word().contains(['-', '.', '/']));
        }
    }
}
