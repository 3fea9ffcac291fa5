//! What it takes to find out whether anything still carries a finalizer.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt, TryStreamExt};
use http::Request;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use palisade_testkit::{Assets, ControlPlane, Palisade, PalisadeOptions, wait_until};
use serde_json::{Value, json};

use crate::Error;
use crate::report::{Report, millis, quantile};

const SIZES: [usize; 3] = [1_000, 10_000, 100_000];
const CLIENTS: usize = 32;
const ASKED: usize = 10;
const FINALIZER: &str = "example.com/clean";

pub(crate) fn measure(report: &mut Report) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure_on_cluster(report))
}

async fn measure_on_cluster(report: &mut Report) -> Result<(), Error> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = workspace.join("target/bench-critical");
    let plane = ControlPlane::start(&Assets::locate()?, &folder).await?;
    let client = plane.impatient_client().await?;
    let binary = workspace.join("target/release/palisade").canonicalize()?;
    let options = PalisadeOptions { binary, replicas: 1, args: Vec::new() };
    let mut palisade = Palisade::start(&plane, options).await?;
    set_up(&client).await?;
    report.section(
        "A provider that something may depend on",
        &format!(
            "`kubectl delete deployment --dry-run=server` of a provider, {ASKED} times, one after another, with a criterion of type \
             Finalizer. Nothing carries it, so all pages are read; then the last object does. Beside it, the same pages of metadata \
             read by a client that does nothing else. A webhook that has no answer in time refuses with 503."
        ),
    );
    report.table(&[
        "objects",
        "all pages, p50",
        "nobody carries it, p50",
        "longest",
        "503s",
        "the last carries it, p50",
        "Palisade's memory",
    ]);
    let mut there = 0;
    for size in SIZES {
        fill(&client, there..size).await?;
        there = size;
        let mut plain = Vec::new();
        for _ in 0..ASKED {
            let started = Instant::now();
            read_all(&client).await?;
            plain.push(started.elapsed());
        }
        let (mut free, too_late) = ask(&client, true).await?;
        hold(&client, true).await?;
        let (mut held, _) = ask(&client, false).await?;
        hold(&client, false).await?;
        report.row(&[
            size.to_string(),
            millis(quantile(&mut plain, 0.5)),
            millis(quantile(&mut free, 0.5)),
            millis(quantile(&mut free, 1.0)),
            too_late.to_string(),
            millis(quantile(&mut held, 0.5)),
            crate::api_server::resident(palisade.process_id(0))?,
        ]);
    }
    palisade.stop();
    drop(plane);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

fn api(
    client: &Client,
    group: &str,
    version: &str,
    kind: &str,
    plural: &str,
    namespace: Option<&str>,
) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

fn widgets(client: &Client) -> Api<DynamicObject> {
    api(client, "example.com", "v1", "Widget", "widgets", Some("default"))
}

async fn create(api: &Api<DynamicObject>, object: Value) -> Result<(), Error> {
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

/// The kind, a provider, and the service that it is the provider of.
async fn set_up(client: &Client) -> Result<(), Error> {
    let definitions = api(
        client,
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        None,
    );
    create(&definitions, json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
                {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
    })).await?;
    let served = wait_until(Duration::from_secs(30), || async {
        widgets(client).list_metadata(&kube::api::ListParams::default()).await.is_ok()
    });
    if !served.await {
        return Err("the kind is not served".into());
    }
    let deployments = api(client, "apps", "v1", "Deployment", "deployments", Some("default"));
    create(&deployments, json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "provider"},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "provider"}}, "template": {"metadata": {"labels": {"app": "provider"}},
            "spec": {"containers": [{"name": "app", "image": "example/app"}]}}},
    })).await?;
    let services = api(client, "palisade.dev", "v1alpha1", "CriticalService", "criticalservices", None);
    create(&services, json!({
        "apiVersion": "palisade.dev/v1alpha1", "kind": "CriticalService", "metadata": {"name": "bench"},
        "spec": {"provider": {"group": "apps", "resource": "deployments", "namespace": "default", "name": "provider"},
            "criteria": [{"type": "Finalizer", "finalizer": {"group": "example.com", "resource": "widgets", "finalizerName": FINALIZER}}]},
    })).await
}

async fn fill(client: &Client, numbers: std::ops::Range<usize>) -> Result<(), Error> {
    let api = Arc::new(widgets(client));
    stream::iter(numbers)
        .map(|number| {
            let api = api.clone();
            async move {
                let name = format!("widget-{number:06}");
                create(&api, json!({
                    "apiVersion": "example.com/v1", "kind": "Widget",
                    "metadata": {"name": name, "labels": {"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "bench"},
                        "finalizers": ["example.com/another"]},
                    "spec": {"text": "x".repeat(500)},
                })).await
            }
        })
        .buffer_unordered(CLIENTS)
        .try_collect::<Vec<()>>()
        .await?;
    Ok(())
}

/// An object behind all others that carries the finalizer, or nobody.
async fn hold(client: &Client, holds: bool) -> Result<(), Error> {
    let api = widgets(client);
    if holds {
        let metadata = json!({"name": "zzz", "finalizers": [FINALIZER]});
        return create(&api, json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": metadata}))
            .await;
    }
    let patch = kube::api::Patch::Merge(json!({"metadata": {"finalizers": null}}));
    api.patch("zzz", &kube::api::PatchParams::default(), &patch).await?;
    api.delete("zzz", &DeleteParams::default()).await?;
    Ok(())
}

/// The pages that the question reads: as large, and as metadata.
async fn read_all(client: &Client) -> Result<(), Error> {
    let (mut token, mut size) = (String::new(), 500);
    loop {
        let path = format!("/apis/example.com/v1/widgets?limit={size}&continue={token}");
        let request = Request::get(path)
            .header("accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
            .body(Vec::new())?;
        let page: Value = serde_json::from_str(&client.request_text(request).await?)?;
        match page["metadata"]["continue"].as_str() {
            Some(next) if !next.is_empty() => next.clone_into(&mut token),
            _ => return Ok(()),
        }
        size = (size * 2).min(4_000);
    }
}

/// How long answers took, and how many were that there is none.
async fn ask(client: &Client, free: bool) -> Result<(Vec<Duration>, usize), Error> {
    let deployments = api(client, "apps", "v1", "Deployment", "deployments", Some("default"));
    let (mut times, mut too_late) = (Vec::new(), 0);
    for _ in 0..ASKED {
        let started = Instant::now();
        match deployments.delete("provider", &DeleteParams::default().dry_run()).await {
            Ok(_) if free => {}
            Err(kube::Error::Api(status)) if status.code == 409 && !free => {}
            Err(kube::Error::Api(status)) if status.code == 503 => too_late += 1,
            Ok(_) => return Err("a provider was let go that something depends on".into()),
            Err(error) => return Err(error.into()),
        }
        times.push(started.elapsed());
    }
    Ok((times, too_late))
}
