//! Who owns pods, asked of the API server where the watches have not told.
//!
//! A watch of workloads may not have seen an owner yet, or there may be none for its kind. Then it is asked for by
//! name; a uid that is gone stays gone, and is remembered.
//!
//! Anybody who writes a pod may name an owner of any kind. Only kinds that say how many pods they want are watched; of
//! all others nothing but the metadata is ever read.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use kube::Client;
use palisade_api::budget::Target;
use palisade_api::labels::{LabelRule, LabelSelector};
use palisade_engine::{Answer, Object, Pairs, Unknown};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::budgets::census::Owners;
use crate::budgets::workloads::{Scale, Workload};
use crate::budgets::{Controller, Index, NamespacePods};
use crate::discovery::{Discovery, Served, discover};
use crate::live::{WHOLE, get, segment};
use crate::named::{Detail, read_named};
use crate::searching::Searching;
use crate::sync::{self, lock};

/// How long one question to the API server may take.
const CALL: Duration = Duration::from_secs(3);
/// How long an owner that was asked about is taken to be as it was.
const OWNER_FRESH: Duration = Duration::from_secs(1);
/// The same where there is no watch to tell soon.
const UNWATCHED_FRESH: Duration = Duration::from_secs(3);
/// More uids than that are not remembered to be gone.
const GONE_REMEMBERED: usize = 100_000;

/// Where owners are looked up.
pub(super) struct Lookup {
    pub(super) client: Client,
    pub(super) index: Arc<Index>,
    pub(super) discovery: watch::Receiver<Option<Discovery>>,
    pub(super) searching: Arc<Searching>,
}

