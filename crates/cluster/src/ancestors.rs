//! The owners, at any depth, of protected objects: whose deletion must be asked about.
//!
//! Watches of metadata, selected by label where a label decides, say which objects are protected and who owns
//! them; only those that have owners are kept. Owners of owners are read once. The leader runs it, for the
//! registration; what is decided about a deletion is asked live.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{SelectAll, Stream, StreamExt};
use kube::api::{Api, ApiResource, DynamicObject, PartialObjectMeta};
use kube::core::GroupVersionKind;
use kube::runtime::watcher::{self, Config, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_objects};
use kube::{Client, ResourceExt};
use palisade_api::kinds::{Cascade, cascade_of, is_transient};
use palisade_api::labels::look_up;
use palisade_api::marks::{self, Mark};
use palisade_api::protection::{Action, Target};
use palisade_engine::{Kind, Object, OwnerRef, Protections};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::discovery::{Discovery, Served};
use crate::named::{Detail, read_named};
use crate::policies::Policies;
use crate::sync;

/// How long to gather changes before the ancestors are worked out again.
const GATHER: Duration = Duration::from_millis(200);
/// After a change of what is to be watched.
const SETTLE: Duration = Duration::from_millis(500);
const ROUND: Duration = Duration::from_secs(60);
const DEEPEST: usize = 20;

/// Whose deletion must be asked about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ancestors {
    pub uids: BTreeSet<String>,
    /// `(group, plural)`
    pub resources: BTreeSet<(String, String)>,
}

/// One watch: a kind, and a label selector or all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Watched {
    group: String,
    version: String,
    kind: String,
    plural: String,
    selector: Option<String>,
}

/// A protected object that has owners.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Owned {
    namespace: Option<String>,
    owners: Vec<OwnerRef>,
}

type Events = SelectAll<
    Pin<Box<dyn Stream<Item = (usize, watcher::Result<Event<PartialObjectMeta<DynamicObject>>>)> + Send>>,
>;

/// Keeps the ancestors of what is protected, and publishes them, while `active` holds. Never ends.
pub async fn watch_ancestors(
    client: Client,
    mut discovery: watch::Receiver<Option<Discovery>>,
    mut policies: watch::Receiver<Option<Policies>>,
    mut active: watch::Receiver<bool>,
    published: watch::Sender<Ancestors>,
) {
    loop {
        if active.wait_for(|active| *active).await.is_err() {
            return;
        }
        let rules = sync::peek_newest(&mut policies, |policies| Rules::of(policies.as_ref()));
        let wanted = wanted(&sync::newest(&mut discovery).unwrap_or_default(), &rules);
        let mut events: Events = SelectAll::new();
        for (number, watched) in wanted.iter().enumerate() {
            let gvk = GroupVersionKind::gvk(&watched.group, &watched.version, &watched.kind);
            let resource = ApiResource::from_gvk_with_plural(&gvk, &watched.plural);
            let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client.clone(), &resource);
            let config = match &watched.selector {
                Some(selector) => Config::default().labels(selector),
                None => Config::default(),
            };
            events.push(Box::pin(
                watch_objects(api, config).default_backoff().map(move |event| (number, event)),
            ));
        }
        let mut index: Vec<HashMap<String, Owned>> = wanted.iter().map(|_| HashMap::new()).collect();
        let mut resolver = Resolver { client: &client, known: HashMap::new() };
        // Nothing is published before every watch has listed, or failed to: half an answer would take owners away.
        let mut listed = vec![false; wanted.len()];
        let mut due: Option<Instant> = None;
        loop {
            let resolve_at = due.unwrap_or_else(|| Instant::now() + ROUND);
            let changed = tokio::select! {
                Some((number, event)) = events.next() => {
                    let complete = matches!(event, Err(_) | Ok(Event::InitDone));
                    let changed = match event {
                        Ok(event) => feed(&mut index[number], event, |object| rules.protect(&wanted[number], object)),
                        // A kind that is just going, or may not be watched: its dependents are refused themselves.
                        Err(error) => {
                            tracing::debug!(%error, kind = wanted[number].kind, "watching protected objects");
                            false
                        }
                    };
                    listed[number] |= complete;
                    if (changed || complete) && listed.iter().all(|listed| *listed) {
                        due.get_or_insert_with(|| Instant::now() + GATHER);
                    }
                    false
                }
                () = sleep_until(resolve_at) => {
                    if due.take().is_some() {
                        let known = sync::current(&discovery).unwrap_or_default();
                        let protected: Vec<Owned> = index.iter().flat_map(HashMap::values).cloned().collect();
                        let ancestors = resolver.resolve(&known, &protected).await;
                        sync::send_new(&published, ancestors);
                    }
                    false
                }
                Ok(()) = active.changed() => !sync::current(&active),
                Ok(()) = discovery.changed() => true,
                Ok(()) = policies.changed() => true,
            };
            if changed
                && (!sync::current(&active) || {
                    let now = sync::peek(&policies, |policies| Rules::of(policies.as_ref()));
                    now.written != rules.written
                        || self::wanted(&sync::current(&discovery).unwrap_or_default(), &rules) != wanted
                })
            {
                // What changes together is taken up together.
                sleep(SETTLE).await;
                break;
            }
        }
    }
}

