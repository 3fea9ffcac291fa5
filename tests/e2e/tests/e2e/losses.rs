//! Ways to lose pods other than deleting them: budgets and flow controls hold all the same.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::{Cluster, allowed, shared};
use crate::pods::workload;

async fn budget(cluster: &Cluster, ns: &str, spec: &str) {
    cluster
        .apply(&format!(
            "apiVersion: policy.kruise.io/v1alpha1\nkind: PodUnavailableBudget\nmetadata: {{name: web, namespace: {ns}}}\n\
             spec: {{{spec}}}\n"
        ))
        .await;
    cluster.must(&format!("wait pub/web -n {ns} --for=condition=Enforced --timeout=30s")).await;
}

/// The uids of the controllers of the pods that serve: ready, and not terminating.
async fn serving(cluster: &Cluster, ns: &str) -> Vec<String> {
    let pods = cluster.must(&format!("get pods -n {ns} -o json")).await;
    let pods: Value = serde_json::from_str(&pods).expect("JSON");
    let ready = |pod: &&Value| {
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        pod["metadata"]["deletionTimestamp"].is_null()
            && conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
    };
    let uid =
        |pod: &Value| pod["metadata"]["ownerReferences"][0]["uid"].as_str().unwrap_or_default().to_owned();
    pods["items"].as_array().expect("pods").iter().filter(ready).map(uid).collect()
}

#[test]
fn a_deployment_whose_replica_sets_are_deleted_keeps_what_its_budget_asks_for() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        workload(cluster, ns, "Deployment", 4).await;
        budget(cluster, ns, "selector: {app: web}, maxUnavailable: 1").await;
        let before = serving(cluster, ns).await;
        allowed(&cluster.kubectl(&format!("delete rs -n {ns} -l app=web")).await);
        let started = Instant::now();
        loop {
            let now = serving(cluster, ns).await;
            assert!(
                now.len() >= 3,
                "{} of 4 pods serve, {:?} after the deletion",
                now.len(),
                started.elapsed()
            );
            if now.len() == 4 && !now.contains(&before[0]) {
                break;
            }
            assert!(started.elapsed() < Duration::from_secs(80), "the old pods are still there");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        // With the whole, its pods go as ever.
        allowed(&cluster.kubectl(&format!("delete deployment web -n {ns}")).await);
        cluster.eventually_prints(&format!("get pods -n {ns} -o name"), |out| out.trim().is_empty()).await;
    });
}
