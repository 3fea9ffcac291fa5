//! What it takes to find out whether a Namespace holds something protected.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use palisade_testkit::{Assets, ControlPlane, Palisade, PalisadeOptions};
use serde_json::json;

use crate::Error;
use crate::report::{Report, millis, quantile};

const OBJECTS: usize = 2_000;
const ASKED: usize = 40;

pub(crate) fn measure(report: &mut Report) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure_on_cluster(report))
}

async fn measure_on_cluster(report: &mut Report) -> Result<(), Error> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = workspace.join("target/bench-cluster");
    let plane = ControlPlane::start(&Assets::locate()?, &folder).await?;
    let client = plane.client().await?;
    let binary = workspace.join("target/release/palisade").canonicalize()?;
    let mut palisade =
        Palisade::start(&plane, PalisadeOptions { binary, replicas: 1, args: Vec::new() }).await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": "crowded"}}))?;
    namespaces.create(&PostParams::default(), &namespace).await?;
    report.section(
        "A Namespace that may hold something protected",
        &format!("`kubectl delete namespace --dry-run=server`, {ASKED} times, one after another; nothing in it is protected, so every \
                  kind is looked at to the end."),
    );
    report.table(&["served kinds", "objects in it", "p50", "p99", "Palisade's memory"]);
    measure_row(report, &client, &palisade).await?;
    fill(&client).await?;
    measure_row(report, &client, &palisade).await?;
    for kinds in [100, 240] {
        define(&client, kinds).await?;
        measure_row(report, &client, &palisade).await?;
    }
    palisade.stop();
    drop(plane);
    fs::remove_dir_all(&folder)?;
    Ok(())
}

async fn measure_row(report: &mut Report, client: &Client, palisade: &Palisade) -> Result<(), Error> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "crowded");
    let mut times = Vec::new();
    for _ in 0..ASKED {
        let started = Instant::now();
        namespaces.delete("crowded", &DeleteParams::default().dry_run()).await?;
        times.push(started.elapsed());
    }
    let discovery = palisade_cluster::discover(client).await?;
    let kinds = discovery.resources.iter().filter(|served| served.namespaced && served.listable).count();
    let objects = maps.list_metadata(&kube::api::ListParams::default()).await?.items.len();
    let memory = crate::api_server::resident(palisade.process_id(0))?;
    let (p50, p99) = (quantile(&mut times, 0.5), quantile(&mut times, 0.99));
    report.row(&[kinds.to_string(), objects.to_string(), millis(p50), millis(p99), memory]);
    Ok(())
}

async fn fill(client: &Client) -> Result<(), Error> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "crowded");
    for number in 0..OBJECTS {
        let map = serde_json::from_value(json!({"metadata": {"name": format!("c-{number}")}}))?;
        maps.create(&PostParams::default(), &map).await?;
    }
    Ok(())
}

/// Defines kinds until there are this many, and waits until they are served.
async fn define(client: &Client, count: usize) -> Result<(), Error> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for number in 0..count {
        let (plural, kind) = (format!("widgets{number}"), format!("Widget{number}"));
        if definitions.get_opt(&format!("{plural}.example.com")).await?.is_some() {
            continue;
        }
        let definition = serde_json::from_value(json!({
            "metadata": {"name": format!("{plural}.example.com")},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
                    {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
        }))?;
        definitions.create(&PostParams::default(), &definition).await?;
    }
    // The API server takes its time with so many at once.
    tokio::time::sleep(Duration::from_secs(20)).await;
    Ok(())
}
