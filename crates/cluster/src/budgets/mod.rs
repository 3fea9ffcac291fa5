//! `PodUnavailableBudget`s: what they count, kept by watches, and the ledger that they are spent from.
//!
//! ```text
//! budgets ─┐
//! pods ────┼─ watches ─▶ Index ─▶ census ─▶ account (pure) ◀─ Ledger ─ one write for all that wait
//! workloads┘                                                  ▲
//!                                           status of the budget, by compare-and-swap
//! ```
//!
//! Pods and workloads are watched only while there is a budget.

mod account;
mod authors;
mod census;
mod ledger;
#[cfg(test)]
mod model;
mod owners;
mod pods;
#[cfg(test)]
mod shop;
mod watches;
mod workloads;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use kube::ResourceExt;
use kube::api::{ApiResource, DynamicObject};
use palisade_api::budget::{self, Author, Budget, Chosen, Status};
use palisade_engine::json::Malformed;
use tokio::sync::{Notify, watch};

use crate::feed::take_page;
use crate::objects::{resource, status_of};
use crate::sync::{self, Guard, lock, read, write};

pub(crate) use account::Loser;
pub use account::{Life, Numbers};
pub use ledger::{Budgets, Observed};
pub use pods::{Controller, NamespacePods, Pod, Pods, State};
pub use watches::{keep_index, snapshot, watch_budgets};
pub use workloads::{KindKey, Workload, Workloads};

/// A budget, by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

/// A budget, as it was last seen.
#[derive(Clone, Debug)]
pub struct Known {
    pub key: Key,
    pub uid: String,
    pub generation: Option<i64>,
    pub resource_version: String,
    /// What it asks for, or why nobody can tell.
    pub budget: Result<Budget, String>,
    pub author: Author,
    /// Whether its annotation says how many pods it lets go at least: it was generated.
    pub is_generated: bool,
    /// Of its `spec`, by the keys of this process.
    spec_digest: u64,
    pub status: Status,
}

impl Known {
    /// Whether who wrote it decides how many pods it lets go, and nobody knows yet.
    fn awaits_author(&self, least: u32) -> bool {
        !self.author.is_known()
            && self.budget.as_ref().is_ok_and(|budget| budget.limit.may_let_fewer_go(least))
    }
}

/// Reads budgets.
#[derive(Debug)]
pub(crate) struct Reader {
    /// How many pods a budget that no administrator wrote lets go at least.
    least: u32,
    keys: RandomState,
}

impl Reader {
    fn new(least: u32) -> Self {
        Self { least, keys: RandomState::new() }
    }

    pub(crate) fn read(&self, object: &DynamicObject) -> Known {
        let spec = object.data.get("spec").unwrap_or(&serde_json::Value::Null);
        let least = object.annotations().get(budget::MIN_UNAVAILABLE).map(String::as_str);
        let status: Status = status_of(object);
        let author = status.author(object.metadata.generation);
        let bound = if author.is_bounded() { self.least } else { 0 };
        Known {
            key: Key { namespace: object.namespace().unwrap_or_default(), name: object.name_any() },
            uid: object.uid().unwrap_or_default(),
            generation: object.metadata.generation,
            resource_version: object.resource_version().unwrap_or_default(),
            budget: Budget::read(spec).map(|budget| budget.bounded_by(least).letting_go(bound)),
            author,
            is_generated: least.is_some(),
            spec_digest: self.digest(spec),
            status,
        }
    }

    /// A number that stands for a spec. Nobody outside knows the keys, so nobody can make another one that has the same.
    fn digest(&self, spec: &serde_json::Value) -> u64 {
        self.keys.hash_one(spec.to_string())
    }
}

/// How to talk about budgets with a client.
pub fn budget_resource() -> ApiResource {
    resource(budget::GROUP, budget::VERSION, budget::KIND, budget::PLURAL)
}

/// An owner that was asked about, if it was there, and when.
type Asked = (Option<Workload>, tokio::time::Instant);

/// Everything that is watched for budgets.
#[derive(Debug)]
pub struct Index {
    reader: Reader,
    pods: RwLock<Pods>,
    workloads: RwLock<Workloads>,
    budgets: RwLock<BTreeMap<String, BTreeMap<String, Arc<Known>>>>,
    /// The kinds whose workloads are watched, or should be.
    kinds: Mutex<HashSet<KindKey>>,
    kinds_changed: Notify,
    /// The namespaces in which something changed that a status may show.
    touched: Mutex<HashSet<Arc<str>>>,
    touched_some: Notify,
    /// Moves with everything that is seen of pods and workloads.
    seen: watch::Sender<u64>,
    /// When the watch of pods last said something.
    heard: Mutex<Option<tokio::time::Instant>>,
    /// Moves when a budget comes, goes, or asks for something else; `None` before the first list.
    specs: watch::Sender<Option<u64>>,
    /// Owners that were asked about because no watch told. What is gone stays gone.
    asked: Mutex<HashMap<Box<str>, Asked>>,
}

impl Default for Index {
    fn default() -> Self {
        Self::new(budget::DEFAULT_MIN_UNAVAILABLE)
    }
}

impl Index {
    /// `least` is how many pods a budget that no administrator wrote lets go at least.
    pub fn new(least: u32) -> Self {
        Self {
            reader: Reader::new(least),
            pods: RwLock::default(),
            workloads: RwLock::default(),
            budgets: RwLock::default(),
            kinds: Mutex::new(watches::ALWAYS_WATCHED.iter().map(|&(g, k)| (g.into(), k.into())).collect()),
            kinds_changed: Notify::new(),
            touched: Mutex::default(),
            touched_some: Notify::new(),
            seen: watch::channel(0).0,
            heard: Mutex::default(),
            specs: watch::channel(None).0,
            asked: Mutex::default(),
        }
    }

