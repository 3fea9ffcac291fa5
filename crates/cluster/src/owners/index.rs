//! The owners that protected objects name, kept up to date event by event.

use std::collections::HashMap;
use std::sync::Arc;

use super::Reference;

/// How many owners of one object count. It is collected only once all of them are gone.
const OWNERS_OF_ONE: usize = 100;

/// Who protects an object. What a tenant protects guards owners in its own namespace only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ProtectedBy {
    /// A label of an object in a namespace: whoever may write there set it.
    Tenant,
    /// A protection, or a label of an object without a namespace.
    Administrator,
}

/// A protected object: who protects it, and who owns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Protected {
    by: ProtectedBy,
    references: Vec<Arc<Reference>>,
}

impl Protected {
    /// `None` if nobody owns it.
    pub(super) fn new(by: ProtectedBy, mut references: Vec<Reference>) -> Option<Self> {
        references.sort_unstable();
        references.dedup();
        references.truncate(OWNERS_OF_ONE);
        let references: Vec<_> = references.into_iter().map(Arc::new).collect();
        (!references.is_empty()).then_some(Self { by, references })
    }
}

/// What a watch says.
#[derive(Debug)]
pub(super) enum Change {
    /// It lists all objects anew.
    Listing,
    Listed,
    /// An object, by uid, and what it is now; `None` if it is not protected, has no owners or is gone.
    Object(String, Option<Protected>),
}

/// What changed since it was last looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    /// There are owners that there were not.
    pub(super) more: bool,
    /// Owners went.
    pub(super) fewer: bool,
}

/// All protected objects that have owners, by the watch that shows them.
#[derive(Debug, Default)]
pub(super) struct Index {
    watches: Vec<Watch>,
    uses: HashMap<Arc<Reference>, Uses>,
    changed: Changed,
}

#[derive(Debug, Default)]
struct Watch {
    objects: HashMap<String, Protected>,
    /// What it has listed so far. The objects that are known count until it has listed all.
    listing: Option<HashMap<String, Protected>>,
}

/// How many protected objects name an owner.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    tenants: usize,
    administrators: usize,
}

impl Uses {
    fn count(&mut self, by: ProtectedBy) -> &mut usize {
        match by {
            ProtectedBy::Tenant => &mut self.tenants,
            ProtectedBy::Administrator => &mut self.administrators,
        }
    }

    fn by(self) -> ProtectedBy {
        if self.administrators > 0 { ProtectedBy::Administrator } else { ProtectedBy::Tenant }
    }
}

impl Index {
    pub(super) fn new(watches: usize) -> Self {
        Self { watches: (0..watches).map(|_| Watch::default()).collect(), ..Self::default() }
    }

    pub(super) fn apply(&mut self, watch: usize, change: Change) {
        match change {
            Change::Listing => self.watches[watch].listing = Some(HashMap::new()),
            Change::Listed => {
                let Some(listing) = self.watches[watch].listing.take() else { return };
                let known = self.watches[watch].objects.keys();
                let gone: Vec<String> = known.filter(|uid| !listing.contains_key(*uid)).cloned().collect();
                for uid in gone {
                    self.put(watch, uid, None);
                }
                for (uid, protected) in listing {
                    self.put(watch, uid, Some(protected));
                }
            }
            Change::Object(uid, protected) => match &mut self.watches[watch].listing {
                Some(listing) => {
                    listing.extend(protected.map(|protected| (uid, protected)));
                }
                None => self.put(watch, uid, protected),
            },
        }
    }

