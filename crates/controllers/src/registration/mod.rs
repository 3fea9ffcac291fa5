//! The `ValidatingWebhookConfiguration` named `palisade`.
//!
//! The leader compares all of it with what it should be ([`plan`]), whenever it, or anything it is derived
//! from, changes, and writes it whole where it differs: a server-side apply would leave alone what others
//! added, such as a narrower `namespaceSelector`, and that can switch a guard off. Labels and annotations that
//! others put on it are theirs.

mod announce;
mod coverage;
mod own_namespace;
mod plan;
mod probe;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams, Preconditions};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use palisade_api::critical::Provider;
use palisade_api::gates::FeatureGates;
use palisade_api::labels::LabelRule;
use palisade_api::names;
use palisade_cluster::budgets::{Index, Key};
use palisade_cluster::components::{Guarded, Sighted};
use palisade_cluster::critical::Services;
use palisade_cluster::flow::{self, Flows};
use palisade_cluster::sync;
use palisade_cluster::{Ancestors, Behind, Discovery, Policies, PolicyProgress};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

pub use announce::{Expected, announce};
pub use coverage::{Coverage, Namespaces, Resolution};
pub use own_namespace::{OwnNamespace, watch_own_namespace};
pub use plan::{Endpoint, FailurePolicy, Governed, Managed, Owners, Providers, Wanted, cel, left_out, plan};
pub use probe::Probe;

use snapshot::{Snapshot, versions_of};

use crate::certificates::Material;
use crate::leadership::Leadership;
use crate::suspension::is_suspended;

const CALL: Duration = Duration::from_secs(5);
/// After a failure, and between two writes when somebody else keeps undoing ours.
const PAUSE: Duration = Duration::from_millis(500);
/// Until every API server goes by a new configuration.
const TAKEN_UP: Duration = Duration::from_millis(700);
/// How often in a row somebody else may be faster.
const CONFLICTS: usize = 10;
/// How long a budget that was announced is waited for.
const EXPECTED: Duration = Duration::from_secs(20);
/// How many selections of namespaces by flow controls are told apart.
const SELECTED_TOLD: usize = 16;
/// A look without a reason, should a watch have missed something.
const ROUND: Duration = Duration::from_secs(30);

/// What does not change while a replica runs.
#[derive(Clone, Debug)]
pub struct Settings {
    pub endpoint: Endpoint,
    pub own_namespace: String,
    pub gates: FeatureGates,
    pub failure_policy: FailurePolicy,
    pub probe: Probe,
}

/// What the registration is derived from, as it changes.
#[derive(Clone)]
pub struct Inputs {
    /// How far the watches of policies have come.
    pub progress: Arc<PolicyProgress>,
    pub leadership: watch::Receiver<Leadership>,
    /// `None` while it is not known, or not there.
    pub own_namespace: watch::Receiver<Option<OwnNamespace>>,
    pub material: watch::Receiver<Material>,
    /// `None` until the watches have listed.
    pub eviction_namespaces: watch::Receiver<Option<BTreeSet<String>>>,
    pub budgets: Arc<Index>,
    pub flows: Arc<Flows>,
    /// `None` until the watch has listed.
    pub services: watch::Receiver<Option<Services>>,
    /// `None` until the watch has listed.
    pub guarded: watch::Receiver<Option<Guarded>>,
    /// `None` until what it shows is known.
    pub sighted: watch::Receiver<Option<Sighted>>,
    pub policies: watch::Receiver<Option<Policies>>,
    pub discovery: watch::Receiver<Option<Discovery>>,
    /// `None` until what is protected has been listed.
    pub ancestors: watch::Receiver<Option<Arc<Ancestors>>>,
}

/// The policies that the registration in place carries: by name, their uid and generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    carried: BTreeMap<String, (String, Option<i64>)>,
    /// Those that it has no room for, and why.
    left_out: BTreeMap<String, String>,
}

