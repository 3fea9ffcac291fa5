//! What flow control costs: deletions of pods with a limit that is never reached, beside the same without.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Request;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use palisade_testkit::{Assets, ControlPlane, Palisade, PalisadeOptions, wait_until};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::Error;
use crate::pods;
use crate::report::{Report, millis, quantile};

const PODS: usize = 1_000;
const CLIENTS: usize = 32;
const ROUNDS: usize = 3;

#[derive(Default)]
struct Outcome {
    times: Vec<Duration>,
    took: Vec<Duration>,
}

pub(crate) fn measure(report: &mut Report) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure_deletions(report))
}

async fn measure_deletions(report: &mut Report) -> Result<(), Error> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = workspace.join("target/bench-flow");
    let plane = ControlPlane::start(&Assets::locate()?, &folder).await?;
    let client = plane.impatient_client().await?;
    let binary = workspace.join("target/release/palisade").canonicalize()?;
    let options = PalisadeOptions { binary, replicas: 2, args: Vec::new() };
    let mut palisade = Palisade::start(&plane, options).await?;
    let (mut without, mut listed, mut with) = (Outcome::default(), Outcome::default(), Outcome::default());
    for _ in 0..ROUNDS {
        delete_all(&client, None, &mut without).await?;
        delete_all(&client, Some(json!({"matchLabels": {"app": "bench"}})), &mut listed).await?;
        delete_all(&client, Some(json!({"matchLabels": {"app": "other"}})), &mut with).await?;
    }
    report.section(
        "Deletions under flow control",
        &format!(
            "{CLIENTS} clients delete {PODS} pods, {ROUNDS} rounds of each: without any flow control, with one that white-lists them, \
             so that it is asked and has nothing to count, and with one that allows 10,000 in an hour and is charged by two \
             replicas of Palisade. The rate is the median round's."
        ),
    );
    report.table(&["", "deletions/s", "p50", "p99"]);
    let mut rates = Vec::new();
    for (name, outcome) in [("without", &mut without), ("white-listed", &mut listed), ("with", &mut with)] {
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let rate = PODS as f64 / quantile(&mut outcome.took, 0.5).as_secs_f64();
        rates.push(rate);
        report.row(&[
            name.to_owned(),
            format!("{rate:.0}"),
            millis(quantile(&mut outcome.times, 0.5)),
            millis(quantile(&mut outcome.times, 0.99)),
        ]);
    }
    report.text(&format!("\nEnd to end that takes {:.0} % longer.", (rates[0] / rates[2] - 1.0) * 100.0));
    palisade.stop();
    drop(plane);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Makes pods, and deletes them all.
async fn delete_all(client: &Client, white_list: Option<Value>, outcome: &mut Outcome) -> Result<(), Error> {
    pods::create(client, PODS).await?;
    let kind = GroupVersionKind::gvk("policy.kruise.io", "v1alpha1", "PodDeletionFlowControl");
    let resource = ApiResource::from_gvk_with_plural(&kind, "poddeletionflowcontrols");
    let controls: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let counted =
        if white_list.as_ref().is_some_and(|list| list["matchLabels"]["app"] == "bench") { 0 } else { PODS };
    let controlled = white_list.is_some();
    if controlled {
        let object = json!({"apiVersion": "policy.kruise.io/v1alpha1", "kind": "PodDeletionFlowControl",
            "metadata": {"name": "bench"}, "spec": {"limitRules": [{"interval": "1h", "limit": 10_000}], "whiteListSelector": white_list}});
        controls.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    }
    // Until nothing else is going on.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let turns = Arc::new(Semaphore::new(CLIENTS));
    let started = Instant::now();
    let deletions: Vec<_> = (0..PODS)
        .map(|number| {
            let (client, turns) = (client.clone(), turns.clone());
            tokio::spawn(async move {
                let _turn = turns.acquire_owned().await?;
                let started = Instant::now();
                let request = Request::delete(format!("/api/v1/namespaces/default/pods/bench-{number}"))
                    .body(Vec::new())?;
                client.request_text(request).await?;
                Ok::<_, Error>(started.elapsed())
            })
        })
        .collect();
    for deletion in deletions {
        outcome.times.push(deletion.await??);
    }
    outcome.took.push(started.elapsed());
    if controlled {
        let known = wait_until(Duration::from_secs(10), || async {
            let status =
                controls.get("bench").await.map(|object| object.data["status"].clone()).unwrap_or_default();
            status["rules"][0]["used"] == counted && status.get("pending").is_none()
        });
        if !known.await {
            return Err(
                format!("not all were counted: {:?}", controls.get("bench").await?.data["status"]).into()
            );
        }
        controls.delete("bench", &DeleteParams::default()).await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    pods::remove(client).await
}
