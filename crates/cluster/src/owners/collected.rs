//! Who would be collected with whom.
//!
//! The garbage collector removes an object when all its owners are gone. So a protected object goes with another
//! if one of its owners does, at any depth, and none of them stays.

use std::collections::{BTreeSet, HashMap, HashSet};

use palisade_api::search_groups::SearchGroups;
use palisade_engine::Doomed;

use super::read::{Ask, Reader};
use super::{Location, Reference};
use crate::discovery::Discovery;
use crate::live::NoAnswer;

/// How many owners one review reads at most.
const MOST_OWNERS: usize = 20_000;

/// Those of some protected objects that would be collected with the root, as far as that can be found out.
pub(crate) async fn collected_with<A: Ask>(
    asker: &A,
    groups: &SearchGroups,
    discovery: &Discovery,
    root: &str,
    protected: Vec<Doomed>,
) -> Result<Vec<Doomed>, NoAnswer> {
    let reader = Reader::new(asker, discovery);
    let mut walk = Walk { reader, groups, discovery, root, owners: HashMap::new() };
    let owned: Vec<(Doomed, BTreeSet<Reference>)> = protected
        .into_iter()
        .map(|doomed| {
            let namespace = doomed.about.namespace.as_deref();
            let owners = doomed.owners.iter().filter_map(|owner| Reference::of(namespace, owner));
            let owners = owners.collect();
            (doomed, owners)
        })
        .collect();
    let unknown = walk.up(owned.iter().flat_map(|(_, owners)| owners)).await;
    let graph: HashMap<&str, BTreeSet<&str>> =
        walk.owners.iter().map(|(uid, owners)| (&**uid, walk.live(owners))).collect();
    let going = going(root, &graph);
    let goes = |owners: &BTreeSet<Reference>| is_collected(&walk.live(owners), &going);
    let found: Vec<Doomed> =
        owned.iter().filter(|(_, owners)| goes(owners)).map(|(doomed, _)| doomed.clone()).collect();
    match unknown {
        // What is known to be protected decides, also if something else could not be found out.
        Some(why) if found.is_empty() => Err(why),
        _ => Ok(found),
    }
}

/// The way from protected objects up to their owners.
struct Walk<'a, A> {
    reader: Reader<'a, A>,
    /// Owners of other groups are not read, and taken to stay. The garbage collector's deletion of what is protected is
    /// refused all the same.
    groups: &'a SearchGroups,
    discovery: &'a Discovery,
    root: &'a str,
    /// Of every owner that is there, by uid: its own.
    owners: HashMap<String, Vec<Reference>>,
}

/// The uid of an owner of which nothing is known: it is taken to stay.
const UNKNOWN: &str = "";

impl<A: Ask> Walk<'_, A> {
    /// Reads owners, and owners of owners, level by level, each once. Returns why not all could be read.
    async fn up<'r>(&mut self, start: impl Iterator<Item = &'r Reference>) -> Option<NoAnswer> {
        let mut level: HashSet<Reference> = start.cloned().collect();
        let mut unknown = None;
        while !level.is_empty() {
            level.retain(|reference| reference.uid != self.root);
            let readable = level.iter().filter(|reference| reference.may_be_read(self.groups));
            let wanted: BTreeSet<Location> =
                readable.filter_map(|reference| reference.location(self.discovery)).collect();
            if self.owners.len() + wanted.len() > MOST_OWNERS {
                let text = format!("there are more than {MOST_OWNERS} owners of protected objects");
                return Some(NoAnswer::new(text));
            }
            unknown = self.reader.read(wanted).await.into_values().next().or(unknown);
            let mut next = HashSet::new();
            for reference in level {
                let location = reference.location(self.discovery);
                let Some(Some(owner)) = location.and_then(|location| self.reader.get(&location)) else {
                    continue;
                };
                if owner.uid == reference.uid && !self.owners.contains_key(&owner.uid) {
                    next.extend(owner.owners.iter().cloned());
                    self.owners.insert(reference.uid, owner.owners.clone());
                }
            }
            level = next;
            tokio::task::yield_now().await;
        }
        unknown
    }

    /// The uids of those owners that are there.
    fn live<'r>(&self, references: impl IntoIterator<Item = &'r Reference>) -> BTreeSet<&'r str> {
        let uid = |reference: &'r Reference| {
            if reference.uid == self.root {
                return Some(&*reference.uid);
            }
            match self.reader.get(&reference.location(self.discovery)?) {
                Some(Some(owner)) if owner.uid == reference.uid => Some(&*reference.uid),
                Some(_) => None,
                None => Some(UNKNOWN),
            }
        };
        references.into_iter().filter_map(uid).collect()
    }
}

