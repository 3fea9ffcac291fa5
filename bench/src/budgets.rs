//! What a budget costs: evictions through it beside Kubernetes' own, and the index of a large cluster.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use http::Request;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher;
use palisade_cluster::budgets::Index;
use palisade_testkit::{Assets, ControlPlane, Palisade, PalisadeOptions, wait_until};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::Error;
use crate::api_server::resident;
use crate::pods;
use crate::report::{Report, millis, quantile};

const PODS: usize = 200;
const CLIENTS: usize = 32;
const ROUNDS: usize = 3;
const INDEXED: usize = 150_000;

/// How often the budget under test was written.
static WRITES: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn measure(report: &mut Report) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure_evictions(report))?;
    measure_index(report)
}

/// One way to limit evictions, and what it costs.
#[derive(Default)]
struct Outcome {
    times: Vec<Duration>,
    took: Duration,
    refused: usize,
    writes: usize,
}

async fn measure_evictions(report: &mut Report) -> Result<(), Error> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = workspace.join("target/bench-budgets");
    let plane = ControlPlane::start(&Assets::locate()?, &folder).await?;
    // One that says what it was answered instead of trying again by itself.
    let client = plane.impatient_client().await?;
    let binary = workspace.join("target/release/palisade").canonicalize()?;
    let options = PalisadeOptions { binary, replicas: 2, args: Vec::new() };
    let mut palisade = Palisade::start(&plane, options).await?;
    let (mut theirs, mut ours, mut none) = (Outcome::default(), Outcome::default(), Outcome::default());
    for _ in 0..ROUNDS {
        evict_all(&client, None, &mut none).await?;
        evict_all(&client, Some(theirs_budget()), &mut theirs).await?;
        evict_all(&client, Some(our_budget()), &mut ours).await?;
    }
    report.section(
        "Evictions from one budget",
        &format!(
            "{CLIENTS} clients evict {PODS} pods that one budget covers and allows, {ROUNDS} rounds of each: with no budget, with a \
             `PodDisruptionBudget`, and with a `PodUnavailableBudget` that two replicas of Palisade spend from. A client whose \
             eviction is answered with 429 tries again at once; its time is until the eviction is admitted."
        ),
    );
    report.table(&["", "evictions/s", "p50", "p99", "429s", "writes of the budget"]);
    for (name, outcome) in
        [("no budget", &mut none), ("PodDisruptionBudget", &mut theirs), ("PodUnavailableBudget", &mut ours)]
    {
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let rate = outcome.times.len() as f64 / outcome.took.as_secs_f64();
        report.row(&[
            name.to_owned(),
            format!("{rate:.0}"),
            millis(quantile(&mut outcome.times, 0.5)),
            millis(quantile(&mut outcome.times, 0.99)),
            outcome.refused.to_string(),
            outcome.writes.to_string(),
        ]);
    }
    palisade.stop();
    drop(plane);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

type Kind = (&'static str, &'static str, &'static str, &'static str);

fn theirs_budget() -> (Kind, Value) {
    let spec = json!({"selector": {"matchLabels": {"app": "bench"}}, "minAvailable": 0});
    (("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"), spec)
}

fn our_budget() -> (Kind, Value) {
    let spec = json!({"selector": {"matchLabels": {"app": "bench"}}, "minAvailable": 0});
    (("policy.kruise.io", "v1alpha1", "PodUnavailableBudget", "podunavailablebudgets"), spec)
}

/// Makes pods, and a budget over them, and evicts them all.
async fn evict_all(
    client: &Client,
    budget: Option<(Kind, Value)>,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    pods::create(client, PODS).await?;
    let mut counting = None;
    if let Some(((group, version, kind, plural), spec)) = &budget {
        let resource =
            ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &resource);
        let object = json!({"apiVersion": format!("{group}/{version}"), "kind": kind, "metadata": {"name": "bench"}, "spec": spec});
        api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        let known = wait_until(Duration::from_secs(30), || async {
            let status =
                api.get("bench").await.map(|object| object.data["status"].clone()).unwrap_or_default();
            status["disruptionsAllowed"] == PODS || status["unavailableAllowed"] == PODS
        });
        if !known.await {
            return Err(format!("the {kind} was not taken up").into());
        }
        let events = watcher(api.clone(), watcher::Config::default().fields("metadata.name=bench"));
        let counter = tokio::spawn(events.for_each(|event| {
            if matches!(event, Ok(watcher::Event::Apply(_))) {
                WRITES.fetch_add(1, Ordering::Relaxed);
            }
            std::future::ready(())
        }));
        tokio::time::sleep(Duration::from_secs(1)).await;
        counting = Some((api, counter));
    }
    let started = Instant::now();
    let turns = Arc::new(Semaphore::new(CLIENTS));
    let evictions: Vec<_> = (0..PODS)
        .map(|number| {
            let (client, turns) = (client.clone(), turns.clone());
            tokio::spawn(async move {
                let _turn = turns.acquire_owned().await?;
                evict(&client, &format!("bench-{number}")).await
            })
        })
        .collect();
    for eviction in evictions {
        let (took, refused) = eviction.await??;
        outcome.times.push(took);
        outcome.refused += refused;
    }
    outcome.took += started.elapsed();
    if let Some((api, counter)) = counting {
        tokio::time::sleep(Duration::from_secs(1)).await;
        api.delete("bench", &DeleteParams::default()).await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
        counter.abort();
        outcome.writes += WRITES.swap(0, Ordering::Relaxed);
    }
    pods::remove(client).await
}