    fn put(&mut self, watch: usize, uid: String, protected: Option<Protected>) {
        let objects = &mut self.watches[watch].objects;
        if objects.get(&uid) == protected.as_ref() {
            return;
        }
        // The new one is counted first: what both name neither comes nor goes.
        if let Some(Protected { by, references }) = &protected {
            for reference in references {
                let uses = self.uses.entry(reference.clone()).or_default();
                let before = *uses;
                *uses.count(*by) += 1;
                self.changed.more |= before.tenants + before.administrators == 0 || before.by() < uses.by();
            }
        }
        let old = match protected {
            Some(protected) => objects.insert(uid, protected),
            None => objects.remove(&uid),
        };
        let Some(Protected { by, references }) = old else { return };
        for reference in references {
            let Some(uses) = self.uses.get_mut(&reference) else { continue };
            let before = uses.by();
            *uses.count(by) -= 1;
            if uses.tenants + uses.administrators == 0 {
                self.uses.remove(&reference);
                self.changed.fewer = true;
            } else {
                self.changed.fewer |= uses.by() < before;
            }
        }
    }

    /// What changed since this was asked.
    pub(super) fn take_changed(&mut self) -> Changed {
        std::mem::take(&mut self.changed)
    }

    pub(super) fn changed(&self) -> Changed {
        self.changed
    }

    /// Every owner that is named, and by whose objects.
    pub(super) fn references(&self) -> Vec<(Arc<Reference>, ProtectedBy)> {
        self.uses.iter().map(|(reference, uses)| (reference.clone(), uses.by())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(number: usize) -> Reference {
        let uid = format!("{number:08x}-0000-4000-8000-000000000000");
        Reference::new(Some("shop"), "v1", "ConfigMap", &format!("c{number}"), &uid).unwrap()
    }

    fn protected(by: ProtectedBy, owners: &[usize]) -> Option<Protected> {
        Protected::new(by, owners.iter().copied().map(reference).collect())
    }

    fn put(index: &mut Index, uid: &str, protected: Option<Protected>) -> (bool, bool) {
        index.apply(0, Change::Object(uid.to_owned(), protected));
        let Changed { more, fewer } = index.take_changed();
        (more, fewer)
    }

    #[test]
    fn only_owners_that_come_or_go_are_a_change() {
        use ProtectedBy::{Administrator, Tenant};
        let mut index = Index::new(1);
        assert_eq!(put(&mut index, "a", protected(Tenant, &[1, 1, 1])), (true, false));
        assert_eq!(put(&mut index, "b", protected(Tenant, &[1])), (false, false), "it is known");
        assert_eq!(put(&mut index, "a", protected(Tenant, &[1, 2])), (true, false));
        assert_eq!(put(&mut index, "a", protected(Tenant, &[1, 3])), (true, true));
        assert_eq!(put(&mut index, "a", None), (false, true));
        assert_eq!(put(&mut index, "a", protected(Administrator, &[1])), (true, false), "it guards more");
        assert_eq!(put(&mut index, "a", protected(Tenant, &[1])), (false, true));
        assert_eq!(put(&mut index, "a", None), (false, false));
        assert_eq!(put(&mut index, "b", None), (false, true));
        assert!(index.references().is_empty() && index.watches[0].objects.is_empty());
    }

    #[test]
    fn what_is_known_counts_until_all_is_listed_anew() {
        let mut index = Index::new(1);
        put(&mut index, "a", protected(ProtectedBy::Tenant, &[1]));
        put(&mut index, "b", protected(ProtectedBy::Tenant, &[2]));
        index.apply(0, Change::Listing);
        assert_eq!(put(&mut index, "a", protected(ProtectedBy::Tenant, &[1])), (false, false));
        assert_eq!(index.references().len(), 2);
        index.apply(0, Change::Listed);
        assert_eq!(index.take_changed(), Changed { more: false, fewer: true });
        assert_eq!(index.references().len(), 1);
    }

    #[test]
    fn an_object_with_very_many_owners_has_a_bound() {
        let many: Vec<usize> = (0..10_000).collect();
        let mut index = Index::new(1);
        put(&mut index, "a", protected(ProtectedBy::Tenant, &many));
        assert_eq!(index.references().len(), OWNERS_OF_ONE);
    }
}
