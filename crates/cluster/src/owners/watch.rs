//! Watches of protected objects, for the owners that they name.
//!
//! Watches of metadata, selected by label where a label decides, say which objects are protected and who owns
//! them; only those that have owners are kept. The leader runs it, for the registration; what is decided about a
//! deletion is asked live.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{SelectAll, Stream, StreamExt};
use kube::api::{Api, ApiResource, DynamicObject, PartialObjectMeta};
use kube::core::GroupVersionKind;
use kube::runtime::watcher::{self, Config, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_objects};
use kube::{Client, ResourceExt};
use palisade_api::kinds::is_transient;
use palisade_api::labels::look_up;
use palisade_api::marks::{self, Mark};
use palisade_api::protection::{Action, Target};
use palisade_api::search_groups::SearchGroups;
use palisade_engine::{Kind, Protections};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::Reference;
use super::index::{Change, Index, Protected, ProtectedBy};
use super::read::Patient;
use super::resolve::{Ancestors, Resolver};
use crate::discovery::{Discovery, Served};
use crate::policies::Policies;
use crate::sync;

/// How long to gather new owners before they are read.
const GATHER: Duration = Duration::from_millis(200);
/// Owners that nobody names any more are in nobody's way.
const FEWER: Duration = Duration::from_secs(10);
/// After a change of what is to be watched.
const SETTLE: Duration = Duration::from_millis(500);
/// What is remembered of owners is looked at this often.
const ROUND: Duration = Duration::from_secs(30);
/// How long a kind that can't be listed holds up the owners of what others show.
const LISTING: Duration = Duration::from_secs(60);
/// How long one question may take.
const PATIENCE: Duration = Duration::from_secs(10);

type Object = PartialObjectMeta<DynamicObject>;
type Events = SelectAll<Pin<Box<dyn Stream<Item = (usize, watcher::Result<Event<Object>>)> + Send>>>;

/// One watch: a kind, and a label selector or all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Watched {
    group: String,
    version: String,
    kind: String,
    plural: String,
    selector: Option<String>,
}

/// Keeps the ancestors of what is protected, and publishes them, while `active` holds: `None` while they are not known.
/// Never ends.
pub async fn watch_ancestors(
    client: Client,
    groups: Arc<SearchGroups>,
    mut discovery: watch::Receiver<Option<Discovery>>,
    mut policies: watch::Receiver<Option<Policies>>,
    mut active: watch::Receiver<bool>,
    published: watch::Sender<Option<Arc<Ancestors>>>,
) {
    // Kinds that could not be listed are not waited for again.
    let mut broken: BTreeSet<Watched> = BTreeSet::new();
    loop {
        if !sync::newest(&mut active) {
            // Another leader knows better by now.
            sync::send_new(&published, None);
            if active.changed().await.is_err() {
                return;
            }
            continue;
        }
        let known = sync::newest(&mut discovery);
        let rules = sync::peek_newest(&mut policies, |policies| policies.as_ref().map(Rules::of));
        let (Some(known), Some(rules)) = (known, rules) else {
            tokio::select! {
                Ok(()) = discovery.changed() => {}
                Ok(()) = policies.changed() => {}
                Ok(()) = active.changed() => {}
                else => return,
            }
            continue;
        };
        let wanted = wanted(&groups, &known, &rules);
        let mut round = Round::new(&client, &groups, wanted, rules, known, &broken);
        loop {
            let due = round.due();
            let again = tokio::select! {
                Some((number, event)) = round.events.next() => {
                    round.take(number, event);
                    false
                }
                () = sleep_until(due) => {
                    let ancestors = round.resolve(&client).await;
                    sync::send_new(&published, Some(Arc::new(ancestors)));
                    false
                }
                Ok(()) = active.changed() => true,
                Ok(()) = discovery.changed() => true,
                Ok(()) = policies.changed() => true,
            };
            if again && !(sync::current(&active) && round.still_fits(&discovery, &policies)) {
                broken = round.unlisted();
                // What changes together is taken up together.
                if sync::current(&active) {
                    sleep(SETTLE).await;
                }
                break;
            }
        }
    }
}

