//! `palisade run`: the webhook on every replica, the controllers on the one that leads.

mod callers;
mod controllers;
mod watchdog;
mod watches;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use palisade_admission::{
    Door, Metrics, Recorded, Serving, ServingCertificate, Told, router, serve, serve_admin,
};
use palisade_api::components::druid;
use palisade_api::gates::FeatureGates;
use palisade_api::names;
use palisade_cluster::budgets::Budgets;
use palisade_cluster::flow::Flows;
use palisade_cluster::sync;
use palisade_cluster::{Discovery, Entry, Ledger, Live, SEARCHES, Searching};
use palisade_controllers::certificates::Certificates;
use palisade_controllers::components::Refusals;
use palisade_controllers::critical::Partings;
use palisade_controllers::events::{Events, Written};
use palisade_controllers::protections::Tally;
use palisade_engine as engine;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use self::controllers::Controllers;
use self::watches::{Watches, await_policy, known_protections, policy_uids};
use crate::args::{LogFormat, RunArgs};
use crate::connect::{Error, connect, connect_searches};
use crate::published::etcd_components;

pub(crate) async fn run(args: RunArgs) -> Result<(), Error> {
    start_log(&args)?;
    start_watchdog(&args)?;
    let client = connect(&args.cluster).await?;
    let metrics = Arc::new(Metrics::default());
    let gates = FeatureGates::chosen(args.feature_gates.iter().flat_map(|list| &list.0));
    tell_what_is_off(&args, gates);
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
    let callers = match &args.client_ca {
        Some(file) => Some(callers::read(file, certificate.clone()).await?),
        None => None,
    };
    let (material_tx, material) = watch::channel(material);

    let flows = Flows::new(client.clone(), count(&metrics));
    let least = args.generated_budget_min_unavailable;
    let watches = Watches::start(&client, gates, flows.clone(), etcd_components(&args), least);
    let searching = Arc::new(searching(&args)?);
    tokio::spawn(tell_unserved_groups(watches.discovery.clone(), searching.clone()));
    let budgets = Budgets::new(
        client.clone(),
        watches.budgets.clone(),
        watches.discovery.clone(),
        searching.clone(),
        count(&metrics),
    );
    let ledger = Arc::new(Ledger { budgets, flows });
    let tally = Arc::new(Tally::default());
    let settings = engine::Settings { own_namespace: args.namespace.clone(), gates };
    let live = Live::new(client.clone(), known_protections(watches.policies.clone()))
        .with_progress(watches.progress.clone())
        .with_searching(searching)
        .with_search_clients(connect_searches(&args.cluster, SEARCHES).await?)
        .with_ledger(ledger.clone())
        .with_services(watches.services.clone())
        .with_components(watches.guarded.clone())
        .with_await_policy(await_policy(client.clone(), ledger.clone(), &watches, &args.namespace));
    let (partings, keep_partings) = Partings::new(client.clone());
    tokio::spawn(keep_partings);
    let (events, keep_events) =
        Events::new(client.clone(), count_events(&metrics), policy_uids(&watches, ledger.clone()));
    tokio::spawn(keep_events);
    let refusals = Arc::new(Refusals::default());
    let record = {
        let (tally, refusals) = (tally.clone(), refusals.clone());
        move |recorded: Recorded<'_>| match recorded {
            Recorded::Refused(asker, verdict) => events.refused(asker.action, asker.version, verdict),
            Recorded::Lifted(asker, verdict) => {
                events.lifted(asker.action, asker.version, asker.user, verdict);
            }
            Recorded::Counted(verdict) => tally.add(verdict, jiff::Timestamp::now()),
            Recorded::LeftBehind(verdict) => partings.tell(verdict),
            Recorded::Managed(verdict) => refusals.add(verdict, jiff::Timestamp::now()),
        }
    };
    let door = Arc::new(Door::new(live, settings, metrics.clone(), record));
    let server = tokio::spawn({
        let (certificate, metrics, serving, progress) =
            (certificate.clone(), metrics.clone(), serving.clone(), watches.progress.clone());
        async move {
            // Nobody is answered before all policies are known; callers wait until then. Those of a kind that is defined
            // and not served can't be: what asks for them is refused.
            progress.settled().await;
            if let Err(error) = serve(listener, certificate, callers, router(door), metrics, serving).await {
                tracing::error!(%error, "serving reviews");
            }
        }
    });

    let (stop, stopped) = watch::channel(false);
    let controllers =
        Controllers { client, gates, watches, ledger, tally, refusals, certificates, certificate, metrics };
    let election = controllers.start(&args, (material_tx, material), ready_tx, stopped);

    tokio::select! {
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
    }
    tracing::info!("shutting down");
    sync::send(&stop, true);
    sync::send(&serving_tx, Serving::Draining);
    tokio::time::sleep(args.drain.try_into().unwrap_or_default()).await;
    sync::send(&serving_tx, Serving::Closed);
    let _ = tokio::join!(server, admin, election);
    Ok(())
}

