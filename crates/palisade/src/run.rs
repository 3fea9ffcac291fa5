//! `palisade run`: the webhook on every replica, the controllers on the one that leads.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use palisade_admission::{Door, Metrics, Serving, ServingCertificate, router, serve, serve_admin};
use palisade_api::flow::Control;
use palisade_api::gates::FeatureGates;
use palisade_cluster::budgets::{Budgets, Index, keep_index, watch_budgets};
use palisade_cluster::flow::{Flows, watch_departures};
use palisade_cluster::{
    Ancestors, AwaitPolicy, Discovery, Entry, Ledger, Live, Policies, watch_ancestors, watch_discovery,
    watch_protected_pods, watch_protections,
};
use palisade_controllers::budgets;
use palisade_controllers::certificates::{Certificates, Material};
use palisade_controllers::flow::{self, Tripped};
use palisade_controllers::generated;
use palisade_controllers::leadership::{self, Leadership};
use palisade_controllers::protections::{self, Tally};
use palisade_controllers::registration::{
    self, Carried, Endpoint, Expected, FailurePolicy, Inputs, Probe, Registered,
};
use palisade_engine as engine;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::args::{FailurePolicyArg, LogFormat, RunArgs, WebhookUrl};
use crate::connect::{Error, connect};

/// How often what changes all the time is shown.
const SHOWN: Duration = Duration::from_secs(2);

pub(crate) async fn run(args: RunArgs) -> Result<(), Error> {
    start_log(&args)?;
    let client = connect(&args.cluster).await?;
    let metrics = Arc::new(Metrics::default());
    let gates = FeatureGates::chosen(args.feature_gates.iter().flat_map(|list| &list.0));
    let (serving_tx, serving) = watch::channel(Serving::Open);
    let (ready_tx, ready) = watch::channel(Err("starting".to_owned()));

    // The admin port answers from the first moment on: a replica that waits for its API server is alive.
    let admin = listen(args.admin_listen).await?;
    let admin = tokio::spawn(serve_admin(admin, ready, metrics.clone(), serving.clone()));
    let listener = listen(args.listen).await?;
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;

    let certificates = Certificates::new(client.clone(), &args.namespace, hosts(&args));
    let material = tokio::select! {
        material = certificates.obtain() => material,
        _ = terminated.recv() => return Ok(()),
        _ = interrupted.recv() => return Ok(()),
    };
    let certificate = Arc::new(ServingCertificate::new(&material.certificate, &material.key)?);
    let (material_tx, material) = watch::channel(material);

    let flows = Flows::new(client.clone(), count(&metrics));
    let watches = Watches::start(&client, gates, flows.clone());
    let budgets =
        Budgets::new(client.clone(), watches.budgets.clone(), watches.discovery.clone(), count(&metrics));
    let ledger = Arc::new(Ledger { budgets, flows });
    let tally = Arc::new(Tally::default());
    let settings = engine::Settings { own_namespace: args.namespace.clone(), gates };
    let live = Live::new(client.clone(), known_protections(watches.policies.clone()))
        .with_ledger(ledger.clone())
        .with_await_policy(await_policy(client.clone(), ledger.clone()));
    let record = {
        let tally = tally.clone();
        move |verdict: &engine::Verdict| tally.add(verdict, jiff::Timestamp::now())
    };
    let door = Arc::new(Door::new(live, settings, metrics.clone(), record));
    let server = tokio::spawn({
        let (certificate, metrics, serving, mut policies) =
            (certificate.clone(), metrics.clone(), serving.clone(), watches.policies.clone());
        let (mut budgets, mut flows) = (watches.budgets.specs(), watches.flows.specs());
        async move {
            // Nobody is answered before all policies are known; callers wait until then.
            if policies.wait_for(Option::is_some).await.is_ok()
                && budgets.wait_for(Option::is_some).await.is_ok()
                && flows.wait_for(Option::is_some).await.is_ok()
                && let Err(error) = serve(listener, certificate, router(door), metrics, serving).await
            {
                tracing::error!(%error, "serving reviews");
            }
        }
    });

    let (stop, stopped) = watch::channel(false);
    let controllers =
        Controllers { client, gates, watches, ledger, tally, certificates, certificate, metrics };
    let election = controllers.start(&args, (material_tx, material), ready_tx, stopped);

    tokio::select! {
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
    }
    tracing::info!("shutting down");
    let _ = stop.send(true);
    let _ = serving_tx.send(Serving::Draining);
    tokio::time::sleep(args.drain.try_into().unwrap_or_default()).await;
    let _ = serving_tx.send(Serving::Closed);
    let _ = tokio::join!(server, admin, election);
    Ok(())
}

