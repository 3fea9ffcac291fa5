//! `PodUnavailableBudget`s: every way to lose a pod, and none too many.

use std::time::{Duration, Instant};

use palisade_testkit::wait_until;
use serde_json::Value;

use crate::cluster::{Cluster, EVENTUALLY, Said, allowed, alone, denied, lifting, shared};
use crate::pods::{AS_KUBELET, delete, delete_all, evict, going, keep_from_evictions, pods, ready, workload};

/// Longer than a reservation is held in vain.
const EXPIRED: Duration = Duration::from_secs(100);

async fn budget(cluster: &Cluster, ns: &str, name: &str, spec: &str) {
    cluster
        .apply(&format!(
            "apiVersion: policy.kruise.io/v1alpha1\nkind: PodUnavailableBudget\nmetadata: {{name: {name}, namespace: {ns}}}\n\
             spec: {{{spec}}}\n"
        ))
        .await;
}

const SELECTED: &str = "selector: {app: web}";

/// Allowed, available, desired, total.
async fn numbers(cluster: &Cluster, ns: &str, name: &str, expected: (i64, i64, i64, i64)) {
    let fields = "{.status.unavailableAllowed} {.status.currentAvailable} {.status.desiredAvailable} {.status.totalReplicas}";
    let (allowed, available, desired, total) = expected;
    let expected = format!("{allowed} {available} {desired} {total}");
    let words = ["get", "pub", name, "-n", ns, "-o", &format!("jsonpath={fields}")].map(str::to_owned);
    let mut last = String::new();
    let reached = wait_until(EVENTUALLY, || async {
        cluster.kubectl_with(words.iter().map(String::as_str), "").await.out == expected
    });
    if !reached.await {
        last = cluster.kubectl_with(words.iter().map(String::as_str), "").await.out;
    }
    assert!(last.is_empty(), "{name} says {last}, not {expected}");
}

fn spent(said: &Said, numbers: &str) {
    denied(
        said,
        "TooManyRequests",
        &format!("budget \"web\" allows 0 more unavailable pods now ({numbers})"),
    );
}

#[test]
fn a_deletion_costs_one_and_the_refusal_says_how_to_lift_it() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 3, "").await;
        budget(cluster, ns, "web", &format!("{SELECTED}, maxUnavailable: 1")).await;
        allowed(&delete(cluster, ns, "p0").await);
        let refused = delete(cluster, ns, "p1").await;
        spent(&refused, "2 available, 2 desired, 3 total");
        spent(
            &cluster.kubectl(&format!("delete pod p1 -n {ns} --force --grace-period=0")).await,
            "2 available, 2 desired, 3 total",
        );
        numbers(cluster, ns, "web", (0, 2, 2, 3)).await;
        let why = crate::command_line::palisade(cluster, &format!("why pod p1 -n {ns}")).await;
        assert!(!why.ok && refused.err.contains(why.out.trim()), "the same words: {why:?} {refused:?}");
        assert!(cluster.shell(&lifting(&refused)).await.ok);
        allowed(&delete(cluster, ns, "p1").await);
    });
}

#[test]
fn an_eviction_costs_one_and_a_dry_run_nothing() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 3, "").await;
        budget(cluster, ns, "web", &format!("{SELECTED}, minAvailable: 2")).await;
        for _ in 0..3 {
            for pod in ["p0", "p1", "p2"] {
                allowed(&cluster.kubectl(&format!("delete pod {pod} -n {ns} --dry-run=server")).await);
                allowed(&evict(cluster, ns, pod, "?dryRun=All").await);
            }
        }
        numbers(cluster, ns, "web", (1, 3, 2, 3)).await;
        let status = cluster.must(&format!("get pub web -n {ns} -o jsonpath={{.status}}")).await;
        assert!(!status.contains("deletedPods"), "{status}");
        allowed(&evict(cluster, ns, "p0", "").await);
        spent(&evict(cluster, ns, "p1", "").await, "2 available, 2 desired, 3 total");
        spent(&evict(cluster, ns, "p1", "?dryRun=All").await, "2 available, 2 desired, 3 total");
        spent(
            &cluster.kubectl(&format!("delete pod p1 -n {ns} --dry-run=server")).await,
            "2 available, 2 desired, 3 total",
        );
        let told = cluster.kubectl(&format!("delete pod p1 -n {ns} -v=8")).await.err;
        assert!(told.contains(r#""reason":"DisruptionBudget""#) && told.contains(r#""code":429"#), "{told}");
        assert!(!told.contains("retryAfterSeconds"), "whoever waits in its workers would stall: {told}");
    });
}

