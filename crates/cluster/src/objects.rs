//! The policies of one kind, listed and watched.

use std::time::Duration;

use futures::TryStreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, PartialObjectMeta, WatchEvent, WatchParams};
use kube::core::{GroupVersionKind, Status};
use kube::{ResourceExt, core::ListMeta};
use palisade_api::versions::PolicyKind;
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};

use crate::feed::number;
use crate::progress::{Generations, PolicyProgress};

/// How long one watch lasts. It is never silent for much longer.
const WATCH_SECONDS: u32 = 15;
/// How much longer it may be silent before it is given up for dead, and how long an answer may take.
const GRACE: Duration = Duration::from_secs(5);
const LIST: Duration = Duration::from_secs(30);
/// Policies that are read at a time.
const PAGE: u32 = 500;
const PAUSE: Duration = Duration::from_millis(500);
/// How often to look whether a kind is there by now.
const ABSENT: Duration = Duration::from_secs(2);

/// What a watch brings.
pub(crate) enum Change {
    /// These are all.
    All(Vec<DynamicObject>),
    Put(DynamicObject),
    Gone(DynamicObject),
}

/// How to talk about a kind with a client.
pub(crate) fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

/// Whether there is a policy; none, if the cluster does not know the kind.
pub(crate) async fn exist(api: &Api<DynamicObject>, kind: PolicyKind) -> kube::Result<bool> {
    match api.list_metadata(&ListParams::default().limit(1)).await {
        Ok(list) => Ok(!list.items.is_empty()),
        Err(kube::Error::Api(status)) if status.code == 404 => {
            none_if_undefined(&api.clone().into_client(), kind).await.map(|_| false)
        }
        Err(error) => Err(error),
    }
}

/// All policies, read once; none, if the cluster does not know the kind.
pub(crate) async fn list_policies(
    api: &Api<DynamicObject>,
    kind: PolicyKind,
) -> kube::Result<Vec<DynamicObject>> {
    match list(api).await {
        Ok((policies, _)) => Ok(policies),
        Err(kube::Error::Api(status)) if status.code == 404 => {
            none_if_undefined(&api.clone().into_client(), kind).await.map(|_| Vec::new())
        }
        Err(error) => Err(error),
    }
}

/// The answer to a 404 for a kind of policy: that its definition is not there, and the resourceVersion as of which that
/// is so. Where it is there, policies may be stored that nobody can read: that is an error, and not "no policies".
pub(crate) async fn none_if_undefined(client: &Client, kind: PolicyKind) -> kube::Result<u64> {
    let api: Api<PartialObjectMeta<CustomResourceDefinition>> = Api::all(client.clone());
    let selector = format!("metadata.name={}", kind.definition());
    let list = api.list(&ListParams::default().fields(&selector)).await?;
    if list.items.is_empty() {
        return Ok(version_of(&list.metadata));
    }
    let message = format!("the kind {kind} is defined but not served, so that stored policies can't be read");
    Err(kube::Error::Api(Status::failure(&message, UNSERVED).with_code(503).boxed()))
}

const UNSERVED: &str = "NotServed";

fn is_unserved(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.reason == UNSERVED)
}

/// One policy; `None` if it is gone. A kind that is not served says 404, too, but names no policy: that is an error.
pub(crate) async fn get_policy(api: &Api<DynamicObject>, name: &str) -> kube::Result<Option<DynamicObject>> {
    let says_gone = |status: &Status| {
        status.code == 404 && status.details.as_ref().is_some_and(|details| details.name == name)
    };
    match api.get(name).await {
        Ok(policy) => Ok(Some(policy)),
        Err(kube::Error::Api(status)) if says_gone(&status) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The status of an object; an empty one, where it cannot be read: it is written anew.
pub(crate) fn status_of<T: DeserializeOwned + Default>(object: &DynamicObject) -> T {
    let status = object.data.get("status");
    status.and_then(|status| serde_json::from_value(status.clone()).ok()).unwrap_or_default()
}

/// Watches all policies of a kind, for ever. The first that it tells is all of them; none, if the cluster does not know
/// the kind. What was last known goes on protecting while nothing newer can be read.
pub(crate) async fn watch_policies(
    client: Client,
    kind: PolicyKind,
    resource: &ApiResource,
    progress: &PolicyProgress,
    take: impl FnMut(Change) + Send,
) {
    let api: Api<DynamicObject> = Api::all_with(client, resource);
    let mut watched = Watched { kind, progress, seen: Generations::default(), take };
    loop {
        let mut version = match timeout(LIST, list(&api)).await {
            Ok(Ok((policies, version))) => {
                watched.listed(policies, number(&version));
                version
            }
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
                sleep(watched.not_served(&api).await).await;
                continue;
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, %kind, "listing policies");
                sleep(PAUSE).await;
                continue;
            }
            Err(_) => {
                tracing::warn!(%kind, "listing policies: the API server did not answer in time");
                continue;
            }
        };
        while let Err(broken) = watched.follow(&api, &mut version).await {
            match broken {
                Broken::ListAgain => break,
                Broken::Because(why) => tracing::warn!(%kind, why, "watching policies"),
            }
            sleep(PAUSE).await;
        }
    }
}

