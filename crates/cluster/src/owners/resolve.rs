//! The owners of protected objects, at any depth, that are really there.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use palisade_api::kinds::{Cascade, cascade_of};
use palisade_api::search_groups::SearchGroups;
use tokio::time::Instant;

use super::index::ProtectedBy;
use super::read::{Ask, Reader};
use super::{Location, Reference};
use crate::discovery::Discovery;

/// How far up owners are followed.
const DEEPEST: usize = 100;
/// How many owners count.
const MOST_OWNERS: usize = 200_000;
/// How many owners of an owner count.
const OWNERS_OF_ONE: usize = 100;
/// For how long what was read is believed. Owners of owners hardly ever change.
const BELIEVED: Duration = Duration::from_secs(600);
/// For how long an owner that could not be read is not asked for again.
const FAILED: Duration = Duration::from_secs(30);

/// Whose deletion must be asked about, by uid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ancestors(pub BTreeMap<String, Ancestor>);

/// An owner of something protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ancestor {
    pub group: String,
    pub plural: String,
    pub namespace: Option<String>,
    /// Whether it is kept with what it owns. Otherwise it is somebody else's than what it owns, and goes with a warning.
    pub guarded: bool,
}

/// Finds ancestors, and remembers what it read.
#[derive(Debug, Default)]
pub(super) struct Resolver {
    remembered: HashMap<Arc<Reference>, Remembered>,
}

#[derive(Debug)]
struct Remembered {
    owner: Known,
    until: Instant,
}

/// What is known of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Known {
    /// It is there, and these own it.
    There(Vec<Arc<Reference>>),
    /// It is gone or going, or there never was one.
    Absent,
    /// It could not be read.
    Nothing,
}

impl Resolver {
    pub(super) async fn resolve<A: Ask>(
        &mut self,
        asker: &A,
        groups: &SearchGroups,
        discovery: &Discovery,
        named: &[(Arc<Reference>, ProtectedBy)],
    ) -> Ancestors {
        let mut ancestors = BTreeMap::new();
        let mut used: HashSet<Arc<Reference>> = HashSet::new();
        let mut reader = Reader::new(asker, discovery);
        // What an administrator protects guards more, so it comes first.
        for by in [ProtectedBy::Administrator, ProtectedBy::Tenant] {
            let of = named.iter().filter(|(_, named_by)| *named_by == by);
            let mut level: HashSet<Arc<Reference>> = of.map(|(reference, _)| reference.clone()).collect();
            for _ in 0..DEEPEST {
                if level.is_empty() {
                    break;
                }
                // Those of groups that are not searched count as unknown: their own deletion is not asked about.
                level.retain(|reference| reference.may_be_read(groups));
                self.read(&mut reader, discovery, &level).await;
                for reference in std::mem::take(&mut level) {
                    if ancestors.len() < MOST_OWNERS
                        && let Some(Known::There(owners)) =
                            self.remembered.get(&reference).map(|it| &it.owner)
                        && let Some(ancestor) = ancestor(&reference, by, discovery)
                        && let Entry::Vacant(entry) = ancestors.entry(reference.uid.clone())
                    {
                        entry.insert(ancestor);
                        level.extend(owners.iter().cloned());
                    }
                    used.insert(reference);
                }
                tokio::task::yield_now().await;
            }
        }
        if ancestors.len() == MOST_OWNERS {
            // The garbage collector's deletion of what they own is refused all the same.
            tracing::warn!(owners = MOST_OWNERS, "more owners of protected objects than are guarded");
        }
        self.remembered.retain(|reference, _| used.contains(reference));
        Ancestors(ancestors)
    }