#[test]
fn an_update_in_place_that_restarts_a_pod_costs_one() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 3, "").await;
        budget(cluster, ns, "web", &format!("{SELECTED}, maxUnavailable: 1")).await;
        allowed(&cluster.kubectl(&format!("annotate pod p1 -n {ns} note=x")).await);
        allowed(&cluster.kubectl(&format!("label pod p1 -n {ns} version=2")).await);
        let tolerate = r#"{"spec":{"tolerations":[{"key":"x","operator":"Exists"}]}}"#;
        let said =
            cluster.kubectl_with(["patch", "pod", "p1", "-n", ns, "--type=merge", "-p", tolerate], "").await;
        assert!(said.ok || said.err.contains("tolerations"), "{said:?}");
        allowed(&cluster.kubectl(&format!("set image pod/p0 -n {ns} app=example/app:2")).await);
        let image = r#"{"spec":{"containers":[{"name":"app","image":"example/app:2"}]}}"#;
        let refused = cluster.kubectl_with(["patch", "pod", "p1", "-n", ns, "-p", image], "").await;
        spent(&refused, "2 available, 2 desired, 3 total");
        assert!(refused.err.contains("this changes spec.containers[app], which restarts it"), "{refused:?}");
        spent(&delete(cluster, ns, "p1").await, "2 available, 2 desired, 3 total");
        numbers(cluster, ns, "web", (0, 2, 2, 3)).await;
        // The update's own pod: it costs nothing more.
        allowed(&delete(cluster, ns, "p0").await);
    });
}

#[test]
fn a_resize_costs_one_only_where_it_restarts_the_container() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        for name in ["p0", "p1"] {
            cluster
                .apply(&format!(
                    "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {ns}, labels: {{app: web}}}}\nspec:\n  \
                     containers:\n  - name: app\n    image: example/app\n    resources: {{requests: {{cpu: 1, memory: 1Gi}}}}\n    \
                     resizePolicy:\n    - {{resourceName: cpu, restartPolicy: NotRequired}}\n    \
                     - {{resourceName: memory, restartPolicy: RestartContainer}}\n"
                ))
                .await;
        }
        ready(cluster, ns).await;
        budget(cluster, ns, "web", &format!("{SELECTED}, maxUnavailable: 0")).await;
        // As a kubelet that can resize says it.
        let able = r#"{"status":{"containerStatuses":[{"name":"app","image":"example/app","imageID":"","ready":true,"restartCount":0,
            "state":{"running":{}},"resources":{"requests":{"cpu":"1","memory":"1Gi"}}}]}}"#;
        assert!(
            cluster
                .kubectl_with(["patch", "pod", "p0", "-n", ns, "--subresource=status", "-p", able], "")
                .await
                .ok
        );
        let resize = async |what: &str| {
            let patch = format!(
                r#"{{"spec":{{"containers":[{{"name":"app","resources":{{"requests":{{{what}}}}}}}]}}}}"#
            );
            cluster
                .kubectl_with(["patch", "pod", "p0", "-n", ns, "--subresource=resize", "-p", &patch], "")
                .await
        };
        allowed(&resize(r#""cpu":"2""#).await);
        let refused = resize(r#""memory":"2Gi""#).await;
        spent(&refused, "2 available, 2 desired, 2 total");
        assert!(refused.err.contains("this resizes memory of container app"), "{refused:?}");
    });
}

