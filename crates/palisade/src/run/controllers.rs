//! What runs beside the webhook, on every replica or on the one that leads.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use palisade_admission::{Metrics, ServingCertificate};
use palisade_api::gates::FeatureGates;
use palisade_cluster::budgets::Index;
use palisade_cluster::components::{Sighted, watch_components};
use palisade_cluster::critical::{Dependents, watch_dependents};
use palisade_cluster::flow::watch_departures;
use palisade_cluster::sync;
use palisade_cluster::{Ledger, watch_ancestors};
use palisade_controllers::certificates::{Certificates, Material};
use palisade_controllers::components::{self, Refusals};
use palisade_controllers::flow::{self, Tripped};
use palisade_controllers::leadership::{self, Leadership};
use palisade_controllers::protections::{self, Tally};
use palisade_controllers::published::keep as keep_published;
use palisade_controllers::registration::{self, Carried, Endpoint, FailurePolicy, Inputs, Probe, Registered};
use palisade_controllers::{budgets, critical, disabled, generated};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::watches::Watches;
use crate::args::{FailurePolicyArg, RunArgs, WebhookUrl};
use crate::published;

/// How often what changes all the time is shown.
const SHOWN: Duration = Duration::from_secs(2);

/// What runs beside the webhook.
pub(super) struct Controllers {
    pub(super) client: Client,
    pub(super) gates: FeatureGates,
    pub(super) watches: Watches,
    pub(super) ledger: Arc<Ledger>,
    pub(super) tally: Arc<Tally>,
    pub(super) refusals: Arc<Refusals>,
    pub(super) certificates: Certificates,
    pub(super) certificate: Arc<ServingCertificate>,
    pub(super) metrics: Arc<Metrics>,
}

impl Controllers {
    /// Starts them all, and returns the one that is to be waited for: it gives the Lease back.
    pub(super) fn start(
        self,
        args: &RunArgs,
        (material_tx, material): (watch::Sender<Material>, watch::Receiver<Material>),
        ready_tx: watch::Sender<Result<(), String>>,
        stopped: watch::Receiver<bool>,
    ) -> JoinHandle<()> {
        let (leadership_tx, leadership) = watch::channel(Leadership::default());
        let (registered_tx, registered) = watch::channel(Registered::default());
        let (own_namespace_tx, own_namespace) = watch::channel(None);
        let (carried_tx, carried) = watch::channel(Carried::default());
        let (sighted_tx, sighted) = watch::channel((!self.gates.component_protection).then(Sighted::default));
        self.keep_policies(args, &leadership, &carried);
        self.keep_components(args, &leadership, &carried, sighted_tx);
        let Self { client, gates, watches, certificates, certificate, metrics, .. } = self;
        let election = tokio::spawn({
            let (client, namespace, identity) = (client.clone(), args.namespace.clone(), identity());
            async move { leadership::campaign(client, &namespace, &identity, leadership_tx, stopped).await }
        });
        tokio::spawn({
            let leadership = leadership.clone();
            async move { certificates.keep(material_tx, leadership).await }
        });
        tokio::spawn(serve_newest(material.clone(), certificate, metrics.clone()));
        let (ancestors_tx, ancestors) = watch::channel(None);
        if gates.resources_deletion_protection && gates.cascade_protection {
            let (discovery, policies) = (watches.discovery.clone(), watches.policies.clone());
            tokio::spawn(watch_ancestors(
                client.clone(),
                Arc::new(args.search_groups.clone()),
                discovery,
                policies,
                leading(leadership.clone()),
                ancestors_tx,
            ));
        }
        tokio::spawn({
            let (client, namespace) = (client.clone(), args.namespace.clone());
            async move { registration::watch_own_namespace(client, &namespace, own_namespace_tx).await }
        });
        tokio::spawn(show_leadership(leadership.clone(), metrics.clone()));
        tokio::spawn(show_index(watches.budgets.clone(), metrics.clone()));
        tokio::spawn({
            let (client, settings, metrics) =
                (client.clone(), registration_settings(args, gates), metrics.clone());
            let inputs = Inputs {
                progress: watches.progress.clone(),
                leadership: leadership.clone(),
                own_namespace,
                material,
                eviction_namespaces: watches.eviction_namespaces.clone(),
                budgets: watches.budgets.clone(),
                flows: watches.flows.clone(),
                services: watches.services.clone(),
                guarded: watches.guarded.clone(),
                sighted,
                policies: watches.policies.clone(),
                discovery: watches.discovery.clone(),
                ancestors,
            };
            async move {
                let wrote = || {
                    metrics.registration_writes.inc();
                };
                registration::keep(client, &settings, inputs, registered_tx, carried_tx, wrote).await;
            }
        });
        tokio::spawn({
            let (namespace, settings) = (args.namespace.clone(), published::settings(args, gates));
            let (leadership, registered) = (leadership, registered.clone());
            async move { keep_published(client, &namespace, &settings, leadership, registered).await }
        });
        tokio::spawn(tell_ready(watches, registered, ready_tx));

        election
    }