/// All of them, and the resourceVersion of the list.
async fn list(api: &Api<DynamicObject>) -> kube::Result<(Vec<DynamicObject>, String)> {
    let (mut policies, mut page) = (Vec::new(), ListParams::default().limit(PAGE));
    loop {
        let list = api.list(&page).await?;
        policies.extend(list.items);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page.continue_token = Some(token),
            None => return Ok((policies, list.metadata.resource_version.unwrap_or_default())),
        }
    }
}

fn version_of(list: &ListMeta) -> u64 {
    list.resource_version.as_deref().map_or(0, number)
}

/// Why a watch ended before its time.
enum Broken {
    /// The resourceVersion is no longer known, or the kind not served.
    ListAgain,
    Because(String),
}

impl From<kube::Error> for Broken {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if matches!(status.code, 404 | 410) => Self::ListAgain,
            error => Self::Because(error.to_string()),
        }
    }
}

struct Watched<'a, T> {
    kind: PolicyKind,
    progress: &'a PolicyProgress,
    seen: Generations,
    take: T,
}

impl<T: FnMut(Change) + Send> Watched<'_, T> {
    fn listed(&mut self, policies: Vec<DynamicObject>, version: u64) {
        // An etcd that was restored counts anew, and so do we.
        let restored = self.progress.of(self.kind).reached.is_some_and(|reached| reached > version);
        if restored {
            self.seen = Generations::default();
        }
        let uids: Vec<String> = policies.iter().map(|policy| policy.uid().unwrap_or_default()).collect();
        self.seen.keep_only(uids.iter().map(String::as_str));
        let new = policies.iter().filter(|policy| self.seen.see_policy(policy)).map(version_of_policy).max();
        (self.take)(Change::All(policies));
        self.progress.note(self.kind, |progress| {
            progress.unserved = false;
            progress.reached = Some(version);
            let before = if restored { 0 } else { progress.newest_spec };
            progress.newest_spec = before.max(new.unwrap_or(0));
        });
    }

    /// Finds out why the kind is not served, and returns when to look again.
    async fn not_served(&mut self, api: &Api<DynamicObject>) -> Duration {
        let (kind, client) = (self.kind, api.clone().into_client());
        match timeout(GRACE, none_if_undefined(&client, kind)).await {
            // The kind itself is not there: neither are policies of it.
            Ok(Ok(version)) => {
                self.listed(Vec::new(), version);
                ABSENT
            }
            Ok(Err(error)) if is_unserved(&error) => {
                if !self.progress.of(kind).unserved {
                    tracing::warn!(%error, %kind, "stored policies can't be read; what was known of them holds");
                }
                self.progress.note(kind, |progress| progress.unserved = true);
                PAUSE
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, %kind, "asking whether a kind of policy is defined");
                PAUSE
            }
            Err(_) => PAUSE,
        }
    }

    /// Watches until the API server ends it, in order or not.
    async fn follow(&mut self, api: &Api<DynamicObject>, version: &mut String) -> Result<(), Broken> {
        let params = WatchParams::default().timeout(WATCH_SECONDS);
        let silent = |_| Broken::Because("the API server is silent".to_owned());
        let events = timeout(GRACE, api.watch(&params, version)).await.map_err(silent)??;
        let mut events = std::pin::pin!(events);
        let patience = Duration::from_secs(WATCH_SECONDS.into()) + GRACE;
        while let Some(event) = timeout(patience, events.try_next()).await.map_err(silent)?? {
            let (change, reached, is_new) = match event {
                WatchEvent::Added(policy) | WatchEvent::Modified(policy) => {
                    let reached = policy.resource_version().unwrap_or_default();
                    let is_new = self.seen.see_policy(&policy);
                    (Some(Change::Put(policy)), reached, is_new)
                }
                WatchEvent::Deleted(policy) => {
                    let reached = policy.resource_version().unwrap_or_default();
                    self.seen.forget(&policy.uid().unwrap_or_default());
                    (Some(Change::Gone(policy)), reached, false)
                }
                WatchEvent::Bookmark(bookmark) => (None, bookmark.metadata.resource_version, false),
                WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
            };
            if let Some(change) = change {
                (self.take)(change);
            }
            let number = number(&reached);
            *version = reached;
            self.progress.note(self.kind, |progress| {
                progress.reached = progress.reached.max(Some(number));
                if is_new {
                    progress.newest_spec = progress.newest_spec.max(number);
                }
            });
        }
        Ok(())
    }
}

impl Generations {
    fn see_policy(&mut self, policy: &DynamicObject) -> bool {
        self.see(&policy.uid().unwrap_or_default(), policy.metadata.generation)
    }
}

fn version_of_policy(policy: &DynamicObject) -> u64 {
    policy.resource_version().map_or(0, |version| number(&version))
}
