//! What replicas watch: what decisions need, for as long as they need it.

use std::time::Duration;

use palisade_testkit::wait_until;

use crate::cluster::{Cluster, EVENTUALLY, alone, shared};
use crate::pods::pods;

/// How many cluster-wide watches of a resource the API server serves.
async fn watches(cluster: &Cluster, resource: &str) -> u64 {
    let metrics = cluster.must("get --raw /metrics").await;
    let of_resource = format!("resource=\"{resource}\"");
    let lines = metrics.lines().filter(|line| {
        line.starts_with("apiserver_longrunning_requests{")
            && line.contains(&of_resource)
            && line.contains("verb=\"WATCH\"")
            && line.contains("scope=\"cluster\"")
    });
    lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
}

/// A pod of an owner, under a budget that counts it.
async fn owned_pod(cluster: &Cluster, ns: &str, api: &str, kind: &str, name: &str, uid: &str) {
    cluster
        .apply(&format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: owned\n  namespace: {ns}\n  labels: {{app: web}}\n  \
             ownerReferences: [{{apiVersion: {api}, kind: {kind}, name: {name}, uid: '{uid}', controller: true}}]\n\
             spec: {{terminationGracePeriodSeconds: 1, containers: [{{name: app, image: example/app}}]}}\n"
        ))
        .await;
    cluster.must(&format!("wait pod/owned -n {ns} --for=condition=Ready --timeout=60s")).await;
    budget(cluster, ns).await;
}

/// A budget that keeps one available pod, once it has counted it.
async fn budget(cluster: &Cluster, ns: &str) {
    cluster
        .apply(&format!(
            "apiVersion: policy.kruise.io/v1alpha1\nkind: PodUnavailableBudget\nmetadata: {{name: web, namespace: {ns}}}\n\
             spec: {{selector: {{app: web}}, maxUnavailable: 0}}\n"
        ))
        .await;
    let available = format!("get pub web -n {ns} -o jsonpath={{.status.currentAvailable}}");
    cluster.eventually_prints(&available, |out| out == "1").await;
}

#[test]
fn a_pod_does_not_make_us_watch_what_has_no_scale() {
    alone(async |cluster| {
        let ns = &cluster.namespace().await;
        // There is a budget already, so that all that is watched for it is.
        let other = &cluster.namespace().await;
        pods(cluster, other, 1, "").await;
        budget(cluster, other).await;
        cluster.must(&format!("create secret generic mine -n {ns}")).await;
        let before = (watches(cluster, "secrets").await, watches(cluster, "configmaps").await);
        let uid = cluster.must(&format!("get secret mine -n {ns} -o jsonpath={{.metadata.uid}}")).await;
        owned_pod(cluster, ns, "v1", "Secret", "mine", &uid).await;
        let refused = cluster.kubectl(&format!("delete pod owned -n {ns}")).await;
        assert!(!refused.ok && refused.err.contains("allows 0 more unavailable pods"), "{refused:?}");
        // A watch would be there by now: it begins before the owner is asked for.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let after = (watches(cluster, "secrets").await, watches(cluster, "configmaps").await);
        assert_eq!(after, before, "watches of Secrets and ConfigMaps");
        // An owner that is gone takes its pods along all the same.
        cluster.must(&format!("delete secret mine -n {ns}")).await;
        let free = async || cluster.kubectl(&format!("delete pod owned -n {ns} --dry-run=server")).await.ok;
        assert!(wait_until(EVENTUALLY, free).await, "its owner is gone");
    });
}

#[test]
fn a_kind_with_a_scale_is_watched_for_as_long_as_a_pod_needs_it() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        let plural = format!("herds{}", ns.replace('-', ""));
        cluster
            .apply(&format!(
                "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: {plural}.{ns}.example.com}}\n\
                 spec:\n  group: {ns}.example.com\n  scope: Namespaced\n  names: {{plural: {plural}, kind: Herd}}\n  versions:\n  \
                 - name: v1\n    served: true\n    storage: true\n    subresources: {{scale: {{specReplicasPath: .spec.size, statusReplicasPath: .status.size}}}}\n    \
                 schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}\n"
            ))
            .await;
        cluster.eventually(&format!("get --raw /apis/{ns}.example.com/v1/{plural}")).await;
        cluster
            .apply(&format!(
                "apiVersion: {ns}.example.com/v1\nkind: Herd\nmetadata: {{name: sheep, namespace: {ns}}}\nspec: {{size: 1}}\n"
            ))
            .await;
        let uid = format!("get {plural}.{ns}.example.com sheep -n {ns} -o jsonpath={{.metadata.uid}}");
        let uid = cluster.must(&uid).await;
        owned_pod(cluster, ns, &format!("{ns}.example.com/v1"), "Herd", "sheep", &uid).await;
        let logs = cluster.plane.folder().join("logs");
        let says = |text: &str| {
            [0, 1].iter().any(|replica| {
                let log =
                    std::fs::read_to_string(logs.join(format!("palisade-{replica}.log"))).unwrap_or_default();
                log.lines().any(|line| line.contains(text) && line.contains(&format!("{ns}.example.com")))
            })
        };
        let said = cluster.kubectl(&format!("delete pod owned -n {ns}")).await;
        assert!(!said.ok && said.err.contains("allows 0 more unavailable pods"), "{said:?}");
        assert!(wait_until(EVENTUALLY, async || says(" watching workloads")).await, "nobody watches it");
        cluster.must(&format!("annotate pod owned -n {ns} pub.kruise.io/no-protect=true")).await;
        cluster.must(&format!("delete pod owned -n {ns}")).await;
        let ended = async || says("no longer watching workloads");
        assert!(wait_until(Duration::from_secs(80), ended).await, "it is still watched");
    });
}
