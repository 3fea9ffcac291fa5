//! Budgets that annotations ask for.

use serde_json::Value;

use crate::cluster::{Cluster, allowed, shared};
use crate::labels::definition;

const PUB: &str = "policy.kruise.io/generate-pub";
const PDB: &str = "policy.kruise.io/generate-pdb";

/// A workload of a kind, with annotations and the fields of its spec beside selector and template.
async fn workload(cluster: &Cluster, ns: &str, api: &str, kind: &str, annotations: &str, spec: &str) {
    cluster
        .apply(&format!(
            "apiVersion: {api}\nkind: {kind}\nmetadata:\n  name: web\n  namespace: {ns}\n  annotations: {{{annotations}}}\n\
             spec:\n  {spec}\n  selector: {{matchLabels: {{app: {ns}}}}}\n  template:\n    metadata: {{labels: {{app: {ns}}}}}\n    \
             spec: {{terminationGracePeriodSeconds: 1, containers: [{{name: app, image: example/app}}]}}\n"
        ))
        .await;
}

async fn deployment(cluster: &Cluster, ns: &str, annotations: &str) {
    workload(cluster, ns, "apps/v1", "Deployment", annotations, "replicas: 2").await;
}

/// Waits until the budget named web says this in its spec; `-` where there is none.
async fn says(cluster: &Cluster, ns: &str, flavour: &str, path: &str, expected: &str) {
    cluster
        .eventually_prints(&format!("get {flavour} web -n {ns} --ignore-not-found -o json"), |out| {
            let object: Value = serde_json::from_str(out).unwrap_or_default();
            let found = match object.pointer(path) {
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
                None => "-".to_owned(),
            };
            found == expected
        })
        .await;
}

async fn none(cluster: &Cluster, ns: &str, flavour: &str) {
    cluster
        .eventually_prints(&format!("get {flavour} web -n {ns} --ignore-not-found -o name"), str::is_empty)
        .await;
}

/// Long enough for something that must not happen.
async fn a_moment() {
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
}

/// Waits for a Warning about the workload.
async fn warns(cluster: &Cluster, ns: &str, reason: &str, text: &str) {
    let events = format!("get events -n {ns} --field-selector=reason={reason},type=Warning -o json");
    cluster
        .eventually_prints(&events, |out| {
            let list: Value = serde_json::from_str(out).unwrap_or_default();
            let events = list["items"].as_array().cloned().unwrap_or_default();
            events.iter().any(|event| {
                event["involvedObject"]["name"] == "web"
                    && event["message"].as_str().is_some_and(|said| said.contains(text))
            })
        })
        .await;
}

#[test]
fn each_kind_gets_both_budgets_by_its_annotations_or_its_strategy() {
    shared(async |cluster| {
        for (kind, plural, versions) in [
            ("CloneSet", "clonesets", &["v1alpha1", "v1beta1"][..]),
            ("StatefulSet", "statefulsets", &["v1alpha1", "v1beta1"]),
            ("UnitedDeployment", "uniteddeployments", &["v1alpha1"]),
        ] {
            cluster.apply(&definition("apps.kruise.io", kind, plural, "Namespaced", versions)).await;
            cluster.eventually(&format!("get --raw /apis/apps.kruise.io/v1alpha1/{plural}")).await;
        }
        let rolling =
            |field: &str, value: &str| format!("{{{field}: {{rollingUpdate: {{maxUnavailable: {value}}}}}}}");
        let flat = |object: String| object[1..object.len() - 1].to_owned();
        for (api, kind, strategy, expected) in [
            ("apps/v1", "Deployment", flat(rolling("strategy", "40%")), "40%"),
            ("apps/v1", "StatefulSet", "serviceName: web".to_owned(), "1"),
            ("apps/v1", "ReplicaSet", "minReadySeconds: 0".to_owned(), "1"),
            ("apps.kruise.io/v1alpha1", "CloneSet", "updateStrategy: {maxUnavailable: 3}".to_owned(), "3"),
            ("apps.kruise.io/v1alpha1", "StatefulSet", flat(rolling("updateStrategy", "30%")), "30%"),
            ("apps.kruise.io/v1alpha1", "UnitedDeployment", "revisionHistoryLimit: 2".to_owned(), "1"),
        ] {
            let ns = &cluster.namespace().await;
            let asks = format!("{PUB}: \"true\", {PUB}-maxUnavailable: \"20%\", {PDB}: \"true\"");
            workload(cluster, ns, api, kind, &asks, &format!("replicas: 2\n  {strategy}")).await;
            says(cluster, ns, "pub", "/spec/maxUnavailable", "20%").await;
            says(cluster, ns, "pub", "/spec/targetRef/kind", kind).await;
            says(cluster, ns, "pub", "/spec/targetRef/name", "web").await;
            says(cluster, ns, "pub", "/metadata/ownerReferences/0/kind", kind).await;
            says(cluster, ns, "pub", "/metadata/labels/palisade.dev~1generated", "true").await;
            says(cluster, ns, "pdb", "/spec/maxUnavailable", expected).await;
            says(cluster, ns, "pdb", "/spec/selector/matchLabels/app", ns).await;
            says(cluster, ns, "pdb", "/spec/unhealthyPodEvictionPolicy", "AlwaysAllow").await;
            says(cluster, ns, "pdb", "/metadata/labels/palisade.dev~1generated", "true").await;
            let shown = cluster.must(&format!("get pub -n {ns}")).await;
            assert!(shown.contains("GENERATED") && shown.contains("true"), "{shown}");
            // With its workload it goes.
            let resource = format!("{}.{}", kind.to_lowercase(), api.split('/').next().unwrap_or_default());
            cluster.must(&format!("delete {resource} web -n {ns} --wait=false")).await;
            none(cluster, ns, "pub").await;
            none(cluster, ns, "pdb").await;
        }
        united_deployments_go_by_their_templates_strategy(cluster).await;
    });
}

