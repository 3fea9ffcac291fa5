//! Limited rights: the smallest role that the documentation recommends, and rights that are smaller than what is searched.

use std::collections::BTreeSet;

use palisade_testkit::{SERVICE_ACCOUNT, audit_log, wait_until};
use serde_json::Value;

use crate::cluster::{Cluster, EVENTUALLY, denied, lifting, palisade_binary, run, separate_with, warned};

const LABEL: &str = "policy.kruise.io/delete-protection";
const CRD: &str = "widgets.example.com";
/// As docs/running.md has it.
const SMALLEST: &str = "--search-groups=core";

async fn install_widgets(cluster: &Cluster, ns: &str) {
    cluster
        .apply(&format!(
            "{{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {{name: {CRD}, labels: \
             {{{LABEL}: Cascading}}}}, spec: {{group: example.com, scope: Namespaced, names: {{kind: Widget, plural: \
             widgets, singular: widget}}, versions: [{{name: v1, served: true, storage: true, schema: {{openAPIV3Schema: \
             {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}}}]}}}}"
        ))
        .await;
    cluster.must(&format!("wait crd/{CRD} --for=condition=Established --timeout=30s")).await;
    let widget = format!(
        "{{apiVersion: example.com/v1, kind: Widget, metadata: {{name: precious, namespace: {ns}, labels: {{{LABEL}: \
         Always}}, finalizers: [example.com/clean]}}}}"
    );
    let made =
        wait_until(EVENTUALLY, || async { cluster.kubectl_with(["apply", "-f", "-"], &widget).await.ok });
    assert!(made.await, "a widget could be made");
}

/// Policies of every kind that name widgets, and one that names what is searched.
async fn install_policies(cluster: &Cluster, ns: &str) {
    let protection = |name: &str, api_version: &str, kind: &str| {
        format!(
            "{{apiVersion: palisade.dev/v1alpha1, kind: ResourceDeletionProtection, metadata: {{name: {name}}}, spec: \
             {{protectedResources: [{{resourceSelector: [{{apiVersion: {api_version}, kind: {kind}, namespace: {ns}, name: \
             ruled}}]}}]}}}}"
        )
    };
    cluster.apply(&protection("outside", "example.com/v1", "Widget")).await;
    cluster.apply(&protection("inside", "v1", "ConfigMap")).await;
    cluster
        .apply(&format!(
            "{{apiVersion: palisade.dev/v1alpha1, kind: CriticalService, metadata: {{name: config}}, spec: {{provider: \
             {{resource: configmaps, namespace: {ns}, name: provider}}, criteria: [{{type: Finalizer, finalizer: {{group: \
             example.com, resource: widgets, finalizerName: example.com/clean}}}}]}}}}"
        ))
        .await;
    cluster
        .apply(
            "{apiVersion: palisade.dev/v1alpha1, kind: ComponentProtection, metadata: {name: widgets}, spec: {parent: \
             {apiVersion: example.com/v1, kind: Widget}, kinds: [{apiVersion: v1, kind: ConfigMap}], ownedByParent: true, \
             operators: [operator]}}",
        )
        .await;
}

async fn says_enforced(cluster: &Cluster, policy: &str, expected: &str) {
    let words = format!(
        "get {policy} -o jsonpath={{range.status.conditions[?(@.type=='Enforced')]}}{{.status}}/{{.reason}}/{{.message}}{{end}}"
    );
    cluster.eventually_prints(&words, |told| told.starts_with(expected)).await;
}

/// What Palisade asked for without a right, or of a group that it should leave alone.
fn wrong_requests(cluster: &Cluster) -> BTreeSet<String> {
    let log = std::fs::read_to_string(audit_log(cluster.plane.folder())).expect("an audit log");
    let mut wrong = BTreeSet::new();
    // The last line may not be whole yet.
    for event in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        assert_eq!(event["user"]["username"], SERVICE_ACCOUNT);
        let (group, resource) = (&event["objectRef"]["apiGroup"], &event["objectRef"]["resource"]);
        if event["responseStatus"]["code"] == 403 || *group == "example.com" {
            wrong.insert(format!("{} {resource} of {group}", event["verb"]));
        }
    }
    wrong
}

