//! Budgets that are generated from annotations on workloads and Namespaces.
//!
//! The leader watches the workloads, the Namespaces, and what it has generated; whenever one of them changes it
//! compares what is with what is asked for ([`plan`]), and writes the difference. What it did not make it leaves alone,
//! and says so in an Event; a value that makes no sense leaves the last good budget in place.

mod plan;
mod watches;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::StreamExt;
use http::Request;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use palisade_api::budget::{Amount, Limit};
use palisade_api::generate::{Ask, Flavour, Wanted, wanted};
use palisade_api::names;
use palisade_cluster::sync::{self, Guard};
use palisade_cluster::{Discovery, Fed, Mirror, segment};
use palisade_engine::Object;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use plan::{Desired, Existing, KINDS, Kind, Workload, resource};
use watches::{NAMESPACES, waiting_for, watch_generated, watch_namespaces, watch_workloads};

/// How long changes are gathered.
const GATHER: Duration = Duration::from_millis(50);
const RETRY: Duration = Duration::from_secs(1);
/// How often what could not be generated is looked at again.
const AGAIN: Duration = Duration::from_secs(5);
const CALL: Duration = Duration::from_secs(10);
const AT_ONCE: usize = 16;

/// A namespace, and a name in it.
type Place = (Box<str>, Box<str>);
/// A workload: the number of its kind, and where it is.
type Key = (usize, Place);

/// What is known, and what is to be looked at.
#[derive(Default)]
struct State {
    /// By kind.
    workloads: [Mirror<Place, Workload>; KINDS],
    /// Those that ask for something.
    namespaces: Mirror<Box<str>, [Ask; 2]>,
    generated: [Mirror<Place, Existing>; 2],
    /// `apps/v1`, by kind, once it is served.
    versions: HashMap<usize, String>,
    /// What has not listed yet. Before, nobody can tell what is missing.
    waiting: HashSet<String>,
    queue: HashSet<Key>,
    /// Workloads that were seen to go. Kubernetes collects their budgets, too, but may take a minute to know the kind.
    gone: HashMap<Key, Box<str>>,
    /// What could not be generated, and is looked at again now and then: nobody tells when it can be.
    troubled: HashSet<Key>,
    /// What was last said about a workload.
    said: HashMap<(Box<str>, Flavour), String>,
}

/// All that decides about one budget of a workload.
struct Look {
    workload: Workload,
    /// What its Namespace asks for.
    default: Ask,
    existing: Option<Existing>,
    version: String,
}

impl State {
    /// `None` if there is no such workload.
    fn look(&self, key: &Key, number: usize) -> Option<Look> {
        let (kind, place) = key;
        Some(Look {
            workload: self.workload(key)?.clone(),
            default: self.namespaces.get(&place.0).map(|asks| asks[number].clone()).unwrap_or_default(),
            version: self.versions.get(kind).cloned().unwrap_or_default(),
            existing: self.generated[number].get(place).cloned(),
        })
    }

    fn workload(&self, (kind, place): &Key) -> Option<&Workload> {
        self.workloads[*kind].get(place)
    }

    /// The workloads of every kind by one name.
    fn named(&self, place: &Place) -> impl Iterator<Item = (usize, &Workload)> {
        self.workloads.iter().enumerate().filter_map(move |(kind, all)| Some((kind, all.get(place)?)))
    }

    fn keys(&self) -> impl Iterator<Item = Key> {
        let all = self.workloads.iter().enumerate();
        all.flat_map(|(kind, all)| all.keys().map(move |place| (kind, place.clone())))
    }

    /// Whether a budget was generated for a workload that is gone.
    fn is_stale(&self, place: &Place, existing: &Existing) -> bool {
        let made_for = existing.made_for.as_ref();
        made_for.is_some_and(|uid| !self.named(place).any(|(_, workload)| workload.uid == *uid))
    }
}

struct Shared {
    client: Client,
    /// How many pods a budget lets go at least.
    min_unavailable: u32,
    /// Told of every write.
    wrote: Wrote,
    state: Mutex<State>,
    queued: Notify,
}

/// Counts a write.
pub type Wrote = Arc<dyn Fn() + Send + Sync>;

impl Shared {
    fn state(&self) -> Guard<MutexGuard<'_, State>> {
        sync::lock(&self.state)
    }

    /// Changes the state, and tells if there is more to look at, or less to wait for.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let tell = {
            let mut state = self.state();
            let (queued, waiting) = (state.queue.len(), state.waiting.len());
            change(&mut state);
            state.queue.len() > queued || state.waiting.len() < waiting
        };
        if tell {
            self.queued.notify_one();
        }
    }
}