async fn united_deployments_go_by_their_templates_strategy(cluster: &Cluster) {
    let ns = &cluster.namespace().await;
    let rolling = |value: &str| format!("rollingUpdate: {{maxUnavailable: {value}}}");
    for (template, strategy, expected) in [
        ("cloneSetTemplate", "updateStrategy: {maxUnavailable: 4}".to_owned(), "4"),
        ("cloneSetTemplate", String::new(), "20%"),
        ("deploymentTemplate", format!("strategy: {{{}}}", rolling("30%")), "30%"),
        ("statefulSetTemplate", format!("updateStrategy: {{{}}}", rolling("3")), "3"),
        ("advancedStatefulSetTemplate", format!("updateStrategy: {{{}}}", rolling("40%")), "40%"),
    ] {
        // Without what the last one had: a template describes one workload.
        let _ = cluster.kubectl(&format!("delete uniteddeployment.apps.kruise.io web -n {ns}")).await;
        cluster
            .apply(&format!(
                "{{apiVersion: apps.kruise.io/v1alpha1, kind: UnitedDeployment, metadata: {{name: web, namespace: {ns}, \
                 annotations: {{{PUB}: \"true\", {PDB}: \"true\"}}}}, spec: {{replicas: 10, selector: {{matchLabels: {{app: {ns}}}}}, \
                 template: {{{template}: {{spec: {{{strategy}}}}}}}}}}}"
            ))
            .await;
        says(cluster, ns, "pub", "/spec/maxUnavailable", expected).await;
        says(cluster, ns, "pdb", "/spec/maxUnavailable", expected).await;
    }
}

