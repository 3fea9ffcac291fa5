//! What the API server serves.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::stream::{StreamExt, select};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::Client;
use kube::ResourceExt;
use kube::api::{Api, ListParams, PartialObjectMeta};
use kube::runtime::watcher::Config;
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::watch;

use crate::live::segment;
use crate::sync;

/// A resource that is served, in the version that its group prefers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "discovery says yes or no")]
pub struct Served {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub plural: String,
    pub singular: String,
    pub short_names: Vec<String>,
    pub namespaced: bool,
    pub listable: bool,
    pub watchable: bool,
    /// Whether it has a `scale`.
    pub scalable: bool,
    /// The other versions in which it is served.
    pub other_versions: Vec<String>,
    /// Whether it is served by an API server that does not answer now.
    pub stale: bool,
}

/// Everything that is served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovery {
    /// The API server's order: of several that a word fits, the first is meant.
    pub resources: Vec<Served>,
    /// Groups whose own API server does not answer, so that nobody knows what they serve.
    pub unreachable: Vec<String>,
    /// Groups that another API server serves. It asks webhooks by itself, or it does not.
    pub aggregated: BTreeSet<String>,
}

/// Asks for everything that is served.
pub async fn discover(client: &Client) -> kube::Result<Discovery> {
    let (core, groups) =
        futures::try_join!(client.list_core_api_versions_aggregated(), client.list_api_groups_aggregated())?;
    let mut discovery = Discovery::default();
    for group in core.items.into_iter().chain(groups.items) {
        let name = group.metadata.and_then(|metadata| metadata.name).unwrap_or_default();
        let first = discovery.resources.len();
        for version in group.versions {
            let stale = version.freshness.as_deref() == Some("Stale");
            if stale && !discovery.unreachable.contains(&name) {
                discovery.unreachable.push(name.clone());
            }
            let served_in = version.version.unwrap_or_default();
            for resource in version.resources {
                let plural = resource.resource.unwrap_or_default();
                let mut of_group = discovery.resources[first..].iter_mut();
                if let Some(preferred) = of_group.find(|served| served.plural == plural) {
                    preferred.other_versions.push(served_in.clone());
                    continue;
                }
                discovery.resources.push(Served {
                    group: name.clone(),
                    version: served_in.clone(),
                    kind: resource.response_kind.and_then(|kind| kind.kind).unwrap_or_default(),
                    plural,
                    singular: resource.singular_resource.unwrap_or_default(),
                    short_names: resource.short_names,
                    namespaced: resource.scope.as_deref() == Some("Namespaced"),
                    listable: resource.verbs.iter().any(|verb| verb == "list"),
                    watchable: resource.verbs.iter().any(|verb| verb == "watch"),
                    scalable: resource
                        .subresources
                        .iter()
                        .any(|sub| sub.subresource.as_deref() == Some("scale")),
                    other_versions: Vec::new(),
                    stale,
                });
            }
        }
    }
    Ok(discovery)
}

impl Discovery {
    /// How a kind is served.
    pub fn find(&self, group: &str, kind: &str) -> Option<&Served> {
        self.resources.iter().find(|served| served.group == group && served.kind == kind)
    }
}

/// How a kind is served now, if it can be watched.
pub fn watchable(discovery: &watch::Receiver<Option<Discovery>>, group: &str, kind: &str) -> Option<Served> {
    sync::peek(discovery, |discovery| {
        discovery.as_ref()?.find(group, kind).filter(|served| served.watchable).cloned()
    })
}

