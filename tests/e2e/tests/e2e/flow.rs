//! `PodDeletionFlowControl`s: so many pods in a time, whoever deletes them.

use std::time::{Duration, Instant};

use http::Request;
use palisade_testkit::wait_until;
use serde_json::{Value, json};

use crate::cluster::{Cluster, EVENTUALLY, Said, allowed, alone, denied, lifting, shared, warned};
use crate::pods::{delete, delete_all, evict, going, keep_from_evictions, pods, ready, workload};

/// Longer than a slot is held in vain.
const EXPIRED: Duration = Duration::from_secs(100);

/// A flow control for one namespace, called like it.
async fn control(cluster: &Cluster, ns: &str, spec: &str) {
    let selector = format!("namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {ns}}}}}");
    cluster.apply(&manifest(ns, &format!("{selector}, {spec}"))).await;
}

fn manifest(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: policy.kruise.io/v1alpha1\nkind: PodDeletionFlowControl\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n"
    )
}

fn rule(interval: &str, limit: usize) -> String {
    format!("limitRules: [{{interval: {interval}, limit: {limit}}}]")
}

async fn status(cluster: &Cluster, name: &str) -> Value {
    let said = cluster.must(&format!("get pdfc {name} -o json")).await;
    serde_json::from_str::<Value>(&said).expect("JSON")["status"].clone()
}

/// How many count, by rule.
async fn used(cluster: &Cluster, name: &str) -> Vec<i64> {
    let status = status(cluster, name).await;
    let rules = status["rules"].as_array().cloned().unwrap_or_default();
    rules.iter().map(|rule| rule["used"].as_i64().unwrap_or(-1)).collect()
}

fn throttled(said: &Said, control: &str, numbers: &str) {
    denied(said, "TooManyRequests", &format!("flow control \"{control}\": {numbers}"));
}

#[test]
fn so_many_go_in_an_interval_and_the_refusal_says_how_to_lift_it() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 5, "").await;
        control(cluster, ns, &rule("10m", 2)).await;
        allowed(&delete(cluster, ns, "p0").await);
        allowed(&evict(cluster, ns, "p1", "").await);
        let refused = delete(cluster, ns, "p2").await;
        throttled(&refused, ns, "2 pods deleted in the last 10m (limit 2); next slot in ");
        assert!(refused.err.contains(&format!("pod \"{ns}/p2\" may not be deleted now: ")), "{refused:?}");
        throttled(&evict(cluster, ns, "p2", "").await, ns, "2 pods deleted in the last 10m (limit 2)");
        throttled(
            &cluster.kubectl(&format!("delete pod p2 -n {ns} --force --grace-period=0")).await,
            ns,
            "2 pods deleted in the last 10m (limit 2)",
        );
        let why = crate::command_line::palisade(cluster, &format!("why pod p2 -n {ns}")).await;
        let sentence = |text: &str| text.split("; next slot").next().unwrap_or_default().trim().to_owned();
        assert!(!why.ok && refused.err.contains(&sentence(&why.out)), "the same words: {why:?} {refused:?}");
        allowed(&delete(cluster, ns, "p0").await);
        assert_eq!(used(cluster, ns).await, [2], "what goes already costs nothing");
        assert!(cluster.shell(&lifting(&refused)).await.ok);
        warned(&delete(cluster, ns, "p2").await, "2 pods deleted in the last 10m (limit 2)");
        assert_eq!(used(cluster, ns).await, [3], "and counts");
    });
}

#[test]
fn a_forced_deletion_counts_once() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 3, "").await;
        control(cluster, ns, &rule("10m", 2)).await;
        for pod in ["p0", "p1"] {
            allowed_forced(
                &cluster.kubectl(&format!("delete pod {pod} -n {ns} --force --grace-period=0")).await,
            );
        }
        assert_eq!(used(cluster, ns).await, [2]);
        throttled(&delete(cluster, ns, "p2").await, ns, "2 pods deleted in the last 10m");
    });
}