#[test]
fn closing_a_readiness_gate_costs_one() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 3, "readinessGates: [{conditionType: example.com/lb}], ").await;
        budget(cluster, ns, "web", &format!("{SELECTED}, maxUnavailable: 1")).await;
        let set = async |pod: &str, status: &str| {
            let patch =
                format!(r#"{{"status":{{"conditions":[{{"type":"example.com/lb","status":"{status}"}}]}}}}"#);
            cluster
                .kubectl_with(["patch", "pod", pod, "-n", ns, "--subresource=status", "-p", &patch], "")
                .await
        };
        for pod in ["p0", "p1", "p2"] {
            assert!(set(pod, "True").await.ok);
        }
        numbers(cluster, ns, "web", (1, 3, 2, 3)).await;
        allowed(&set("p0", "False").await);
        let refused = set("p1", "False").await;
        spent(&refused, "2 available, 2 desired, 3 total");
        assert!(refused.err.contains("this closes its readiness gate example.com/lb"), "{refused:?}");
        allowed(&delete(cluster, ns, "p0").await);
    });
}

#[test]
fn a_pod_that_is_marked_by_hand_costs_one() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 3, "").await;
        budget(cluster, ns, "web", &format!("{SELECTED}, maxUnavailable: 1")).await;
        allowed(&cluster.kubectl(&format!("label pod p0 -n {ns} unavailable-pod.kruise.io/hot=true")).await);
        numbers(cluster, ns, "web", (0, 2, 2, 3)).await;
        spent(
            &cluster.kubectl(&format!("label pod p1 -n {ns} unavailable-pod.kruise.io/hot=true")).await,
            "2 available, 2 desired, 3 total",
        );
        let through = r#"{"metadata":{"labels":{"unavailable-pod.kruise.io/hot":"x"}}}"#;
        spent(
            &cluster
                .kubectl_with(["patch", "pod", "p1", "-n", ns, "--subresource=status", "-p", through], "")
                .await,
            "2 available, 2 desired, 3 total",
        );
        allowed(&cluster.kubectl(&format!("label pod p0 -n {ns} unavailable-pod.kruise.io/hot-")).await);
        numbers(cluster, ns, "web", (1, 3, 2, 3)).await;
        allowed(&delete(cluster, ns, "p1").await);
    });
}

#[test]
fn a_pod_does_not_slip_out_of_its_budget_by_another_label() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 2, "").await;
        budget(cluster, ns, "web", &format!("{SELECTED}, maxUnavailable: 0")).await;
        allowed(&cluster.kubectl(&format!("label pod p0 -n {ns} version=2")).await);
        let refused = cluster.kubectl(&format!("label pod p0 -n {ns} app-")).await;
        spent(&refused, "2 available, 2 desired, 2 total");
        assert!(
            refused.err.contains("this takes away the labels or the owner that it is chosen by"),
            "{refused:?}"
        );
        let through = r#"{"metadata":{"labels":{"app":"other"}}}"#;
        spent(
            &cluster
                .kubectl_with(["patch", "pod", "p0", "-n", ns, "--subresource=status", "-p", through], "")
                .await,
            "2 available, 2 desired, 2 total",
        );
    });
}

#[test]
fn a_pod_does_not_slip_out_of_its_workload() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        workload(cluster, ns, "ReplicaSet", 2).await;
        budget(
            cluster,
            ns,
            "web",
            "targetRef: {apiVersion: apps, kind: ReplicaSet, name: web}, maxUnavailable: 0",
        )
        .await;
        let pod = cluster.must(&format!("get pods -n {ns} -o jsonpath={{.items[0].metadata.name}}")).await;
        allowed(&cluster.kubectl(&format!("label pod {pod} -n {ns} version=2")).await);
        spent(
            &cluster.kubectl(&format!("label pod {pod} -n {ns} app-")).await,
            "2 available, 2 desired, 2 total",
        );
        let release = r#"{"metadata":{"ownerReferences":null}}"#;
        spent(
            &cluster.kubectl_with(["patch", "pod", &pod, "-n", ns, "--type=merge", "-p", release], "").await,
            "2 available, 2 desired, 2 total",
        );
        let forged = r#"{"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"nope",
            "uid":"00000000-0000-0000-0000-000000000000","controller":true}]}}"#;
        spent(
            &cluster.kubectl_with(["patch", "pod", &pod, "-n", ns, "--type=merge", "-p", forged], "").await,
            "2 available, 2 desired, 2 total",
        );
    });
}