impl Carried {
    pub fn of<'a>(protections: impl IntoIterator<Item = (&'a str, &'a str, Option<i64>)>) -> Self {
        let entry =
            |(name, uid, generation): (&str, &str, _)| (name.to_owned(), (uid.to_owned(), generation));
        Self { carried: protections.into_iter().map(entry).collect(), left_out: BTreeMap::new() }
    }

    /// Without those that there is no room for.
    #[must_use]
    pub fn without(mut self, left_out: BTreeMap<String, String>) -> Self {
        self.carried.retain(|name, _| !left_out.contains_key(name));
        Self { left_out, ..self }
    }

    /// Why there is no room for a policy, if there is none.
    pub fn has_no_room_for(&self, name: &str) -> Option<&str> {
        self.left_out.get(name).map(String::as_str)
    }

    /// Whether it carries this generation of a policy.
    pub fn holds(&self, name: &str, uid: &str, generation: Option<i64>) -> bool {
        self.carried.get(name).is_some_and(|(known, carried)| known == uid && *carried == generation)
    }
}

/// The reason of a policy's condition `Enforced` where the registration has no room for it.
pub const REGISTRATION_FULL: &str = "RegistrationFull";

/// The name by which the registration carries a budget. No protection's has a slash in it.
pub fn budget_name(key: &Key) -> String {
    format!("{}/{}", key.namespace, key.name)
}

/// The name by which the registration carries a flow control. No protection's or budget's has a colon in it.
pub fn flow_name(name: &str) -> String {
    format!("flow:{name}")
}

/// The name by which the registration carries a `CriticalService`.
pub fn critical_name(name: &str) -> String {
    format!("critical:{name}")
}

/// The name by which the registration carries a `ComponentProtection`.
pub fn components_name(name: &str) -> String {
    format!("components:{name}")
}

/// What every replica sees of the registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registered(pub bool);

/// Keeps the registration while leading, and on every replica publishes whether it is there. Never ends.
pub async fn keep(
    client: Client,
    settings: &Settings,
    mut inputs: Inputs,
    registered: watch::Sender<Registered>,
    carried: watch::Sender<Carried>,
    wrote: impl Fn() + Send,
) {
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client);
    let config = watcher::Config::default().fields(&format!("metadata.name={}", names::PALISADE)).timeout(60);
    let mut events = watcher(configurations.clone(), config).default_backoff().boxed();
    let (mut specs, mut flows) = (inputs.budgets.specs(), inputs.flows.specs());
    let mut keeper = Keeper {
        configurations,
        settings,
        answers: false,
        expected: HashMap::new(),
        expects: false,
        behind: None,
    };
    let mut next = Instant::now();
    loop {
        tokio::select! {
            Some(event) = events.next() => if let Err(error) = event {
                tracing::warn!(%error, "watching the registration");
                continue;
            },
            Ok(()) = inputs.leadership.changed() => {}
            Ok(()) = inputs.own_namespace.changed() => {}
            Ok(()) = inputs.material.changed() => {}
            Ok(()) = inputs.eviction_namespaces.changed() => {}
            Ok(()) = inputs.policies.changed() => {}
            Ok(()) = specs.changed() => {}
            Ok(()) = flows.changed() => {}
            Ok(()) = inputs.services.changed() => {}
            Ok(()) = inputs.guarded.changed() => {}
            Ok(()) = inputs.sighted.changed() => {}
            Ok(()) = inputs.discovery.changed() => {}
            Ok(()) = inputs.ancestors.changed() => {}
            () = sleep_until(next) => {}
        }
        let pause = match timeout(CALL, keeper.reconcile_with_patience(&inputs)).await {
            Ok(Ok(Outcome { there, written, carries })) => {
                if written {
                    wrote();
                    // API servers take a configuration up a moment after it is written.
                    sleep(TAKEN_UP).await;
                }
                if let Some(carries) = carries {
                    sync::send_new(&carried, carries);
                }
                sync::send_new(&registered, Registered(there));
                if written || keeper.behind.is_some() {
                    PAUSE
                } else if keeper.expects {
                    // What nothing came of is dropped.
                    EXPECTED / 4
                } else {
                    ROUND
                }
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "keeping the registration");
                PAUSE
            }
            Err(_) => {
                tracing::warn!("keeping the registration: the API server did not answer in time");
                PAUSE
            }
        };
        next = Instant::now() + pause;
        if pause == PAUSE {
            sleep_until(next).await;
        }
    }
}

struct Keeper<'a> {
    configurations: Api<ValidatingWebhookConfiguration>,
    settings: &'a Settings,
    /// Whether our server has been seen to answer.
    answers: bool,
    /// The policies that are being created, by annotation; when that was said, and since when we know.
    expected: HashMap<String, (String, Instant)>,
    /// Whether there were any when we last looked.
    expects: bool,
    /// What the registration in place carries and is not known here.
    behind: Option<Behind>,
}