#[test]
fn of_many_forced_deletions_at_once_exactly_as_many_are_admitted_as_are_allowed() {
    alone(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 60, "terminationGracePeriodSeconds: 0, ").await;
        control(cluster, ns, &rule("1h", 20)).await;
        let client = cluster.plane.impatient_client().await.expect("a client");
        let deletions = (0..60).map(|number| {
            let request = Request::delete(format!("/api/v1/namespaces/{ns}/pods/p{number}")).body(Vec::new());
            let client = client.clone();
            async move { client.request::<Value>(request.expect("a request")).await.is_ok() }
        });
        let admitted =
            futures::future::join_all(deletions).await.into_iter().filter(|admitted| *admitted).count();
        assert_eq!(admitted, 20, "each is asked about several times, and counts once");
        assert_eq!(used(cluster, ns).await, [20]);
    });
}

/// kubectl warns about force by itself.
fn allowed_forced(said: &Said) {
    assert!(said.ok, "should have worked: {said:?}");
}

#[test]
fn a_window_slides_and_all_rules_must_agree() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 8, "").await;
        let rules = "limitRules: [{interval: 15s, limit: 2}, {interval: 1m30s, limit: 3}, {interval: 1h, limit: 1000}]";
        control(cluster, ns, rules).await;
        let first = Instant::now();
        allowed(&delete(cluster, ns, "p0").await);
        tokio::time::sleep(Duration::from_secs(7)).await;
        allowed(&delete(cluster, ns, "p1").await);
        assert!(hint(cluster, ns, "p2", "jane").await > 0, "both count");
        // A client is told to wait if it is not for long, and kubectl does.
        allowed(&delete(cluster, ns, "p2").await);
        let waited = first.elapsed();
        assert!((15..40).contains(&waited.as_secs()), "the first is out after fifteen seconds: {waited:?}");
        throttled(
            &delete(cluster, ns, "p3").await,
            ns,
            "3 pods deleted in the last 1m30s (limit 3); next slot in 1m",
        );
        assert_eq!(used(cluster, ns).await, [2, 3, 3]);
    });
}

#[test]
fn what_counts_and_what_does_not() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        let pod = |name: &str, labels: &str, spec: &str| {
            format!(
                "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {ns}, labels: {{{labels}}}}}\n\
                 spec: {{{spec}containers: [{{name: app, image: example/app}}]}}\n"
            )
        };
        let all = [
            pod("listed", "xxx: foo", ""),
            pod("listed-too", "xxx: foo", ""),
            pod("other", "xxx: bar", ""),
            pod("pending", "", "nodeSelector: {no: where}, "),
            pod("done", "", "restartPolicy: Never, "),
            pod("failed", "", "restartPolicy: Never, "),
            pod("last", "", ""),
        ];
        cluster.apply(&all.concat()).await;
        cluster
            .must(&format!(
                "wait pod other listed done failed last -n {ns} --for=condition=Ready --timeout=60s"
            ))
            .await;
        for (name, phase) in [("done", "Succeeded"), ("failed", "Failed")] {
            let patch = json!({"status": {"phase": phase}}).to_string();
            let words = ["patch", "pod", name, "-n", ns, "--subresource=status", "-p", &patch];
            assert!(cluster.kubectl_with(words, "").await.ok);
        }
        let list = "whiteListSelector: {matchExpressions: [{key: xxx, operator: In, value: foo}]}";
        control(cluster, ns, &format!("{}, {list}", rule("1h", 2))).await;
        for pod in ["listed", "done", "failed"] {
            allowed(&delete(cluster, ns, pod).await);
        }
        assert!(matches!(used(cluster, ns).await[..], [] | [0]), "none of them counts");
        for _ in 0..3 {
            allowed(&cluster.kubectl(&format!("delete pod other -n {ns} --dry-run=server")).await);
            allowed(&evict(cluster, ns, "other", "?dryRun=All").await);
        }
        assert!(matches!(used(cluster, ns).await[..], [] | [0]), "nor does what does not happen");
        allowed(&delete(cluster, ns, "other").await);
        allowed(&delete(cluster, ns, "pending").await);
        throttled(&delete(cluster, ns, "last").await, ns, "2 pods deleted in the last 1h (limit 2)");
        throttled(
            &cluster.kubectl(&format!("delete pod last -n {ns} --dry-run=server")).await,
            ns,
            "2 pods deleted in the last 1h (limit 2)",
        );
        allowed(&evict(cluster, ns, "listed-too", "").await);
        allowed(&delete(cluster, ns, "other").await);
        assert_eq!(used(cluster, ns).await, [2]);
    });
}

