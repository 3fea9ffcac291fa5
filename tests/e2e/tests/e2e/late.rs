//! Replicas whose watches are late, and a leader that slept: what `Enforced` says holds on every replica.

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Api, WatchEvent, WatchParams};
use palisade_testkit::wait_until;

use crate::cluster::{Cluster, EVENTUALLY, Said, alone};
use crate::standstill::elected;

fn protection(name: &str, ns: &str) -> String {
    format!(
        "{{apiVersion: palisade.dev/v1alpha1, kind: ResourceDeletionProtection, metadata: {{name: {name}}}, spec: \
         {{protectedResources: [{{resourceSelector: [{{apiVersion: v1, kind: ConfigMap, namespace: {ns}}}]}}]}}}}"
    )
}

fn budget(name: &str, ns: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: policy.kruise.io/v1alpha1, kind: PodUnavailableBudget, metadata: {{name: {name}, namespace: {ns}}}, \
         spec: {{selector: {{matchLabels: {{app: web}}}}, {spec}}}}}"
    )
}

fn flow_control(name: &str, ns: &str, limit: usize) -> String {
    format!(
        "{{apiVersion: policy.kruise.io/v1alpha1, kind: PodDeletionFlowControl, metadata: {{name: {name}}}, \
         spec: {{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {ns}}}}}, \
         limitRules: [{{interval: 1h, limit: {limit}}}]}}}}"
    )
}

async fn enforced(cluster: &Cluster, what: &str) {
    cluster.must(&format!("wait {what} --for=condition=Enforced --timeout=60s")).await;
}

async fn pods(cluster: &Cluster, ns: &str, names: &[&str]) {
    for name in names {
        cluster
            .must(&format!("run {name} --image=example/app -n {ns} --restart=Never --labels=app=web"))
            .await;
    }
    cluster.must(&format!("wait pod --all -n {ns} --for=condition=Ready --timeout=60s")).await;
}

/// Refused by a policy, or because it can't be told yet. Never allowed.
#[track_caller]
fn not_allowed(said: &Said) {
    assert!(!said.ok, "an enforced policy forbids it: {said:?}");
}

#[test]
fn a_replica_that_was_stopped_while_policies_came_allows_nothing_that_they_forbid() {
    alone(async |cluster| {
        let [maps, counted, paced] =
            [cluster.namespace().await, cluster.namespace().await, cluster.namespace().await];
        for number in 0..4 {
            cluster.must(&format!("create configmap m{number} -n {maps}")).await;
        }
        pods(cluster, &counted, &["p0", "p1"]).await;
        pods(cluster, &paced, &["q0", "q1"]).await;
        cluster.apply(&budget("lax", &counted, "maxUnavailable: 100%")).await;
        cluster.apply(&flow_control("late-lax", &paced, 100)).await;
        enforced(cluster, &format!("pub/lax -n {counted}")).await;
        enforced(cluster, "pdfc/late-lax").await;

        let leader = elected(cluster).await;
        let late = 1 - leader;
        cluster.palisade.send_only_to(Some(leader));
        cluster.palisade.stand_still(late);
        cluster.apply(&protection("late", &maps)).await;
        cluster.apply(&budget("strict", &counted, "maxUnavailable: 0")).await;
        cluster.apply(&flow_control("late-strict", &paced, 1)).await;
        enforced(cluster, "rdp/late").await;
        enforced(cluster, &format!("pub/strict -n {counted}")).await;
        enforced(cluster, "pdfc/late-strict").await;
        assert!(
            cluster.kubectl(&format!("delete pod q0 -n {paced} --wait=false")).await.ok,
            "the one that may go"
        );

        // It is asked before it goes on, so that it answers at the first moment.
        cluster.palisade.send_only_to(Some(late));
        let ask = async |words: String| cluster.kubectl(&words).await;
        let asked = futures::future::join_all(
            (0..4)
                .map(|number| format!("delete configmap m{number} -n {maps}"))
                .chain([
                    format!("delete pod p0 -n {counted} --wait=false"),
                    format!("delete pod q1 -n {paced} --wait=false"),
                ])
                .map(ask),
        );
        let go_on = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            cluster.palisade.go_on(late);
        };
        let (answers, ()) = tokio::join!(asked, go_on);
        for said in &answers {
            not_allowed(said);
        }
        // And before long it says why.
        for (words, code) in [
            (format!("delete configmap m0 -n {maps}"), "(Forbidden)"),
            (format!("delete pod p0 -n {counted}"), "(TooManyRequests)"),
            (format!("delete pod q1 -n {paced}"), "(TooManyRequests)"),
        ] {
            let refused = wait_until(EVENTUALLY, || async {
                let said = cluster.kubectl(&words).await;
                not_allowed(&said);
                said.err.contains(code)
            });
            assert!(refused.await, "{words}: {code}");
        }
        cluster.palisade.send_only_to(None);
        cluster.must("delete rdp late").await;
        cluster.must("delete pdfc late-lax late-strict").await;
    });
}