/// Evicts a pod, however often it takes: how long, and how often it was refused.
async fn evict(client: &Client, pod: &str) -> Result<(Duration, usize), Error> {
    let path = format!("/api/v1/namespaces/default/pods/{pod}/eviction");
    let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "default"}}).to_string();
    let started = Instant::now();
    for refused in 0.. {
        let request = Request::post(&path)
            .header("content-type", "application/json")
            .body(body.clone().into_bytes())?;
        match client.request_text(request).await {
            Ok(_) => return Ok((started.elapsed(), refused)),
            Err(kube::Error::Api(status)) if matches!(status.code, 409 | 429 | 500) => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err("never admitted".into())
}

/// The memory of the index, in a process of its own.
fn measure_index(report: &mut Report) -> Result<(), Error> {
    report.section(
        "The index of pods",
        "A process that has read lists of pods of 12 kB each, in pages of 500, as `palisade run` does while there is a budget.",
    );
    report.table(&["pods", "resident", "each", "read in"]);
    for count in [0, INDEXED] {
        let output = Command::new(std::env::current_exe()?).args(["index", &count.to_string()]).output()?;
        let text = String::from_utf8(output.stdout)?;
        let cells: Vec<&str> = text.trim().split('\t').collect();
        report.row(&[vec![count.to_string().as_str()], cells].concat());
    }
    Ok(())
}

/// Holds so many pods, and prints the memory that it takes.
pub(crate) fn hold(count: &str) -> Result<(), Error> {
    const PAGE: usize = 500;
    let count: usize = count.parse()?;
    let index = Index::default();
    let mut took = Duration::ZERO;
    let before = resident(std::process::id())?;
    for page in 0..count / PAGE {
        let items: Vec<Value> = (0..PAGE).map(|number| pod(page * PAGE + number)).collect();
        let text =
            json!({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": items}).to_string();
        let started = Instant::now();
        index.take_pods(text.as_bytes()).map_err(|error| error.to_string())?;
        took += started.elapsed();
    }
    let megabytes = |text: &str| text.trim_end_matches(" MB").parse::<f64>();
    let after = resident(std::process::id())?;
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let each = (megabytes(&after)? - megabytes(&before)?) * 1e6 / index.pods().count().max(1) as f64;
    println!("{after}\t{each:.0} B\t{:.1} s", took.as_secs_f64());
    Ok(())
}

/// A pod as a Deployment of ten makes it, a thousand Deployments to a namespace.
fn pod(number: usize) -> Value {
    let (namespace, deployment) = (number / 10_000, number / 10);
    let filling = "x".repeat(10_500);
    json!({
        "metadata": {
            "name": format!("app-{deployment}-7d9f8c6b5-{number:05x}"), "namespace": format!("team-{namespace}"),
            "uid": format!("{number:08x}-7a52-4c1c-9a55-d8d3e0a7c0a1"), "resourceVersion": number.to_string(),
            "labels": {"app.kubernetes.io/name": format!("app-{deployment}"), "app.kubernetes.io/part-of": format!("team-{namespace}"),
                "app.kubernetes.io/version": "1.2.3", "pod-template-hash": "7d9f8c6b5", "tier": "backend"},
            "annotations": {"note": filling},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("app-{deployment}-7d9f8c6b5"),
                "uid": format!("{deployment:08x}-0a52-4c1c-9a55-d8d3e0a7c0a1"), "controller": true}],
        },
        "spec": {"containers": [{"name": "app", "image": "registry.example.com/team/app:v1.2.3"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    })
}
