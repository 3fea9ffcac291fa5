//! Pods and workloads, and ways to lose them.

use std::fmt::Write;

use serde_json::Value;

use crate::cluster::{Cluster, Said};

/// As whom a kubelet writes.
pub(crate) const AS_KUBELET: [&str; 3] =
    ["--as=node", "--as-group=system:nodes", "--as-group=system:masters"];

/// Running pods that nobody owns: p0, p1, …
pub(crate) async fn pods(cluster: &Cluster, ns: &str, count: usize, spec: &str) {
    let mut manifest = String::new();
    for number in 0..count {
        write!(
            manifest,
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p{number}, namespace: {ns}, labels: {{app: web}}}}\n\
             spec: {{{spec}containers: [{{name: app, image: example/app}}]}}\n"
        )
        .expect("written");
    }
    cluster.apply(&manifest).await;
    ready(cluster, ns).await;
}

pub(crate) async fn ready(cluster: &Cluster, ns: &str) {
    cluster.must(&format!("wait pod --all -n {ns} --for=condition=Ready --timeout=60s")).await;
}

pub(crate) async fn workload(cluster: &Cluster, ns: &str, kind: &str, replicas: usize) {
    cluster
        .apply(&format!(
            "apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: web, namespace: {ns}}}\nspec:\n  replicas: {replicas}\n  \
             selector: {{matchLabels: {{app: web}}}}\n  {}template:\n    metadata: {{labels: {{app: web, space: {ns}}}}}\n    \
             spec: {{terminationGracePeriodSeconds: 1, containers: [{{name: app, image: example/app}}]}}\n",
            if kind == "StatefulSet" { "serviceName: web\n  podManagementPolicy: Parallel\n  " } else { "" },
        ))
        .await;
    cluster
        .eventually_prints(&format!("get {kind} web -n {ns} -o jsonpath={{.status.readyReplicas}}"), |out| {
            out == replicas.to_string()
        })
        .await;
}

pub(crate) async fn delete(cluster: &Cluster, ns: &str, pod: &str) -> Said {
    cluster.kubectl(&format!("delete pod {pod} -n {ns} --wait=false")).await
}

pub(crate) async fn evict(cluster: &Cluster, ns: &str, pod: &str, query: &str) -> Said {
    let eviction = format!(
        r#"{{"apiVersion":"policy/v1","kind":"Eviction","metadata":{{"name":"{pod}","namespace":"{ns}"}}}}"#
    );
    let path = format!("/api/v1/namespaces/{ns}/pods/{pod}/eviction{query}");
    cluster.kubectl_with(["create", "--raw", &path, "-f", "-"], &eviction).await
}

/// Deletes all pods at once, from many sides, and returns how many deletions were admitted.
pub(crate) async fn delete_all(cluster: &Cluster, ns: &str, count: usize) -> usize {
    const SIDES: usize = 20;
    let sides = (0..SIDES).map(|side| {
        let names: Vec<String> = (side..count).step_by(SIDES).map(|number| format!("p{number}")).collect();
        let words = format!("delete pod {} -n {ns} --wait=false", names.join(" "));
        async move { cluster.kubectl(&words).await.out.matches(" deleted").count() }
    });
    futures::future::join_all(sides).await.into_iter().sum()
}

pub(crate) async fn going(cluster: &Cluster, ns: &str) -> usize {
    let list: Value =
        serde_json::from_str(&cluster.must(&format!("get pods -n {ns} -o json")).await).expect("a list");
    let pods = list["items"].as_array().expect("items");
    pods.iter().filter(|pod| !pod["metadata"]["deletionTimestamp"].is_null()).count()
}

/// A `PodDisruptionBudget` that allows none of so many pods to be evicted.
pub(crate) async fn keep_from_evictions(cluster: &Cluster, ns: &str, selector: &str, pods: usize) {
    cluster.must(&format!("create pdb strict -n {ns} --selector={selector} --min-available={pods}")).await;
    let healthy = format!("get pdb strict -n {ns} -o jsonpath={{.status.currentHealthy}}");
    cluster.eventually_prints(&healthy, |out| out == pods.to_string()).await;
}