/// All watches, from one change of what is to be watched to the next.
struct Round {
    groups: Arc<SearchGroups>,
    wanted: Vec<Watched>,
    rules: Rules,
    discovery: Discovery,
    events: Events,
    index: Index,
    resolver: Resolver,
    /// Nothing is published before every watch has listed: half an answer would take owners away.
    listed: Vec<bool>,
    /// Kinds that may not be watched, as it was logged.
    told_forbidden: BTreeSet<String>,
    started: Instant,
    /// When ancestors were last worked out, and how long to leave them alone.
    resolved: Option<(Instant, Duration)>,
}

impl Round {
    fn new(
        client: &Client,
        groups: &Arc<SearchGroups>,
        wanted: Vec<Watched>,
        rules: Rules,
        discovery: Discovery,
        broken: &BTreeSet<Watched>,
    ) -> Self {
        let mut events: Events = SelectAll::new();
        for (number, watched) in wanted.iter().enumerate() {
            let gvk = GroupVersionKind::gvk(&watched.group, &watched.version, &watched.kind);
            let resource = ApiResource::from_gvk_with_plural(&gvk, &watched.plural);
            let api: Api<Object> = Api::all_with(client.clone(), &resource);
            let config = match &watched.selector {
                Some(selector) => Config::default().labels(selector),
                None => Config::default(),
            };
            events.push(Box::pin(
                watch_objects(api, config).default_backoff().map(move |event| (number, event)),
            ));
        }
        Self {
            groups: groups.clone(),
            index: Index::new(wanted.len()),
            told_forbidden: BTreeSet::new(),
            listed: wanted.iter().map(|watched| broken.contains(watched)).collect(),
            resolver: Resolver::default(),
            started: Instant::now(),
            resolved: None,
            wanted,
            rules,
            discovery,
            events,
        }
    }

    /// Takes an event in.
    fn take(&mut self, number: usize, event: watcher::Result<Event<Object>>) {
        let (watched, rules) = (&self.wanted[number], &self.rules);
        let change = match event {
            Ok(Event::Init) => Change::Listing,
            Ok(Event::InitDone) => {
                self.listed[number] = true;
                Change::Listed
            }
            Ok(Event::Delete(object)) => Change::Object(object.uid().unwrap_or_default(), None),
            Ok(Event::Apply(object) | Event::InitApply(object)) => {
                let uid = object.uid().unwrap_or_default();
                let stays = object.metadata.deletion_timestamp.is_none();
                let by = if stays { rules.protect(watched, &object) } else { None };
                Change::Object(uid, by.and_then(|by| Protected::new(by, references(&object))))
            }
            Err(error) => {
                let resource = format!("{}.{}", watched.plural, watched.group);
                if is_forbidden(&error) && self.told_forbidden.insert(resource.clone()) {
                    // It is tried again, less and less often. The deletion of what owns such objects is let go, and that
                    // of the objects themselves is refused.
                    tracing::warn!(
                        %error,
                        resource = resource.trim_end_matches('.'),
                        "may not list and watch a kind: grant it, or leave its group out of --search-groups"
                    );
                } else {
                    tracing::debug!(%error, kind = watched.kind, "watching protected objects");
                }
                // A kind that is just going, or may not be watched: its dependents are refused themselves.
                self.listed[number] |= is_final(&error);
                return;
            }
        };
        self.index.apply(number, change);
    }

    /// When ancestors are to be worked out next.
    fn due(&self) -> Instant {
        let listed = self.listed.iter().all(|listed| *listed);
        let Some((at, rest)) = self.resolved else {
            return if listed { Instant::now() } else { self.started + LISTING };
        };
        let changed = self.index.changed();
        let wait = match (changed.more, changed.fewer) {
            (true, _) => GATHER.max(rest),
            (false, true) => FEWER.max(rest),
            (false, false) => ROUND.max(rest),
        };
        at + wait
    }

    async fn resolve(&mut self, client: &Client) -> Ancestors {
        self.index.take_changed();
        let started = Instant::now();
        let asker = Patient { client: client.clone(), patience: PATIENCE };
        let ancestors =
            self.resolver.resolve(&asker, &self.groups, &self.discovery, &self.index.references()).await;
        // Every change is written to the registration, whole: the more there are, the rarer.
        let by_size = Duration::from_millis(ancestors.0.len().try_into().unwrap_or(u64::MAX) / 5);
        let rest = by_size.max(started.elapsed() * 4).min(FEWER);
        self.resolved = Some((Instant::now(), rest));
        ancestors
    }

