//! What a deletion takes on the real API server: without a webhook, past it, and through it.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use palisade_testkit::{Assets, ControlPlane, Palisade, PalisadeOptions, wait_until};
use serde_json::json;

use crate::Error;
use crate::report::{Report, millis, quantile};

const OBJECTS: usize = 200;
const ROUNDS: usize = 3;

pub(crate) fn measure(report: &mut Report) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure_on_cluster(report))
}

/// How an object is labelled, and what becomes of its deletion.
const CASES: [(&str, Option<&str>); 3] = [
    ("unlabelled", None),
    ("labelled, reviewed, let go", Some("Cascading")),
    ("labelled, reviewed, refused", Some("Always")),
];

async fn measure_on_cluster(report: &mut Report) -> Result<(), Error> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = workspace.join("target/bench-cluster");
    let plane = ControlPlane::start(&Assets::locate()?, &folder).await?;
    let client = plane.client().await?;
    let binary = workspace.join("target/release/palisade").canonicalize()?;
    let options = PalisadeOptions { binary, replicas: 1, args: Vec::new() };
    let mut without = Vec::new();
    let mut with: [Vec<Duration>; 3] = Default::default();
    let mut memory = String::new();
    for _ in 0..ROUNDS {
        without.extend(delete_some(&client, None).await?);
        let mut palisade = Palisade::start(&plane, options.clone()).await?;
        for ((_, label), times) in CASES.into_iter().zip(&mut with) {
            times.extend(delete_some(&client, label).await?);
        }
        memory = resident(palisade.process_id(0))?;
        palisade.stop();
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        configurations.delete("palisade", &DeleteParams::default()).await?;
        // The API server forgets a webhook a moment after its configuration is gone.
        wait_until(Duration::from_secs(10), || async { delete_some(&client, Some("Always")).await.is_ok() })
            .await;
    }
    report.section(
        "A deletion on the API server",
        &format!(
            "One client deletes ConfigMaps, one after another, {} of each sort: with no webhook registered, and with \
             Palisade registered and running.",
            OBJECTS * ROUNDS
        ),
    );
    report.table(&["", "p50", "p99", "p50 beside no webhook"]);
    let base = quantile(&mut without, 0.5);
    report.row(&["no webhook".to_owned(), millis(base), millis(quantile(&mut without, 0.99)), String::new()]);
    for ((name, _), mut times) in CASES.into_iter().zip(with) {
        let p50 = quantile(&mut times, 0.5);
        let beside = format!("{:+.0} %", 100.0 * (p50.as_secs_f64() / base.as_secs_f64() - 1.0));
        report.row(&[name.to_owned(), millis(p50), millis(quantile(&mut times, 0.99)), beside]);
    }
    report.section("Memory", "Resident, of the `palisade` that has just answered these reviews, leading.");
    report.table(&["", "resident"]);
    report.row(&["palisade run".to_owned(), memory]);
    drop(plane);
    fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Deletes objects one by one. A refusal counts as much as a deletion; what is left is cleaned up after.
async fn delete_some(client: &Client, label: Option<&str>) -> Result<Vec<Duration>, Error> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let labels = label.map(|value| json!({"policy.kruise.io/delete-protection": value})).unwrap_or_default();
    let mut times = Vec::new();
    for number in 0..OBJECTS {
        let name = format!("bench-{number}");
        let map = serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}}))?;
        maps.create(&PostParams::default(), &map).await?;
        let started = Instant::now();
        let deleted = maps.delete(&name, &DeleteParams::default()).await;
        times.push(started.elapsed());
        match deleted {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 403 => {
                let unlabelled = serde_json::from_value(json!({"metadata": {"name": name}}))?;
                maps.replace(&name, &PostParams::default(), &unlabelled).await?;
                maps.delete(&name, &DeleteParams::default()).await?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(times)
}

/// The memory that a process holds.
pub(crate) fn resident(process: u32) -> Result<String, Error> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(format!("{:.1} MB", kib * 1024.0 / 1e6))
}