#[test]
fn pods_are_collected_after_the_definition_of_their_owner() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        let group = format!("{ns}.example.com");
        cluster.apply(&crate::labels::definition(&group, "Barn", "barns", "Namespaced", &["v1"])).await;
        let barn = format!("apiVersion: {group}/v1\nkind: Barn\nmetadata: {{name: web, namespace: {ns}}}\n");
        let applied = wait_until(Duration::from_secs(20), || async {
            cluster.kubectl_with(["apply", "-f", "-"], &barn).await.ok
        });
        assert!(applied.await);
        let uid = cluster.must(&format!("get barns.{group} web -n {ns} -o jsonpath={{.metadata.uid}}")).await;
        cluster
            .apply(&format!(
                "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p0\n  namespace: {ns}\n  labels: {{app: web}}\n  \
                 ownerReferences: [{{apiVersion: {group}/v1, kind: Barn, name: web, uid: {uid}, controller: true}}]\n\
                 spec: {{containers: [{{name: app, image: example/app}}]}}\n"
            ))
            .await;
        ready(cluster, ns).await;
        budget(cluster, ns, "web", &format!("{SELECTED}, maxUnavailable: 0")).await;
        spent(&delete(cluster, ns, "p0").await, "1 available, 1 desired, 1 total");
        cluster.must(&format!("delete crd barns.{group}")).await;
        let free = wait_until(Duration::from_secs(10), || async {
            cluster.kubectl(&format!("delete pod p0 -n {ns} --dry-run=server")).await.ok
        });
        assert!(free.await, "its owner is gone with its definition");
    });
}

#[test]
fn whoever_tries_again_and_again_does_not_hold_a_slot_for_ever() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 3, "").await;
        budget(cluster, ns, "web", &format!("{SELECTED}, maxUnavailable: 1")).await;
        keep_from_evictions(cluster, ns, "app=web", 3).await;
        let free = wait_until(EXPIRED, || async {
            evict(cluster, ns, "p0", "").await;
            tokio::time::sleep(Duration::from_secs(2)).await;
            delete(cluster, ns, "p1").await.ok
        });
        assert!(free.await, "another has a turn");
    });
}

#[test]
fn what_one_workload_lacks_does_not_hold_up_another() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        workload(cluster, ns, "Deployment", 4).await;
        cluster
            .apply(&format!(
                "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: pending, namespace: {ns}}}\nspec:\n  replicas: 3\n  \
                 selector: {{matchLabels: {{app: pending}}}}\n  template:\n    metadata: {{labels: {{app: pending}}}}\n    \
                 spec: {{nodeSelector: {{no: where}}, containers: [{{name: app, image: example/app}}]}}\n"
            ))
            .await;
        budget(cluster, ns, "web", "selector: {}, maxUnavailable: 0").await;
        numbers(cluster, ns, "web", (0, 4, 7, 7)).await;
        cluster.must(&format!("scale deployment web -n {ns} --replicas=2")).await;
        numbers(cluster, ns, "web", (0, 2, 5, 5)).await;
    });
}

#[test]
fn a_pod_that_is_not_available_costs_nothing() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 3, "").await;
        cluster
            .apply(&format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: pending, namespace: {ns}, labels: {{app: web}}}}\n\
                 spec: {{nodeSelector: {{no: where}}, containers: [{{name: app, image: example/app}}]}}\n"
            ))
            .await;
        budget(cluster, ns, "web", &format!("{SELECTED}, maxUnavailable: 0")).await;
        spent(&delete(cluster, ns, "p0").await, "3 available, 4 desired, 4 total");
        allowed(&delete(cluster, ns, "pending").await);
        allowed(&cluster.kubectl(&format!("annotate pod p0 -n {ns} pub.kruise.io/no-protect=true")).await);
        allowed(&evict(cluster, ns, "p0", "").await);
        spent(&evict(cluster, ns, "p1", "").await, "2 available, 3 desired, 3 total");
    });
}

