//! The flow controls that there are, kept by a watch, and read and written one by one.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, RwLock};

use kube::api::{Api, DynamicObject, PostParams};
use kube::{Client, ResourceExt};
use palisade_api::flow::{self, Status};
use palisade_api::versions::PolicyKind;
use serde_json::json;
use tokio::sync::{Notify, watch};

use super::advance::Advances;
use super::clock::Clock;
use super::departures::{Departure, Departures};
use super::{Known, flow_resource};
use crate::commit::{Entry, Tasks};
use crate::feed::number;
use crate::objects::{Change, get_policy, list_policies, watch_policies};
use crate::progress::PolicyProgress;
use crate::sync::{self, lock, read, write};

/// All flow controls, and what is charged to them.
pub struct Flows {
    pub(super) client: Client,
    pub(super) clock: Clock,
    controls: RwLock<BTreeMap<String, Arc<Known>>>,
    /// Moves when a flow control comes, goes, or asks for something else; `None` before the first list.
    specs: watch::Sender<Option<u64>>,
    /// Moves with everything that is seen of them.
    seen: watch::Sender<u64>,
    pub(super) departures: Mutex<Departures>,
    /// Slots that this replica has charged in advance.
    pub(super) advances: Advances,
    pub(super) advanced: Notify,
    /// Refusals that are not written down yet.
    pub(super) refused: Mutex<HashMap<String, u64>>,
    pub(super) tasks: Tasks<Self>,
    pub(super) count: Box<dyn Fn(Entry) + Send + Sync>,
}

impl Flows {
    pub fn new(client: Client, count: impl Fn(Entry) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            client,
            clock: Clock::of_this_host(),
            controls: RwLock::default(),
            specs: watch::channel(None).0,
            seen: watch::channel(0).0,
            departures: Mutex::default(),
            advances: Advances::default(),
            advanced: Notify::new(),
            refused: Mutex::default(),
            tasks: Tasks::default(),
            count: Box::new(count),
        })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Those that there are.
    pub fn controls(&self) -> Vec<Arc<Known>> {
        read(&self.controls).values().cloned().collect()
    }

    pub fn control(&self, name: &str) -> Option<Arc<Known>> {
        read(&self.controls).get(name).cloned()
    }

    /// Told when one comes, goes, or asks for something else. `None` before the first list.
    pub fn specs(&self) -> watch::Receiver<Option<u64>> {
        self.specs.subscribe()
    }

    /// Told of everything that is seen of them.
    pub fn seen(&self) -> watch::Receiver<u64> {
        self.seen.subscribe()
    }

    /// Says that there are none, because nobody looks.
    pub fn switch_off(&self) {
        self.replace(Vec::new());
    }

    /// Watches them, for ever.
    pub async fn watch(self: Arc<Self>, progress: Arc<PolicyProgress>) {
        let resource = flow_resource();
        let (client, kind) = (self.client.clone(), PolicyKind::FlowControl);
        let watching = watch_policies(client, kind, &resource, &progress, |change| match change {
            Change::All(objects) => self.replace(objects.iter().map(Known::read).collect()),
            Change::Put(object) => self.put(Known::read(&object)),
            Change::Gone(object) => {
                let mut controls = write(&self.controls);
                controls.remove(&object.name_any());
                drop(controls);
                self.tell(true);
            }
        });
        tokio::join!(watching, self.settle_advances());
    }

    /// Lists them once, for one question.
    pub async fn list(&self) -> Result<(), String> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &flow_resource());
        let listed = list_policies(&api, PolicyKind::FlowControl).await;
        let controls = listed.map_err(|error| format!("listing flow controls: {error}"))?;
        self.replace(controls.iter().map(Known::read).collect());
        Ok(())
    }

    fn replace(&self, all: Vec<Known>) {
        for known in &all {
            self.observe_clocks(known);
        }
        let all = all.into_iter().map(|known| (known.name.clone(), Arc::new(known)));
        *write(&self.controls) = all.collect();
        self.tell(true);
    }

    fn put(&self, known: Known) {
        self.observe_clocks(&known);
        let mut controls = write(&self.controls);
        let same = |old: &Arc<Known>| old.uid == known.uid && old.generation == known.generation;
        let changed = !controls.get(&known.name).is_some_and(same);
        controls.insert(known.name.clone(), Arc::new(known));
        drop(controls);
        self.tell(changed);
    }

    fn tell(&self, specs: bool) {
        if specs {
            sync::count_lists(&self.specs);
        }
        sync::count(&self.seen);
    }

    fn observe_clocks(&self, known: &Known) {
        self.clock.observe(number(&known.resource_version), &known.status.clocks);
    }

    /// Says that a pod was seen to go.
    pub fn depart(&self, uid: &str, departure: Departure) {
        lock(&self.departures).add(uid, departure);
    }

    /// Writes a status over the one that was read.
    pub async fn write(&self, known: &Known, status: &Status) -> kube::Result<Known> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &flow_resource());
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": format!("{}/{}", flow::GROUP, flow::VERSION),
            "kind": flow::KIND,
            "metadata": {"name": known.name, "uid": known.uid, "resourceVersion": known.resource_version},
            "status": status,
        }))
        .map_err(kube::Error::SerdeError)?;
        let written = Known::read(&api.replace_status(&known.name, &PostParams::default(), &object).await?);
        self.observe_clocks(&written);
        Ok(written)
    }

    /// Reads one anew; `None` if it is gone.
    pub async fn read(&self, name: &str) -> kube::Result<Option<Known>> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &flow_resource());
        let Some(object) = get_policy(&api, name).await? else { return Ok(None) };
        let known = Known::read(&object);
        self.observe_clocks(&known);
        Ok(Some(known))
    }
}