#[test]
fn a_generated_budget_is_kept_in_step() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        deployment(cluster, ns, &format!("{PUB}: \"true\", {PDB}: \"true\", {PDB}-minAvailable: \"50%\""))
            .await;
        says(cluster, ns, "pub", "/spec/maxUnavailable", "25%").await;
        says(cluster, ns, "pdb", "/spec/minAvailable", "50%").await;
        // A changed strategy.
        let strategy = r#"{"spec":{"strategy":{"rollingUpdate":{"maxUnavailable":1}}}}"#;
        assert!(cluster.kubectl_with(["patch", "deployment", "web", "-n", ns, "-p", strategy], "").await.ok);
        says(cluster, ns, "pub", "/spec/maxUnavailable", "1").await;
        // A changed annotation: one number takes the other's place.
        cluster.must(&format!("annotate deployment web -n {ns} {PUB}-minAvailable=1 {PDB}-minAvailable- {PDB}-maxUnavailable=2")).await;
        says(cluster, ns, "pub", "/spec/minAvailable", "1").await;
        says(cluster, ns, "pub", "/spec/maxUnavailable", "-").await;
        says(cluster, ns, "pdb", "/spec/maxUnavailable", "2").await;
        // Edited by hand.
        for flavour in ["pub", "pdb"] {
            let edit = r#"{"spec":{"maxUnavailable":null,"minAvailable":0}}"#;
            assert!(
                cluster
                    .kubectl_with(["patch", flavour, "web", "-n", ns, "--type=merge", "-p", edit], "")
                    .await
                    .ok
            );
        }
        says(cluster, ns, "pub", "/spec/minAvailable", "1").await;
        says(cluster, ns, "pdb", "/spec/maxUnavailable", "2").await;
        cluster.must(&format!("label pub/web pdb/web -n {ns} palisade.dev/generated-")).await;
        says(cluster, ns, "pub", "/metadata/labels/palisade.dev~1generated", "true").await;
        says(cluster, ns, "pdb", "/metadata/labels/palisade.dev~1generated", "true").await;
        // Deleted by hand.
        let uid = cluster.must(&format!("get pub web -n {ns} -o jsonpath={{.metadata.uid}}")).await;
        cluster.must(&format!("delete pub/web pdb/web -n {ns}")).await;
        cluster
            .eventually_prints(
                &format!("get pub web -n {ns} --ignore-not-found -o jsonpath={{.metadata.uid}}"),
                |out| !out.is_empty() && out != uid,
            )
            .await;
        says(cluster, ns, "pdb", "/spec/maxUnavailable", "2").await;
        // Labels of others stay, and nothing more is written.
        cluster.must(&format!("label pub web -n {ns} team=shop")).await;
        a_moment().await;
        let before = cluster
            .must(&format!(
                "get pub web -n {ns} -o jsonpath={{.metadata.generation}}{{.metadata.labels.team}}"
            ))
            .await;
        a_moment().await;
        let after = cluster
            .must(&format!(
                "get pub web -n {ns} -o jsonpath={{.metadata.generation}}{{.metadata.labels.team}}"
            ))
            .await;
        assert_eq!((before.as_str(), before.ends_with("shop")), (after.as_str(), true));
        // The annotation is removed: so is the budget.
        cluster.must(&format!("annotate deployment web -n {ns} {PUB}-")).await;
        none(cluster, ns, "pub").await;
        says(cluster, ns, "pdb", "/spec/maxUnavailable", "2").await;
        cluster.must(&format!("annotate deployment web -n {ns} {PDB}=false --overwrite")).await;
        none(cluster, ns, "pdb").await;
    });
}

#[test]
fn a_replica_set_of_a_deployment_gets_none_of_its_own() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        deployment(cluster, ns, &format!("{PUB}: \"true\", {PDB}: \"true\"")).await;
        says(cluster, ns, "pub", "/spec/maxUnavailable", "25%").await;
        says(cluster, ns, "pdb", "/spec/maxUnavailable", "25%").await;
        a_moment().await;
        for flavour in ["pub", "pdb"] {
            let all = cluster.must(&format!("get {flavour} -n {ns} -o name")).await;
            assert_eq!(all.lines().count(), 1, "{all}");
        }
    });
}

#[test]
fn a_namespace_asks_for_all_that_do_not_say_otherwise() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        deployment(cluster, ns, "").await;
        none(cluster, ns, "pub").await;
        cluster.must(&format!("annotate namespace {ns} {PUB}=true {PUB}-maxUnavailable=30%")).await;
        says(cluster, ns, "pub", "/spec/maxUnavailable", "30%").await;
        cluster.must(&format!("annotate deployment web -n {ns} {PUB}-maxUnavailable=2")).await;
        says(cluster, ns, "pub", "/spec/maxUnavailable", "2").await;
        cluster.must(&format!("annotate deployment web -n {ns} {PUB}=false")).await;
        none(cluster, ns, "pub").await;
        cluster.must(&format!("annotate deployment web -n {ns} {PUB}- {PUB}-maxUnavailable-")).await;
        says(cluster, ns, "pub", "/spec/maxUnavailable", "30%").await;
        cluster.must(&format!("annotate namespace {ns} {PUB}- {PUB}-maxUnavailable-")).await;
        none(cluster, ns, "pub").await;
    });
}