#[test]
fn a_deployment_rolls_through_its_budget_and_pods_come_back() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        workload(cluster, ns, "Deployment", 6).await;
        budget(
            cluster,
            ns,
            "web",
            "targetRef: {apiVersion: apps, kind: Deployment, name: web}, maxUnavailable: 1",
        )
        .await;
        numbers(cluster, ns, "web", (1, 6, 5, 6)).await;
        cluster.must(&format!("set image deployment/web -n {ns} app=example/app:2")).await;
        cluster.must(&format!("rollout status deployment/web -n {ns} --timeout=80s")).await;
        numbers(cluster, ns, "web", (1, 6, 5, 6)).await;
        let conditions = "{.status.conditions[*].type}={.status.conditions[*].status}";
        cluster
            .eventually_prints(&format!("get pub web -n {ns} -o jsonpath={conditions}"), |out| {
                out == "Enforced TargetFound=True True"
            })
            .await;
    });
}

#[test]
fn scaling_down_and_deleting_a_workload_is_never_blocked() {
    shared(async |cluster| {
        for kind in ["Deployment", "StatefulSet", "ReplicaSet"] {
            let ns = &cluster.namespace().await;
            workload(cluster, ns, kind, 4).await;
            budget(cluster, ns, "web", &format!("{SELECTED}, minAvailable: 4")).await;
            numbers(cluster, ns, "web", (0, 4, 4, 4)).await;
            let count = async |expected: usize| {
                cluster
                    .eventually_prints(&format!("get pods -n {ns} -o json"), |out| {
                        let list: Value = serde_json::from_str(out).unwrap_or_default();
                        let items = list["items"].as_array().cloned().unwrap_or_default();
                        items.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).count()
                            == expected
                    })
                    .await;
            };
            cluster.must(&format!("scale {kind} web -n {ns} --replicas=2")).await;
            count(2).await;
            numbers(cluster, ns, "web", (0, 2, 2, 2)).await;
            cluster.must(&format!("scale {kind} web -n {ns} --replicas=0")).await;
            count(0).await;
            cluster.must(&format!("scale {kind} web -n {ns} --replicas=3")).await;
            numbers(cluster, ns, "web", (0, 3, 3, 3)).await;
            cluster.must(&format!("delete {kind} web -n {ns} --wait=false")).await;
            count(0).await;
        }
    });
}

#[test]
fn a_scale_down_of_a_stateful_set_is_not_held_up_by_another_of_its_pods() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        workload(cluster, ns, "StatefulSet", 3).await;
        budget(cluster, ns, "web", &format!("{SELECTED}, maxUnavailable: 0")).await;
        let down = r#"{"status":{"conditions":[{"type":"Ready","status":"False"}]}}"#;
        let mut words = vec!["patch", "pod", "web-0", "-n", ns, "--subresource=status", "-p", down];
        words.extend(AS_KUBELET);
        assert!(cluster.kubectl_with(words, "").await.ok);
        numbers(cluster, ns, "web", (0, 2, 3, 3)).await;
        cluster.must(&format!("scale statefulset web -n {ns} --replicas=2")).await;
        // Terminating or gone: it is there for no more than its grace period.
        cluster
            .eventually_prints(&format!("get pod web-2 -n {ns} -o json --ignore-not-found"), |out| {
                out.is_empty() || out.contains("deletionTimestamp")
            })
            .await;
        numbers(cluster, ns, "web", (0, 1, 2, 2)).await;
    });
}

#[test]
fn a_namespace_goes_with_its_budgets() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        workload(cluster, ns, "Deployment", 3).await;
        cluster
            .apply(&format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: alone, namespace: {ns}, labels: {{app: alone}}}}\n\
                 spec: {{terminationGracePeriodSeconds: 1, containers: [{{name: app, image: example/app}}]}}\n"
            ))
            .await;
        ready(cluster, ns).await;
        budget(cluster, ns, "web", "selector: {}, maxUnavailable: 0").await;
        numbers(cluster, ns, "web", (0, 4, 4, 4)).await;
        cluster.must(&format!("delete namespace {ns} --timeout=80s")).await;
    });
}

