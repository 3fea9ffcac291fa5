//! What became of owners, and the claim templates of `StatefulSet`s: from where a label may have been copied.
//!
//! A few owners of a kind are read one by one, many by listing their kind in their namespace. All are read at once. An
//! owner is read by a list that selects its name, which needs no right to get objects of every kind.

use std::collections::{BTreeMap, HashSet};
use std::sync::Mutex;

use futures::stream::{self, StreamExt};
use palisade_engine::{Answer, ClaimTemplate, Object, OwnerRef, OwnerState, SourceMarks};

use crate::critical::read_page;
use crate::discovery::Served;
use crate::live::{LiveWorld, METADATA_LIST, NoAnswer, WHOLE, page_uri};
use crate::named::name_selector;
use crate::sync;

/// Lists that are under way at once.
const AT_ONCE: usize = 16;
/// So many owners of a kind in a namespace are read one by one.
const ONE_BY_ONE: usize = 8;

/// One question leads to no more lists than this, whatever somebody wrote into owner references.
const MOST_LISTS: usize = 256;

/// Kinds that own what most labels are copied to: `(group, kind, plural)`. Nobody has to look up how they are served.
const COMMON_OWNERS: [(&str, &str, &str); 8] = [
    ("apps", "Deployment", "deployments"),
    ("apps", "ReplicaSet", "replicasets"),
    ("apps", "StatefulSet", "statefulsets"),
    ("apps", "DaemonSet", "daemonsets"),
    ("batch", "Job", "jobs"),
    ("batch", "CronJob", "cronjobs"),
    ("", "ReplicationController", "replicationcontrollers"),
    ("", "Service", "services"),
];

/// Owners that were read alive, by uid. One that is gone later was deleted, and its deletion was admitted; one that was
/// never seen may never have existed. Each replica remembers what it read itself: the garbage collector asks again.
#[derive(Debug, Default)]
pub(crate) struct SeenOwners(Mutex<Remembered>);

/// The newer half, and the older half, which is dropped when the newer is full.
#[derive(Debug, Default)]
struct Remembered {
    newer: HashSet<String>,
    older: HashSet<String>,
}

/// How many owners each half holds.
const REMEMBERED: usize = 5_000;

impl SeenOwners {
    fn add(&self, uid: &str) {
        let mut remembered = sync::lock(&self.0);
        if remembered.newer.len() >= REMEMBERED {
            remembered.older = std::mem::take(&mut remembered.newer);
        }
        remembered.newer.insert(uid.to_owned());
    }

    pub(crate) fn contain(&self, uid: &str) -> bool {
        let remembered = sync::lock(&self.0);
        remembered.newer.contains(uid) || remembered.older.contains(uid)
    }
}

/// The owners of one kind in one namespace, or in none.
struct Siblings {
    served: Served,
    namespace: Option<String>,
    owners: Vec<OwnerRef>,
}

impl LiveWorld {
    pub(crate) async fn ask_for_owners(
        &self,
        owners: &[(Option<String>, OwnerRef)],
    ) -> Answer<BTreeMap<String, OwnerState>> {
        let unknown = |why: NoAnswer| self.unknown("what its owner looks like", why);
        let mut states = BTreeMap::new();
        let mut lists = Vec::new();
        for siblings in self.siblings(owners, &mut states).await.map_err(unknown)? {
            for owner in &siblings.owners {
                // What no list shows is gone.
                let elsewhere = !siblings.served.namespaced && siblings.namespace.is_some();
                let gone = if elsewhere { OwnerState::GoneFromCluster } else { OwnerState::Gone };
                states.insert(owner.uid.clone(), gone);
            }
            let Siblings { served, namespace, owners } = siblings;
            // Nobody needs the content of a Secret to know its labels.
            let has_template = !(served.group.is_empty() && served.kind == "Secret");
            let accept = if has_template { WHOLE } else { METADATA_LIST };
            let path = served.path(namespace.as_deref());
            if owners.len() > ONE_BY_ONE {
                lists.push((path, None, accept));
            } else {
                let names = owners.iter().map(|owner| name_selector(&owner.name));
                lists.extend(names.map(|name| (path.clone(), Some(name), accept)));
            }
        }
        // An owner that nobody looked at is no source of a copy: what would be one counts as protected.
        lists.truncate(MOST_LISTS);
        let mut asked = Vec::new();
        for (path, name, accept) in lists {
            asked.push(self.list_owners(path, name, accept));
        }
        let mut answers = stream::iter(asked).buffer_unordered(AT_ONCE);
        while let Some(answer) = answers.next().await {
            for (uid, state) in answer.map_err(unknown)? {
                if let Some(known) = states.get_mut(&uid) {
                    self.seen_owners.add(&uid);
                    *known = state;
                }
            }
        }
        drop(answers);
        Ok(states)
    }

