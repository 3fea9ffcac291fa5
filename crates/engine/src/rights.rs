//! Rights that Palisade lacks.
//!
//! A question that the API server forbids is not answered by another try: somebody must grant the right, or the question
//! must not be asked.

use std::collections::BTreeSet;

use crate::verdict::{Lift, Reason, Verdict};
use crate::world::Unknown;

/// A right that was needed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    pub verb: Verb,
    pub group: String,
    pub plural: String,
}

/// What was to be done with objects of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    Get,
    List,
}

/// Rights that an account lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingRights {
    /// The service account: `palisade-system:palisade`.
    pub account: String,
    pub rights: BTreeSet<Right>,
}

impl MissingRights {
    pub fn one(account: &str, right: Right) -> Self {
        Self { account: account.to_owned(), rights: BTreeSet::from([right]) }
    }

    /// All of them together; `None` if none is missing.
    pub(crate) fn all<'a>(missing: impl IntoIterator<Item = &'a Self>) -> Option<Self> {
        let mut missing = missing.into_iter();
        let mut all = missing.next()?.clone();
        all.rights.extend(missing.flat_map(|each| each.rights.iter().cloned()));
        Some(all)
    }

    /// All that a refusal would not be for.
    pub(crate) fn of(verdict: &Verdict) -> Option<Self> {
        let lifts = verdict.findings.iter().filter_map(|finding| match &finding.lift {
            Some(Lift::Grant(missing)) => Some(missing),
            _ => None,
        });
        Self::all(lifts)
    }
}

impl Right {
    /// `widgets.example.com`
    pub fn resource(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }
}

impl Reason {
    /// What could not be found out, if that is the reason.
    pub(crate) fn unknown(&self) -> Option<&Unknown> {
        match self {
            Self::MarkedUnknown(_, unknown)
            | Self::RuledUnknown(_, unknown)
            | Self::SpentUnknown(_, unknown)
            | Self::FlowUnknown(unknown)
            | Self::NeededUnknown { unknown, .. }
            | Self::ServesUnknown(unknown)
            | Self::Unreadable(unknown) => Some(unknown),
            _ => None,
        }
    }
}