    /// Reads what is not remembered, all together.
    async fn read<A: Ask>(
        &mut self,
        reader: &mut Reader<'_, A>,
        discovery: &Discovery,
        references: &HashSet<Arc<Reference>>,
    ) {
        let now = Instant::now();
        let is_known = |reference: &Arc<Reference>| {
            self.remembered.get(reference).is_some_and(|known| known.until > now)
        };
        let wanted: Vec<(Arc<Reference>, Location)> = references
            .iter()
            .filter(|reference| !is_known(reference))
            .filter_map(|reference| Some((reference.clone(), reference.location(discovery)?)))
            .collect();
        if wanted.is_empty() {
            return;
        }
        let locations: BTreeSet<Location> = wanted.iter().map(|(_, location)| location.clone()).collect();
        let failed = reader.read(locations).await;
        if let Some(why) = failed.values().next() {
            tracing::warn!(owners = failed.len(), why = why.text, "reading owners of protected objects");
        }
        for (reference, location) in wanted {
            let (owner, believed) = match reader.get(&location) {
                Some(Some(owner)) if owner.uid == reference.uid => {
                    let owners = owner.owners.iter().take(OWNERS_OF_ONE).cloned().map(Arc::new);
                    (Known::There(owners.collect()), BELIEVED)
                }
                Some(_) => (Known::Absent, BELIEVED),
                // What was read before is believed for longer: an owner that is guarded stays so.
                None => {
                    let before = self.remembered.remove(&reference);
                    (before.map_or(Known::Nothing, |before| before.owner), FAILED)
                }
            };
            self.remembered.insert(reference, Remembered { owner, until: now + believed });
        }
    }
}