    /// The owners by kind and namespace. Those of a kind that is not served are done with.
    async fn siblings(
        &self,
        owners: &[(Option<String>, OwnerRef)],
        states: &mut BTreeMap<String, OwnerState>,
    ) -> Result<Vec<Siblings>, NoAnswer> {
        let mut groups: BTreeMap<(Option<&str>, &str, &str), Vec<OwnerRef>> = BTreeMap::new();
        for (namespace, owner) in owners {
            // It fails closed: an owner that is not looked at is no source of a copy.
            if self.searching.groups.may_read(owner.group(), &owner.kind) {
                let key = (namespace.as_deref(), owner.group(), &*owner.kind);
                groups.entry(key).or_default().push(owner.clone());
            }
        }
        let mut all = Vec::new();
        for ((namespace, group, kind), owners) in groups {
            let common = COMMON_OWNERS.iter().find(|(g, k, _)| *g == group && *k == kind);
            let served = match common {
                Some((group, kind, plural)) => Some(Served::new(group, "v1", kind, plural, true)),
                None => self.discovery().await?.find(group, kind).cloned(),
            };
            if let Some(served) = served {
                all.push(Siblings { served, namespace: namespace.map(str::to_owned), owners });
            } else {
                // The garbage collector does not take dependents of a kind that it does not know.
                let uids = owners.into_iter().map(|owner| owner.uid);
                states.extend(uids.map(|uid| (uid, OwnerState::GoneFromCluster)));
            }
        }
        Ok(all)
    }

    async fn list_owners(
        &self,
        path: String,
        name: Option<String>,
        accept: &str,
    ) -> Result<Vec<(String, OwnerState)>, NoAnswer> {
        let query: Vec<(&str, &str)> =
            name.as_deref().map(|name| ("fieldSelector", name)).into_iter().collect();
        let mut states = Vec::new();
        let mut take = |owner: &Object<'_>| {
            let is_terminating = owner.metadata.deletion_timestamp.is_some();
            let labels = SourceMarks::of(owner);
            states.push((owner.metadata.uid.to_string(), OwnerState::There { labels, is_terminating }));
        };
        self.each_selected(&path, &query, accept, &mut take).await?;
        Ok(states)
    }

    pub(crate) async fn ask_for_claim_templates(&self, namespace: &str) -> Answer<Vec<ClaimTemplate>> {
        let unknown = |why: NoAnswer| self.unknown("which StatefulSet it belongs to", why);
        let kruise = self.discovery().await.map_err(unknown)?.find("apps.kruise.io", "StatefulSet").cloned();
        let kubernetes = Served::new("apps", "v1", "StatefulSet", "statefulsets", true);
        let mut templates = Vec::new();
        for served in [Some(kubernetes), kruise].into_iter().flatten() {
            let mut take = |set: &Object<'_>| templates.extend(claim_templates(set));
            let path = served.path(Some(namespace));
            self.each_selected(&path, &[], WHOLE, &mut take).await.map_err(unknown)?;
        }
        Ok(templates)
    }

    /// Shows every object that a query selects, page by page; none, if the kind is not served any more.
    async fn each_selected(
        &self,
        path: &str,
        query: &[(&str, &str)],
        accept: &str,
        take: &mut (dyn FnMut(&Object<'_>) + Send),
    ) -> Result<(), NoAnswer> {
        let mut token = String::new();
        loop {
            let text = match self.ask(&page_uri(path, query, &token), accept).await {
                Ok(text) => text,
                Err(why) if why.code == 404 => return Ok(()),
                Err(why) => return Err(why),
            };
            token = read_page(&text, take)?;
            if token.is_empty() {
                return Ok(());
            }
        }
    }
}

fn claim_templates(set: &Object<'_>) -> Vec<ClaimTemplate> {
    // A StatefulSet that can't be read has made no claims that anybody could tell.
    let spec = set.spec_json().unwrap_or_default();
    let templates = spec["volumeClaimTemplates"].as_array().into_iter().flatten();
    templates
        .map(|template| ClaimTemplate {
            set: set.metadata.name.to_string(),
            template: template["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
            labels: SourceMarks::in_template(&template["metadata"]),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_owners_are_remembered_and_no_more() {
        let seen = SeenOwners::default();
        for number in 0..3 * REMEMBERED {
            seen.add(&number.to_string());
        }
        assert!(!seen.contain("0") && !seen.contain("unseen"));
        assert!(
            seen.contain(&(2 * REMEMBERED).to_string()) && seen.contain(&(3 * REMEMBERED - 1).to_string())
        );
        let remembered = sync::lock(&seen.0);
        assert!(remembered.newer.len() + remembered.older.len() <= 2 * REMEMBERED);
    }
}
