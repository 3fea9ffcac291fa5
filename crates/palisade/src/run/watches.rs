//! What every replica watches, and what follows from it.

use std::collections::BTreeSet;
use std::sync::Arc;

use kube::Client;
use palisade_api::flow::Control;
use palisade_api::gates::FeatureGates;
use palisade_api::versions::PolicyKind;
use palisade_cluster::budgets::{Index, Key, keep_index, watch_budgets};
use palisade_cluster::components::{self, Guarded};
use palisade_cluster::critical::{Services, watch_services};
use palisade_cluster::flow::Flows;
use palisade_cluster::sync;
use palisade_cluster::{
    AwaitPolicy, Discovery, Ledger, Policies, PolicyProgress, watch_discovery, watch_protected_pods,
    watch_protections,
};
use palisade_controllers::events::PolicyRef;
use palisade_controllers::registration::{self, Expected};
use palisade_engine as engine;
use tokio::sync::watch;

/// What is watched on every replica. Each is `None` until it has listed.
pub(super) struct Watches {
    /// How far the watches of policies have come.
    pub(super) progress: Arc<PolicyProgress>,
    pub(super) policies: watch::Receiver<Option<Policies>>,
    pub(super) discovery: watch::Receiver<Option<Discovery>>,
    pub(super) eviction_namespaces: watch::Receiver<Option<BTreeSet<String>>>,
    pub(super) budgets: Arc<Index>,
    pub(super) flows: Arc<Flows>,
    pub(super) services: watch::Receiver<Option<Services>>,
    pub(super) guarded: watch::Receiver<Option<Guarded>>,
}

impl Watches {
    pub(super) fn start(
        client: &Client,
        gates: FeatureGates,
        flows: Arc<Flows>,
        built_in: Option<engine::ProtectedComponents>,
        min_unavailable: u32,
    ) -> Self {
        let (policies_tx, policies) = watch::channel(None);
        let (discovery_tx, discovery) = watch::channel(None);
        let (namespaces_tx, eviction_namespaces) =
            watch::channel((!gates.resources_deletion_protection).then(BTreeSet::new));
        let progress = Arc::new(PolicyProgress::default());
        tokio::spawn(watch_protections(client.clone(), progress.clone(), policies_tx));
        tokio::spawn(watch_discovery(client.clone(), discovery_tx));
        if gates.resources_deletion_protection {
            tokio::spawn(watch_protected_pods(client.clone(), namespaces_tx));
        }
        let budgets = Arc::new(Index::new(min_unavailable));
        if gates.pod_unavailable_budget {
            tokio::spawn(watch_budgets(client.clone(), progress.clone(), budgets.clone()));
            tokio::spawn(keep_index(client.clone(), budgets.clone(), discovery.clone()));
        } else {
            budgets.switch_off();
            progress.switch_off(PolicyKind::Budget);
        }
        if gates.pod_deletion_flow_control {
            tokio::spawn(flows.clone().watch(progress.clone()));
        } else {
            flows.switch_off();
            progress.switch_off(PolicyKind::FlowControl);
        }
        let (services_tx, services) = watch::channel((!gates.critical_service).then(Services::default));
        if gates.critical_service {
            tokio::spawn(watch_services(client.clone(), progress.clone(), services_tx));
        } else {
            progress.switch_off(PolicyKind::CriticalService);
        }
        let (guarded_tx, guarded) = watch::channel((!gates.component_protection).then(Guarded::default));
        if gates.component_protection {
            let built_in = built_in.map(Arc::new);
            tokio::spawn(components::watch_protections(
                client.clone(),
                progress.clone(),
                built_in,
                guarded_tx,
            ));
        } else {
            progress.switch_off(PolicyKind::ComponentProtection);
        }
        Self { progress, policies, discovery, eviction_namespaces, budgets, flows, services, guarded }
    }