#[test]
fn a_stateful_sets_pod_is_another_each_time_it_comes_back() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        workload(cluster, ns, "StatefulSet", 3).await;
        budget(
            cluster,
            ns,
            "web",
            "targetRef: {apiVersion: apps/v1, kind: StatefulSet, name: web}, maxUnavailable: 1",
        )
        .await;
        for _ in 0..3 {
            numbers(cluster, ns, "web", (1, 3, 2, 3)).await;
            allowed(
                &cluster.kubectl(&format!("delete pod web-1 -n {ns} --grace-period=4 --wait=false")).await,
            );
            spent(&delete(cluster, ns, "web-2").await, "2 available, 2 desired, 3 total");
        }
    });
}

#[test]
fn several_budgets_must_all_agree() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 4, "").await;
        cluster.must(&format!("label pod p0 p1 -n {ns} tier=front")).await;
        budget(cluster, ns, "web", &format!("{SELECTED}, maxUnavailable: 2")).await;
        budget(cluster, ns, "front", "selector: {matchLabels: {tier: front}}, maxUnavailable: 0").await;
        let refused = delete(cluster, ns, "p0").await;
        denied(
            &refused,
            "TooManyRequests",
            "budget \"front\" allows 0 more unavailable pods now (2 available, 2 desired, 2 total)",
        );
        assert!(!refused.err.contains("\"web\""), "only who refuses is named: {refused:?}");
        numbers(cluster, ns, "web", (2, 4, 2, 4)).await;
        allowed(&delete(cluster, ns, "p2").await);
        allowed(&delete(cluster, ns, "p3").await);
        let refused = delete(cluster, ns, "p0").await;
        assert!(
            refused.err.contains("budget \"web\"") && refused.err.contains("budget \"front\""),
            "{refused:?}"
        );
    });
}

#[test]
fn a_single_replica_keeps_its_protection_with_a_percentage() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        workload(cluster, ns, "Deployment", 1).await;
        budget(cluster, ns, "web", &format!("{SELECTED}, maxUnavailable: 50%")).await;
        numbers(cluster, ns, "web", (0, 1, 1, 1)).await;
        spent(
            &cluster.kubectl(&format!("delete pod -l app=web -n {ns} --wait=false")).await,
            "1 available, 1 desired, 1 total",
        );
        cluster
            .must(&format!(
                "patch pub web -n {ns} --type=merge -p {{\"spec\":{{\"maxUnavailable\":\"100%\"}}}}"
            ))
            .await;
        numbers(cluster, ns, "web", (1, 1, 0, 1)).await;
        allowed(&cluster.kubectl(&format!("delete pod -l app=web -n {ns} --wait=false")).await);
    });
}

#[test]
fn a_kind_that_nobody_knows_is_counted_by_its_scale() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        let group = format!("{ns}.example.com");
        cluster
            .apply(&format!(
                "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: rollouts.{group}}}\nspec:\n  \
                 group: {group}\n  scope: Namespaced\n  names: {{kind: Rollout, plural: rollouts, singular: rollout, listKind: RolloutList}}\n  \
                 versions:\n  - name: v1\n    served: true\n    storage: true\n    subresources:\n      \
                 scale: {{specReplicasPath: .spec.size.pods, statusReplicasPath: .status.pods}}\n    \
                 schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}\n"
            ))
            .await;
        let rollout = format!(
            "apiVersion: {group}/v1\nkind: Rollout\nmetadata: {{name: web, namespace: {ns}}}\nspec: {{size: {{pods: 5}}}}\n"
        );
        let applied = wait_until(Duration::from_secs(20), || async {
            cluster.kubectl_with(["apply", "-f", "-"], &rollout).await.ok
        });
        assert!(applied.await);
        let uid =
            cluster.must(&format!("get rollouts.{group} web -n {ns} -o jsonpath={{.metadata.uid}}")).await;
        for number in 0..5 {
            cluster
                .apply(&format!(
                    "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p{number}\n  namespace: {ns}\n  labels: {{app: web}}\n  \
                     ownerReferences: [{{apiVersion: {group}/v1, kind: Rollout, name: web, uid: {uid}, controller: true}}]\n\
                     spec: {{containers: [{{name: app, image: example/app}}]}}\n"
                ))
                .await;
        }
        ready(cluster, ns).await;
        budget(
            cluster,
            ns,
            "web",
            &format!("targetRef: {{apiVersion: {group}/v1, kind: Rollout, name: web}}, maxUnavailable: 40%"),
        )
        .await;
        numbers(cluster, ns, "web", (2, 5, 3, 5)).await;
        allowed(&delete(cluster, ns, "p0").await);
        allowed(&delete(cluster, ns, "p1").await);
        spent(&delete(cluster, ns, "p2").await, "3 available, 3 desired, 5 total");
        let patch = r#"{"spec":{"size":{"pods":3}}}"#;
        assert!(
            cluster
                .kubectl_with(
                    ["patch", &format!("rollouts.{group}"), "web", "-n", ns, "--type=merge", "-p", patch],
                    ""
                )
                .await
                .ok
        );
        numbers(cluster, ns, "web", (2, 3, 1, 3)).await;
        cluster.must(&format!("delete crd rollouts.{group} --wait=false")).await;
    });
}

