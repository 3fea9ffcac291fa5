//! What it takes to generate budgets for a cluster full of annotated workloads.

use std::path::Path;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use palisade_testkit::{Assets, ControlPlane, Palisade, PalisadeOptions, wait_until};
use serde_json::json;

use crate::Error;
use crate::report::Report;

const WORKLOADS: usize = 2_000;
const NAMESPACES: usize = 20;
const QUIET: Duration = Duration::from_secs(20);

pub(crate) fn measure(report: &mut Report) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure_on_cluster(report))
}

async fn measure_on_cluster(report: &mut Report) -> Result<(), Error> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = workspace.join("target/bench-generated");
    let plane = ControlPlane::start(&Assets::locate()?, &folder).await?;
    let client = plane.client().await?;
    let creating = Instant::now();
    create_workloads(&client).await?;
    let created = creating.elapsed();
    let binary = workspace.join("target/release/palisade").canonicalize()?;
    let started = Instant::now();
    let mut palisade =
        Palisade::start(&plane, PalisadeOptions { binary, replicas: 1, args: Vec::new() }).await?;
    let gvk = GroupVersionKind::gvk("policy.kruise.io", "v1alpha1", "PodUnavailableBudget");
    let budgets: Api<DynamicObject> =
        Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&gvk, "podunavailablebudgets"));
    let converged = wait_until(Duration::from_secs(300), || async {
        let list = budgets.list_metadata(&ListParams::default().labels("palisade.dev/generated=true")).await;
        list.is_ok_and(|list| list.items.len() == WORKLOADS)
    });
    if !converged.await {
        return Err("not all budgets were generated".into());
    }
    let took = started.elapsed();
    let writes = writes(&palisade).await?;
    tokio::time::sleep(QUIET).await;
    let later = self::writes(&palisade).await?;
    report.section(
        "Generated budgets",
        &format!(
            "{WORKLOADS} Deployments in {NAMESPACES} namespaces ask for a `PodUnavailableBudget`; then `palisade run` is started. Until all \
             are there, and {} s more. Beside it, what creating the Deployments took, 16 at a time.",
            QUIET.as_secs()
        ),
    );
    report.table(&["workloads", "created in", "budgets generated in", "writes", "writes afterwards"]);
    report.row(&[
        WORKLOADS.to_string(),
        format!("{:.1} s", created.as_secs_f64()),
        format!("{:.1} s", took.as_secs_f64()),
        writes.to_string(),
        (later - writes).to_string(),
    ]);
    palisade.stop();
    drop(plane);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

async fn create_workloads(client: &Client) -> Result<(), Error> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for number in 0..NAMESPACES {
        let namespace = json!({"metadata": {"name": format!("team-{number}")}});
        namespaces.create(&PostParams::default(), &serde_json::from_value(namespace)?).await?;
    }
    let created = futures::stream::iter(0..WORKLOADS).map(|number| {
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), &format!("team-{}", number % NAMESPACES));
        async move {
            let name = format!("app-{number}");
            let deployment = json!({
                "metadata": {"name": name, "annotations": {"policy.kruise.io/generate-pub": "true"}},
                "spec": {"replicas": 0, "selector": {"matchLabels": {"app": name}}, "template": {
                    "metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "app", "image": "example/app"}]}}},
            });
            deployments.create(&PostParams::default(), &serde_json::from_value(deployment)?).await?;
            Ok::<(), Error>(())
        }
    });
    created.buffer_unordered(16).collect::<Vec<_>>().await.into_iter().collect()
}

/// How often a generated budget was written.
async fn writes(palisade: &Palisade) -> Result<u64, Error> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let address = palisade.admin_url(0).replace("http://", "");
    let mut stream = tokio::net::TcpStream::connect(&address).await?;
    stream
        .write_all(
            format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes(),
        )
        .await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    let line = text.lines().find_map(|line| line.strip_prefix("palisade_generated_budget_writes_total "));
    Ok(line.ok_or("no such metric")?.parse()?)
}
