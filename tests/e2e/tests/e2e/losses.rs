//! Ways to lose pods other than deleting them: budgets and flow controls hold all the same.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::{Cluster, Said, allowed, denied, shared};
use crate::pods::{AS_KUBELET, delete, going, pods, workload};

async fn budget(cluster: &Cluster, ns: &str, spec: &str) {
    cluster
        .apply(&format!(
            "apiVersion: policy.kruise.io/v1alpha1\nkind: PodUnavailableBudget\nmetadata: {{name: web, namespace: {ns}}}\n\
             spec: {{{spec}}}\n"
        ))
        .await;
    cluster.must(&format!("wait pub/web -n {ns} --for=condition=Enforced --timeout=30s")).await;
}

/// A flow control for one namespace, called like it.
async fn control(cluster: &Cluster, ns: &str, limit: usize) {
    cluster
        .apply(&format!(
            "apiVersion: policy.kruise.io/v1alpha1\nkind: PodDeletionFlowControl\nmetadata: {{name: {ns}}}\nspec:\n  \
             namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {ns}}}}}\n  \
             limitRules: [{{interval: 1h, limit: {limit}}}]\n"
        ))
        .await;
    cluster.must(&format!("wait pdfc/{ns} --for=condition=Enforced --timeout=30s")).await;
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

async fn patch_status(cluster: &Cluster, ns: &str, pod: &str, patch: &str, more: &[&str]) -> Said {
    let mut words = vec!["patch", "pod", pod, "-n", ns, "--subresource=status", "-p", patch];
    words.extend(more);
    cluster.kubectl_with(words, "").await
}

const FAILED: &str = r#"{"status":{"phase":"Failed"}}"#;
const UNREADY: &str = r#"{"status":{"conditions":[{"type":"Ready","status":"False"}]}}"#;

#[test]
fn a_pod_that_is_killed_by_its_status_costs_what_a_deletion_costs() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 4, "").await;
        budget(cluster, ns, "selector: {app: web}, maxUnavailable: 1").await;
        let removed = r#"{"status":{"conditions":[{"type":"Ready","$patch":"delete"}]}}"#;
        allowed(&patch_status(cluster, ns, "p0", UNREADY, &[]).await);
        for (patch, said) in [
            (FAILED, "this sets its phase to Failed"),
            (r#"{"status":{"phase":"Succeeded"}}"#, "this sets its phase to Succeeded"),
            (UNREADY, "this says that it is not ready"),
            (removed, "this says that it is not ready"),
        ] {
            let refused = patch_status(cluster, ns, "p1", patch, &[]).await;
            denied(&refused, "TooManyRequests", "budget \"web\" allows 0 more unavailable pods now");
            assert!(refused.err.contains(said), "{refused:?}");
        }
        denied(&delete(cluster, ns, "p1").await, "TooManyRequests", "allows 0 more unavailable pods now");
        allowed(&patch_status(cluster, ns, "p1", r#"{"status":{"message":"fine"}}"#, &[]).await);
        // The kubelet and the controllers of Kubernetes say how things are.
        allowed(&patch_status(cluster, ns, "p1", UNREADY, &AS_KUBELET).await);
        let controller =
            ["--as=system:serviceaccount:kube-system:node-controller", "--as-group=system:masters"];
        allowed(&patch_status(cluster, ns, "p2", FAILED, &controller).await);
    });
}

#[test]
fn flow_controls_count_pods_that_are_killed_by_their_status() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 4, "").await;
        control(cluster, ns, 2).await;
        allowed(&patch_status(cluster, ns, "p0", UNREADY, &[]).await);
        allowed(&patch_status(cluster, ns, "p1", FAILED, &[]).await);
        let full = format!("flow control \"{ns}\": 2 pods deleted in the last 1h (limit 2)");
        for patch in [FAILED, UNREADY] {
            denied(&patch_status(cluster, ns, "p2", patch, &[]).await, "TooManyRequests", &full);
        }
        denied(&delete(cluster, ns, "p2").await, "TooManyRequests", &full);
        allowed(&delete(cluster, ns, "p1").await);
        allowed(&patch_status(cluster, ns, "p2", FAILED, &AS_KUBELET).await);
        let used = format!("get pdfc {ns} -o jsonpath={{.status.rules[0].used}}");
        assert_eq!(cluster.must(&used).await, "2");
    });
}