/// What is to be known of an owner; `None` if its deletion is asked about in any case.
fn ancestor(reference: &Reference, by: ProtectedBy, discovery: &Discovery) -> Option<Ancestor> {
    let served = reference.served(discovery)?;
    if matches!(cascade_of(&served.group, &served.kind), Cascade::Namespace | Cascade::Definition) {
        return None;
    }
    Some(Ancestor {
        group: served.group.clone(),
        plural: served.plural.clone(),
        namespace: reference.namespace.clone().filter(|_| served.namespaced),
        guarded: served.namespaced || by == ProtectedBy::Administrator,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::Served;
    use crate::live::NoAnswer;
    use crate::sync::lock;
    use std::sync::Mutex;

    fn uid(number: usize) -> String {
        format!("{number:08x}-0000-4000-8000-000000000000")
    }

    fn reference(kind: &str, number: usize) -> Reference {
        Reference::new(Some("shop"), "v1", kind, &format!("o{number}"), &uid(number)).unwrap()
    }

    fn discovery() -> Discovery {
        let resources = vec![
            Served::new("", "v1", "ConfigMap", "configmaps", true),
            Served::new("", "v1", "Node", "nodes", false),
            Served::new("", "v1", "Namespace", "namespaces", false),
        ];
        Discovery { resources, ..Discovery::default() }
    }

    type Numbered = (&'static str, usize);

    /// Objects by kind and number: who owns them.
    #[derive(Default)]
    struct Objects {
        there: Mutex<BTreeMap<Numbered, Vec<Numbered>>>,
        broken: Mutex<bool>,
        asked: Mutex<usize>,
    }

    impl Objects {
        fn put(&self, plural: &'static str, number: usize, owners: &[(&'static str, usize)]) {
            lock(&self.there).insert((plural, number), owners.to_vec());
        }

        fn questions(&self) -> usize {
            std::mem::take(&mut *lock(&self.asked))
        }
    }

    impl Ask for Objects {
        async fn ask(&self, uri: &str, _: &str) -> Result<String, NoAnswer> {
            *lock(&self.asked) += 1;
            if *lock(&self.broken) {
                return Err(NoAnswer::new("no".to_owned()));
            }
            let path = uri.split('?').next().unwrap();
            let plural = path.rsplit('/').next().unwrap();
            let there = lock(&self.there);
            let items: Vec<_> = there
                .iter()
                .filter(|((kind, _), _)| *kind == plural)
                .map(|((_, number), owners)| {
                    let owners: Vec<_> = owners
                        .iter()
                        .map(|(kind, number)| {
                            serde_json::json!({"apiVersion": "v1", "kind": kind, "name": format!("o{number}"), "uid": uid(*number)})
                        })
                        .collect();
                    serde_json::json!({"metadata": {"name": format!("o{number}"), "uid": uid(*number), "ownerReferences": owners,
                        "namespace": (plural == "configmaps").then_some("shop")}})
                })
                .collect();
            Ok(serde_json::json!({"metadata": {}, "items": items}).to_string())
        }
    }

    async fn resolved(
        resolver: &mut Resolver,
        objects: &Objects,
        named: &[(&str, usize, ProtectedBy)],
    ) -> Vec<(usize, bool)> {
        let named: Vec<_> =
            named.iter().map(|(kind, number, by)| (Arc::new(reference(kind, *number)), *by)).collect();
        let Ancestors(found) =
            resolver.resolve(objects, &SearchGroups::default(), &discovery(), &named).await;
        found
            .into_iter()
            .map(|(uid, ancestor)| (usize::from_str_radix(&uid[..8], 16).unwrap(), ancestor.guarded))
            .collect()
    }

    #[tokio::test]
    async fn only_owners_that_are_there_with_that_uid_count() {
        use ProtectedBy::Tenant;
        let objects = Objects::default();
        objects.put("configmaps", 1, &[("ConfigMap", 2)]);
        objects.put("configmaps", 2, &[("Node", 3), ("Namespace", 4), ("Gone", 5)]);
        objects.put("nodes", 3, &[]);
        objects.put("namespaces", 4, &[]);
        let mut resolver = Resolver::default();
        let found = resolved(&mut resolver, &objects, &[("ConfigMap", 1, Tenant), ("ConfigMap", 7, Tenant)]);
        // A Namespace is asked about in any case.
        assert_eq!(found.await, [(1, true), (2, true), (3, false)]);
        let other = Reference { uid: uid(9), ..reference("ConfigMap", 1) };
        let named = [(Arc::new(other), Tenant)];
        let all = SearchGroups::default();
        assert_eq!(resolver.resolve(&objects, &all, &discovery(), &named).await, Ancestors::default());
    }

    #[tokio::test]
    async fn what_an_administrator_protects_guards_owners_without_a_namespace() {
        use ProtectedBy::{Administrator, Tenant};
        let objects = Objects::default();
        objects.put("configmaps", 1, &[("Node", 3)]);
        objects.put("nodes", 3, &[]);
        let mut resolver = Resolver::default();
        assert_eq!(
            resolved(&mut resolver, &objects, &[("ConfigMap", 1, Administrator), ("Node", 3, Tenant)]).await,
            [(1, true), (3, true)]
        );
        assert_eq!(resolved(&mut resolver, &objects, &[("Node", 3, Tenant)]).await, [(3, false)]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_read_is_remembered_and_so_is_what_could_not_be_read() {
        use ProtectedBy::Tenant;
        let objects = Objects::default();
        let named: Vec<(&str, usize, ProtectedBy)> = (0..2_500).map(|n| ("ConfigMap", n, Tenant)).collect();
        objects.put("configmaps", 1, &[]);
        let mut resolver = Resolver::default();
        for expected in [1, 0, 0] {
            assert_eq!(resolved(&mut resolver, &objects, &named).await, [(1, true)]);
            assert_eq!(objects.questions(), expected, "invented owners are remembered");
        }
        tokio::time::advance(BELIEVED).await;
        *lock(&objects.broken) = true;
        for expected in [1, 0] {
            assert_eq!(resolved(&mut resolver, &objects, &named).await, [(1, true)], "it stays guarded");
            assert_eq!(objects.questions(), expected, "failed reads are remembered");
        }
        tokio::time::advance(FAILED).await;
        *lock(&objects.broken) = false;
        assert_eq!(resolved(&mut resolver, &objects, &named).await, [(1, true)]);
        assert_eq!(objects.questions(), 1);
        assert_eq!(resolved(&mut resolver, &objects, &[]).await, []);
        assert!(resolver.remembered.is_empty(), "nothing is remembered that nobody names");
    }

    #[tokio::test]
    async fn circles_and_long_chains_end() {
        use ProtectedBy::Tenant;
        let objects = Objects::default();
        for number in 0..1_000 {
            objects.put("configmaps", number, &[("ConfigMap", (number + 1) % 1_000), ("ConfigMap", number)]);
        }
        let found = resolved(&mut Resolver::default(), &objects, &[("ConfigMap", 0, Tenant)]).await;
        assert_eq!(found.len(), DEEPEST);
        assert!(objects.questions() <= 2);
    }
}