/// The denying rules, and by what they are told apart from others.
struct Rules {
    /// Name, uid and generation of each protection.
    written: Vec<(String, String, Option<i64>)>,
    protections: Arc<Protections>,
    /// `(group, kind)` of those that name one.
    kinds: BTreeSet<(String, String)>,
}

impl Rules {
    fn of(policies: Option<&Policies>) -> Self {
        let policies = policies.cloned().unwrap_or_default();
        let written = policies
            .by_name
            .iter()
            .map(|(name, policy)| (name.clone(), policy.uid.clone(), policy.generation));
        Self { written: written.collect(), kinds: rule_kinds(&policies), protections: policies.protections }
    }

    /// Whether what a watch shows is protected. One that is selected by label shows nothing else; one that shows
    /// everything is there for rules, and for the labels as well. The labels of namespaces are left to the decision.
    fn protect(&self, watched: &Watched, object: &PartialObjectMeta<DynamicObject>) -> bool {
        if watched.selector.is_some() {
            return true;
        }
        let labels = object.labels();
        let marked = labels.iter().any(|(key, value)| Mark::of_label(key, value).is_some());
        let kind = Kind {
            group: watched.group.as_str().into(),
            kind: watched.kind.as_str().into(),
            plural: watched.plural.as_str().into(),
        };
        let (namespace, name) = (object.namespace(), object.name_any());
        let ruled = self.protections.of_kind(&kind).any(|rule| {
            rule.action == Action::Deny && rule.selects(namespace.as_deref(), &name, look_up(labels))
        });
        marked || ruled
    }
}

/// The kinds that denying rules name.
fn rule_kinds(policies: &Policies) -> BTreeSet<(String, String)> {
    let denying = policies.protections.iter().filter(|rule| rule.action == Action::Deny);
    denying
        .filter_map(|rule| match &rule.target {
            Target::Kind { group, kind } => Some((group.clone(), kind.clone())),
            Target::Every { .. } => None,
        })
        .collect()
}

/// All watches that are needed.
fn wanted(discovery: &Discovery, rules: &Rules) -> Vec<Watched> {
    let mut wanted = BTreeSet::new();
    for served in discovery.resources.iter().filter(|served| served.listable && served.watchable) {
        let Served { group, version, kind, plural, .. } = served.clone();
        let watched = |selector| Watched {
            group: group.clone(),
            version: version.clone(),
            kind: kind.clone(),
            plural: plural.clone(),
            selector,
        };
        if rules.kinds.contains(&(group.clone(), kind.clone())) {
            wanted.insert(watched(None));
            continue;
        }
        if is_transient(&group, &kind) {
            continue;
        }
        wanted.extend(marks::protecting_selectors().map(|selector| watched(Some(selector))));
        if cascade_of(&group, &kind) == Some(Cascade::Workload) {
            let key = marks::DISABLE_CASCADING_DELETION;
            wanted.insert(watched(Some(format!("{key},{key}!=false"))));
        }
    }
    wanted.into_iter().collect()
}