    /// How many pods a budget that no administrator wrote lets go at least.
    pub fn min_unavailable(&self) -> u32 {
        self.reader.least
    }

    pub fn pods(&self) -> Guard<RwLockReadGuard<'_, Pods>> {
        read(&self.pods)
    }

    pub fn workloads(&self) -> Guard<RwLockReadGuard<'_, Workloads>> {
        read(&self.workloads)
    }

    /// The budgets of a namespace.
    pub fn budgets_in(&self, namespace: &str) -> Vec<Arc<Known>> {
        let budgets = read(&self.budgets);
        budgets.get(namespace).map(|budgets| budgets.values().cloned().collect()).unwrap_or_default()
    }

    pub fn budget(&self, key: &Key) -> Option<Arc<Known>> {
        let budgets = read(&self.budgets);
        budgets.get(&key.namespace)?.get(&key.name).cloned()
    }

    /// All budgets.
    pub fn budgets(&self) -> Vec<Arc<Known>> {
        let budgets = read(&self.budgets);
        budgets.values().flat_map(BTreeMap::values).cloned().collect()
    }

    /// Told when a budget comes, goes, or asks for something else. `None` before the first list.
    pub fn specs(&self) -> watch::Receiver<Option<u64>> {
        self.specs.subscribe()
    }

    /// The namespaces in which something changed, once there is one.
    pub async fn touched(&self) -> HashSet<Arc<str>> {
        loop {
            let notified = self.touched_some.notified();
            let touched = std::mem::take(&mut *lock(&self.touched));
            if !touched.is_empty() {
                return touched;
            }
            notified.await;
        }
    }

    /// Takes a page of a list of pods, as the API server writes it.
    pub fn take_pods(&self, page: &[u8]) -> Result<(), Malformed> {
        take_page(page, &mut |fed| self.write_pods().take(&fed, &mut HashSet::new())).map(drop)
    }

    /// Says that the budgets of a namespace are to be looked at again.
    pub fn touch(&self, namespace: &str) {
        lock(&self.touched).insert(namespace.into());
        self.touched_some.notify_one();
    }

    /// Whether every watch that decisions are made from has listed.
    pub fn is_listed(&self) -> bool {
        if !self.pods().is_listed() {
            return false;
        }
        let workloads = self.workloads();
        watches::ALWAYS_WATCHED.iter().all(|&(group, kind)| workloads.is_listed(&(group.into(), kind.into())))
    }

    /// How long the watch of pods has been silent; nothing while there is none. It is never silent for long: it ends and
    /// begins anew every quarter of a minute.
    pub fn silence(&self) -> Duration {
        lock(&self.heard).map(|heard| heard.elapsed()).unwrap_or_default()
    }

    /// Waits until the index satisfies a condition.
    pub async fn until(&self, condition: impl Fn(&Self) -> bool) {
        let mut seen = self.seen.subscribe();
        while !condition(self) {
            if seen.changed().await.is_err() {
                return;
            }
        }
    }

    fn want_kind(&self, kind: KindKey) {
        let is_new = lock(&self.kinds).insert(kind);
        if is_new {
            self.kinds_changed.notify_one();
        }
    }

    /// The kinds that budgets are for, that pods in namespaces with budgets have for owners, and these in turn.
    fn kinds_in_use(&self) -> HashSet<KindKey> {
        let namespaces: Vec<String> = read(&self.budgets).keys().cloned().collect();
        let kind = |controller: &Controller| (controller.group.clone(), controller.kind.clone());
        let mut in_use = HashSet::new();
        {
            let pods = self.pods();
            let owners = namespaces.iter().filter_map(|namespace| pods.of_namespace(namespace));
            let owners = owners.flat_map(HashMap::values).filter_map(|pod| pod.controller.as_deref());
            let mut seen: HashSet<*const Controller> = HashSet::new();
            in_use.extend(owners.filter(|owner| seen.insert(std::ptr::from_ref(*owner))).map(kind));
        }
        in_use.extend(self.workloads().controllers().map(kind));
        let targets = self.budgets().into_iter().filter_map(|known| match &known.budget {
            Ok(Budget { pods: Chosen::Of(target), .. }) => {
                Some((target.group.as_str().into(), target.kind.as_str().into()))
            }
            _ => None,
        });
        in_use.extend(targets);
        in_use
    }

    /// Stops to want kinds that nothing has for an owner.
    fn drop_kinds(&self, unused: &HashSet<KindKey>) {
        lock(&self.kinds).retain(|kind| !unused.contains(kind));
        let mut workloads = self.write_workloads();
        for kind in unused {
            workloads.forget(kind);
        }
    }

    fn touch_all(&self, namespaces: HashSet<Arc<str>>) {
        sync::count(&self.seen);
        if namespaces.is_empty() {
            return;
        }
        lock(&self.touched).extend(namespaces);
        self.touched_some.notify_one();
    }

    fn write_pods(&self) -> Guard<RwLockWriteGuard<'_, Pods>> {
        write(&self.pods)
    }

    fn write_workloads(&self) -> Guard<RwLockWriteGuard<'_, Workloads>> {
        write(&self.workloads)
    }
}
