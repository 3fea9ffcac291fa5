//! What many questions at once cost: a bounded number of connections, and no budget its answer.

use std::collections::HashSet;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{self, StreamExt};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;

use crate::cluster::{Cluster, allowed, alone, denied};
use crate::pods::{delete, pods};

/// What the documentation promises: lists of searches, and all other questions with what their client keeps.
const CONNECTIONS: usize = 192;
/// How many deletions there are at once.
const AT_ONCE: usize = 100;

/// How many connections a process has to a port of this machine.
fn connections(process: u32, port: u16) -> usize {
    let links = fs::read_dir(format!("/proc/{process}/fd")).expect("its files");
    let sockets: HashSet<String> = links
        .filter_map(|link| fs::read_link(link.ok()?.path()).ok()?.to_str().map(str::to_owned))
        .filter_map(|target| Some(target.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = fs::read_to_string(format!("/proc/{process}/net/tcp")).expect("its connections");
    let to_port = format!(":{port:04X}");
    table
        .lines()
        .filter(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            columns.len() > 9 && columns[2].ends_with(&to_port) && sockets.contains(columns[9])
        })
        .count()
}

async fn api_server_port(cluster: &Cluster) -> u16 {
    let url = cluster.must("config view -o jsonpath={.clusters[0].cluster.server}").await;
    url.rsplit_once(':').and_then(|(_, port)| port.trim_end_matches('/').parse().ok()).expect("a port")
}

#[test]
fn a_hundred_deletions_of_namespaces_share_connections_and_leave_a_budget_its_answer() {
    alone(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 3, "").await;
        cluster
            .apply(&format!(
                "{{apiVersion: policy.kruise.io/v1alpha1, kind: PodUnavailableBudget, metadata: {{name: web, \
                 namespace: {ns}}}, spec: {{selector: {{app: web}}, maxUnavailable: 1}}}}"
            ))
            .await;
        let mut names = Vec::new();
        for _ in 0..10 {
            names.push(cluster.namespace().await);
        }
        let namespaces: Api<Namespace> = Api::all(cluster.plane.impatient_client().await.expect("a client"));
        let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
        let port = api_server_port(cluster).await;
        let processes = [0, 1].map(|replica| cluster.palisade.process_id(replica));
        let before = processes.map(|process| connections(process, port));

        let is_over = AtomicBool::new(false);
        let watched = async {
            let mut most = [0, 0];
            while !is_over.load(Ordering::Relaxed) {
                for (most, process) in most.iter_mut().zip(processes) {
                    *most = (*most).max(connections(process, port));
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            most
        };
        let load = async {
            // Three waves, so that there is no end of it while the budget is asked.
            let mut refused = Vec::new();
            for _ in 0..3 {
                let deletions =
                    (0..AT_ONCE).map(|number| namespaces.delete(&names[number % names.len()], &dry_run));
                refused.extend(join_all(deletions).await.into_iter().filter_map(Result::err));
            }
            is_over.store(true, Ordering::Relaxed);
            refused
        };
        let budget = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let first = delete(cluster, ns, "p0").await;
            (first, delete(cluster, ns, "p1").await)
        };
        let (most, refused, (first, second)) = futures::join!(watched, load, budget);
        allowed(&first);
        denied(&second, "TooManyRequests", "budget \"web\" allows 0 more unavailable pods now");
        for replica in [0, 1] {
            let more = most[replica].saturating_sub(before[replica]);
            assert!(more <= CONNECTIONS, "{more} more connections than before");
        }
        // On a slow machine a question may wait for too long, or the API server may: that is a refusal, never an allow.
        for error in &refused {
            let kube::Error::Api(status) = error else { panic!("{error}") };
            assert!(matches!(status.code, 500 | 503), "{status:?}");
        }
    });
}

#[test]
fn a_cascading_protection_over_a_thousand_workloads_answers_in_time() {
    alone(async |cluster| {
        let ns = &cluster.namespace().await;
        let sets: Api<StatefulSet> = Api::namespaced(cluster.client.clone(), ns);
        let create = |number: usize| {
            let sets = sets.clone();
            let set = json!({"metadata": {"name": format!("set-{number:04}")}, "spec": {"replicas": 0, "serviceName": "none",
                "selector": {"matchLabels": {"app": "none"}}, "template": {"metadata": {"labels": {"app": "none"}},
                "spec": {"containers": [{"name": "app", "image": "example/app"}]}}}});
            let set: StatefulSet = serde_json::from_value(set).expect("a StatefulSet");
            async move { sets.create(&PostParams::default(), &set).await.map(drop).expect("created") }
        };
        stream::iter((0..1_000).map(create)).buffer_unordered(16).collect::<Vec<()>>().await;
        cluster
            .apply(&format!(
                "{{apiVersion: palisade.dev/v1alpha1, kind: ResourceDeletionProtection, metadata: {{name: {ns}}}, spec: \
                 {{mode: Cascading, protectedResources: [{{resourceSelector: [{{apiVersion: apps/v1, kind: StatefulSet, \
                 namespace: {ns}}}]}}]}}}}"
            ))
            .await;
        cluster.must(&format!("wait rdp/{ns} --for=condition=Enforced --timeout=60s")).await;
        let delete = format!("delete namespace {ns} --dry-run=server");
        allowed(&cluster.kubectl(&delete).await);
        cluster.must(&format!("patch statefulset set-0777 -n {ns} -p {{\"spec\":{{\"replicas\":1}}}}")).await;
        let said = cluster.kubectl(&delete).await;
        denied(
            &said,
            "Forbidden",
            &format!("a protected object would go with it: statefulset \"{ns}/set-0777\""),
        );
        cluster.must(&format!("delete rdp {ns}")).await;
    });
}
