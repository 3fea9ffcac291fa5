//! What would take a protected object down, end to end.

use crate::cluster::{allowed, denied, lifting, shared};
use crate::labels::definition;

const LABEL: &str = "policy.kruise.io/delete-protection";

#[test]
fn a_namespace_with_a_protected_object_stays_whole_and_goes_whole_once_lifted() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("create configmap kept -n {ns}")).await;
        cluster.must(&format!("create configmap free -n {ns}")).await;
        cluster.must(&format!("create secret generic s -n {ns}")).await;
        cluster.pod(&ns, "p").await;
        cluster.must(&format!("label configmap kept -n {ns} {LABEL}=Always")).await;
        let all = format!("get configmaps,secrets,pods,serviceaccounts -n {ns} -o name");
        let before = cluster.must(&all).await;
        for how in ["", "--dry-run=server", "--cascade=orphan", "--force --grace-period=0"] {
            let said = cluster.kubectl(&format!("delete namespace {ns} {how}")).await;
            denied(
                &said,
                "Forbidden",
                &format!(
                    "a protected object would go with it: configmap \"{ns}/kept\" (label {LABEL}=Always). Delete those first."
                ),
            );
        }
        denied(&cluster.kubectl(&format!("delete --raw /api/v1/namespaces/{ns}")).await, "Forbidden", "kept");
        assert_eq!(cluster.must(&all).await, before, "nothing in it was touched");

        let said = cluster.kubectl(&format!("delete namespace {ns}")).await;
        allowed(&cluster.shell(&lifting(&said)).await);
        cluster.must(&format!("delete pod p -n {ns} --grace-period=1")).await;
        allowed(&cluster.kubectl(&format!("delete namespace {ns} --timeout=60s")).await);
        assert!(!cluster.exists(&format!("namespace {ns}")).await, "nothing is stuck");
    });
}

#[test]
fn a_workload_that_cascades_guards_its_namespace_while_it_has_replicas() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("create deployment web --image=example/app --replicas=2 -n {ns}")).await;
        cluster
            .must(&format!(
                "annotate deployment web -n {ns} policy.kruise.io/disable-cascading-deletion=true"
            ))
            .await;
        let said = cluster.kubectl(&format!("delete namespace {ns}")).await;
        denied(&said, "Forbidden", "and it has 2 replicas");
        cluster.must(&format!("scale deployment web -n {ns} --replicas=0")).await;
        allowed(&cluster.kubectl(&format!("delete namespace {ns} --wait=false")).await);
    });
}

#[test]
fn what_is_already_going_does_not_hold_a_namespace() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster
            .apply(&format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: c, namespace: {ns}, finalizers: [example.com/hold]}}}}"))
            .await;
        cluster.must(&format!("delete configmap c -n {ns} --wait=false")).await;
        cluster.must(&format!("label configmap c -n {ns} {LABEL}=Always")).await;
        allowed(&cluster.kubectl(&format!("delete namespace {ns} --wait=false")).await);
        let patch = r#"[{"op":"remove","path":"/metadata/finalizers"}]"#;
        cluster.must(&format!("patch configmap c -n {ns} --type=json -p {patch}")).await;
        cluster.must(&format!("wait namespace/{ns} --for=delete --timeout=60s")).await;
    });
}

#[test]
fn a_definition_with_a_protected_custom_resource_stays() {
    shared(async |cluster| {
        let crd = "widgets.doomed.example.com";
        cluster
            .apply(&definition("doomed.example.com", "Widget", "widgets", "Namespaced", &["v1alpha1", "v1"]))
            .await;
        cluster.must(&format!("wait crd/{crd} --for=condition=Established --timeout=30s")).await;
        let ns = cluster.namespace().await;
        cluster.eventually(&format!("get {crd} -n {ns}")).await;
        for name in ["kept", "free"] {
            cluster
                .apply(&format!("{{apiVersion: doomed.example.com/v1alpha1, kind: Widget, metadata: {{name: {name}, namespace: {ns}}}}}"))
                .await;
        }
        cluster.must(&format!("label {crd} kept -n {ns} {LABEL}=Always")).await;
        for how in ["", "--cascade=orphan", "--dry-run=server"] {
            let said = cluster.kubectl(&format!("delete crd {crd} {how}")).await;
            denied(&said, "Forbidden", &format!("widget.doomed.example.com \"{ns}/kept\""));
        }
        assert_eq!(cluster.must(&format!("get {crd} -n {ns} -o name")).await.lines().count(), 2);
        let said = cluster.kubectl(&format!("delete crd {crd}")).await;
        allowed(&cluster.shell(&lifting(&said)).await);
        allowed(&cluster.kubectl(&format!("delete crd {crd} --timeout=60s")).await);
    });
}

#[test]
fn a_protected_object_behind_hundreds_of_others_is_found() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let maps: Vec<String> = (0..620)
            .map(|n| {
                format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: c{n:03}, namespace: {ns}}}}}")
            })
            .collect();
        cluster.kubectl_with(["create", "-f", "-"], &maps.join("\n---\n")).await;
        cluster.must(&format!("label configmap c610 -n {ns} {LABEL}=Always")).await;
        let said = cluster.kubectl(&format!("delete namespace {ns} --dry-run=server")).await;
        denied(&said, "Forbidden", &format!("configmap \"{ns}/c610\""));
        cluster.must(&format!("label configmap c610 -n {ns} {LABEL}-")).await;
        allowed(&cluster.kubectl(&format!("delete namespace {ns} --wait=false")).await);
    });
}

#[test]
fn our_own_definition_stays_while_there_are_protections() {
    shared(async |cluster| {
        cluster
            .apply(
                "{apiVersion: palisade.dev/v1alpha1, kind: ResourceDeletionProtection, metadata: {name: own}, \
                 spec: {protectedResources: [{resourceSelector: [{apiVersion: v1, kind: Secret, namespace: nowhere}]}]}}",
            )
            .await;
        let said = cluster.kubectl("delete crd resourcedeletionprotections.palisade.dev").await;
        denied(&said, "Forbidden", "every protection that it defines would vanish");
        cluster.must("delete rdp own").await;
    });
}