    fn keep_components(
        &self,
        args: &RunArgs,
        leadership: &watch::Receiver<Leadership>,
        carried: &watch::Receiver<Carried>,
        sighted: watch::Sender<Option<Sighted>>,
    ) {
        if !self.gates.component_protection {
            return;
        }
        let Self { client, watches, refusals, .. } = self;
        tokio::spawn(components::keep_status(
            client.clone(),
            components::Inputs {
                leadership: leadership.clone(),
                guarded: watches.guarded.clone(),
                sighted: sighted.subscribe(),
                discovery: watches.discovery.clone(),
                carried: carried.clone(),
                groups: args.search_groups.clone(),
            },
        ));
        tokio::spawn(watch_components(
            client.clone(),
            Arc::new(args.search_groups.clone()),
            watches.guarded.clone(),
            watches.discovery.clone(),
            leading(leadership.clone()),
            sighted,
        ));
        let (client, refusals) = (client.clone(), refusals.clone());
        tokio::spawn(async move { components::keep_counts(client, &refusals).await });
    }

    /// What each kind of policy needs besides reviews: its status above all.
    fn keep_policies(
        &self,
        args: &RunArgs,
        leadership: &watch::Receiver<Leadership>,
        carried: &watch::Receiver<Carried>,
    ) {
        let Self { client, gates, watches, ledger, tally, metrics, .. } = self;
        tokio::spawn(disabled::keep_status(client.clone(), *gates, leading(leadership.clone())));
        let Ledger { budgets, flows } = &**ledger;
        let expiry = args.reservation_expiry.unsigned_abs();
        if gates.pod_unavailable_budget {
            tokio::spawn(generated::keep(
                client.clone(),
                leading(leadership.clone()),
                watches.discovery.clone(),
                args.generated_budget_min_unavailable,
                {
                    let metrics = metrics.clone();
                    Arc::new(move || {
                        metrics.generated_budget_writes.inc();
                    })
                },
            ));
            tokio::spawn(budgets::keep_status(
                budgets.clone(),
                budgets::Inputs { leadership: leadership.clone(), carried: carried.clone(), expiry },
            ));
        }
        if gates.pod_deletion_flow_control {
            tokio::spawn(watch_departures(client.clone(), flows.clone(), leading(leadership.clone())));
            tokio::spawn(flow::keep_status(
                client.clone(),
                flows.clone(),
                flow::Inputs { leadership: leadership.clone(), carried: carried.clone(), expiry },
                {
                    let metrics = metrics.clone();
                    move |tripped| match tripped {
                        Tripped::Now(count) => {
                            metrics.flow_controls_tripped.set(count.try_into().unwrap_or(i64::MAX));
                        }
                        Tripped::Another => drop(metrics.flow_trips.inc()),
                    }
                },
            ));
        }
        if gates.critical_service {
            let dependents = Arc::new(Dependents::new(args.search_groups.clone()));
            tokio::spawn(watch_dependents(
                client.clone(),
                dependents.clone(),
                watches.services.clone(),
                watches.discovery.clone(),
                leading(leadership.clone()),
            ));
            tokio::spawn(critical::keep_status(
                client.clone(),
                critical::Inputs {
                    leadership: leadership.clone(),
                    services: watches.services.clone(),
                    dependents,
                    carried: carried.clone(),
                    groups: args.search_groups.clone(),
                    own_namespace: args.namespace.clone(),
                },
            ));
        }
        if gates.resources_deletion_protection {
            tokio::spawn(protections::keep_status(
                client.clone(),
                protections::Inputs {
                    leadership: leadership.clone(),
                    policies: watches.policies.clone(),
                    discovery: watches.discovery.clone(),
                    carried: carried.clone(),
                    groups: args.search_groups.clone(),
                },
            ));
            tokio::spawn({
                let (client, tally, policies) = (client.clone(), tally.clone(), watches.policies.clone());
                async move { protections::keep_counts(client, &tally, policies).await }
            });
        }
    }
}

