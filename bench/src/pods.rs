//! Pods to take down.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use palisade_testkit::wait_until;
use serde_json::json;

use crate::Error;

const SELECTED: &str = "app=bench";

/// Makes so many running pods, `bench-0` and on.
pub(crate) async fn create(client: &Client, count: usize) -> Result<(), Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let made: Vec<Result<(), Error>> = futures::stream::iter(0..count)
        .map(|number| {
            let pods = pods.clone();
            async move {
                let pod = json!({"metadata": {"name": format!("bench-{number}"), "labels": {"app": "bench"}},
                    "spec": {"terminationGracePeriodSeconds": 300, "containers": [{"name": "app", "image": "example/app"}]}});
                pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
                Ok(())
            }
        })
        .buffer_unordered(8)
        .collect()
        .await;
    made.into_iter().collect::<Result<(), Error>>()?;
    let ready = wait_until(Duration::from_secs(120), || async {
        let list = pods.list(&ListParams::default().labels(SELECTED)).await;
        list.is_ok_and(|list| list.items.iter().filter(|pod| is_ready(pod)).count() == count)
    });
    if ready.await { Ok(()) } else { Err("the pods did not become ready".into()) }
}

/// Removes them all at once.
pub(crate) async fn remove(client: &Client) -> Result<(), Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    pods.delete_collection(&now, &ListParams::default().labels(SELECTED)).await?;
    let gone = wait_until(Duration::from_secs(60), || async {
        pods.list(&ListParams::default().labels(SELECTED)).await.is_ok_and(|list| list.items.is_empty())
    });
    if gone.await { Ok(()) } else { Err("the pods did not go".into()) }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