#[test]
fn a_budget_that_somebody_else_made_is_left_alone() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        cluster
            .apply(&format!(
                "apiVersion: policy.kruise.io/v1alpha1\nkind: PodUnavailableBudget\nmetadata: {{name: web, namespace: {ns}}}\n\
                 spec: {{selector: {{app: mine}}, maxUnavailable: 7}}\n"
            ))
            .await;
        cluster.must(&format!("create pdb web -n {ns} --selector=app=mine --min-available=7")).await;
        deployment(cluster, ns, &format!("{PUB}: \"true\", {PDB}: \"true\"")).await;
        warns(cluster, ns, "BudgetNotOurs", "a PodUnavailableBudget \"web\" that was not generated for it")
            .await;
        warns(cluster, ns, "BudgetNotOurs", "a PodDisruptionBudget \"web\" that was not generated for it")
            .await;
        says(cluster, ns, "pub", "/spec/maxUnavailable", "7").await;
        says(cluster, ns, "pdb", "/spec/minAvailable", "7").await;
        cluster.must(&format!("annotate deployment web -n {ns} {PUB}- {PDB}-")).await;
        a_moment().await;
        says(cluster, ns, "pub", "/spec/maxUnavailable", "7").await;
        says(cluster, ns, "pdb", "/spec/minAvailable", "7").await;
    });
}

#[test]
fn a_value_that_makes_no_sense_is_told_and_the_last_good_budget_stays() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        deployment(cluster, ns, &format!("{PUB}: \"true\", {PUB}-maxUnavailable: \"1\"")).await;
        says(cluster, ns, "pub", "/spec/maxUnavailable", "1").await;
        for (annotations, why) in [
            (
                format!("{PUB}-maxUnavailable=150%"),
                "is \"150%\": write a number of 0 or more, or a percentage",
            ),
            (format!("{PUB}-maxUnavailable=-1"), "is \"-1\": write a number of 0 or more"),
            (format!("{PUB}-maxUnavailable=1 {PUB}-minAvailable=1"), "are both given: remove one of them"),
        ] {
            cluster.must(&format!("annotate deployment web -n {ns} --overwrite {annotations}")).await;
            warns(cluster, ns, "BadBudget", why).await;
            says(cluster, ns, "pub", "/spec/maxUnavailable", "1").await;
        }
        cluster.must(&format!("annotate deployment web -n {ns} {PUB}-maxUnavailable-")).await;
        says(cluster, ns, "pub", "/spec/minAvailable", "1").await;
        cluster.must(&format!("scale deployment web -n {ns} --replicas=1")).await;
        warns(cluster, ns, "BadBudget", "of a single replica that would block every eviction").await;
        says(cluster, ns, "pub", "/spec/minAvailable", "1").await;
    });
}

#[test]
fn neither_an_owner_nor_a_label_makes_a_budget_ours() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        deployment(cluster, ns, "").await;
        let uid = cluster.must(&format!("get deployment web -n {ns} -o jsonpath={{.metadata.uid}}")).await;
        cluster
            .apply(&format!(
                "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata:\n  name: web\n  namespace: {ns}\n  \
                 ownerReferences: [{{apiVersion: apps/v1, kind: Deployment, name: web, uid: {uid}, controller: true}}]\n\
                 spec: {{selector: {{matchLabels: {{app: {ns}}}}}, minAvailable: 1}}\n---\n\
                 apiVersion: policy.kruise.io/v1alpha1\nkind: PodUnavailableBudget\nmetadata:\n  name: web\n  namespace: {ns}\n  \
                 labels: {{palisade.dev/generated: \"true\"}}\nspec: {{selector: {{app: mine}}, maxUnavailable: 7}}\n"
            ))
            .await;
        cluster.must(&format!("annotate deployment web -n {ns} {PUB}=true {PDB}=true")).await;
        warns(cluster, ns, "BudgetNotOurs", "a PodUnavailableBudget \"web\"").await;
        warns(cluster, ns, "BudgetNotOurs", "a PodDisruptionBudget \"web\"").await;
        cluster.must(&format!("annotate deployment web -n {ns} {PUB}- {PDB}-")).await;
        a_moment().await;
        says(cluster, ns, "pub", "/spec/maxUnavailable", "7").await;
        says(cluster, ns, "pdb", "/spec/minAvailable", "1").await;
    });
}