#[test]
fn the_paths_say_how_new_the_policies_are_and_a_status_changes_nothing() {
    alone(async |cluster| {
        let ns = cluster.namespace().await;
        pods(cluster, &ns, &["p0", "p1"]).await;
        cluster.apply(&budget("web", &ns, "maxUnavailable: 50%")).await;
        enforced(cluster, &format!("pub/web -n {ns}")).await;
        let paths = "get validatingwebhookconfiguration palisade -o jsonpath={.webhooks[*].clientConfig.url}";
        let before = cluster.must(paths).await;
        assert!(
            before.contains("/admit/budgets/at/budgets-") || before.contains("/flow/at/budgets-"),
            "{before}"
        );
        let charged = format!("get pub web -n {ns} -o jsonpath={{.metadata.resourceVersion}}");
        let version = cluster.must(&charged).await;
        cluster.must(&format!("delete pod p0 -n {ns} --wait=false")).await;
        cluster.eventually_prints(&charged, |now| now != version).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(cluster.must(paths).await, before, "a charge is no change of a policy");
        cluster.apply(&budget("web", &ns, "maxUnavailable: 1")).await;
        cluster.eventually_prints(paths, |now| now != before).await;
    });
}

#[test]
fn a_leader_that_slept_does_not_write_what_it_knew_before() {
    alone(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("create configmap kept -n {ns}")).await;
        let slept = elected(cluster).await;
        let other = 1 - slept;
        cluster.palisade.send_only_to(Some(other));
        cluster.palisade.stand_still(slept);
        let taken = wait_until(EVENTUALLY, || async { cluster.metric(other, "palisade_leader").await > 0.5 });
        let taken = taken.await;
        if taken {
            cluster.apply(&protection("slept", &ns)).await;
            enforced(cluster, "rdp/slept").await;
        }
        // Every write of the registration from here on is looked at.
        let api: Api<ValidatingWebhookConfiguration> = Api::all(cluster.client.clone());
        let live = api.get("palisade").await.expect("it is there");
        let version = live.metadata.resource_version.expect("it has one");
        let events = api.watch(&WatchParams::default().timeout(60), &version).await.expect("watched");
        cluster.palisade.go_on(slept);
        assert!(taken, "the other leads");

        let until = Instant::now() + Duration::from_secs(8);
        let mut events = events.boxed();
        while let Ok(next) = tokio::time::timeout_at(until.into(), events.try_next()).await {
            let Some(event) = next.expect("watching") else { break };
            let (WatchEvent::Added(written) | WatchEvent::Modified(written)) = event else {
                assert!(!matches!(event, WatchEvent::Deleted(_)), "it was deleted");
                continue;
            };
            let text = serde_json::to_string(&written.webhooks).expect("JSON");
            assert!(text.contains(&format!("\"{ns}\"")), "it lost the rule: {text}");
        }
        for replica in [slept, other] {
            cluster.palisade.send_only_to(Some(replica));
            let refused = wait_until(EVENTUALLY, || async {
                let said = cluster.kubectl(&format!("delete configmap kept -n {ns}")).await;
                not_allowed(&said);
                said.err.contains("(Forbidden)")
            });
            assert!(refused.await, "replica {replica}");
        }
        cluster.palisade.send_only_to(None);
        cluster.must("delete rdp slept").await;
    });
}