fn registration_settings(args: &RunArgs, gates: FeatureGates) -> registration::Settings {
    let service_host = format!("{}.{}.svc", args.service, args.namespace);
    let (endpoint, probe) = if let Some(WebhookUrl { url, host, port }) = &args.webhook_url {
        let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        (Endpoint::Url(url.clone()), Probe { address, host: host.clone() })
    } else {
        // The Service leads here only once we are ready, and we are ready only once we are registered: so
        // this asks ourselves, by the Service's name.
        let ip =
            if args.listen.ip().is_unspecified() { IpAddr::from([127, 0, 0, 1]) } else { args.listen.ip() };
        let address = SocketAddr::new(ip, args.listen.port()).to_string();
        let service = Endpoint::Service { namespace: args.namespace.clone(), name: args.service.clone() };
        (service, Probe { address, host: service_host })
    };
    registration::Settings {
        endpoint,
        probe,
        own_namespace: args.namespace.clone(),
        gates,
        failure_policy: match args.failure_policy {
            FailurePolicyArg::Fail => FailurePolicy::Fail,
            FailurePolicyArg::Ignore => FailurePolicy::Ignore,
        },
    }
}

/// A name that no other replica has, also not one that ran here before.
fn identity() -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "palisade".to_owned());
    format!("{host}-{}-{}", std::process::id(), jiff::Timestamp::now().as_millisecond())
}

/// Serves what the Secret holds, whenever it changes.
async fn serve_newest(
    mut material: watch::Receiver<Material>,
    certificate: Arc<ServingCertificate>,
    metrics: Arc<Metrics>,
) {
    loop {
        let newest = sync::newest(&mut material);
        // The one we have stays in use: it is vouched for until the newest has been served for a while.
        if let Err(error) = certificate.replace(&newest.certificate, &newest.key) {
            tracing::error!(%error, "the newest serving certificate cannot be used");
        }
        metrics.certificate_expiry.set(newest.expiry().map_or(0, jiff::Timestamp::as_second));
        if material.changed().await.is_err() {
            return;
        }
    }
}

/// Whether we lead, and nothing else of it.
fn leading(mut leadership: watch::Receiver<Leadership>) -> watch::Receiver<bool> {
    let (leading_tx, leading) = watch::channel(false);
    tokio::spawn(async move {
        loop {
            sync::send_new(&leading_tx, sync::newest(&mut leadership).leading);
            if leadership.changed().await.is_err() {
                return;
            }
        }
    });
    leading
}

async fn show_index(index: Arc<Index>, metrics: Arc<Metrics>) {
    loop {
        metrics.indexed_pods.set(index.pods().count().try_into().unwrap_or(i64::MAX));
        metrics.pod_watch_silence.set(index.silence().as_secs().try_into().unwrap_or(i64::MAX));
        tokio::time::sleep(SHOWN).await;
    }
}

async fn show_leadership(mut leadership: watch::Receiver<Leadership>, metrics: Arc<Metrics>) {
    loop {
        metrics.leader.set(i64::from(sync::newest(&mut leadership).leading));
        if leadership.changed().await.is_err() {
            return;
        }
    }
}

/// Ready is: every watch has listed, and the API server has been told about us. It stays so: what happens to
/// the registration later is not this replica's health, and taking replicas away would make it worse.
async fn tell_ready(
    mut watches: Watches,
    mut registered: watch::Receiver<Registered>,
    ready: watch::Sender<Result<(), String>>,
) {
    sync::send(&ready, Err("the watches have not listed yet".to_owned()));
    if watches.listed().await.is_err() {
        return;
    }
    let unregistered =
        "not registered with the API server yet; after palisade uninstall, run palisade resume";
    sync::send(&ready, Err(unregistered.to_owned()));
    if registered.wait_for(|registered| registered.0).await.is_err() {
        return;
    }
    tracing::info!("ready");
    sync::send(&ready, Ok(()));
}