/// Takes an event in, and says whether it changed anything.
fn feed(
    index: &mut HashMap<String, Owned>,
    event: Event<PartialObjectMeta<DynamicObject>>,
    protects: impl Fn(&PartialObjectMeta<DynamicObject>) -> bool,
) -> bool {
    match event {
        Event::Init => {
            let changed = !index.is_empty();
            index.clear();
            changed
        }
        Event::InitDone => true,
        Event::Delete(object) => index.remove(&object.uid().unwrap_or_default()).is_some(),
        Event::Apply(object) | Event::InitApply(object) => {
            let uid = object.uid().unwrap_or_default();
            let owners: Vec<OwnerRef> = object
                .owner_references()
                .iter()
                .map(|owner| OwnerRef {
                    api_version: owner.api_version.clone(),
                    kind: owner.kind.clone(),
                    name: owner.name.clone(),
                    uid: owner.uid.clone(),
                })
                .collect();
            if owners.is_empty() || object.metadata.deletion_timestamp.is_some() || !protects(&object) {
                return index.remove(&uid).is_some();
            }
            let owned = Owned { namespace: object.namespace(), owners };
            index.insert(uid, owned.clone()).as_ref() != Some(&owned)
        }
    }
}

/// Reads the owners of owners, each once.
struct Resolver<'a> {
    client: &'a Client,
    /// By uid: where it is, and who owns it.
    known: HashMap<String, Owned>,
}

impl Resolver<'_> {
    async fn resolve(&mut self, discovery: &Discovery, protected: &[Owned]) -> Ancestors {
        let mut ancestors = Ancestors::default();
        let mut known = HashMap::new();
        let mut level: BTreeMap<String, (Option<String>, OwnerRef)> = BTreeMap::new();
        let up = |owned: &Owned, level: &mut BTreeMap<String, (Option<String>, OwnerRef)>| {
            for owner in &owned.owners {
                level.insert(owner.uid.clone(), (owned.namespace.clone(), owner.clone()));
            }
        };
        for owned in protected {
            up(owned, &mut level);
        }
        for _ in 0..DEEPEST {
            let mut next = BTreeMap::new();
            for (uid, (namespace, owner)) in std::mem::take(&mut level) {
                let Some(served) = discovery
                    .resources
                    .iter()
                    .find(|served| served.group == owner.group() && served.kind == owner.kind)
                else {
                    continue;
                };
                if !ancestors.uids.insert(uid.clone()) {
                    continue;
                }
                ancestors.resources.insert((served.group.clone(), served.plural.clone()));
                let owned = match self.known.get(&uid) {
                    Some(owned) => Some(owned.clone()),
                    None => self.read(discovery, namespace.as_deref(), &owner).await,
                };
                if let Some(owned) = owned {
                    up(&owned, &mut next);
                    known.insert(uid, owned);
                }
            }
            level = next;
        }
        self.known = known;
        ancestors
    }

    async fn read(&self, discovery: &Discovery, namespace: Option<&str>, owner: &OwnerRef) -> Option<Owned> {
        let path = discovery.find(owner.group(), &owner.kind)?.path(namespace);
        // An owner that cannot be read now is asked about itself, and read again with the next change.
        let text = read_named(self.client, &path, &owner.name, Detail::Metadata).await.ok()??;
        let object = Object::parse(text.as_bytes()).ok()?;
        let owners = object.metadata.owners.iter().map(OwnerRef::of).collect();
        Some(Owned { namespace: object.metadata.namespace.map(Cow::into_owned), owners })
    }
}