impl State {
    /// Notes the end of a list that was waited for.
    fn listed(&mut self, fed: &Fed<'_>, word: &str) {
        if matches!(fed, Fed::Complete(_)) {
            self.waiting.remove(word);
        }
    }
}

/// Keeps generated budgets in step while leading. Never ends.
pub async fn keep(
    client: Client,
    mut leading: watch::Receiver<bool>,
    discovery: watch::Receiver<Option<Discovery>>,
    min_unavailable: u32,
    wrote: Wrote,
) {
    loop {
        if leading.wait_for(|leading| *leading).await.is_err() {
            return;
        }
        tokio::select! {
            () = lead(client.clone(), discovery.clone(), min_unavailable, wrote.clone()) => {}
            _ = leading.wait_for(|leading| !leading) => {}
        }
    }
}

/// Watches and writes. Never ends; what it started ends with it.
async fn lead(
    client: Client,
    discovery: watch::Receiver<Option<Discovery>>,
    min_unavailable: u32,
    wrote: Wrote,
) {
    let shared =
        Arc::new(Shared { client, min_unavailable, wrote, state: Mutex::default(), queued: Notify::new() });
    shared.state().waiting.extend([NAMESPACES, "pub", "pdb"].map(str::to_owned));
    let mut feeds = JoinSet::new();
    feeds.spawn(watch_namespaces(shared.clone()));
    for flavour in Flavour::ALL {
        feeds.spawn(watch_generated(shared.clone(), flavour));
    }
    for (number, kind) in plan::kinds().into_iter().enumerate() {
        shared.state().waiting.insert(waiting_for(number));
        feeds.spawn(watch_workloads(shared.clone(), discovery.clone(), number, kind));
    }
    let kinds = plan::kinds();
    let mut again = Instant::now() + AGAIN;
    loop {
        tokio::select! {
            () = shared.queued.notified() => sleep(GATHER).await,
            () = sleep_until(again) => {
                again = Instant::now() + AGAIN;
                let mut state = shared.state();
                let troubled = std::mem::take(&mut state.troubled);
                state.queue.extend(troubled);
            }
        }
        let queue: Vec<Key> = {
            let mut state = shared.state();
            if state.waiting.is_empty() { state.queue.drain().collect() } else { Vec::new() }
        };
        futures::stream::iter(queue)
            .for_each_concurrent(AT_ONCE, |key| {
                let (shared, kinds) = (&shared, &kinds);
                async move {
                    let kept = timeout(CALL, reconcile(shared, &kinds[key.0], &key)).await;
                    let failed = match kept {
                        Ok(Ok(())) => return,
                        Ok(Err(error)) => error.to_string(),
                        Err(_) => "the API server did not answer in time".to_owned(),
                    };
                    let (namespace, name) = &key.1;
                    tracing::warn!(
                        kind = kinds[key.0].kind,
                        %namespace,
                        %name,
                        why = failed,
                        "generating a budget"
                    );
                    let shared = shared.clone();
                    tokio::spawn(async move {
                        sleep(RETRY).await;
                        shared.change(|state| state.queue.extend([key]));
                    });
                }
            })
            .await;
    }
}

/// Compares what a workload asks for with what there is, and writes the difference.
async fn reconcile(shared: &Shared, kind: &Kind, key: &Key) -> kube::Result<()> {
    let mut failed = Ok(());
    for (number, flavour) in Flavour::ALL.into_iter().enumerate() {
        let look = shared.state().look(key, number);
        let Some(look) = look else { return collect(shared, key).await };
        if look.workload.going {
            continue;
        }
        let about = Said { shared, look: &look, kind, place: &key.1, flavour };
        let kept = keep_one(&about, number).await;
        let trouble = match kept {
            Ok(None) => {
                about.nothing();
                continue;
            }
            Ok(Some(trouble)) => trouble,
            // What the API server will not have is for somebody else to put right.
            Err(kube::Error::Api(status)) if (400..500).contains(&status.code) && status.code != 429 => {
                ("CannotGenerate", status.message)
            }
            Err(error) => {
                failed = Err(error);
                continue;
            }
        };
        shared.state().troubled.insert(key.clone());
        about.say(trouble.0, &trouble.1).await;
    }
    // Another by the same name has taken over what was there.
    shared.state().gone.remove(key);
    failed
}