    /// Whether it watches what is to be watched, and goes by the rules that there are.
    fn still_fits(
        &mut self,
        discovery: &watch::Receiver<Option<Discovery>>,
        policies: &watch::Receiver<Option<Policies>>,
    ) -> bool {
        let known = sync::current(discovery).unwrap_or_default();
        let rules = sync::peek(policies, |policies| policies.as_ref().map(Rules::of));
        let fits = rules.is_some_and(|rules| rules.written == self.rules.written)
            && wanted(&self.groups, &known, &self.rules) == self.wanted;
        self.discovery = known;
        fits
    }

    /// The kinds that could not be listed all that time.
    fn unlisted(&self) -> BTreeSet<Watched> {
        let waited = self.started.elapsed() >= LISTING;
        let unlisted = self.wanted.iter().zip(&self.listed).filter(|(_, listed)| waited && !**listed);
        unlisted.map(|(watched, _)| watched.clone()).collect()
    }
}

/// Whether it makes no sense to wait for another answer.
fn is_final(error: &watcher::Error) -> bool {
    let watcher::Error::InitialListFailed(kube::Error::Api(status)) = error else { return false };
    matches!(status.code, 403..=405)
}

/// Whether Palisade lacks the right.
fn is_forbidden(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)) = error else {
        return false;
    };
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

/// The owners that an object names.
fn references(object: &Object) -> Vec<Reference> {
    let namespace = object.namespace();
    let owners = object.owner_references().iter();
    owners
        .filter_map(|owner| {
            Reference::new(namespace.as_deref(), &owner.api_version, &owner.kind, &owner.name, &owner.uid)
        })
        .collect()
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
    fn of(policies: &Policies) -> Self {
        let written = policies
            .by_name
            .iter()
            .map(|(name, policy)| (name.clone(), policy.uid.clone(), policy.generation));
        Self {
            written: written.collect(),
            kinds: rule_kinds(policies),
            protections: policies.protections.clone(),
        }
    }

    /// Who protects what a watch shows. One that is selected by label shows nothing else; one that shows everything is
    /// there for rules, and for the labels as well. The labels of namespaces are left to the decision.
    fn protect(&self, watched: &Watched, object: &Object) -> Option<ProtectedBy> {
        let labels = object.labels();
        let by_label = match object.namespace() {
            Some(_) => ProtectedBy::Tenant,
            None => ProtectedBy::Administrator,
        };
        if watched.selector.is_some() {
            return Some(by_label);
        }
        let marked = labels.iter().any(|(key, value)| Mark::of_label(key, value).is_some());
        let kind = Kind {
            group: watched.group.as_str().into(),
            kind: watched.kind.as_str().into(),
            plural: watched.plural.as_str().into(),
        };
        let (namespace, name) = (object.namespace(), object.name_any());
        let ruled = self.protections.of_kind(&kind).any(|rule| {
            let kind = (watched.group.as_str(), watched.kind.as_str());
            rule.action == Action::Deny && rule.selects(kind, namespace.as_deref(), &name, look_up(labels))
        });
        if ruled { Some(ProtectedBy::Administrator) } else { marked.then_some(by_label) }
    }
}

/// The kinds that denying rules name.
fn rule_kinds(policies: &Policies) -> BTreeSet<(String, String)> {
    let denying = policies.protections.iter().filter(|rule| rule.action == Action::Deny);
    denying
        .filter_map(|rule| match &rule.selector.target {
            Target::Kind { group, kind } => Some((group.clone(), kind.clone())),
            Target::Every { .. } => None,
        })
        .collect()
}

/// All watches that are needed.
fn wanted(groups: &SearchGroups, discovery: &Discovery, rules: &Rules) -> Vec<Watched> {
    let mut wanted = BTreeSet::new();
    let is_watched = |served: &&Served| served.listable && served.watchable && groups.contain(&served.group);
    for served in discovery.resources.iter().filter(is_watched) {
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
    }
    wanted.into_iter().collect()
}
