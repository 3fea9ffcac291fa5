//! What would take a protected object down, end to end.

use palisade_testkit::wait_until;

use crate::cluster::{Cluster, EVENTUALLY, allowed, denied, lifting, shared, warned};
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
fn a_protected_object_in_a_terminating_namespace_stays_and_says_what_waits() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("create configmap late -n {ns}")).await;
        cluster.pod(&ns, "p").await;
        // Pods go first, and take their time: the rest is still there when it is protected.
        cluster.must(&format!("delete namespace {ns} --wait=false")).await;
        cluster.must(&format!("label configmap late -n {ns} {LABEL}=Always")).await;
        cluster.must(&format!("delete pod p -n {ns} --grace-period=1")).await;
        let said = cluster.kubectl(&format!("delete configmap late -n {ns}")).await;
        denied(&said, "Forbidden", &format!("Namespace \"{ns}\" is terminating, and waits for it."));
        allowed(&cluster.shell(&lifting(&said)).await);
        cluster.must(&format!("wait namespace/{ns} --for=delete --timeout=80s")).await;
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
        // What two selectors show counts once.
        let several = "c600 c601 c602 c603 c604 c605";
        let karmada = "resourcetemplate.karmada.io/deletion-protected";
        cluster.must(&format!("label configmap {several} -n {ns} {LABEL}=Always {karmada}=Always")).await;
        let said = cluster.kubectl(&format!("delete namespace {ns} --dry-run=server")).await;
        denied(&said, "Forbidden", ": 7 protected objects would go with it: ");
        allowed(&cluster.shell(&lifting(&said)).await);
        let marked = cluster.must(&format!("get configmap -n {ns} -l {karmada} -o name")).await;
        assert_eq!(marked, "");
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

/// A `ConfigMap` that is owned by others: `(apiVersion, kind, name, uid)`.
pub(crate) async fn owned(
    cluster: &Cluster,
    ns: &str,
    name: &str,
    labels: &str,
    owners: &[(&str, &str, &str, &str)],
) -> String {
    let owners: Vec<String> = owners
        .iter()
        .map(|(api, kind, name, uid)| {
            format!("{{apiVersion: {api}, kind: {kind}, name: {name}, uid: {uid}}}")
        })
        .collect();
    cluster
        .apply(&format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}, namespace: {ns}, labels: {{{labels}}}, \
             ownerReferences: [{}]}}}}",
            owners.join(", ")
        ))
        .await;
    cluster.must(&format!("get configmap {name} -n {ns} -o jsonpath={{.metadata.uid}}")).await
}

/// Prints every expression of the registration.
pub(crate) const EXPRESSIONS: &str =
    "get validatingwebhookconfiguration palisade -o jsonpath={.webhooks[*].matchConditions[*].expression}";

/// Waits until the registration knows an owner, by the first characters of its uid.
pub(crate) async fn known(cluster: &Cluster, uid: &str) {
    let prefix = format!("|{}", &uid[..8]);
    cluster.eventually_prints(EXPRESSIONS, |text| text.contains(&prefix)).await;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
}

#[test]
fn an_owner_stays_while_something_protected_would_be_collected_with_it() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let top = owned(cluster, &ns, "top", "", &[]).await;
        let middle = owned(cluster, &ns, "middle", "", &[("v1", "ConfigMap", "top", &top)]).await;
        let label = format!("{LABEL}: Always");
        owned(cluster, &ns, "kept", &label, &[("v1", "ConfigMap", "middle", &middle)]).await;
        known(cluster, &top).await;
        for owner in ["middle", "top"] {
            for how in ["", "--cascade=foreground", "--dry-run=server"] {
                let said =
                    cluster.kubectl(&format!("delete configmap {owner} -n {ns} {how} --wait=false")).await;
                let message = format!("a protected object would go with it: configmap \"{ns}/kept\"");
                denied(&said, "Forbidden", &message);
            }
            // The raw API without a propagation policy collects as well.
            let raw =
                cluster.kubectl(&format!("delete --raw /api/v1/namespaces/{ns}/configmaps/{owner}")).await;
            denied(&raw, "Forbidden", "kept");
            let orphan = format!("delete configmap {owner} -n {ns} --cascade=orphan --dry-run=server");
            allowed(&cluster.kubectl(&orphan).await);
        }
        let said = cluster.kubectl(&format!("delete configmap top -n {ns} --wait=false")).await;
        allowed(&cluster.shell(&lifting(&said)).await);
        allowed(
            &cluster
                .kubectl(&format!("delete configmap top -n {ns} --cascade=foreground --timeout=60s"))
                .await,
        );
        // Nothing of it blocks its owner, so the collector may come a moment later.
        let gone =
            wait_until(EVENTUALLY, || async { !cluster.exists(&format!("configmap kept -n {ns}")).await });
        assert!(gone.await, "all of it went");
    });
}