/// A reason, and what to say about it.
type Trouble = (&'static str, String);

/// Keeps one budget of a workload in step, and returns what somebody should know about it.
async fn keep_one(about: &Said<'_>, number: usize) -> kube::Result<Option<Trouble>> {
    let Said { shared, look, kind, place, flavour } = *about;
    let Look { workload, default, existing, version } = look;
    let own = &workload.asks[number];
    let budgets = Budgets { shared, flavour, place };
    let name = &place.1;
    let ours = |existing: &Existing| existing.is_for(workload) || shared.state().is_stale(place, existing);
    let limit = match wanted(flavour, own, default, &workload.given) {
        Ok(Wanted::Budget(limit)) => limit,
        Ok(Wanted::Nothing) => {
            if existing.as_ref().is_some_and(ours) {
                budgets.delete().await?;
            }
            return Ok(None);
        }
        Err(why) => return Ok(Some(("BadBudget", format!("{why}; what was generated before stays")))),
    };
    // What asks for it is not asked whether it may write a budget, so that it must not stop whoever drains nodes. Of one
    // replica, the percentages that are written stay, and are bounded where they are counted.
    let asked = limit;
    let least = shared.min_unavailable;
    let limit = asked.letting_go(least, workload.given.replicas.max(2));
    let desired = Desired::new(flavour, workload, (version, kind.kind, name), limit, least);
    let existing = if let Some(existing) = existing {
        Some(existing.clone())
    } else {
        if let Some(trouble) = in_the_way(&budgets, workload).await? {
            return Ok(Some(trouble));
        }
        // If there is one already, it does not carry our label.
        if budgets.create(&desired).await? { None } else { budgets.get().await? }
    };
    if let Some(existing) = existing {
        if !ours(&existing) {
            let (_, kind, _) = resource(flavour);
            let note =
                format!("there is a {kind} \"{name}\" that was not generated for it, and is left alone");
            return Ok(Some(("BudgetNotOurs", note)));
        }
        let changes = desired.changes(&existing);
        if !changes.is_empty() {
            budgets.change(changes).await?;
        }
    }
    let counted = match flavour {
        Flavour::Unavailable => workload.given.replicas,
        Flavour::Disruption => workload.given.replicas.max(2),
    };
    if limit != asked || limit.letting_go(least, counted) != limit {
        let (field, value) = asked.written();
        let pods = if least == 1 { "1 pod" } else { &format!("{least} pods") };
        let note = format!(
            "{field}: {value} would let fewer pods go than every generated budget does, and so it lets {pods} go: see \
             --generated-budget-min-unavailable of Palisade, which is for administrators to set",
        );
        return Ok(Some(("BudgetBounded", note)));
    }
    let blocks = matches!(limit, Limit::MaxUnavailable(Amount::Number(0) | Amount::Percent(0)));
    if blocks && !own.has_number() && !default.has_number() {
        let note = format!(
            "maxUnavailable of its update strategy is 0, and so the budget blocks every eviction: write {}-maxUnavailable to let \
             drains go on",
            flavour.key()
        );
        return Ok(Some(("BlocksEvictions", note)));
    }
    Ok(None)
}

/// Why a `PodDisruptionBudget` would do harm. Where two cover a pod, its evictions fail.
async fn in_the_way(budgets: &Budgets<'_>, workload: &Workload) -> kube::Result<Option<Trouble>> {
    if budgets.flavour != Flavour::Disruption {
        return Ok(None);
    }
    if let Some(why) = workload.selector_problem() {
        return Ok(Some(("BadBudget", format!("{why}; none is generated"))));
    }
    let others = budgets.list().await?;
    let covering = others.into_iter().find(|(name, existing)| {
        **name != *budgets.place.1
            && workload.is_covered_by(existing.spec.get("selector").unwrap_or(&Value::Null))
    });
    Ok(covering.map(|(name, _)| {
        let note = format!("PodDisruptionBudget \"{name}\" covers its pods already, and evictions fail where two do; none is generated");
        ("BudgetOverlaps", note)
    }))
}

/// Removes what was generated for a workload that is gone.
async fn collect(shared: &Shared, key: &Key) -> kube::Result<()> {
    let (_, place) = key;
    let Some(uid) = shared.state().gone.get(key).cloned() else { return Ok(()) };
    for (number, flavour) in Flavour::ALL.into_iter().enumerate() {
        let existing = shared.state().generated[number].get(place).cloned();
        if existing.is_some_and(|existing| existing.made_for.as_ref() == Some(&uid)) {
            Budgets { shared, flavour, place }.delete().await?;
        }
    }
    shared.state().gone.remove(key);
    Ok(())
}

/// The budgets by one name.
struct Budgets<'a> {
    shared: &'a Shared,
    flavour: Flavour,
    place: &'a Place,
}