struct Outcome {
    there: bool,
    written: bool,
    /// What it carries, if we lead and so know.
    carries: Option<Carried>,
}

impl Outcome {
    fn seen(there: bool) -> Self {
        Self { there, written: false, carries: None }
    }
}

#[derive(Debug, thiserror::Error)]
enum RegistrationError {
    #[error("the API server: {0}")]
    Api(#[from] kube::Error),
    #[error("not registering yet, since the webhook does not answer at {address}: {source}")]
    Silent { address: String, source: std::io::Error },
}

impl Keeper<'_> {
    /// Again at once where somebody else was faster: whoever announces a budget waits for us.
    async fn reconcile_with_patience(&mut self, inputs: &Inputs) -> Result<Outcome, RegistrationError> {
        for _ in 0..CONFLICTS {
            match self.reconcile(inputs).await {
                Err(RegistrationError::Api(kube::Error::Api(status))) if status.code == 409 => {}
                other => return other,
            }
        }
        self.reconcile(inputs).await
    }

    async fn reconcile(&mut self, inputs: &Inputs) -> Result<Outcome, RegistrationError> {
        // First of all: what is written replaces this and nothing newer. A leader that was stopped, and does not lead any
        // more, either knows so below or meets a conflict.
        let live = self.configurations.get_opt(names::PALISADE).await?;
        let leadership = sync::current(&inputs.leadership);
        let (leading, suspended) = (leadership.holds_now(), leadership.suspended);
        let own_namespace = sync::current(&inputs.own_namespace);
        let carried_versions = live.as_ref().map(versions_of).unwrap_or_default();
        let writes = leading && !suspended && !own_namespace.as_ref().is_some_and(|own| own.terminating);
        // Before the policies are read: they are as new as this, or newer.
        let behind = inputs.progress.behind(&carried_versions).filter(|_| writes);
        let was_behind = std::mem::replace(&mut self.behind, behind);
        if let Some(Behind { kind, unserved }) = behind {
            if was_behind != behind {
                tracing::warn!(%kind, unserved, "what is registered stays: it carries newer policies than are known here");
            }
            return Ok(Outcome::seen(live.is_some_and(|live| is_ours(&live))));
        }
        let material = sync::current(&inputs.material);
        let ancestors = sync::current(&inputs.ancestors);
        let snapshot = Snapshot::read(inputs, live.as_ref());
        // After the policies were read: whatever was read is no newer than this.
        let mut versions = inputs.progress.newest_specs();
        versions.raise_all(&carried_versions);
        let versions = &versions;
        match (live, snapshot) {
            // Every replica does this, since the leader may be the first to end.
            (Some(live), _) if own_namespace.as_ref().is_some_and(|own| own.takes_along(&live)) => {
                self.remove(&live).await?;
                tracing::info!("removed the registration: our namespace is terminating");
                Ok(Outcome { there: false, written: true, carries: Some(Carried::default()) })
            }
            (live, _) if own_namespace.as_ref().is_some_and(|own| own.terminating) => {
                Ok(Outcome::seen(live.is_some_and(|live| is_ours(&live))))
            }
            (live, _) if !leading => Ok(Outcome::seen(live.is_some_and(|live| is_ours(&live)))),
            (Some(live), _) if suspended => {
                self.remove(&live).await?;
                tracing::info!("removed the registration: it is suspended");
                Ok(Outcome { there: false, written: true, carries: Some(Carried::default()) })
            }
            (None, _) if suspended => Ok(Outcome::seen(false)),
            // Without it an eviction rule that is needed might be dropped.
            (live, None) => Ok(Outcome::seen(live.is_some_and(|live| is_ours(&live)))),
            (live, Some(snapshot)) => {
                let Snapshot { namespaces, policies, discovery, budgets, flows, services, guarded, sighted } =
                    &snapshot;
                let expected = self.still_expected(live.as_ref());
                self.expects = !expected.is_empty();
                let mut budget_namespaces: BTreeSet<String> =
                    budgets.iter().map(|known| known.key.namespace.clone()).collect();
                let announced = expected.keys().filter_map(|key| key.strip_prefix(names::EXPECTED_BUDGETS));
                budget_namespaces.extend(announced.map(str::to_owned));
                let flow = governed(flows, &expected);
                let announced: Vec<Provider> = announced_providers(&expected).collect();
                let declared = services.readable().map(|(_, service)| &service.provider);
                let providers = Providers::of(declared.chain(&announced), discovery);
                // A leader that is new to it takes no owner away that the one before it knew.
                let registered = live.as_ref().and_then(|live| live.webhooks.as_deref()).unwrap_or_default();
                let owners = match &ancestors {
                    Some(ancestors) => Owners::Known(ancestors),
                    None => Owners::Registered(registered),
                };
                let coverage = Coverage::of(&policies.protections, discovery);
                let coverage = coverage.in_order(|name| policies.created(name));
                let wanted = Wanted {
                    endpoint: &self.settings.endpoint,
                    authorities: &material.authorities,
                    own_namespace: &self.settings.own_namespace,
                    gates: self.settings.gates,
                    failure_policy: self.settings.failure_policy,
                    eviction_namespaces: namespaces,
                    budget_namespaces: &budget_namespaces,
                    flow: flow.as_ref(),
                    providers: &providers,
                    managed: Managed { guarded, sighted, discovery },
                    coverage: &coverage,
                    owners,
                    versions,
                };
                let (webhooks, left_out) = (plan(&wanted), left_out(&wanted));
                let put = self.put(live, webhooks, &expected, inputs, own_namespace.as_ref()).await?;
                Ok(match put {
                    Put::Whole { written } => {
                        let carries = snapshot.carried().without(left_out);
                        Outcome { there: true, written, carries: Some(carries) }
                    }
                    // Nobody can tell whose it is that is missing.
                    Put::InPart { written } => Outcome { there: true, written, carries: None },
                })
            }
        }
    }