#[test]
fn what_makes_no_sense_is_refused_and_said() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        for (spec, why) in [
            ("maxUnavailable: 1", "exactly one of selector and targetRef must be given"),
            (
                "selector: {app: x}, targetRef: {apiVersion: apps, kind: Deployment, name: x}, maxUnavailable: 1",
                "exactly one of selector and targetRef must be given",
            ),
            ("selector: {app: x}", "exactly one of maxUnavailable and minAvailable must be given"),
            (
                "selector: {app: x}, maxUnavailable: 1, minAvailable: 1",
                "exactly one of maxUnavailable and minAvailable must be given",
            ),
            (
                "selector: {app: x}, maxUnavailable: -1",
                "must be a number of 0 or more, or a percentage from 0% to 100%",
            ),
            (
                "selector: {app: x}, maxUnavailable: 101%",
                "must be a number of 0 or more, or a percentage from 0% to 100%",
            ),
            (
                "selector: {app: x}, minAvailable: \"5\"",
                "must be a number of 0 or more, or a percentage from 0% to 100%",
            ),
            ("selector: {app: x}, minAvailable: 1.5", "spec.minAvailable"),
            ("targetRef: {kind: Deployment, name: x}, maxUnavailable: 1", "spec.targetRef.apiVersion"),
            ("targetRef: {apiVersion: apps, kind: Deployment}, maxUnavailable: 1", "spec.targetRef.name"),
            ("targetRef: {apiVersion: apps, kind: \"\", name: x}, maxUnavailable: 1", "spec.targetRef.kind"),
            (
                "selector: {matchLables: {app: x}}, maxUnavailable: 1",
                "\"matchLables\" is neither matchLabels nor matchExpressions",
            ),
            (
                "selector: {matchExpressions: [{key: app, operator: In}]}, maxUnavailable: 1",
                "In needs values",
            ),
            ("selector: {app: 5}, maxUnavailable: 1", "its value is no label's"),
            ("selector: {app: \"a b\"}, maxUnavailable: 1", "\"a b\" is no label value"),
        ] {
            let manifest = format!(
                "apiVersion: policy.kruise.io/v1alpha1\nkind: PodUnavailableBudget\nmetadata: {{name: bad, namespace: {ns}}}\nspec: {{{spec}}}\n"
            );
            let said = cluster.kubectl_with(["create", "-f", "-"], &manifest).await;
            assert!(!said.ok && said.err.contains(why), "{spec}: {said:?}");
        }
    });
}

#[test]
fn the_columns_tell_how_it_stands() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 2, "").await;
        budget(cluster, ns, "web", "selector: {}, maxUnavailable: 1").await;
        numbers(cluster, ns, "web", (1, 2, 1, 2)).await;
        let shown = cluster.must(&format!("get pub -n {ns}")).await;
        let rows: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            rows[0],
            ["NAME", "ALLOWED", "AVAILABLE", "DESIRED", "TOTAL", "GENERATED", "ENFORCED", "AGE"]
        );
        assert_eq!(rows[1][..5], ["web", "1", "2", "1", "2"]);
    });
}