#[test]
fn with_the_smallest_role_everything_works_and_what_was_not_looked_at_is_named() {
    separate_with("search-groups", &[SMALLEST], async |cluster| {
        let rules = cluster.must("get clusterrole palisade-reader -o jsonpath={.rules}").await;
        assert_eq!(
            rules,
            r#"[{"apiGroups":["","palisade.dev","policy.kruise.io"],"resources":["*"],"verbs":["list","watch"]}]"#
        );
        let ns = &cluster.namespace().await;
        install_widgets(cluster, ns).await;
        install_policies(cluster, ns).await;

        // Protections say what holds of them.
        let left_out = "False/NotSearched/--search-groups leaves out example.com: ";
        says_enforced(cluster, "rdp outside", left_out).await;
        says_enforced(cluster, "crit config", left_out).await;
        says_enforced(cluster, "cprot widgets", left_out).await;
        says_enforced(cluster, "rdp inside", "True/Registered/").await;

        // A Namespace goes, with a warning, unless it holds something protected of a group that is searched.
        let delete = format!("delete namespace {ns} --dry-run=server");
        let said = cluster.kubectl(&delete).await;
        warned(&said, &format!("namespace \"{ns}\": not looked at, since --search-groups leaves them out: "));
        assert!(said.err.contains("example.com"), "{said:?}");
        let warning = said.err.lines().find(|line| line.contains("--search-groups")).unwrap_or_default();
        assert!(warning.len() <= "Warning: ".len() + 256, "{warning}");
        let why = ["why", "namespace", &**ns];
        let explained = run(&palisade_binary(), &cluster.plane.kubeconfig(), why, "").await;
        assert!(explained.ok && explained.err.contains(warning), "the same from why: {explained:?}");
        cluster.must(&format!("create configmap precious -n {ns}")).await;
        cluster.must(&format!("label configmap precious -n {ns} {LABEL}=Always")).await;
        let said = cluster.kubectl(&delete).await;
        denied(
            &said,
            "Forbidden",
            &format!("a protected object would go with it: configmap \"{ns}/precious\""),
        );

        // What the review itself carries is refused, whatever its group.
        denied(
            &cluster.kubectl(&format!("delete {CRD} precious -n {ns}")).await,
            "Forbidden",
            &format!("label {LABEL}=Always"),
        );
        // Cascading on a definition can't be known, and is no refusal for ever.
        warned(
            &cluster.kubectl(&format!("delete crd {CRD} --dry-run=server")).await,
            &format!("\"{CRD}\": not looked at, since --search-groups leaves it out: example.com"),
        );
        // A provider does not wait for what is not searched.
        cluster.must(&format!("create configmap provider -n {ns}")).await;
        warned(
            &cluster.kubectl(&format!("delete configmap provider -n {ns} --dry-run=server")).await,
            "not looked at, since --search-groups leaves it out: example.com",
        );

        a_budget_holds(cluster, ns).await;
        let wrong = wrong_requests(cluster);
        assert!(wrong.is_empty(), "{wrong:?}");
    });
}

/// Budgets need no more than the role always has: the Deployment says how many pods there should be.
async fn a_budget_holds(cluster: &Cluster, ns: &str) {
    cluster.must(&format!("create deployment web -n {ns} --image=example/app --replicas=2")).await;
    cluster.must(&format!("wait deployment/web -n {ns} --for=condition=Available --timeout=60s")).await;
    cluster
        .apply(&format!(
            "{{apiVersion: policy.kruise.io/v1alpha1, kind: PodUnavailableBudget, metadata: {{name: web, namespace: {ns}}}, \
             spec: {{targetRef: {{apiVersion: apps/v1, kind: Deployment, name: web}}, maxUnavailable: 0}}}}"
        ))
        .await;
    cluster
        .eventually_prints(&format!("get pub web -n {ns} -o jsonpath={{.status.totalReplicas}}"), |told| {
            told == "2"
        })
        .await;
    let pods = cluster.must(&format!("get pods -n {ns} -l app=web -o name")).await;
    let pod = pods.lines().next().unwrap_or_default();
    let said = cluster.kubectl(&format!("delete {pod} -n {ns} --dry-run=server")).await;
    denied(
        &said,
        "TooManyRequests",
        "budget \"web\" allows 0 more unavailable pods now (2 available, 2 desired, 2 total)",
    );
}

#[test]
fn rights_that_are_smaller_than_what_is_searched_are_named_with_the_command_that_grants_them() {
    separate_with("missing-rights", &["--search-groups=core,example.com"], async |cluster| {
        let ns = &cluster.namespace().await;
        let free = &cluster.namespace().await;
        install_widgets(cluster, ns).await;
        // Somebody grants less, and the replicas start with that.
        let narrow = format!(
            "{} manifests {SMALLEST} | kubectl apply --server-side --force-conflicts -f -",
            palisade_binary().display()
        );
        let said = cluster.shell(&narrow).await;
        assert!(said.ok, "{said:?}");
        for replica in 0..2 {
            cluster.palisade.kill(replica);
        }
        cluster.revive().await;

        let missing = "Palisade may not list widgets.example.com, and trying again does not change that.";
        let (namespace, definition) =
            (format!("delete namespace {ns} --dry-run=server"), format!("delete crd {CRD} --dry-run=server"));
        for delete in [&namespace, &format!("delete namespace {free} --dry-run=server"), &definition] {
            let said = cluster.kubectl(delete).await;
            denied(&said, "Forbidden", missing);
            assert!(!said.err.contains("Try again later"), "{said:?}");
        }
        let refused = cluster.kubectl(&definition).await;
        let command = lifting(&refused);
        for _ in 0..2 {
            let said = cluster.shell(&command).await;
            assert!(said.ok, "it can be pasted, and again: {said:?}");
        }
        let granted = wait_until(EVENTUALLY, || async {
            cluster
                .kubectl(&definition)
                .await
                .err
                .contains(&format!("1 custom resource ({CRD}): {ns}/precious"))
        });
        assert!(granted.await, "{:?}", cluster.kubectl(&definition).await);
        denied(
            &cluster.kubectl(&namespace).await,
            "Forbidden",
            &format!("a protected object would go with it: widget.example.com \"{ns}/precious\""),
        );
        let said = cluster.kubectl(&format!("delete namespace {free} --dry-run=server")).await;
        assert!(said.ok && !said.err.contains("example.com"), "{said:?}");
        // Also where all of them are missing.
        cluster.must("delete clusterrolebinding palisade-reader").await;
        let delete = format!("delete namespace {free} --dry-run=server");
        let refused = wait_until(EVENTUALLY, || async {
            cluster.kubectl(&delete).await.err.contains("Palisade may not list configmaps, ")
        });
        assert!(refused.await, "{:?}", cluster.kubectl(&delete).await);
        let said = cluster.shell(&lifting(&cluster.kubectl(&delete).await)).await;
        assert!(said.ok, "{said:?}");
        let granted = wait_until(EVENTUALLY, || async { cluster.kubectl(&delete).await.ok });
        assert!(granted.await, "{:?}", cluster.kubectl(&delete).await);
    });
}