#[test]
fn elsewhere_nobody_is_asked() {
    shared(async |cluster| {
        let (ns, other) = (&cluster.namespace().await, &cluster.namespace().await);
        pods(cluster, ns, 1, "").await;
        pods(cluster, other, 2, "").await;
        control(cluster, ns, &rule("1h", 0)).await;
        throttled(&delete(cluster, ns, "p0").await, ns, "it stops all deletions of pods (limit 0 in 1h)");
        allowed(&delete(cluster, other, "p0").await);
        allowed(&evict(cluster, other, "p1", "").await);
    });
}

#[test]
fn of_a_hundred_at_once_exactly_seven_are_admitted() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 100, "").await;
        control(cluster, ns, &rule("1h", 7)).await;
        assert_eq!(delete_all(cluster, ns, 100).await, 7, "from its very first moment on");
        assert_eq!(going(cluster, ns).await, 7);
        assert_eq!(used(cluster, ns).await, [7]);
        control(cluster, ns, &rule("1h", 9)).await;
        assert_eq!(delete_all(cluster, ns, 100).await, 7 + 2, "a changed limit keeps the count");
        assert_eq!(going(cluster, ns).await, 9);
    });
}

#[test]
fn who_is_exempt_is_counted_and_never_refused() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 6, "").await;
        let exempt =
            "exempt: {users: [jane], groups: [ops], serviceAccounts: [{namespace: tools, name: cleaner}]}";
        control(cluster, ns, &format!("{}, {exempt}", rule("1h", 1))).await;
        let by = async |who: &str, pod: &str| {
            let words = format!("delete pod {pod} -n {ns} --wait=false --as-group=system:masters {who}");
            cluster.kubectl(&words).await
        };
        allowed(&by("--as=jane", "p0").await);
        throttled(&by("--as=joe", "p1").await, ns, "1 pod deleted in the last 1h (limit 1)");
        allowed(&by("--as=joe --as-group=ops", "p1").await);
        allowed(&by("--as=system:serviceaccount:tools:cleaner", "p2").await);
        throttled(&by("--as=joe", "p3").await, ns, "3 pods deleted in the last 1h (limit 1)");
        assert_eq!(used(cluster, ns).await, [3]);
    });
}

#[test]
fn one_that_warns_or_records_lets_pass() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 4, "").await;
        control(cluster, ns, &format!("{}, action: Warn", rule("1h", 1))).await;
        allowed(&delete(cluster, ns, "p0").await);
        let dry = cluster.kubectl(&format!("delete pod p1 -n {ns} --dry-run=server")).await;
        warned(&dry, &format!("flow control \"{ns}\": 1 pod deleted in the last 1h (limit 1)"));
        warned(&delete(cluster, ns, "p1").await, "1 pod deleted in the last 1h (limit 1)");
        control(cluster, ns, &format!("{}, action: Audit", rule("1h", 1))).await;
        let audited = cluster.must(&format!("get pdfc {ns} -o jsonpath={{.spec.action}}")).await;
        assert_eq!(audited, "Audit");
        let silent = wait_until(EVENTUALLY, || async {
            let said = cluster.kubectl(&format!("delete pod p2 -n {ns} --dry-run=server")).await;
            said.ok && said.err.is_empty()
        });
        assert!(silent.await);
        allowed(&delete(cluster, ns, "p2").await);
        assert_eq!(used(cluster, ns).await, [3]);
        cluster
            .eventually_prints(&format!("get pdfc {ns} -o jsonpath={{.status.refusedLastHour}}"), |out| {
                out == "2"
            })
            .await;
    });
}

/// Deletes a pod without kubectl's patience, and returns for how many seconds the client is told to wait.
async fn hint(cluster: &Cluster, ns: &str, pod: &str, user: &str) -> u32 {
    let client = cluster.plane.impatient_client().await.expect("a client");
    let request = Request::delete(format!("/api/v1/namespaces/{ns}/pods/{pod}"))
        .header("Impersonate-User", user)
        .header("Impersonate-Group", "system:masters")
        .body(Vec::new())
        .expect("a request");
    let answer = client.request::<Value>(request).await;
    let Err(kube::Error::Api(status)) = answer else { panic!("should have been refused: {answer:?}") };
    assert_eq!((status.code, status.reason.as_str()), (429, "TooManyRequests"), "{status:?}");
    status.details.as_ref().map_or(0, |details| details.retry_after_seconds)
}