/// What is searched, and as whom.
fn searching(args: &RunArgs) -> Result<Searching, Error> {
    let groups = args.search_groups.clone();
    if args.enable_etcd_components_webhook && !groups.contain(druid::GROUP) {
        let group = druid::GROUP;
        return Err(format!("--enable-etcd-components-webhook needs {group} in --search-groups").into());
    }
    Ok(Searching { groups, account: Some(format!("{}:{}", args.namespace, names::PALISADE)) })
}

/// Says which groups of `--search-groups` are not served: one of them may be mistyped.
async fn tell_unserved_groups(mut discovery: watch::Receiver<Option<Discovery>>, searching: Arc<Searching>) {
    let Ok(served) = discovery.wait_for(Option::is_some).await.map(|served| served.clone()) else { return };
    let served = served.map(|served| served.resources).unwrap_or_default();
    for group in searching.groups.named().into_iter().flatten() {
        if !served.iter().any(|served| served.group == group) {
            tracing::warn!(group, "--search-groups names a group that is not served");
        }
    }
}

/// Says in the log what the flags turn off.
fn tell_what_is_off(args: &RunArgs, gates: FeatureGates) {
    for gate in gates.off() {
        tracing::warn!(gate = gate.name(), "a feature is off: it refuses nothing");
    }
    if args.enable_etcd_components_webhook && !gates.component_protection {
        tracing::warn!(
            "--enable-etcd-components-webhook has no effect: feature gate ComponentProtection is off"
        );
    }
}

/// Counts what the ledger does.
fn count(metrics: &Arc<Metrics>) -> impl Fn(Entry) + use<> {
    let metrics = metrics.clone();
    move |entry| metrics.entered(entry)
}

/// Ends the process if the runtime is stuck. It does not wait for anything: what is stuck would not end.
fn start_watchdog(args: &RunArgs) -> Result<(), Error> {
    let patience = Duration::try_from(args.watchdog).map_err(|_| "--watchdog can't be negative")?;
    #[cfg(debug_assertions)]
    stall_when_told()?;
    if patience.is_zero() {
        return Ok(());
    }
    Ok(watchdog::watch(patience, move |what| {
        let (what, (told, hears)) = (what.to_owned(), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            tracing::error!(what, seconds = patience.as_secs(), "no progress; ending, to be started again");
            let _ = told.send(());
        });
        // Whoever is stuck may hold the log's lock.
        let _ = hears.recv_timeout(Duration::from_secs(1));
        std::process::exit(watchdog::STUCK.into());
    })?)
}

/// For tests of the watchdog, and not in a release: SIGUSR2 blocks every worker for ever.
#[cfg(debug_assertions)]
fn stall_when_told() -> Result<(), Error> {
    let mut told = signal(SignalKind::user_defined2())?;
    tokio::spawn(async move {
        while told.recv().await.is_some() {
            let workers = tokio::runtime::Handle::current().metrics().num_workers();
            for _ in 0..workers {
                tokio::spawn(async {
                    loop {
                        std::thread::park();
                    }
                });
            }
        }
    });
    Ok(())
}

/// Counts what becomes of Events.
fn count_events(metrics: &Arc<Metrics>) -> impl Fn(Written) + Clone + use<> {
    let metrics = metrics.clone();
    move |written| {
        metrics.told(match written {
            Written::Written => Told::Written,
            Written::Repeated => Told::Repeated,
            Written::Dropped => Told::Dropped,
            Written::Failed => Told::Failed,
        });
    }
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
