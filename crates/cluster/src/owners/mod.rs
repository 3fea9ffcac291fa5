//! Owners, as dependents name them.
//!
//! `ownerReferences` are written by users: the owner need not exist, the uid may be any text, and one owner may be named
//! many times. So a reference counts only once an object was read at its place with its uid; each place is read once,
//! many of them together, and every walk from owner to owner has a bound.

mod collected;
mod index;
mod read;
mod resolve;
mod watch;

use palisade_api::labels;
use palisade_api::search_groups::SearchGroups;
use palisade_engine::{Metadata, OwnerRef};

use crate::discovery::{Discovery, Served};

pub(crate) use collected::collected_with;
pub use resolve::{Ancestor, Ancestors};
pub use watch::watch_ancestors;

/// The names of objects are no longer than this.
const LONGEST_NAME: usize = 253;
/// A uid that the API server made has 36 characters.
const LONGEST_UID: usize = 64;
/// The first characters of a uid tell it apart from nearly all others.
pub const UID_PREFIX: usize = 8;

/// An entry of `ownerReferences`, without what does not tell one owner from another.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Reference {
    pub(crate) group: String,
    pub(crate) kind: String,
    /// The dependent's; an owner is there, or has none.
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// Where an owner is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Location {
    pub(crate) group: String,
    pub(crate) kind: String,
    /// `None` if its kind has no namespaces.
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

impl Reference {
    /// `None` if no object can be what it names.
    fn new(namespace: Option<&str>, api_version: &str, kind: &str, name: &str, uid: &str) -> Option<Self> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let can_exist = is_uid(uid)
            && !name.is_empty()
            && name.len() <= LONGEST_NAME
            && labels::is_value(kind)
            && group.len() <= LONGEST_NAME;
        can_exist.then(|| Self {
            group: group.to_owned(),
            kind: kind.to_owned(),
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
            uid: uid.to_owned(),
        })
    }

    pub(crate) fn of(namespace: Option<&str>, owner: &OwnerRef) -> Option<Self> {
        Self::new(namespace, &owner.api_version, &owner.kind, &owner.name, &owner.uid)
    }

    /// Where its owner would be; `None` if it can't be anywhere: its kind is not served, or has namespaces, which the
    /// dependent has not.
    pub(crate) fn location(&self, discovery: &Discovery) -> Option<Location> {
        let served = self.served(discovery)?;
        let namespace = match (served.namespaced, &self.namespace) {
            (true, None) => return None,
            (true, namespace) => namespace.clone(),
            (false, _) => None,
        };
        let Self { group, kind, name, .. } = self;
        Some(Location { group: group.clone(), kind: kind.clone(), namespace, name: name.clone() })
    }

    /// Whether its owner is ever read.
    pub(crate) fn may_be_read(&self, groups: &SearchGroups) -> bool {
        groups.may_read(&self.group, &self.kind)
    }

    pub(crate) fn served<'a>(&self, discovery: &'a Discovery) -> Option<&'a Served> {
        discovery.find(&self.group, &self.kind).filter(|served| served.listable)
    }
}

/// Whether a uid looks like those that the API server makes.
fn is_uid(uid: &str) -> bool {
    (UID_PREFIX..=LONGEST_UID).contains(&uid.len())
        && uid.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-'))
}

/// The owners of an object, each once.
pub(crate) fn references(metadata: &Metadata<'_>) -> Vec<Reference> {
    let namespace = metadata.namespace.as_deref().filter(|namespace| !namespace.is_empty());
    let owners = metadata.owners.iter();
    let mut references: Vec<Reference> = owners
        .filter_map(|owner| {
            Reference::new(namespace, &owner.api_version, &owner.kind, &owner.name, &owner.uid)
        })
        .collect();
    references.sort_unstable();
    references.dedup();
    references
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("0f9a7c52-1b7e-4a39-9d1c-5e1a0b0c0d0e", true)]
    #[case("x'] || oldObject.metadata.nope == 'y' || 'n' in ['", false)]
    #[case("'", false)]
    #[case("", false)]
    #[case("0f9a", false)]
    #[case("0F9A7C52-1B7E", false)]
    fn a_uid_is_what_the_api_server_makes(#[case] uid: &str, #[case] expected: bool) {
        assert_eq!(is_uid(uid), expected);
        assert!(!is_uid(&uid.repeat(100)));
    }
}