#[test]
fn who_is_told_to_wait() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 2, "").await;
        control(cluster, ns, &rule("9s", 1)).await;
        allowed(&delete(cluster, ns, "p0").await);
        let hints = [
            hint(cluster, ns, "p1", "jane").await,
            hint(cluster, ns, "p1", "system:kube-controller-manager").await,
            hint(cluster, ns, "p1", "system:serviceaccount:kube-system:replicaset-controller").await,
            hint(cluster, ns, "p1", "system:serviceaccount:kube-system:taint-eviction-controller").await,
        ];
        assert!((1..=10).contains(&hints[0]) && (1..=10).contains(&hints[3]), "{hints:?}");
        assert_eq!(hints[1..3], [0, 0], "controllers would keep others waiting");
        control(cluster, ns, &rule("1h", 1)).await;
        assert_eq!(hint(cluster, ns, "p1", "jane").await, 0, "not worth waiting for");
    });
}

#[test]
fn a_slot_comes_back_when_something_else_refuses() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 3, "").await;
        control(cluster, ns, &rule("1h", 1)).await;
        keep_from_evictions(cluster, ns, "app=web", 3).await;
        let refused = evict(cluster, ns, "p0", "").await;
        assert!(!refused.ok && refused.err.contains("disruption budget"), "{refused:?}");
        assert_eq!(used(cluster, ns).await, [1], "it was counted before it was refused");
        throttled(&delete(cluster, ns, "p1").await, ns, "1 pod deleted in the last 1h (limit 1)");
        let started = Instant::now();
        let back = wait_until(EXPIRED, || async { used(cluster, ns).await == [0] });
        assert!(back.await, "still counted after {:?}", started.elapsed());
        allowed(&delete(cluster, ns, "p1").await);
        assert_eq!(used(cluster, ns).await, [1]);
    });
}

#[test]
fn whoever_tries_again_and_again_does_not_hold_a_slot_for_ever() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 2, "").await;
        cluster.must(&format!("label pod p0 -n {ns} kept=yes")).await;
        control(cluster, ns, &rule("1h", 1)).await;
        keep_from_evictions(cluster, ns, "kept=yes", 1).await;
        let started = Instant::now();
        let freed = wait_until(Duration::from_secs(120), || async {
            assert!(!evict(cluster, ns, "p0", "").await.ok);
            tokio::time::sleep(Duration::from_secs(2)).await;
            delete(cluster, ns, "p1").await.ok
        });
        assert!(freed.await, "the slot is held since {:?}", started.elapsed());
    });
}

#[test]
fn budgets_and_flow_controls_are_charged_together_or_not_at_all() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 4, "").await;
        let budget = |limit: usize| {
            format!(
                "apiVersion: policy.kruise.io/v1alpha1\nkind: PodUnavailableBudget\nmetadata: {{name: web, namespace: {ns}}}\n\
                 spec: {{selector: {{app: web}}, maxUnavailable: {limit}}}\n"
            )
        };
        cluster.apply(&budget(1)).await;
        control(cluster, ns, &rule("1h", 2)).await;
        allowed(&delete(cluster, ns, "p0").await);
        let refused = delete(cluster, ns, "p1").await;
        denied(&refused, "TooManyRequests", "budget \"web\" allows 0 more unavailable pods now");
        assert!(!refused.err.contains("flow control"), "{refused:?}");
        assert_eq!(used(cluster, ns).await, [1], "what the budget refused does not count");
        cluster.apply(&budget(3)).await;
        control(cluster, ns, &rule("1h", 1)).await;
        let reserved =
            async || cluster.must(&format!("get pub web -n {ns} -o jsonpath={{.status.reservedAt}}")).await;
        cluster
            .eventually_prints(
                &format!("get pub web -n {ns} -o jsonpath={{.status.unavailableAllowed}}"),
                |out| out == "2",
            )
            .await;
        let refused = delete(cluster, ns, "p1").await;
        throttled(&refused, ns, "1 pod deleted in the last 1h (limit 1)");
        assert!(!refused.err.contains("budget"), "{refused:?}");
        assert_eq!(reserved().await, "", "what flow control refused is not reserved");
        cluster.apply(&budget(1)).await;
        let both = wait_until(EVENTUALLY, || async {
            let said = delete(cluster, ns, "p1").await;
            said.err.contains("flow control") && said.err.contains("budget \"web\"")
        });
        assert!(both.await, "both are told");
    });
}