#[test]
fn an_owner_may_go_while_another_owner_stays() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let one = owned(cluster, &ns, "one", "", &[]).await;
        let two = owned(cluster, &ns, "two", "", &[]).await;
        let owners = [("v1", "ConfigMap", "one", one.as_str()), ("v1", "ConfigMap", "two", two.as_str())];
        owned(cluster, &ns, "kept", &format!("{LABEL}: Always"), &owners).await;
        known(cluster, &two).await;
        allowed(&cluster.kubectl(&format!("delete configmap one -n {ns}")).await);
        let said = cluster.kubectl(&format!("delete configmap two -n {ns} --wait=false")).await;
        denied(&said, "Forbidden", &format!("configmap \"{ns}/kept\""));
    });
}

#[test]
fn a_deployment_stays_while_a_rule_protects_its_pods() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("create deployment web --image=example/app --replicas=2 -n {ns}")).await;
        cluster.must(&format!("rollout status deployment web -n {ns} --timeout=30s")).await;
        let uid = cluster.must(&format!("get deployment web -n {ns} -o jsonpath={{.metadata.uid}}")).await;
        cluster
            .apply(&format!(
                "{{apiVersion: palisade.dev/v1alpha1, kind: ResourceDeletionProtection, metadata: {{name: {ns}}}, \
                 spec: {{protectedResources: [{{resourceSelector: [{{apiVersion: v1, kind: Pod, namespace: {ns}}}]}}]}}}}"
            ))
            .await;
        known(cluster, &uid).await;
        let said = cluster.kubectl(&format!("delete deployment web -n {ns} --wait=false")).await;
        denied(&said, "Forbidden", "2 protected objects would go with it: pod");
        let orphan = format!("delete deployment web -n {ns} --cascade=orphan --dry-run=server");
        allowed(&cluster.kubectl(&orphan).await);
        cluster.must(&format!("delete rdp {ns}")).await;
        let gone = wait_until(crate::cluster::SOON, || async {
            cluster.kubectl(&format!("delete deployment web -n {ns} --wait=false")).await.ok
        });
        assert!(gone.await);
    });
}

#[test]
fn a_job_orphans_its_dependents_where_nobody_says_otherwise() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let job = format!(
            "{{apiVersion: batch/v1, kind: Job, metadata: {{name: j, namespace: {ns}}}, spec: {{suspend: true, \
             template: {{spec: {{restartPolicy: Never, containers: [{{name: a, image: example/app}}]}}}}}}}}"
        );
        cluster.apply(&job).await;
        let uid = cluster.must(&format!("get job j -n {ns} -o jsonpath={{.metadata.uid}}")).await;
        owned(cluster, &ns, "kept", &format!("{LABEL}: Always"), &[("batch/v1", "Job", "j", &uid)]).await;
        known(cluster, &uid).await;
        denied(&cluster.kubectl(&format!("delete job j -n {ns} --wait=false")).await, "Forbidden", "kept");
        // By default the API orphans them.
        // (Kubernetes itself warns about that.)
        cluster.must(&format!("delete --raw /apis/batch/v1/namespaces/{ns}/jobs/j")).await;
        assert!(cluster.exists(&format!("configmap kept -n {ns}")).await);
    });
}

#[test]
fn an_owner_without_a_namespace_has_dependents_anywhere() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("create clusterrole owner-{ns} --verb=get --resource=pods")).await;
        let uid = cluster.must(&format!("get clusterrole owner-{ns} -o jsonpath={{.metadata.uid}}")).await;
        let name = format!("owner-{ns}");
        let owner = ("rbac.authorization.k8s.io/v1", "ClusterRole", name.as_str(), uid.as_str());
        owned(cluster, &ns, "kept", &format!("{LABEL}: Always"), &[owner]).await;
        known(cluster, &uid).await;
        let warning =
            format!("clusterrole \"owner-{ns}\" owns protected objects in namespaces, and they stay behind");
        warned(&cluster.kubectl(&format!("delete clusterrole owner-{ns} --dry-run=server")).await, &warning);
        // What has no namespace either is the administrators', too.
        cluster
            .apply(&format!(
                "{{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {{name: kept-{ns}, labels: \
                 {{{LABEL}: Always}}, ownerReferences: [{{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, \
                 name: owner-{ns}, uid: {uid}}}]}}, rules: []}}"
            ))
            .await;
        let delete = format!("delete clusterrole owner-{ns}");
        let kept = wait_until(EVENTUALLY, || async {
            !cluster.kubectl(&format!("{delete} --dry-run=server")).await.ok
        });
        assert!(kept.await);
        denied(&cluster.kubectl(&delete).await, "Forbidden", &format!("clusterrole \"kept-{ns}\""));
        cluster.must(&format!("label clusterrole kept-{ns} {LABEL}-")).await;
        warned(&cluster.kubectl(&delete).await, &warning);
    });
}