    /// What is being created, less what was announced long ago: it is there by now, or nothing came of it.
    fn still_expected(&mut self, live: Option<&ValidatingWebhookConfiguration>) -> BTreeMap<String, String> {
        let announced = live.map(announce::expected).unwrap_or_default();
        self.expected.retain(|name, (said, _)| announced.get(name) == Some(said));
        for (name, said) in announced {
            self.expected.entry(name).or_insert_with(|| (said, Instant::now()));
        }
        let mut recent: Vec<(&String, &(String, Instant))> =
            self.expected.iter().filter(|(_, (_, since))| since.elapsed() < EXPECTED).collect();
        // Several replicas may have filled the room at once: the first to come stay.
        recent.sort_by_key(|(name, (_, since))| (*since, *name));
        let mut room = announce::ROOM;
        recent.retain(|(name, (said, _))| {
            let left = room.checked_sub(name.len() + said.len());
            room = left.unwrap_or(0);
            left.is_some()
        });
        recent.into_iter().map(|(name, (said, _))| (name.clone(), said.clone())).collect()
    }

    /// Removes the registration that was read, and no other.
    async fn remove(&self, live: &ValidatingWebhookConfiguration) -> Result<(), RegistrationError> {
        let preconditions = Some(Preconditions { uid: live.uid(), resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        match self.configurations.delete(names::PALISADE, &params).await {
            // Another replica was faster.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    async fn put(
        &mut self,
        live: Option<ValidatingWebhookConfiguration>,
        webhooks: Vec<k8s_openapi::api::admissionregistration::v1::ValidatingWebhook>,
        expected: &BTreeMap<String, String>,
        inputs: &Inputs,
        own_namespace: Option<&OwnNamespace>,
    ) -> Result<Put, RegistrationError> {
        let mut desired = live.clone().unwrap_or_else(|| ValidatingWebhookConfiguration {
            metadata: ObjectMeta { name: Some(names::PALISADE.to_owned()), ..ObjectMeta::default() },
            webhooks: None,
        });
        desired.labels_mut().insert(names::MANAGED_BY.0.to_owned(), names::MANAGED_BY.1.to_owned());
        desired
            .annotations_mut()
            .retain(|key, _| !announce::is_announcement(key) || expected.contains_key(key));
        if let Some(own_namespace) = own_namespace {
            own_namespace.own(&mut desired);
        }
        // Absent and empty are the same to the API server.
        desired.metadata.annotations = desired.metadata.annotations.filter(|all| !all.is_empty());
        desired.webhooks = (!webhooks.is_empty()).then_some(webhooks);
        if live.as_ref() == Some(&desired) {
            return Ok(Put::Whole { written: false });
        }
        if !self.answers {
            let Probe { address, .. } = &self.settings.probe;
            let silent = |source| RegistrationError::Silent { address: address.clone(), source };
            self.settings.probe.ask(&sync::current(&inputs.material)).await.map_err(silent)?;
            self.answers = true;
        }
        let post = PostParams::default();
        // It may have been removed just now by somebody who marked the Lease first.
        let client = self.configurations.clone().into_client();
        if live.is_none() && is_suspended(client, &self.settings.own_namespace).await? {
            return Ok(Put::InPart { written: false });
        }
        let mut whole = true;
        loop {
            // Some of the above took its time.
            if !sync::current(&inputs.leadership).holds_now() {
                return Ok(Put::InPart { written: false });
            }
            let written = match &live {
                None => self.configurations.create(&post, &desired).await,
                Some(_) => self.configurations.replace(names::PALISADE, &post, &desired).await,
            };
            match written {
                Ok(_) => break,
                // One policy that the API server does not take shall not keep all others from being enforced.
                Err(kube::Error::Api(status))
                    if status.code == 422 && drop_refused(&mut desired, &status) =>
                {
                    whole = false;
                    if live.as_ref() == Some(&desired) {
                        return Ok(Put::InPart { written: false });
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        tracing::info!(webhooks = desired.webhooks.as_ref().map_or(0, Vec::len), "wrote the registration");
        Ok(if whole { Put::Whole { written: true } } else { Put::InPart { written: true } })
    }
}

/// What came of keeping the registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Put {
    Whole {
        written: bool,
    },
    /// Without what the API server did not take.
    InPart {
        written: bool,
    },
}

/// Takes the webhooks out that the API server refused, and says whether there are any.
fn drop_refused(desired: &mut ValidatingWebhookConfiguration, status: &kube::core::Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let refused: BTreeSet<usize> = causes.filter_map(|cause| refused_webhook(&cause.field)).collect();
    let Some(webhooks) = &mut desired.webhooks else { return false };
    for number in refused.iter().rev().filter(|number| **number < webhooks.len()).copied().collect::<Vec<_>>()
    {
        let webhook = webhooks.remove(number);
        let why: String = status.message.chars().take(500).collect();
        tracing::error!(webhook = webhook.name, why, "the API server refuses a webhook; it is left out");
    }
    !refused.is_empty()
}

/// `webhooks[3].namespaceSelector.matchExpressions[0].values[0]`
fn refused_webhook(field: &str) -> Option<usize> {
    field.strip_prefix("webhooks[")?.split_once(']')?.0.parse().ok()
}

/// Whose pods flow controls are for. One that is being created may be for all; one that nobody can read is.
fn governed(flows: &[Arc<flow::Known>], expected: &BTreeMap<String, String>) -> Option<Governed> {
    let is_there = |name: &str| flows.iter().any(|known| announce::shortened(&known.name) == name);
    let mut announced = expected.keys().filter_map(|key| key.strip_prefix(names::EXPECTED_FLOW_CONTROLS));
    if announced.any(|name| !is_there(name)) {
        return Some(Governed::All);
    }
    let rules =
        flows.iter().map(|known| known.control.as_ref().ok().and_then(|control| control.namespaces.clone()));
    let Some(all) = rules.collect::<Option<Vec<_>>>() else { return Some(Governed::All) };
    let mut rules: Vec<LabelRule> = Vec::new();
    for rule in all {
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    // Each is a webhook of its own; more of them than a few become one.
    if rules.len() > SELECTED_TOLD {
        return Some(Governed::All);
    }
    (!rules.is_empty()).then_some(Governed::Selected(rules))
}

/// The providers of services that are being created.
fn announced_providers(expected: &BTreeMap<String, String>) -> impl Iterator<Item = Provider> {
    let of_services = expected.iter().filter(|(key, _)| key.starts_with(names::EXPECTED_CRITICAL_SERVICES));
    of_services.filter_map(|(_, said)| announce::provider_of(said))
}

/// Whether it leads to us. Its details are the leader's business.
fn is_ours(live: &ValidatingWebhookConfiguration) -> bool {
    live.labels().get(names::MANAGED_BY.0).is_some_and(|by| by == names::MANAGED_BY.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_that_is_refused_is_told_by_its_field() {
        assert_eq!(refused_webhook("webhooks[3].namespaceSelector.matchExpressions[0].values[0]"), Some(3));
        assert_eq!(refused_webhook("webhooks[12]"), Some(12));
        assert_eq!(refused_webhook("metadata.name"), None);
        assert_eq!(refused_webhook("webhooks"), None);
    }
}