#[test]
fn a_namespace_goes_at_the_allowed_pace() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 6, "terminationGracePeriodSeconds: 1, ").await;
        control(cluster, ns, &rule("5s", 2)).await;
        let started = Instant::now();
        cluster.must(&format!("delete namespace {ns} --timeout=80s")).await;
        assert!(started.elapsed() > Duration::from_secs(9), "three times two: {:?}", started.elapsed());
    });
}

#[test]
fn it_tells_when_a_limit_is_reached_and_when_there_is_room_again() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 3, "").await;
        control(cluster, ns, &rule("12s", 2)).await;
        let condition = |kind: &str| {
            format!("get pdfc {ns} -o jsonpath={{.status.conditions[?(@.type==\"{kind}\")].status}}")
        };
        cluster.eventually_prints(&condition("Enforced"), |out| out == "True").await;
        let metric = "palisade_flow_trips_total";
        let before = cluster.metric(0, metric).await + cluster.metric(1, metric).await;
        allowed(&delete(cluster, ns, "p0").await);
        allowed(&delete(cluster, ns, "p1").await);
        for _ in 0..3 {
            assert!(!evict(cluster, ns, "p2", "?dryRun=All").await.ok, "a dry run is not counted");
        }
        hint(cluster, ns, "p2", "jane").await;
        cluster.eventually_prints(&condition("Tripped"), |out| out == "True").await;
        let events = format!("get events -n default --field-selector involvedObject.name={ns} -o json");
        let said = async || {
            let list: Value = serde_json::from_str(&cluster.must(&events).await).expect("JSON");
            let items = list["items"].as_array().cloned().unwrap_or_default();
            let told = |event: &Value| format!("{} {}: {}", event["type"], event["reason"], event["message"]);
            // What it refuses is told by Events of their own.
            let limits = items.iter().filter(|event| event["reason"] != "DeletionRefused");
            limits.map(told).collect::<Vec<_>>()
        };
        let tripped = wait_until(EVENTUALLY, || async { !said().await.is_empty() });
        assert!(tripped.await, "an Event says so");
        assert_eq!(
            said().await,
            [
                "\"Warning\" \"LimitReached\": \"2 pods were deleted in the last 12s (limit 2): further deletions are refused\""
            ]
        );
        let shown = cluster.must(&format!("get pdfc {ns} -o wide")).await;
        let rows: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            rows[0],
            ["NAME", "USED", "INTERVAL", "REFUSED-1H", "ACTION", "ENFORCED", "AGE", "TRIPPED"]
        );
        assert_eq!(
            (&rows[1][..6], &rows[1][7..]),
            (&[ns.as_str(), "2/2", "12s", "1", "Deny", "True"][..], &["True"][..])
        );
        cluster.eventually_prints(&condition("Tripped"), |out| out == "False").await;
        let recovered = wait_until(EVENTUALLY, || async { said().await.len() == 2 });
        assert!(recovered.await, "an Event says so: {:?}", said().await);
        assert!(
            said()
                .await
                .iter()
                .any(|event| event.starts_with("\"Normal\" \"Recovered\": \"there is room again: "))
        );
        assert!(cluster.metric(0, metric).await + cluster.metric(1, metric).await > before);
        // There is room from the first slot on; the second comes as much later as its pod went.
        let emptied = wait_until(EVENTUALLY, || async {
            let rule = &status(cluster, ns).await["rules"][0];
            (&rule["used"], &rule["remaining"], &rule["nextSlotAt"]) == (&json!(0), &json!(2), &Value::Null)
        });
        assert!(emptied.await, "{}", status(cluster, ns).await);
    });
}