/// Everything that goes with the root: those of which all owners that are there go, again and again. What owns itself,
/// directly or round about, stays.
fn going<'a>(root: &'a str, graph: &HashMap<&'a str, BTreeSet<&'a str>>) -> HashSet<&'a str> {
    let mut dependents: HashMap<&str, Vec<&str>> = HashMap::new();
    let mut staying: HashMap<&str, usize> = HashMap::new();
    for (uid, owners) in graph {
        staying.insert(uid, owners.len());
        for owner in owners {
            dependents.entry(owner).or_default().push(uid);
        }
    }
    let mut going = HashSet::from([root]);
    let mut next = vec![root];
    while let Some(owner) = next.pop() {
        for dependent in dependents.get(owner).into_iter().flatten() {
            let Some(left) = staying.get_mut(dependent) else { continue };
            *left -= 1;
            if *left == 0 && going.insert(dependent) {
                next.push(dependent);
            }
        }
    }
    going
}

/// What has no owner that is there is not collected by this deletion: nobody owns it, or it is on its way already.
fn is_collected(owners: &BTreeSet<&str>, going: &HashSet<&str>) -> bool {
    !owners.is_empty() && owners.iter().all(|owner| going.contains(owner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::Served;
    use palisade_engine::{About, LabelSet, OwnerRef};
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn uid(number: usize) -> String {
        format!("{number:08x}-0000-4000-8000-000000000000")
    }

    fn owner(number: usize) -> OwnerRef {
        OwnerRef {
            api_version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            name: format!("c{number}"),
            uid: uid(number),
        }
    }

    /// `ConfigMap`s of one namespace by number: who owns them. Some of them nobody can read.
    #[derive(Default)]
    struct Maps {
        owners: BTreeMap<usize, Vec<OwnerRef>>,
        broken: bool,
        asked: AtomicUsize,
    }

    impl Maps {
        fn of(owners: impl IntoIterator<Item = (usize, Vec<usize>)>) -> Self {
            let refs = |of: Vec<usize>| of.into_iter().map(owner).collect();
            Self {
                owners: owners.into_iter().map(|(number, of)| (number, refs(of))).collect(),
                ..Self::default()
            }
        }

        fn item(number: usize, owners: &[OwnerRef]) -> serde_json::Value {
            let owners: Vec<_> = owners
                .iter()
                .map(|owner| serde_json::json!({"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}))
                .collect();
            serde_json::json!({"metadata": {"name": format!("c{number}"), "namespace": "shop", "uid": uid(number), "ownerReferences": owners}})
        }
    }

    impl Ask for Maps {
        async fn ask(&self, uri: &str, _: &str) -> Result<String, NoAnswer> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            assert!(uri.starts_with("/api/v1/namespaces/shop/configmaps?"), "{uri}");
            if self.broken {
                return Err(NoAnswer::new("no".to_owned()));
            }
            let named = uri.split_once("metadata.name%3Dc").map(|(_, name)| name.parse::<usize>().unwrap());
            let wanted = self.owners.iter().filter(|(number, _)| named.is_none_or(|named| named == **number));
            let items: Vec<_> = wanted.map(|(number, owners)| Self::item(*number, owners)).collect();
            Ok(serde_json::json!({"metadata": {}, "items": items}).to_string())
        }
    }

    fn protected(owners: Vec<OwnerRef>) -> Doomed {
        let about = About {
            kind: "configmap".to_owned(),
            kubectl_name: "configmap".to_owned(),
            namespace: Some("shop".to_owned()),
            name: "kept".to_owned(),
        };
        Doomed {
            about,
            because: Vec::new(),
            lift: Vec::new(),
            carried: LabelSet::default(),
            owners,
            controller: None,
            undecided: None,
        }
    }

    /// Whether an object with some owners goes with number 0.
    async fn goes(maps: &Maps, owners: Vec<OwnerRef>) -> Option<bool> {
        let discovery = Discovery {
            resources: vec![Served::new("", "v1", "ConfigMap", "configmaps", true)],
            ..Discovery::default()
        };
        let found =
            collected_with(maps, &SearchGroups::default(), &discovery, &uid(0), vec![protected(owners)])
                .await;
        found.ok().map(|found| !found.is_empty())
    }

    #[tokio::test]
    async fn a_dependent_goes_once_all_its_owners_do() {
        let maps = Maps::of([(0, vec![]), (1, vec![0]), (2, vec![]), (3, vec![1, 2]), (4, vec![0, 1])]);
        for (owners, expected) in [
            (vec![0], true),
            (vec![1], true),
            (vec![0, 1], true),
            (vec![2], false),
            (vec![0, 2], false),
            (vec![3], false),
            (vec![4], true),
            (vec![0, 99], true),
            (vec![99], false),
            (vec![], false),
        ] {
            let refs = owners.iter().copied().map(owner).collect();
            assert_eq!(goes(&maps, refs).await, Some(expected), "{owners:?}");
        }
        let renamed = OwnerRef { name: "c9".to_owned(), ..owner(2) };
        assert_eq!(goes(&maps, vec![owner(0), renamed]).await, Some(true), "nothing is there by that name");
        let invented = OwnerRef { uid: "' || true".to_owned(), ..owner(2) };
        assert_eq!(goes(&maps, vec![owner(0), invented]).await, Some(true), "no object has such a uid");
    }

    #[tokio::test]
    async fn an_owner_that_is_named_many_times_is_read_once() {
        // A chain of sixteen, each with six references to the next: 6^16 ways up.
        let chain =
            (0..17_usize).map(|number| (number, if number == 0 { vec![] } else { vec![number - 1; 6] }));
        let maps = Maps::of(chain);
        assert_eq!(goes(&maps, vec![owner(16); 6]).await, Some(true));
        assert!(maps.asked.load(Ordering::Relaxed) <= 3, "a list shows the rest");
    }

    #[tokio::test]
    async fn a_dense_graph_is_walked_once() {
        let dense = (0..200_usize).map(|number| (number, (0..number).collect()));
        assert_eq!(goes(&Maps::of(dense), (0..200).map(owner).collect()).await, Some(true));
        let all: Vec<usize> = (0..200).collect();
        let cyclic = (0..200_usize).map(|number| (number, if number == 0 { vec![] } else { all.clone() }));
        assert_eq!(
            goes(&Maps::of(cyclic), (0..200).map(owner).collect()).await,
            Some(false),
            "they own each other"
        );
    }

    #[tokio::test]
    async fn what_owns_itself_stays() {
        let maps = Maps::of([(0, vec![]), (1, vec![2, 0]), (2, vec![1])]);
        assert_eq!(goes(&maps, vec![owner(1)]).await, Some(false));
        assert_eq!(goes(&maps, vec![owner(1), owner(0)]).await, Some(false));
    }

    #[tokio::test]
    async fn ten_thousand_owners_are_read_together() {
        let maps = Maps::of([(0, vec![])]);
        assert_eq!(goes(&maps, (0..10_000).map(owner).collect()).await, Some(true));
        assert_eq!(maps.asked.load(Ordering::Relaxed), 1);
        let real = Maps::of((0..10_000).map(|number| (number, vec![])));
        assert_eq!(goes(&real, (0..10_000).map(owner).collect()).await, Some(false));
    }

    #[tokio::test]
    async fn more_owners_than_can_be_read_are_no_answer() {
        assert_eq!(goes(&Maps::of([]), (1..30_000).map(owner).collect()).await, None);
        let broken = Maps { broken: true, ..Maps::of([(0, vec![]), (1, vec![0])]) };
        assert_eq!(goes(&broken, vec![owner(1)]).await, None);
        assert_eq!(goes(&broken, vec![owner(0)]).await, Some(true), "nothing needs to be read");
    }
}