/// Waits until a kind is served in another version: installed anew, it may come in one.
pub async fn served_otherwise(discovery: &mut watch::Receiver<Option<Discovery>>, served: &Served) {
    while watchable(discovery, &served.group, &served.kind).is_none_or(|now| now.version == served.version) {
        if discovery.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Served {
    /// One that can be listed and watched, and has no other names.
    pub fn new(group: &str, version: &str, kind: &str, plural: &str, namespaced: bool) -> Self {
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
            singular: String::new(),
            short_names: Vec::new(),
            namespaced,
            listable: true,
            watchable: true,
            scalable: false,
            other_versions: Vec::new(),
            stale: false,
        }
    }

    /// It and, in turn, the other versions of it.
    pub(crate) fn in_every_version(&self) -> impl Iterator<Item = Self> {
        let others =
            self.other_versions.iter().map(|version| Self { version: version.clone(), ..self.clone() });
        std::iter::once(self.clone()).chain(others)
    }

    /// `/apis/apps/v1/deployments`, in a namespace or in all.
    pub fn path(&self, namespace: Option<&str>) -> String {
        let Self { group, version, plural, .. } = self;
        let root =
            if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
        match namespace {
            Some(namespace) if self.namespaced => {
                format!("{root}/namespaces/{}/{plural}", segment(namespace))
            }
            _ => format!("{root}/{plural}"),
        }
    }

    /// `deployments.apps`
    pub fn resource(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// Whether kubectl would take a word for it: plural, singular, short name or kind, with or without the group.
    pub fn is_called(&self, word: &str) -> bool {
        let bare = match word.strip_suffix(&self.group) {
            Some(rest) if !self.group.is_empty() => rest.strip_suffix('.').unwrap_or(word),
            _ => word,
        };
        self.plural == bare
            || self.singular == bare
            || self.kind.to_lowercase() == bare
            || self.short_names.iter().any(|short| short == bare)
    }
}

/// How long to gather changes before asking again: a chart brings its definitions all at once.
const GATHER: Duration = Duration::from_millis(300);
/// Discovery follows a definition by a moment, so it is asked once more.
const SETTLE: Duration = Duration::from_secs(2);
/// On `APIService`s that the API server made for itself.
pub(crate) const AUTOMATIC: &str = "kube-aggregator.kubernetes.io/automanaged";
/// A look without a reason.
const ROUND: Duration = Duration::from_secs(60);

/// What is served, and by whom.
async fn discover_all(client: &Client) -> kube::Result<Discovery> {
    let services: Api<PartialObjectMeta<APIService>> = Api::all(client.clone());
    let all = ListParams::default();
    let (mut discovery, services) = futures::try_join!(discover(client), services.list(&all))?;
    // Those that the API server made for itself carry a label; the others were registered by somebody.
    let registered = services.items.iter().filter(|service| !service.labels().contains_key(AUTOMATIC));
    let group =
        |service: &PartialObjectMeta<APIService>| Some(service.name_any().split_once('.')?.1.to_owned());
    discovery.aggregated = registered.filter_map(group).collect();
    Ok(discovery)
}

/// Publishes what is served, for ever: anew when a definition or an aggregated API comes, changes or goes.
pub async fn watch_discovery(client: Client, published: watch::Sender<Option<Discovery>>) {
    let config = || Config::default().timeout(60);
    let definitions: Api<PartialObjectMeta<CustomResourceDefinition>> = Api::all(client.clone());
    let services: Api<PartialObjectMeta<APIService>> = Api::all(client.clone());
    let mut events = select(
        watcher(definitions, config()).default_backoff().map(|event| event.map(drop)).boxed(),
        watcher(services, config()).default_backoff().map(|event| event.map(drop)).boxed(),
    );
    let mut again = tokio::time::Instant::now();
    loop {
        tokio::select! {
            Some(event) = events.next() => match event {
                Ok(()) => {
                    let soon = tokio::time::Instant::now() + GATHER;
                    if again <= soon {
                        continue;
                    }
                    tokio::time::sleep_until(soon).await;
                }
                // The rounds go on.
                Err(error) => {
                    tracing::warn!(%error, "watching what is served");
                    continue;
                }
            },
            () = tokio::time::sleep_until(again) => {}
        }
        let new = match discover_all(&client).await {
            Ok(discovery) => Some(discovery),
            Err(error) => {
                tracing::warn!(%error, "asking what is served");
                again = tokio::time::Instant::now() + SETTLE;
                continue;
            }
        };
        let changed = sync::send_new(&published, new).is_some();
        again = tokio::time::Instant::now() + if changed { SETTLE } else { ROUND };
    }
}