#[test]
fn no_second_disruption_budget_is_put_over_pods_that_have_one() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        cluster.must(&format!("create pdb mine -n {ns} --selector=app={ns} --max-unavailable=1")).await;
        deployment(cluster, ns, &format!("{PDB}: \"true\", {PUB}: \"true\"")).await;
        warns(cluster, ns, "BudgetOverlaps", "PodDisruptionBudget \"mine\" covers its pods already").await;
        says(cluster, ns, "pub", "/spec/maxUnavailable", "25%").await;
        none(cluster, ns, "pdb").await;
        cluster.must(&format!("delete pdb mine -n {ns}")).await;
        says(cluster, ns, "pdb", "/spec/maxUnavailable", "25%").await;
    });
}

#[test]
fn a_budget_goes_with_a_workload_that_leaves_its_pods_behind() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        workload(
            cluster,
            ns,
            "apps/v1",
            "StatefulSet",
            &format!("{PUB}: \"true\", {PDB}: \"true\""),
            "replicas: 2\n  serviceName: web",
        )
        .await;
        says(cluster, ns, "pub", "/spec/maxUnavailable", "1").await;
        says(cluster, ns, "pdb", "/spec/maxUnavailable", "1").await;
        cluster.must(&format!("delete statefulset web -n {ns} --cascade=orphan")).await;
        none(cluster, ns, "pub").await;
        none(cluster, ns, "pdb").await;
    });
}

#[test]
fn what_the_api_server_will_not_have_is_told_and_the_other_budget_comes() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        cluster
            .must(&format!("create quota none -n {ns} --hard=count/podunavailablebudgets.policy.kruise.io=0"))
            .await;
        cluster
            .eventually_prints(&format!("get quota none -n {ns} -o jsonpath={{.status.hard}}"), |out| {
                out.contains("podunavailablebudgets")
            })
            .await;
        deployment(cluster, ns, &format!("{PDB}: \"true\", {PUB}: \"true\"")).await;
        says(cluster, ns, "pdb", "/spec/maxUnavailable", "25%").await;
        warns(cluster, ns, "CannotGenerate", "is forbidden").await;
        cluster.must(&format!("delete quota none -n {ns}")).await;
        says(cluster, ns, "pub", "/spec/maxUnavailable", "25%").await;
    });
}

#[test]
fn an_annotation_does_not_stop_whoever_drains_nodes() {
    shared(async |cluster| {
        for (annotation, value) in [
            ("maxUnavailable", "0"),
            ("maxUnavailable", "0%"),
            ("minAvailable", "100%"),
            ("minAvailable", "2"),
        ] {
            let ns = &cluster.namespace().await;
            let asks = |key: &str| format!("{key}: \"true\", {key}-{annotation}: \"{value}\"");
            deployment(cluster, ns, &format!("{}, {}", asks(PUB), asks(PDB))).await;
            for flavour in ["pub", "pdb"] {
                says(cluster, ns, flavour, "/spec/maxUnavailable", "1").await;
                says(cluster, ns, flavour, "/spec/minAvailable", "-").await;
            }
            warns(cluster, ns, "BudgetBounded", "--generated-budget-min-unavailable").await;
            cluster.must(&format!("rollout status deployment/web -n {ns} --timeout=60s")).await;
            cluster.must(&format!("wait pub/web -n {ns} --for=condition=Enforced --timeout=30s")).await;
            let pods =
                cluster.must(&format!("get pods -n {ns} -o jsonpath={{.items[*].metadata.name}}")).await;
            let pods: Vec<&str> = pods.split_whitespace().collect();
            let available = format!("get pub web -n {ns} -o jsonpath={{.status.unavailableAllowed}}");
            cluster.eventually_prints(&available, |out| out == "1").await;
            allowed(&cluster.kubectl(&format!("delete pod {} -n {ns} --wait=false", pods[0])).await);
        }
    });
}

#[test]
fn a_generated_budget_of_a_single_replica_lets_it_go() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        let asks = format!("{PUB}: \"true\", {PUB}-maxUnavailable: \"20%\"");
        workload(cluster, ns, "apps/v1", "Deployment", &asks, "replicas: 1").await;
        says(cluster, ns, "pub", "/spec/maxUnavailable", "20%").await;
        warns(cluster, ns, "BudgetBounded", "it lets 1 pod go").await;
        let allows = format!("get pub web -n {ns} -o jsonpath={{.status.unavailableAllowed}}");
        cluster.eventually_prints(&allows, |out| out == "1").await;
        // With more replicas it says what is written.
        cluster.must(&format!("scale deployment web -n {ns} --replicas=10")).await;
        cluster.eventually_prints(&allows, |out| out == "2").await;
    });
}