#[test]
fn what_makes_no_sense_is_refused_and_said() {
    shared(async |cluster| {
        let one = "limitRules: [{interval: 1m, limit: 1}]";
        let many = ["{interval: 1m, limit: 1}"; 9].join(", ");
        let cases = [
            ("limitRules: []", "should have at least 1 items"),
            ("action: Deny", "limitRules"),
            ("limitRules: [{limit: 1}]", "interval"),
            ("limitRules: [{interval: 1m}]", "limit"),
            ("limitRules: [{interval: 1d, limit: 1}]", "must be a duration between 1s and 24h"),
            ("limitRules: [{interval: soon, limit: 1}]", "must be a duration between 1s and 24h"),
            ("limitRules: [{interval: 60, limit: 1}]", "must be of type string"),
            ("limitRules: [{interval: '', limit: 1}]", "must be a duration between 1s and 24h"),
            ("limitRules: [{interval: 500ms, limit: 1}]", "must be a duration between 1s and 24h"),
            ("limitRules: [{interval: 25h, limit: 1}]", "must be a duration between 1s and 24h"),
            ("limitRules: [{interval: -1m, limit: 1}]", "must be a duration between 1s and 24h"),
            ("limitRules: [{interval: 1m, limit: -1}]", "greater than or equal to 0"),
            ("limitRules: [{interval: 1m, limit: 1.5}]", "must be of type integer"),
            ("limitRules: [{interval: 1m, limit: ten}]", "must be of type integer"),
            ("limitRules: [{interval: 1m, limit: 99999999999}]", "less than or equal to 2147483647"),
            ("limitRules: [{interval: 1m, limit: 1}, {interval: 1m, limit: 2}]", "contradict each other"),
            ("limitRules: [{interval: 1m, limit: 1}, {interval: 60s, limit: 1}]", "contradict each other"),
            (&format!("limitRules: [{many}]"), "must have at most 8 items"),
            (&format!("{one}, whiteListSelector: {{}}"), "should have at least 1 properties"),
            (
                &format!("{one}, whiteListSelector: {{matchLabels: {{}}}}"),
                "should have at least 1 properties",
            ),
            (&format!("{one}, whiteListSelector: {{matchExpressions: []}}"), "should have at least 1 items"),
            (
                &format!(
                    "{one}, whiteListSelector: {{matchExpressions: [{{key: a, operator: In, value: x, values: [z]}}]}}"
                ),
                "value and values are both given",
            ),
            (
                &format!("{one}, whiteListSelector: {{matchExpressions: [{{key: a, operator: In}}]}}"),
                "In and NotIn need values",
            ),
            (
                &format!(
                    "{one}, whiteListSelector: {{matchExpressions: [{{key: a, operator: Exists, value: x}}]}}"
                ),
                "In and NotIn need values",
            ),
            (
                &format!(
                    "{one}, whiteListSelector: {{matchExpressions: [{{key: a, operator: Equals, value: x}}]}}"
                ),
                "Unsupported value",
            ),
            (&format!("{one}, whiteListSelector: {{matchLabels: {{'a b': x}}}}"), "is no label key"),
            (
                &format!(
                    "{one}, namespaceSelector: {{matchExpressions: [{{key: a, operator: In, values: []}}]}}"
                ),
                "In and NotIn need values",
            ),
            (&format!("{one}, action: Refuse"), "Unsupported value"),
            (&format!("{one}, exempt: {{users: ['']}}"), "should be at least 1 chars long"),
            (&format!("{one}, limits: 5"), "unknown field"),
        ];
        for (spec, why) in cases {
            let said = cluster.kubectl_with(["create", "-f", "-"], &manifest("bad", spec)).await;
            assert!(!said.ok && said.err.contains(why), "{spec} should say \"{why}\": {said:?}");
        }
        assert!(!cluster.exists("pdfc bad").await);
    });
}

#[test]
fn a_limit_is_not_lost_while_replicas_and_the_api_server_die() {
    alone(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 60, "").await;
        control(cluster, ns, &rule("2m", 10)).await;
        let began = Instant::now();
        let killed = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let victim = cluster.palisade.process_id(0).to_string();
            let kill = std::process::Command::new("kill").args(["-9", &victim]).status();
            assert!(kill.is_ok_and(|status| status.success()));
        };
        let (admitted, ()) = tokio::join!(delete_all(cluster, ns, 60), killed);
        assert!(admitted <= 10, "{admitted} although one replica died");
        cluster.palisade.kill(1);
        cluster.plane.restart_apiserver().await.expect("it restarts");
        cluster.palisade.revive().expect("replicas start again");
        cluster.palisade.wait_ready().await.expect("replicas become ready again");
        // What the dead ones charged for nothing comes back, and not a slot more.
        let used_up = wait_until(Duration::from_secs(60), || async {
            cluster.kubectl(&format!("delete pod p0 p10 p20 p30 p40 p50 -n {ns} --wait=false")).await;
            status(cluster, ns).await["rules"][0]["used"] == 10 && going_or_gone(cluster, ns, 60).await == 10
        });
        assert!(used_up.await, "in the end all ten slots are used: {}", status(cluster, ns).await);
        throttled(&delete(cluster, ns, "p59").await, ns, "10 pods deleted in the last 2m (limit 10)");
        assert!(began.elapsed() < Duration::from_secs(115), "still in the first window");
        assert_eq!(going_or_gone(cluster, ns, 60).await, 10);
    });
}