impl Lookup {
    /// Computes something that depends on owners, asking about those that no watch has told about.
    pub(super) async fn with_owners<T>(
        &self,
        namespace: &str,
        compute: impl Fn(&Owners<'_>, Option<&NamespacePods>) -> Result<T, Vec<Controller>>,
    ) -> Answer<T> {
        let mut asked: HashMap<Box<str>, Option<Workload>> = HashMap::new();
        // A chain has few links, and each round learns at least one.
        for _ in 0..16 {
            let pods = self.index.pods().share_namespace(namespace);
            let missing = {
                let workloads = self.index.workloads();
                match compute(&Owners { watched: &workloads, asked: &asked }, pods.as_deref()) {
                    Ok(computed) => return Ok(computed),
                    Err(missing) => missing,
                }
            };
            let found = join_all(missing.iter().map(|owner| self.owner(namespace, owner))).await;
            for (owner, found) in missing.into_iter().zip(found) {
                asked.insert(owner.uid, found?);
            }
        }
        Err(Unknown::new("who owns its pods", "the chain of owners does not end"))
    }

    /// An owner, asked for by name: `None` if it is gone.
    async fn owner(&self, namespace: &str, owner: &Controller) -> Answer<Option<Workload>> {
        let question = || format!("what {} {} wants", owner.kind, owner.name);
        let unknown = |why: String| Unknown::new(question(), why);
        // Nobody reads how many pods it wants: those count that there are.
        if !self.searching.groups.may_read(&owner.group, &owner.kind) {
            return Ok(Some(unscaled(namespace, owner)));
        }
        let served = sync::peek(&self.discovery, |discovery| {
            discovery.as_ref().map(|discovery| discovery.find(&owner.group, &owner.kind).cloned())
        });
        let Some(served) = served else {
            return Err(unknown("it is not known yet what is served".to_owned()));
        };
        let watched = served.as_ref().is_some_and(is_workload);
        let fresh = if watched { OWNER_FRESH } else { UNWATCHED_FRESH };
        let asked_before = lock(&self.index.asked).get(&owner.uid).cloned();
        if let Some((known, at)) = asked_before
            && (known.is_none() || at.elapsed() < fresh)
        {
            return Ok(known);
        }
        let Some(served) = served else { return self.unserved(namespace, owner).await.map_err(unknown) };
        let kind = (owner.group.clone(), owner.kind.clone());
        let scale = if watched {
            self.index.want_kind(kind.clone());
            scale_of(&self.client, &served).await.map_err(unknown)?
        } else {
            Scale(None)
        };
        let path = served.path(Some(namespace));
        let detail = if scale.0.is_some() { Detail::Whole } else { Detail::Metadata };
        let asked = read_named(&self.client, &path, &owner.name, detail);
        let found = match timeout(CALL, asked).await {
            Err(_) => return Err(unknown("the API server did not answer in time".to_owned())),
            // Also a path that is not served yet.
            Ok(Err(why)) => {
                let missing = self.searching.missing(&why);
                return Err(unknown(why.text).lacking(missing));
            }
            Ok(Ok(None)) => None,
            Ok(Ok(Some(text))) => {
                let object = Object::parse(text.as_bytes()).map_err(|error| unknown(error.to_string()))?;
                // Another by the same name is another.
                let same = object.metadata.uid == *owner.uid;
                let read =
                    || Workload::read(&object, &kind, &scale).map_err(|error| unknown(error.to_string()));
                same.then(read).transpose()?
            }
        };
        let mut asked = lock(&self.index.asked);
        if asked.len() > GONE_REMEMBERED {
            asked.clear();
        }
        asked.insert(owner.uid.clone(), (found.clone(), Instant::now()));
        Ok(found)
    }

    /// An owner of a kind that does not seem to be served. Once that is certain, there is none: its definition is gone,
    /// and it with that.
    async fn unserved(&self, namespace: &str, owner: &Controller) -> Result<Option<Workload>, String> {
        let discovery = match timeout(CALL, discover(&self.client)).await {
            Ok(Ok(discovery)) => discovery,
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err("the API server did not answer in time".to_owned()),
        };
        let served = discovery.find(&owner.group, &owner.kind).is_some();
        // What is served by somebody who does not answer, or only just now, counts as one without a scale.
        let there = served || discovery.unreachable.iter().any(|group| **group == *owner.group);
        let found = there.then(|| unscaled(namespace, owner));
        lock(&self.index.asked).insert(owner.uid.clone(), (found.clone(), Instant::now()));
        Ok(found)
    }

    /// Whether there is an object of a kind that is not watched.
    pub(super) async fn finds(&self, namespace: &str, target: &Target) -> Answer<bool> {
        let unknown =
            |why: String| Unknown::new(format!("whether {} {} is there", target.kind, target.name), why);
        let served = sync::peek(&self.discovery, |discovery| {
            discovery.as_ref().and_then(|all| all.find(&target.group, &target.kind).cloned())
        });
        let Some(served) = served.filter(|served| served.namespaced && !is_workload(served)) else {
            return Ok(false);
        };
        // Nobody looks, and it would be wrong to say that it is not there.
        if !self.searching.groups.contain(&target.group) {
            return Ok(true);
        }
        let path = served.path(Some(namespace));
        match timeout(CALL, read_named(&self.client, &path, &target.name, Detail::Metadata)).await {
            Err(_) => Err(unknown("the API server did not answer in time".to_owned())),
            Ok(Err(why)) if why.code == 404 => Ok(false),
            Ok(Err(why)) => Err(unknown(why.text)),
            Ok(Ok(found)) => Ok(found.is_some()),
        }
    }

    /// Whether a controller would go on taking a pod with these labels for one of its own.
    pub(super) async fn keeps(
        &self,
        namespace: &str,
        owner: &Controller,
        labels: &Pairs<'_>,
    ) -> Answer<bool> {
        let unknown =
            |why: String| Unknown::new(format!("which pods {} {} selects", owner.kind, owner.name), why);
        let served = sync::peek(&self.discovery, |discovery| {
            discovery.as_ref().and_then(|all| all.find(&owner.group, &owner.kind).cloned())
        });
        let is_read = |served: &Served| self.searching.groups.may_read(&served.group, &served.kind);
        let Some(served) = served.filter(is_workload).filter(is_read) else { return Ok(true) };
        let path = served.path(Some(namespace));
        let asked = read_named(&self.client, &path, &owner.name, Detail::Whole);
        let object = match timeout(CALL, asked).await {
            Err(_) => return Err(unknown("the API server did not answer in time".to_owned())),
            Ok(Ok(None)) => return Ok(true),
            Ok(Err(why)) if why.code == 404 => return Ok(true),
            Ok(Err(why)) => return Err(unknown(why.text)),
            Ok(Ok(Some(object))) => object,
        };
        let object: Value = serde_json::from_str(&object).map_err(|error| unknown(error.to_string()))?;
        // A ReplicationController writes its labels alone. What is no selector is somebody's own affair.
        let selector = object.pointer("/spec/selector").map(LabelSelector::read);
        Ok(match selector {
            Some(Ok(selector)) => LabelRule::of(&selector).matches(|key| labels.get(key)),
            Some(Err(_)) | None => true,
        })
    }
}

/// Whether objects of a kind may say how many pods they want, or are known to own pods.
pub(crate) fn is_workload(served: &Served) -> bool {
    served.scalable || Scale::known(&served.group, &served.kind).is_some()
}

/// One that says nothing about how many pods it wants.
fn unscaled(namespace: &str, owner: &Controller) -> Workload {
    Workload {
        namespace: namespace.into(),
        name: owner.name.clone(),
        controller: None,
        wants: None,
        first_ordinal: None,
        end: None,
    }
}

/// Where a kind says how many pods it wants.
pub(crate) async fn scale_of(client: &Client, served: &Served) -> Result<Scale, String> {
    if let Some(known) = Scale::known(&served.group, &served.kind) {
        return Ok(known);
    }
    let path =
        format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}", segment(&served.resource()));
    let request = get(&path, WHOLE).map_err(|why| why.text)?;
    let definition: Value = match timeout(CALL, client.request(request)).await {
        Err(_) => return Err("the API server did not answer in time".to_owned()),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => return Ok(Scale(None)),
        Ok(Err(error)) => return Err(error.to_string()),
        Ok(Ok(definition)) => definition,
    };
    let versions = definition["spec"]["versions"].as_array().cloned().unwrap_or_default();
    let version = versions.iter().find(|version| version["name"] == served.version.as_str());
    let path = version.and_then(|version| version["subresources"]["scale"]["specReplicasPath"].as_str());
    Ok(path.map_or(Scale(None), Scale::at))
}