/// What runs beside the webhook.
struct Controllers {
    client: Client,
    gates: FeatureGates,
    watches: Watches,
    ledger: Arc<Ledger>,
    tally: Arc<Tally>,
    certificates: Certificates,
    certificate: Arc<ServingCertificate>,
    metrics: Arc<Metrics>,
}

impl Controllers {
    /// Starts them all, and returns the one that is to be waited for: it gives the Lease back.
    fn start(
        self,
        args: &RunArgs,
        (material_tx, material): (watch::Sender<Material>, watch::Receiver<Material>),
        ready_tx: watch::Sender<Result<(), String>>,
        stopped: watch::Receiver<bool>,
    ) -> JoinHandle<()> {
        let Self { client, gates, watches, ledger, tally, certificates, certificate, metrics } = self;
        let (leadership_tx, leadership) = watch::channel(Leadership::default());
        let (registered_tx, registered) = watch::channel(Registered::default());
        let (carried_tx, carried) = watch::channel(Carried::default());
        let election = tokio::spawn({
            let (client, namespace, identity) = (client.clone(), args.namespace.clone(), identity());
            async move { leadership::campaign(client, &namespace, &identity, leadership_tx, stopped).await }
        });
        tokio::spawn({
            let leadership = leadership.clone();
            async move { certificates.keep(material_tx, leadership).await }
        });
        tokio::spawn(serve_newest(material.clone(), certificate, metrics.clone()));
        let (ancestors_tx, ancestors) = watch::channel(Ancestors::default());
        if gates.resources_deletion_protection && gates.cascade_protection {
            let (discovery, policies) = (watches.discovery.clone(), watches.policies.clone());
            tokio::spawn(watch_ancestors(
                client.clone(),
                discovery,
                policies,
                leading(leadership.clone()),
                ancestors_tx,
            ));
        }
        tokio::spawn(show_leadership(leadership.clone(), metrics.clone()));
        tokio::spawn(show_index(watches.budgets.clone(), metrics.clone()));
        if gates.pod_unavailable_budget {
            tokio::spawn(generated::keep(
                client.clone(),
                leading(leadership.clone()),
                watches.discovery.clone(),
                {
                    let metrics = metrics.clone();
                    Arc::new(move || {
                        metrics.generated_budget_writes.inc();
                    })
                },
            ));
        }
        let Ledger { budgets, flows } = &*ledger;
        tokio::spawn(budgets::keep_status(
            budgets.clone(),
            budgets::Inputs { leadership: leadership.clone(), carried: carried.clone() },
        ));
        if gates.pod_deletion_flow_control {
            tokio::spawn(watch_departures(client.clone(), flows.clone(), leading(leadership.clone())));
            tokio::spawn(flow::keep_status(
                client.clone(),
                flows.clone(),
                flow::Inputs { leadership: leadership.clone(), carried: carried.clone() },
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
        tokio::spawn(protections::keep_status(
            client.clone(),
            protections::Inputs {
                leadership: leadership.clone(),
                policies: watches.policies.clone(),
                discovery: watches.discovery.clone(),
                carried,
            },
        ));
        tokio::spawn({
            let (client, tally, policies) = (client.clone(), tally.clone(), watches.policies.clone());
            async move { protections::keep_counts(client, &tally, policies).await }
        });
        tokio::spawn({
            let (client, settings, metrics) =
                (client.clone(), registration_settings(args, gates), metrics.clone());
            let inputs = Inputs {
                leadership,
                material,
                eviction_namespaces: watches.eviction_namespaces.clone(),
                budgets: watches.budgets.clone(),
                flows: watches.flows.clone(),
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
        tokio::spawn(tell_ready(watches, registered, ready_tx));

        election
    }
}

/// What is watched on every replica. Each is `None` until it has listed.
struct Watches {
    policies: watch::Receiver<Option<Policies>>,
    discovery: watch::Receiver<Option<Discovery>>,
    eviction_namespaces: watch::Receiver<Option<BTreeSet<String>>>,
    budgets: Arc<Index>,
    flows: Arc<Flows>,
}

impl Watches {
    fn start(client: &Client, gates: FeatureGates, flows: Arc<Flows>) -> Self {
        let (policies_tx, policies) = watch::channel(None);
        let (discovery_tx, discovery) = watch::channel(None);
        let (namespaces_tx, eviction_namespaces) =
            watch::channel((!gates.resources_deletion_protection).then(BTreeSet::new));
        tokio::spawn(watch_protections(client.clone(), policies_tx));
        tokio::spawn(watch_discovery(client.clone(), discovery_tx));
        if gates.resources_deletion_protection {
            tokio::spawn(watch_protected_pods(client.clone(), namespaces_tx));
        }
        let budgets = Arc::new(Index::default());
        if gates.pod_unavailable_budget {
            tokio::spawn(watch_budgets(client.clone(), budgets.clone()));
            tokio::spawn(keep_index(client.clone(), budgets.clone(), discovery.clone()));
        } else {
            budgets.switch_off();
        }
        if gates.pod_deletion_flow_control {
            tokio::spawn(flows.clone().watch());
        } else {
            flows.switch_off();
        }
        Self { policies, discovery, eviction_namespaces, budgets, flows }
    }

    /// Waits until all have listed.
    async fn listed(&mut self) -> Result<(), watch::error::RecvError> {
        self.policies.wait_for(Option::is_some).await?;
        self.discovery.wait_for(Option::is_some).await?;
        self.eviction_namespaces.wait_for(Option::is_some).await?;
        self.flows.specs().wait_for(Option::is_some).await?;
        self.budgets.until(Index::is_ready).await;
        Ok(())
    }
}

/// The protections that are known at the time. The server takes no connection before there is a first list.
fn known_protections(policies: watch::Receiver<Option<Policies>>) -> impl Fn() -> Arc<engine::Protections> {
    move || policies.borrow().as_ref().map(|policies| policies.protections.clone()).unwrap_or_default()
}

/// Lets a budget or a flow control be created once the API server asks about its pods.
fn await_policy(client: Client, ledger: Arc<Ledger>) -> AwaitPolicy {
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
        };
        Box::pin(registration::announce(client.clone(), expected, has_another))
    })
}

/// Counts what the ledger does.
fn count(metrics: &Arc<Metrics>) -> impl Fn(Entry) + use<> {
    let metrics = metrics.clone();
    move |entry| metrics.entered(entry)
}

fn start_log(args: &RunArgs) -> Result<(), Error> {
    let filter = tracing_subscriber::EnvFilter::try_new(&args.log)?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match args.log_format {
        LogFormat::Text => log.with_ansi(false).init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|error| format!("listening on {address}: {error}").into())
}

/// Every name under which the API server may call us.
fn hosts(args: &RunArgs) -> Vec<String> {
    let service = format!("{}.{}.svc", args.service, args.namespace);
    args.webhook_url.iter().map(|url| url.host.clone()).chain([service]).collect()
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
        let newest = material.borrow_and_update().clone();
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
            leading_tx.send_replace(leadership.borrow_and_update().leading);
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
        metrics.leader.set(i64::from(leadership.borrow_and_update().leading));
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
    let _ = ready.send(Err("the watches have not listed yet".to_owned()));
    if watches.listed().await.is_err() {
        return;
    }
    let _ = ready.send(Err("not registered with the API server yet".to_owned()));
    if registered.wait_for(|registered| registered.0).await.is_err() {
        return;
    }
    tracing::info!("ready");
    let _ = ready.send(Ok(()));
}