async fn going_or_gone(cluster: &Cluster, ns: &str, count: usize) -> usize {
    let list: Value =
        serde_json::from_str(&cluster.must(&format!("get pods -n {ns} -o json")).await).expect("a list");
    let pods = list["items"].as_array().cloned().unwrap_or_default();
    count - pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).count()
}

/// The design's own example, with lower limits, for the whole cluster; and what Kubernetes itself does under it.
#[test]
fn the_whole_cluster_is_governed_and_nothing_else_stands_still() {
    alone(async |cluster| {
        // Those of other tests, of which there may be more than are told apart.
        cluster.must("delete pdfc --all").await;
        let (ns, other) = (&cluster.namespace().await, &cluster.namespace().await);
        workload(cluster, ns, "Deployment", 200).await;
        workload(cluster, other, "Deployment", 5).await;
        let seed = "limitRules: [{interval: 8s, limit: 50}, {interval: 10m, limit: 300}, {interval: 1h, limit: 1000}], \
                    whiteListSelector: {matchExpressions: [{key: xxx, operator: In, value: foo}]}";
        cluster.apply(&manifest("default", seed)).await;

        // A Deployment is collected at the allowed pace.
        let started = Instant::now();
        cluster.must(&format!("delete deployment web -n {ns}")).await;
        let gone =
            wait_until(Duration::from_secs(80), || async { going_or_gone(cluster, ns, 200).await == 200 });
        assert!(gone.await, "{} of 200 went", going_or_gone(cluster, ns, 200).await);
        let took = started.elapsed();
        assert!(took > Duration::from_secs(23), "four times fifty: {took:?}");

        // A drain waits for it.
        let node =
            cluster.must(&format!("get pods -n {other} -o jsonpath={{.items[0].spec.nodeName}}")).await;
        cluster.apply(&manifest("default", "limitRules: [{interval: 6s, limit: 1}]")).await;
        let on_node = format!("get pods -n {other} --field-selector=spec.nodeName={node} -o name");
        let count = cluster.must(&on_node).await.lines().count();
        tokio::time::sleep(Duration::from_secs(8)).await;
        let drain =
            format!("drain {node} --pod-selector=space={other} --force --ignore-daemonsets --timeout=85s");
        let started = Instant::now();
        let drained = cluster.kubectl(&drain).await;
        cluster.must(&format!("uncordon {node}")).await;
        assert!(drained.ok, "{drained:?}");
        let least = Duration::from_secs(6 * (count as u64 - 1));
        assert!(started.elapsed() >= least, "{count} pods, one in six seconds: {:?}", started.elapsed());

        // Controllers that are refused do not keep others waiting.
        for number in 0..6 {
            cluster
                .must(&format!("create deployment d{number} -n {other} --image=example/app --replicas=3"))
                .await;
        }
        ready(cluster, other).await;
        cluster.apply(&manifest("default", "limitRules: [{interval: 10m, limit: 0}]")).await;
        for number in 0..6 {
            cluster.must(&format!("scale deployment d{number} -n {other} --replicas=1")).await;
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        cluster.must(&format!("create deployment fresh -n {ns} --image=example/app")).await;
        let started = Instant::now();
        let there = wait_until(Duration::from_secs(5), || async {
            !cluster.must(&format!("get pods -n {ns} -l app=fresh -o name")).await.is_empty()
        });
        assert!(there.await, "no pod after {:?}", started.elapsed());

        // Lifted, they go.
        cluster.must("delete pdfc default").await;
        cluster
            .eventually_prints(
                &format!("get deployment d5 -n {other} -o jsonpath={{.status.replicas}}"),
                |out| out == "1",
            )
            .await;
        cluster
            .eventually_prints(
                "get validatingwebhookconfiguration palisade -o jsonpath={.webhooks[*].name}",
                |names| !names.split_whitespace().any(|name| name == "flow.palisade.dev"),
            )
            .await;
    });
}