    /// Waits until all have listed. A kind of policy that is defined and not served can't be: what it concerns is
    /// refused, and all else answered.
    pub(super) async fn listed(&mut self) -> Result<(), watch::error::RecvError> {
        self.progress.settled().await;
        self.discovery.wait_for(Option::is_some).await?;
        self.eviction_namespaces.wait_for(Option::is_some).await?;
        let unknown = self.progress.unserved();
        if !unknown.contains(&PolicyKind::Budget) {
            self.budgets.until(Index::is_ready).await;
        }
        Ok(())
    }
}

/// The protections that are known at the time. The server takes no connection before there is a first list.
pub(super) fn known_protections(
    policies: watch::Receiver<Option<Policies>>,
) -> impl Fn() -> Arc<engine::Protections> {
    move || {
        sync::peek(&policies, |policies| {
            policies.as_ref().map(|policies| policies.protections.clone()).unwrap_or_default()
        })
    }
}

/// Lets a policy be created once the API server asks about what it concerns.
pub(super) fn await_policy(
    client: Client,
    ledger: Arc<Ledger>,
    watches: &Watches,
    own_namespace: &str,
) -> AwaitPolicy {
    let (services, discovery) = (watches.services.clone(), watches.discovery.clone());
    let own_namespace = own_namespace.to_owned();
    Arc::new(move |declared: engine::Declared<'_>| {
        let (expected, has_another) = match declared {
            engine::Declared::Budget { namespace, name } => {
                let budgets = ledger.budgets.index().budgets_in(namespace);
                let has_another = budgets.iter().any(|known| known.key.name != name);
                (Expected::Budget(namespace.to_owned()), has_another)
            }
            engine::Declared::FlowControl { name } => {
                let is_for_all = |control: &Control| control.namespaces.is_none();
                let controls = ledger.flows.controls();
                let has_another = controls
                    .iter()
                    .any(|known| known.name != name && known.control.as_ref().is_ok_and(is_for_all));
                (Expected::FlowControl(name.to_owned()), has_another)
            }
            engine::Declared::CriticalService { name, provider, is_new } => {
                let plural = sync::peek(&discovery, |discovery| {
                    let served =
                        discovery.as_ref().and_then(|discovery| discovery.resolve(&provider.resource));
                    served.filter(|served| served.namespaced).map(|served| served.plural.clone())
                });
                // What is not served can't be asked about, and nothing is asked about our own.
                let Some(plural) = plural.filter(|_| provider.namespace != own_namespace) else {
                    return Box::pin(std::future::ready(true));
                };
                let has_another = sync::peek(&services, |services| {
                    let mut others = services.iter().flat_map(Services::readable);
                    others.any(|(other, service)| (other != name || !is_new) && service.provider == *provider)
                });
                let (name, provider) = (name.to_owned(), provider.clone());
                (Expected::CriticalService { name, provider, plural }, has_another)
            }
        };
        Box::pin(registration::announce(client.clone(), expected, has_another))
    })
}

/// The uid of a policy that is there, as its watch last showed it.
pub(super) fn policy_uids(
    watches: &Watches,
    ledger: Arc<Ledger>,
) -> impl Fn(PolicyRef<'_>) -> Option<String> + use<> {
    let (policies, services, guarded) =
        (watches.policies.clone(), watches.services.clone(), watches.guarded.clone());
    move |policy| match policy {
        PolicyRef::Protection(name) => {
            sync::peek(&policies, |policies| Some(policies.as_ref()?.by_name.get(name)?.uid.clone()))
        }
        PolicyRef::Budget { namespace, name } => {
            let key = Key { namespace: namespace.to_owned(), name: name.to_owned() };
            ledger.budgets.index().budget(&key).map(|known| known.uid.clone())
        }
        PolicyRef::FlowControl(name) => ledger.flows.control(name).map(|known| known.uid.clone()),
        PolicyRef::CriticalService(name) => {
            sync::peek(&services, |services| Some(services.as_ref()?.0.get(name)?.uid.clone()))
        }
        PolicyRef::Components(name) => {
            sync::peek(&guarded, |guarded| Some(guarded.as_ref()?.by_name.get(name)?.uid.clone()))
        }
    }
}