/// A port at which connections are neither accepted nor refused, for as long as what it returns lives.
fn silent_port() -> (u16, Vec<tokio::task::JoinHandle<()>>, tokio::net::TcpListener) {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind(([127, 0, 0, 1], 0).into()).expect("a port");
    let listener = socket.listen(1).expect("it listens");
    let address = listener.local_addr().expect("an address");
    // Those that nobody accepts fill the queue.
    let connections = (0..8).map(|_| {
        tokio::spawn(async move {
            let connection = tokio::net::TcpStream::connect(address).await;
            std::future::pending::<()>().await;
            drop(connection);
        })
    });
    (address.port(), connections.collect(), listener)
}

#[test]
fn a_slot_is_not_given_back_while_another_webhook_holds_its_deletion_up() {
    shared(async |cluster| {
        let (budgeted, throttled) = (&cluster.namespace().await, &cluster.namespace().await);
        for ns in [budgeted, throttled] {
            pods(cluster, ns, 3, "").await;
        }
        budget(cluster, budgeted, "selector: {app: web}, maxUnavailable: 1").await;
        control(cluster, throttled, 1).await;
        let (port, connections, _listener) = silent_port();
        cluster
            .apply(&format!(
                "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\nmetadata: {{name: slow-{budgeted}}}\n\
                 webhooks:\n- name: slow.example.com\n  admissionReviewVersions: [v1]\n  sideEffects: None\n  failurePolicy: Ignore\n  \
                 timeoutSeconds: 28\n  clientConfig: {{url: 'https://127.0.0.1:{port}/'}}\n  \
                 namespaceSelector: {{matchExpressions: [{{key: kubernetes.io/metadata.name, operator: In, values: [{budgeted}, {throttled}]}}]}}\n  \
                 rules: [{{operations: [DELETE], apiGroups: [''], apiVersions: [v1], resources: [pods]}}]\n  \
                 matchConditions: [{{name: first, expression: oldObject.metadata.name == 'p0'}}]\n"
            ))
            .await;
        // The API server takes a moment to ask it.
        let dry = format!("delete pod p0 -n {budgeted} --dry-run=server --request-timeout=2s");
        let asked = async || !cluster.kubectl(&dry).await.ok;
        assert!(palisade_testkit::wait_until(crate::cluster::EVENTUALLY, asked).await, "nobody asks it");
        let started = Instant::now();
        let slow = async |ns: &str| {
            let words = format!("delete pod p0 -n {ns} --wait=false");
            let deleted = cluster.kubectl(&words);
            tokio::pin!(deleted);
            // First p0, and then the others.
            let head_start = tokio::time::sleep(Duration::from_secs(3));
            tokio::select! {
                said = &mut deleted => panic!("nothing held it up: {said:?}"),
                () = head_start => {}
            }
            loop {
                let other = delete(cluster, ns, "p1");
                tokio::select! {
                    biased;
                    said = &mut deleted => {
                        assert!(said.ok, "{said:?}");
                        break;
                    }
                    said = other => {
                        assert!(!said.ok, "given back after {:?}", started.elapsed());
                        tokio::time::sleep(Duration::from_millis(300)).await;
                    }
                }
            }
            assert!(started.elapsed() > Duration::from_secs(22), "after {:?}", started.elapsed());
            assert_eq!(going(cluster, ns).await, 1, "p0 alone");
        };
        tokio::join!(slow(budgeted), slow(throttled));
        cluster.must(&format!("delete validatingwebhookconfiguration slow-{budgeted}")).await;
        connections.iter().for_each(tokio::task::JoinHandle::abort);
    });
}