impl Budgets<'_> {
    /// Creates it; false if there is one already.
    async fn create(&self, desired: &Desired) -> kube::Result<bool> {
        let object = desired.object(self.flavour, &self.place.0, &self.place.1);
        match self.send("POST", &self.all(), "application/json", &object).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            // The namespace is going, and the workload with it.
            Err(kube::Error::Api(status))
                if status.code == 403 && status.message.contains("being terminated") =>
            {
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    /// All of the namespace, with their names.
    async fn list(&self) -> kube::Result<Vec<(String, Existing)>> {
        let request = Request::get(self.all()).body(Vec::new()).map_err(kube::Error::HttpError)?;
        let list: Value = self.shared.client.request(request).await?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let read = |item: &Value| {
            let text = item.to_string();
            let object = Object::parse(text.as_bytes()).ok()?;
            Some((object.metadata.name.to_string(), Existing::read(&object)))
        };
        Ok(items.iter().filter_map(read).collect())
    }

    async fn get(&self) -> kube::Result<Option<Existing>> {
        let request = Request::get(self.one()).body(Vec::new()).map_err(kube::Error::HttpError)?;
        match self.shared.client.request_text(request).await {
            Ok(text) => Ok(Object::parse(text.as_bytes()).ok().map(|object| Existing::read(&object))),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn change(&self, changes: Vec<Value>) -> kube::Result<()> {
        let changes = Value::Array(changes);
        unless_gone(self.send("PATCH", &self.one(), "application/json-patch+json", &changes).await)
    }

    async fn delete(&self) -> kube::Result<()> {
        unless_gone(self.send("DELETE", &self.one(), "application/json", &Value::Null).await)
    }

    async fn send(&self, method: &str, path: &str, kind: &str, body: &Value) -> kube::Result<String> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder().method(method).uri(path).header("content-type", kind);
        (self.shared.wrote)();
        self.shared.client.request_text(request.body(body).map_err(kube::Error::HttpError)?).await
    }

    fn all(&self) -> String {
        let (api_version, _, plural) = resource(self.flavour);
        format!("/apis/{api_version}/namespaces/{}/{plural}", segment(&self.place.0))
    }

    fn one(&self) -> String {
        format!("{}/{}", self.all(), segment(&self.place.1))
    }
}

/// What is gone in the meantime needs nothing; the watch brings us back if it should be there.
fn unless_gone(sent: kube::Result<String>) -> kube::Result<()> {
    match sent {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}

/// What is said about a workload, once.
#[derive(Clone, Copy)]
struct Said<'a> {
    shared: &'a Shared,
    look: &'a Look,
    kind: &'a Kind,
    place: &'a Place,
    flavour: Flavour,
}

impl Said<'_> {
    fn key(&self) -> (Box<str>, Flavour) {
        (self.look.workload.uid.clone(), self.flavour)
    }

    /// Records an Event, unless it was the last one.
    async fn say(&self, reason: &str, note: &str) {
        if self.shared.state().said.insert(self.key(), note.to_owned()).is_some_and(|last| last == note) {
            return;
        }
        let (namespace, name) = self.place;
        let about = ObjectReference {
            api_version: Some(self.look.version.clone()),
            kind: Some(self.kind.kind.to_owned()),
            name: Some(name.to_string()),
            namespace: Some(namespace.to_string()),
            uid: Some(self.look.workload.uid.to_string()),
            ..ObjectReference::default()
        };
        let event = Event {
            type_: EventType::Warning,
            reason: reason.to_owned(),
            note: Some(note.to_owned()),
            action: "GenerateBudget".to_owned(),
            secondary: None,
        };
        // One recorder would take two notes for the same Event, and keep the first.
        let reporter = Reporter { controller: names::PALISADE.to_owned(), instance: None };
        // An Event that is lost loses a line in a list.
        if let Err(error) = Recorder::new(self.shared.client.clone(), reporter).publish(&event, &about).await
        {
            tracing::warn!(%error, %namespace, %name, "recording an event");
        }
    }

    fn nothing(&self) {
        self.shared.state().said.remove(&self.key());
    }
}
