//! Events about what was refused, and about protections that were lifted.
//!
//! Helm, the garbage collector and operators swallow a refusal's text; an Event on the object, and on the policy that
//! refused, stays for whoever looks. A review never waits for one: they are queued, written by one task, the same one not
//! twice within [`SAME`], and no more than [`BURST`] at once and [`RATE`] a second. What is beyond that is only counted.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use palisade_api::{budget, components, critical, flow, names, protection};
use palisade_engine::{ObjectRef, Reason, Verdict, prose};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

/// Events that may wait to be written.
const WAITING: usize = 256;
/// How long the same is not said again.
const SAME: Duration = Duration::from_secs(300);
/// How many may be written at once, and how many in a second from then on.
const BURST: u32 = 100;
const RATE: u32 = 5;
const CALL: Duration = Duration::from_secs(10);
/// What the note of an Event has room for, in bytes.
const LONGEST_NOTE: usize = 1_024;
/// Where the Events of cluster-scoped objects are.
const DEFAULT_NAMESPACE: &str = "default";

/// What became of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    Written,
    /// It was said before.
    Repeated,
    /// There were too many.
    Dropped,
    Failed,
}

/// A policy that refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyRef<'a> {
    Protection(&'a str),
    Budget { namespace: &'a str, name: &'a str },
    FlowControl(&'a str),
    CriticalService(&'a str),
    Components(&'a str),
}

/// Where Events are told.
pub struct Events {
    queue: mpsc::Sender<Told>,
    count: Box<dyn Fn(Written) + Send + Sync>,
    find_uid: Box<dyn Fn(PolicyRef<'_>) -> Option<String> + Send + Sync>,
}

/// An Event that waits to be written.
#[derive(Debug)]
struct Told {
    regarding: ObjectReference,
    related: Option<ObjectReference>,
    type_: &'static str,
    reason: &'static str,
    action: &'static str,
    note: String,
    /// What it is the same by.
    id: u64,
}

impl Events {
    /// Somewhere to tell them, and what writes them, for ever. `find_uid` knows the policies that there are.
    pub fn new(
        client: Client,
        count: impl Fn(Written) + Clone + Send + Sync + 'static,
        find_uid: impl Fn(PolicyRef<'_>) -> Option<String> + Send + Sync + 'static,
    ) -> (Self, impl Future<Output = ()>) {
        let (queue, waiting) = mpsc::channel(WAITING);
        let keep = keep(client, waiting, count.clone());
        (Self { queue, count: Box::new(count), find_uid: Box::new(find_uid) }, keep)
    }

    /// Says that something was refused, on the object and on the policies that did.
    pub fn refused(&self, action: &'static str, version: &str, verdict: &Verdict) {
        let (Some(object), Some(note)) = (&verdict.object, prose::refusal(verdict)) else { return };
        let reason = match action {
            "Delete" => "DeletionRefused",
            "Evict" => "EvictionRefused",
            _ => "ChangeRefused",
        };
        let mut guards: Vec<&str> = verdict.findings.iter().map(|finding| finding.guard.name()).collect();
        guards.dedup();
        let regarding = object_reference(object, version);
        let told = |regarding: ObjectReference, related: Option<ObjectReference>| Told {
            id: identity(&(&regarding.uid, &regarding.name, &object.uid, &object.name, reason, &guards)),
            regarding,
            related,
            type_: "Warning",
            reason,
            action,
            note: cut(&note).to_owned(),
        };
        let about_object = told(regarding.clone(), None);
        self.tell(about_object);
        let namespace = object.namespace.as_deref().unwrap_or_default();
        for policy in policies(verdict, namespace) {
            // One that is gone has nobody who looks.
            if let Some(uid) = (self.find_uid)(policy) {
                self.tell(told(policy_reference(policy, uid), Some(regarding.clone())));
            }
        }
    }

    /// Says that a protection was taken away from an object.
    pub fn lifted(&self, action: &'static str, version: &str, user: &str, verdict: &Verdict) {
        let Some(object) = &verdict.object else { return };
        let lifted: Vec<String> = verdict.lifted.iter().map(prose::lifted).collect();
        let note = format!("{}, by {user}", lifted.join("; "));
        self.tell(Told {
            id: identity(&(&object.uid, &object.name, &note)),
            regarding: object_reference(object, version),
            related: None,
            type_: "Normal",
            reason: "ProtectionLifted",
            action,
            note: cut(&note).to_owned(),
        });
    }

    fn tell(&self, told: Told) {
        // An Event that is lost loses a line in a list; the log and the answer have it.
        if self.queue.try_send(told).is_err() {
            (self.count)(Written::Dropped);
        }
    }
}

/// Writes what is told, as much as is allowed.
async fn keep(client: Client, mut waiting: mpsc::Receiver<Told>, count: impl Fn(Written)) {
    let mut limit = Limit::new(Instant::now());
    while let Some(told) = waiting.recv().await {
        let written = match limit.take(told.id, Instant::now()) {
            Ok(()) => write(&client, &told).await,
            Err(why) => why,
        };
        count(written);
    }
}

async fn write(client: &Client, told: &Told) -> Written {
    let namespace = told.regarding.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let event = event(told, namespace, Timestamp::now());
    match timeout(CALL, events.create(&PostParams::default(), &event)).await {
        Ok(Ok(_)) => Written::Written,
        // Another replica said so already.
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => Written::Repeated,
        // A namespace that is terminating takes nothing new, and one that a forged review named is not there. The log and
        // the answer have what the Event would say.
        Ok(Err(error)) => {
            tracing::debug!(%error, reason = told.reason, name = told.regarding.name, "recording an event");
            Written::Failed
        }
        Err(_) => Written::Failed,
    }
}

fn event(told: &Told, namespace: &str, now: Timestamp) -> Event {
    let window = now.as_second() / i64::try_from(SAME.as_secs()).unwrap_or(i64::MAX);
    Event {
        metadata: ObjectMeta {
            // The same on every replica, so that one of them writes it.
            name: Some(format!("{}.{:016x}{window:x}", names::PALISADE, told.id)),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(now)),
        type_: Some(told.type_.to_owned()),
        reason: Some(told.reason.to_owned()),
        action: Some(told.action.to_owned()),
        note: Some(told.note.clone()),
        regarding: Some(told.regarding.clone()),
        related: told.related.clone(),
        reporting_controller: Some(names::PALISADE.to_owned()),
        reporting_instance: Some(names::PALISADE.to_owned()),
        ..Event::default()
    }
}

/// What may still be written: none twice in a while, and so many in all.
#[derive(Debug)]
struct Limit {
    said: HashMap<u64, Instant>,
    left: f64,
    since: Instant,
}

impl Limit {
    fn new(now: Instant) -> Self {
        Self { said: HashMap::new(), left: f64::from(BURST), since: now }
    }

    fn take(&mut self, id: u64, now: Instant) -> Result<(), Written> {
        self.said.retain(|_, at| now.duration_since(*at) < SAME);
        if self.said.contains_key(&id) {
            return Err(Written::Repeated);
        }
        let earned = now.duration_since(self.since).as_secs_f64() * f64::from(RATE);
        self.left = (self.left + earned).min(f64::from(BURST));
        self.since = now;
        if self.left < 1.0 {
            return Err(Written::Dropped);
        }
        self.left -= 1.0;
        self.said.insert(id, now);
        Ok(())
    }
}

/// A number that is the same on every replica.
fn identity(parts: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

fn cut(note: &str) -> &str {
    let fits = (0..=LONGEST_NOTE.min(note.len())).rev().find(|&end| note.is_char_boundary(end));
    &note[..fits.unwrap_or(0)]
}

fn object_reference(object: &ObjectRef, version: &str) -> ObjectReference {
    let ObjectRef { group, kind, namespace, name, uid } = object;
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    ObjectReference {
        api_version: Some(api_version),
        kind: Some(kind.clone()),
        namespace: namespace.clone(),
        name: Some(name.clone()),
        uid: Some(uid.clone()),
        ..ObjectReference::default()
    }
}

fn policy_reference(policy: PolicyRef<'_>, uid: String) -> ObjectReference {
    let (group, version, kind, namespace, name) = match policy {
        PolicyRef::Protection(name) => (protection::GROUP, protection::VERSION, protection::KIND, None, name),
        PolicyRef::Budget { namespace, name } => {
            (budget::GROUP, budget::VERSION, budget::KIND, Some(namespace), name)
        }
        PolicyRef::FlowControl(name) => (flow::GROUP, flow::VERSION, flow::KIND, None, name),
        PolicyRef::CriticalService(name) => (critical::GROUP, critical::VERSION, critical::KIND, None, name),
        PolicyRef::Components(name) => (components::GROUP, components::VERSION, components::KIND, None, name),
    };
    ObjectReference {
        api_version: Some(format!("{group}/{version}")),
        kind: Some(kind.to_owned()),
        namespace: namespace.map(str::to_owned),
        name: Some(name.to_owned()),
        uid: Some(uid),
        ..ObjectReference::default()
    }
}

/// The policies that refused, each once.
fn policies<'a>(verdict: &'a Verdict, namespace: &'a str) -> Vec<PolicyRef<'a>> {
    let mut found = Vec::new();
    for finding in &verdict.findings {
        add_policies(&finding.reason, namespace, &mut found);
    }
    found
}

fn add_policies<'a>(reason: &'a Reason, namespace: &'a str, found: &mut Vec<PolicyRef<'a>>) {
    let policy = match reason {
        Reason::Ruled(ruled, _) | Reason::RuledUnknown(ruled, _) => PolicyRef::Protection(&ruled.protection),
        Reason::Spent(_, standing) => PolicyRef::Budget { namespace, name: &standing.budget },
        Reason::Throttled(throttled) => PolicyRef::FlowControl(&throttled.control),
        Reason::Needed(needed) => PolicyRef::CriticalService(&needed.service),
        Reason::NeededUnknown { service, .. } => PolicyRef::CriticalService(service),
        Reason::Managed(managed) => match &managed.protection {
            Some(name) => PolicyRef::Components(name),
            None => return,
        },
        Reason::Dooms(doomed, many) => {
            for reason in doomed.iter().flat_map(|doomed| &doomed.because) {
                add_policies(reason, namespace, found);
            }
            let counted = many.iter().flat_map(|many| many.by_protection.keys());
            for policy in counted.map(|name| PolicyRef::Protection(name)) {
                if !found.contains(&policy) {
                    found.push(policy);
                }
            }
            return;
        }
        _ => return,
    };
    if !found.contains(&policy) {
        found.push(policy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_not_said_twice_and_not_too_much_at_once() {
        let start = Instant::now();
        let mut limit = Limit::new(start);
        assert_eq!(limit.take(1, start), Ok(()));
        assert_eq!(limit.take(1, start), Err(Written::Repeated));
        for id in 2..=u64::from(BURST) {
            assert_eq!(limit.take(id, start), Ok(()), "{id}");
        }
        assert_eq!(limit.take(1_000, start), Err(Written::Dropped));
        let later = start + Duration::from_secs(1);
        for id in 0..u64::from(RATE) {
            assert_eq!(limit.take(2_000 + id, later), Ok(()));
        }
        assert_eq!(limit.take(3_000, later), Err(Written::Dropped));
        assert_eq!(limit.take(1, start + SAME), Ok(()), "it is a while ago");
        assert!(limit.said.len() <= 1 + RATE as usize, "what is a while ago is forgotten");
    }

    #[test]
    fn a_note_is_cut_between_characters() {
        let long = "ä".repeat(LONGEST_NOTE);
        assert_eq!(cut(&long).len(), LONGEST_NOTE);
        assert_eq!(cut(&format!("a{long}")).len(), LONGEST_NOTE - 1);
        assert_eq!(cut("short"), "short");
    }
}