#[test]
fn a_slot_comes_back_when_something_else_refuses() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 3, "").await;
        budget(cluster, ns, "web", &format!("{SELECTED}, maxUnavailable: 1")).await;
        keep_from_evictions(cluster, ns, "app=web", 3).await;
        let refused = evict(cluster, ns, "p0", "").await;
        assert!(!refused.ok && refused.err.contains("disruption budget"), "{refused:?}");
        let reserved =
            cluster.must(&format!("get pub web -n {ns} -o jsonpath={{.status.deletedPods}}")).await;
        assert!(!reserved.is_empty(), "it was reserved before it was refused");
        spent(&delete(cluster, ns, "p1").await, "2 available, 2 desired, 3 total");
        let started = Instant::now();
        let back = wait_until(EXPIRED, || async {
            cluster.must(&format!("get pub web -n {ns} -o jsonpath={{.status.deletedPods}}")).await.is_empty()
        });
        assert!(back.await, "still reserved after {:?}", started.elapsed());
        allowed(&delete(cluster, ns, "p1").await);
    });
}

#[test]
fn a_drain_waits_for_the_budget_and_goes_on_by_itself() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        workload(cluster, ns, "Deployment", 4).await;
        budget(cluster, ns, "web", &format!("{SELECTED}, maxUnavailable: 0")).await;
        let node = cluster.must(&format!("get pods -n {ns} -o jsonpath={{.items[0].spec.nodeName}}")).await;
        let drain =
            format!("drain {node} --pod-selector=space={ns} --force --ignore-daemonsets --timeout=80s");
        let lift = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            let there = cluster
                .must(&format!("get pods -n {ns} --field-selector=spec.nodeName={node} -o name"))
                .await;
            assert!(!there.is_empty(), "nothing went while the budget was spent");
            cluster
                .must(&format!("patch pub web -n {ns} --type=merge -p {{\"spec\":{{\"maxUnavailable\":1}}}}"))
                .await;
        };
        let (drained, ()) = tokio::join!(cluster.kubectl(&drain), lift);
        cluster.must(&format!("uncordon {node}")).await;
        assert!(drained.ok, "{drained:?}");
        assert!(drained.err.contains("allows 0 more unavailable pods now"), "{drained:?}");
    });
}

#[test]
fn of_two_hundred_at_once_exactly_five_are_admitted() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 200, "").await;
        budget(cluster, ns, "web", &format!("{SELECTED}, maxUnavailable: 5")).await;
        assert_eq!(delete_all(cluster, ns, 200).await, 5, "from its very first moment on");
        assert_eq!(
            delete_all(cluster, ns, 200).await,
            5,
            "those five again: they are going, and cost nothing"
        );
        assert_eq!(going(cluster, ns).await, 5);
        numbers(cluster, ns, "web", (0, 195, 195, 200)).await;
    });
}

#[test]
fn of_two_hundred_at_once_no_more_are_admitted_while_replicas_and_the_api_server_die() {
    alone(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 200, "").await;
        budget(cluster, ns, "web", &format!("{SELECTED}, maxUnavailable: 5")).await;
        let kill = async {
            tokio::time::sleep(Duration::from_millis(400)).await;
            let victim = cluster.palisade.process_id(0).to_string();
            assert!(
                std::process::Command::new("kill")
                    .args(["-9", &victim])
                    .status()
                    .is_ok_and(|status| status.success())
            );
        };
        let (admitted, ()) = tokio::join!(delete_all(cluster, ns, 200), kill);
        assert!(admitted <= 5, "{admitted} although one replica died");
        assert!(going(cluster, ns).await <= 5, "one replica died");
        // What the dead one reserved for nothing comes back, and not a slot more.
        cluster.plane.restart_apiserver().await.expect("it restarts");
        // Within the grace period of what has gone so far, so that none of the five is gone for good.
        let used = wait_until(Duration::from_secs(24), || async {
            cluster.kubectl(&format!("delete pod p0 p40 p80 p120 p160 -n {ns} --wait=false")).await;
            going(cluster, ns).await >= 5
        });
        assert!(used.await, "in the end all five slots are used");
        assert_eq!(going(cluster, ns).await, 5);
    });
}
