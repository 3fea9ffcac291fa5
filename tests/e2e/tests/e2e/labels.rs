//! The label guard, row by row.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, EvictParams, Preconditions, PropagationPolicy};

use crate::cluster::{Cluster, allowed, denied, lifting, shared, warned};

const LABEL: &str = "policy.kruise.io/delete-protection";
const KARMADA: &str = "resourcetemplate.karmada.io/deletion-protected";
const DISABLE: &str = "policy.kruise.io/disable-cascading-deletion";

#[test]
fn a_namespace_with_always_stays_until_the_label_is_gone() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("label namespace {ns} {LABEL}=Always")).await;
        let said = cluster.kubectl(&format!("delete namespace {ns}")).await;
        let message = format!(
            "denied the request: namespace \"{ns}\" is protected from deletion: \
             label policy.kruise.io/delete-protection=Always. \
             To lift it: kubectl label namespace {ns} policy.kruise.io/delete-protection-"
        );
        denied(&said, "Forbidden", &message);
        let status = cluster.must(&format!("get namespace {ns} -o jsonpath={{.status.phase}}")).await;
        assert_eq!(status, "Active");
        allowed(&cluster.shell(&lifting(&said)).await);
        allowed(&cluster.kubectl(&format!("delete namespace {ns}")).await);
        assert!(!cluster.exists(&format!("namespace {ns}")).await);
    });
}

#[test]
fn karmadas_label_protects_with_always_and_nothing_else() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("create configmap c -n {ns}")).await;
        cluster.must(&format!("label configmap c -n {ns} {KARMADA}=Always")).await;
        let said = cluster.kubectl(&format!("delete configmap c -n {ns}")).await;
        denied(&said, "Forbidden", &format!("label {KARMADA}=Always"));
        cluster.must(&format!("label configmap c -n {ns} --overwrite {KARMADA}=Never")).await;
        allowed(&cluster.kubectl(&format!("delete configmap c -n {ns}")).await);
    });
}

#[test]
fn a_mistyped_value_protects_and_warns() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("create secret generic s -n {ns}")).await;
        cluster.must(&format!("label secret s -n {ns} {LABEL}=alway")).await;
        let said = cluster.kubectl(&format!("delete secret s -n {ns}")).await;
        denied(&said, "Forbidden", "not a known value, so it protects like Always");
        assert!(said.err.contains("Warning: ") && said.err.contains("known values are Always and Cascading"));
        allowed(&cluster.shell(&lifting(&said)).await);
        allowed(&cluster.kubectl(&format!("delete secret s -n {ns}")).await);
    });
}

#[test]
fn every_way_of_asking_kubectl_gets_the_same_answer() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.pod(&ns, "p").await;
        cluster.must(&format!("label pod p -n {ns} {LABEL}=Always")).await;
        let expected =
            format!("pod \"{ns}/p\" is protected from deletion: label {LABEL}=Always. To lift it: ");
        for how in [
            "",
            "--dry-run=server",
            "--force --grace-period=0",
            "--now",
            "--cascade=orphan",
            "--cascade=foreground",
        ] {
            denied(&cluster.kubectl(&format!("delete pod p -n {ns} {how}")).await, "Forbidden", &expected);
        }
        denied(&cluster.kubectl(&format!("delete pods --all -n {ns}")).await, "Forbidden", &expected);
        let raw = format!("delete --raw /api/v1/namespaces/{ns}/pods/p");
        denied(&cluster.kubectl(&raw).await, "Forbidden", &expected);
    });
}

#[test]
fn deletecollection_is_refused_by_the_object_that_is_protected() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        for name in ["a", "b", "c"] {
            cluster.must(&format!("create configmap {name} -n {ns}")).await;
        }
        cluster.must(&format!("label configmap b -n {ns} {LABEL}=Always")).await;
        let said = cluster.kubectl(&format!("delete --raw /api/v1/namespaces/{ns}/configmaps")).await;
        denied(&said, "Forbidden", &format!("configmap \"{ns}/b\" is protected from deletion"));
        assert!(cluster.exists(&format!("configmap b -n {ns}")).await);
        allowed(&cluster.shell(&lifting(&said)).await);
        allowed(&cluster.kubectl(&format!("delete --raw /api/v1/namespaces/{ns}/configmaps")).await);
        assert!(!cluster.exists(&format!("configmap b -n {ns}")).await);
    });
}

#[test]
fn kubectl_delete_all_deletes_what_is_not_protected() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("create configmap free -n {ns}")).await;
        cluster.must(&format!("create configmap kept -n {ns}")).await;
        cluster.must(&format!("label configmap kept -n {ns} {LABEL}=Always")).await;
        denied(&cluster.kubectl(&format!("delete configmaps --all -n {ns}")).await, "Forbidden", "kept");
        assert!(!cluster.exists(&format!("configmap free -n {ns}")).await);
        assert!(cluster.exists(&format!("configmap kept -n {ns}")).await);
    });
}

#[test]
fn a_client_gets_code_reason_and_causes() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("create configmap c -n {ns}")).await;
        cluster.must(&format!("label configmap c -n {ns} {LABEL}=Always")).await;
        let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), &ns);
        for parameters in [
            DeleteParams::default(),
            DeleteParams::default().dry_run(),
            DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() },
        ] {
            let Err(kube::Error::Api(status)) = maps.delete("c", &parameters).await else {
                panic!("should have been refused");
            };
            assert_eq!((status.code, status.reason.as_str()), (403, "Forbidden"));
            let causes = status.details.expect("details").causes;
            assert_eq!(causes[0].reason, "labels");
            assert_eq!(causes[0].message, format!("label {LABEL}=Always"));
        }
        let wrong = Preconditions { uid: Some("another".to_owned()), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(wrong), ..DeleteParams::default() };
        let Err(kube::Error::Api(status)) = maps.delete("c", &parameters).await else { panic!("a conflict") };
        assert_eq!(status.code, 409, "the API server's own checks come first");
    });
}

#[test]
fn what_is_already_going_may_be_deleted_again() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster
            .apply(&format!(
                "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: c, namespace: {ns}, finalizers: [example.com/hold]}}}}"
            ))
            .await;
        allowed(&cluster.kubectl(&format!("delete configmap c -n {ns} --wait=false")).await);
        cluster.must(&format!("label configmap c -n {ns} {LABEL}=Always")).await;
        allowed(&cluster.kubectl(&format!("delete configmap c -n {ns} --wait=false")).await);
        let patch = r#"[{"op":"remove","path":"/metadata/finalizers"}]"#;
        cluster.must(&format!("patch configmap c -n {ns} --type=json -p {patch}")).await;
        assert!(!cluster.exists(&format!("configmap c -n {ns}")).await);
    });
}

#[test]
fn a_pod_that_is_going_is_let_go_by_its_kubelet() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.pod(&ns, "p").await;
        cluster.must(&format!("delete pod p -n {ns} --grace-period=2 --wait=false")).await;
        cluster.must(&format!("label pod p -n {ns} {LABEL}=Always")).await;
        cluster.must(&format!("wait pod/p -n {ns} --for=delete --timeout=20s")).await;
    });
}

#[test]
fn a_namespace_with_cascading_stays_while_it_has_active_pods() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("label namespace {ns} {LABEL}=Cascading")).await;
        for pod in ["web-0", "web-1", "web-2"] {
            cluster.pod(&ns, pod).await;
        }
        for how in ["", "--dry-run=server", "--cascade=orphan"] {
            let said = cluster.kubectl(&format!("delete namespace {ns} {how}")).await;
            denied(&said, "Forbidden", "and it has 3 active pods: web-0, web-1, web-2. Delete those first.");
        }
        // Terminating pods are not active, and neither are those that have ended.
        cluster.must(&format!("delete pod web-0 web-1 -n {ns} --wait=false")).await;
        let ended = r#"{"status":{"phase":"Succeeded"}}"#;
        cluster.must(&format!("patch pod web-2 -n {ns} --subresource=status --type=merge -p {ended}")).await;
        allowed(&cluster.kubectl(&format!("delete namespace {ns} --wait=false")).await);
    });
}

#[test]
fn a_namespace_with_cascading_stays_while_it_has_bound_claims() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("annotate namespace {ns} {DISABLE}=true")).await;
        cluster
            .apply(&format!(
                r#"
apiVersion: v1
kind: PersistentVolume
metadata: {{name: "{ns}"}}
spec: {{capacity: {{storage: 1Gi}}, accessModes: [ReadWriteOnce], storageClassName: "{ns}", hostPath: {{path: /data}}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: data, namespace: "{ns}"}}
spec: {{accessModes: [ReadWriteOnce], storageClassName: "{ns}", resources: {{requests: {{storage: 1Gi}}}}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: waiting, namespace: "{ns}"}}
spec: {{accessModes: [ReadWriteOnce], storageClassName: none, resources: {{requests: {{storage: 1Gi}}}}}}
"#
            ))
            .await;
        let bound = format!("wait pvc/data -n {ns} --for=jsonpath={{.status.phase}}=Bound --timeout=30s");
        cluster.must(&bound).await;
        let said = cluster.kubectl(&format!("delete namespace {ns}")).await;
        denied(&said, "Forbidden", "and it has 1 bound persistent volume claim: data. Delete those first.");
        assert_eq!(lifting(&said), format!("kubectl annotate namespace {ns} {DISABLE}-"));
        cluster.must(&format!("delete pvc data -n {ns} --wait=false")).await;
        allowed(&cluster.kubectl(&format!("delete namespace {ns} --wait=false")).await);
        cluster.must(&format!("delete pv {ns} --wait=false")).await;
    });
}

#[test]
fn a_label_of_false_and_an_empty_namespace_protect_nothing() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.pod(&ns, "p").await;
        cluster.must(&format!("label namespace {ns} {DISABLE}=false")).await;
        allowed(&cluster.kubectl(&format!("delete namespace {ns} --wait=false")).await);
        let ns = cluster.namespace().await;
        cluster.must(&format!("label namespace {ns} {LABEL}=Cascading {DISABLE}=true")).await;
        allowed(&cluster.kubectl(&format!("delete namespace {ns} --wait=false")).await);
    });
}

/// The marks that ask for `Cascading`, as kubectl sets them, and the warning of those that are mistyped.
const CASCADING_MARKS: [(&str, &str, Option<&str>); 5] = [
    ("label", "policy.kruise.io/delete-protection=Cascading", None),
    ("label", "policy.kruise.io/disable-cascading-deletion=true", None),
    ("annotate", "policy.kruise.io/disable-cascading-deletion=true", None),
    ("label", "policy.kruise.io/disable-cascading-deletion=yes", Some("known values are true and false")),
    ("annotate", "policy.kruise.io/disable-cascading-deletion=on", Some("known values are true and false")),
];

async fn keeps_a_workload_while_it_has_replicas(
    cluster: &Cluster,
    resource: &str,
    manifest: impl Fn(&str) -> String,
) {
    let ns = cluster.namespace().await;
    cluster.apply(&manifest(&ns)).await;
    let scale = |replicas: &str| {
        let patch = format!(r#"{{"spec":{{"replicas":{replicas}}}}}"#);
        format!("patch {resource} web -n {ns} --type=merge -p {patch}")
    };
    for (verb, mark, warning) in CASCADING_MARKS {
        cluster.must(&format!("{verb} {resource} web -n {ns} {mark}")).await;
        for how in ["", "--cascade=orphan", "--dry-run=server"] {
            let said = cluster.kubectl(&format!("delete {resource} web -n {ns} {how}")).await;
            denied(&said, "Forbidden", &format!("{mark}, and it has 2 replicas. Scale it to 0 first."));
            assert!(warning.is_none_or(|warning| said.err.contains(warning)), "{said:?}");
        }
        cluster.must(&scale("0")).await;
        allowed_or_warned(
            &cluster.kubectl(&format!("delete {resource} web -n {ns} --dry-run=server")).await,
            warning,
        );
        cluster.must(&scale("2")).await;
        let said = cluster.kubectl(&format!("delete {resource} web -n {ns}")).await;
        allowed(&cluster.shell(&lifting(&said)).await);
    }
    cluster.must(&format!("label {resource} web -n {ns} {DISABLE}=false")).await;
    cluster.must(&format!("annotate {resource} web -n {ns} {DISABLE}=false")).await;
    allowed(&cluster.kubectl(&format!("delete {resource} web -n {ns} --dry-run=server")).await);
    cluster.must(&format!("label {resource} web -n {ns} {LABEL}=Always")).await;
    cluster.must(&scale("0")).await;
    let said = cluster.kubectl(&format!("delete {resource} web -n {ns}")).await;
    denied(&said, "Forbidden", &format!("To lift it: kubectl label {resource} web -n {ns} {LABEL}-"));
    allowed(&cluster.shell(&lifting(&said)).await);
    allowed(&cluster.kubectl(&format!("delete {resource} web -n {ns} --wait=false")).await);
}

#[track_caller]
fn allowed_or_warned(said: &crate::cluster::Said, warning: Option<&str>) {
    match warning {
        None => allowed(said),
        Some(warning) => warned(said, warning),
    }
}

fn built_in(kind: &'static str) -> impl Fn(&str) -> String {
    move |ns| {
        let service = if kind == "StatefulSet" { "serviceName: web, " } else { "" };
        format!(
            "{{apiVersion: apps/v1, kind: {kind}, metadata: {{name: web, namespace: {ns}}}, spec: {{replicas: 2, {service}\
             selector: {{matchLabels: {{app: web}}}}, template: {{metadata: {{labels: {{app: web}}}}, \
             spec: {{containers: [{{name: a, image: example/app}}]}}}}}}}}"
        )
    }
}

#[test]
fn deployments() {
    shared(async |cluster| {
        keeps_a_workload_while_it_has_replicas(cluster, "deployments.apps", built_in("Deployment")).await;
    });
}

#[test]
fn statefulsets() {
    shared(async |cluster| {
        keeps_a_workload_while_it_has_replicas(cluster, "statefulsets.apps", built_in("StatefulSet")).await;
    });
}

#[test]
fn replicasets() {
    shared(async |cluster| {
        keeps_a_workload_while_it_has_replicas(cluster, "replicasets.apps", built_in("ReplicaSet")).await;
    });
}

/// A `CustomResourceDefinition` whose versions are all served, the last one stored.
pub(crate) fn definition(group: &str, kind: &str, plural: &str, scope: &str, versions: &[&str]) -> String {
    let stored = versions.last().copied();
    let versions: Vec<String> = versions
        .iter()
        .map(|version| {
            format!(
                "{{name: {version}, served: true, storage: {}, schema: {{openAPIV3Schema: {{type: object, \
                 x-kubernetes-preserve-unknown-fields: true}}}}}}",
                Some(*version) == stored
            )
        })
        .collect();
    format!(
        "{{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {{name: {plural}.{group}}}, \
         spec: {{group: {group}, scope: {scope}, names: {{kind: {kind}, plural: {plural}, singular: {}}}, \
         versions: [{}]}}}}",
        kind.to_lowercase(),
        versions.join(", ")
    )
}

async fn kruise(cluster: &Cluster, kind: &'static str, plural: &str, versions: &[&'static str]) {
    cluster.apply(&definition("apps.kruise.io", kind, plural, "Namespaced", versions)).await;
    let resource = format!("{plural}.apps.kruise.io");
    cluster.must(&format!("wait crd/{resource} --for=condition=Established --timeout=30s")).await;
    for version in versions {
        cluster.eventually(&format!("get --raw /apis/apps.kruise.io/{version}/{plural}")).await;
        let manifest = move |ns: &str| {
            format!(
                "{{apiVersion: apps.kruise.io/{version}, kind: {kind}, metadata: {{name: web, namespace: {ns}}}, \
                 spec: {{replicas: 2}}}}"
            )
        };
        // One that cascades guards its definition, too, while it has replicas.
        let ns = cluster.namespace().await;
        cluster.apply(&manifest(&ns)).await;
        cluster.must(&format!("label {resource} web -n {ns} {LABEL}=Cascading")).await;
        let said = cluster.kubectl(&format!("delete crd {resource} --dry-run=server")).await;
        denied(&said, "Forbidden", &format!("\"{ns}/web\" (label {LABEL}=Cascading, and it has 2 replicas)"));
        cluster.must(&format!("label {resource} web -n {ns} {LABEL}-")).await;
        keeps_a_workload_while_it_has_replicas(cluster, &resource, manifest).await;
    }
}

#[test]
fn clonesets_of_kruise() {
    shared(async |cluster| kruise(cluster, "CloneSet", "clonesets", &["v1alpha1", "v1beta1"]).await);
}

#[test]
fn statefulsets_of_kruise() {
    shared(async |cluster| kruise(cluster, "StatefulSet", "statefulsets", &["v1alpha1", "v1beta1"]).await);
}

#[test]
fn uniteddeployments_of_kruise() {
    shared(async |cluster| kruise(cluster, "UnitedDeployment", "uniteddeployments", &["v1alpha1"]).await);
}

#[test]
fn a_kind_of_the_same_name_in_another_group_is_no_workload() {
    shared(async |cluster| {
        let group = "unset.example.com";
        // Only Kruise's and Kubernetes' own workloads have replicas without a scale: this one owns nothing, and goes.
        cluster.apply(&definition(group, "Deployment", "deployments", "Namespaced", &["v1"])).await;
        cluster
            .must(&format!("wait crd/deployments.{group} --for=condition=Established --timeout=30s"))
            .await;
        let ns = cluster.namespace().await;
        cluster.eventually(&format!("get deployments.{group} -n {ns}")).await;
        cluster
            .apply(&format!(
                "{{apiVersion: {group}/v1, kind: Deployment, metadata: {{name: web, namespace: {ns}, \
                 labels: {{{LABEL}: Cascading}}}}, spec: a sentence}}"
            ))
            .await;
        let said = cluster.kubectl(&format!("delete deployments.{group} web -n {ns}")).await;
        allowed(&said);
    });
}

#[test]
fn a_definition_with_cascading_stays_while_it_has_custom_resources() {
    shared(async |cluster| {
        let crd = "widgets.cascading.example.com";
        cluster
            .apply(&definition(
                "cascading.example.com",
                "Widget",
                "widgets",
                "Namespaced",
                &["v1alpha1", "v1"],
            ))
            .await;
        cluster.must(&format!("wait crd/{crd} --for=condition=Established --timeout=30s")).await;
        let ns = cluster.namespace().await;
        cluster.eventually(&format!("get {crd} -n {ns}")).await;
        let widget = |name: &str, finalizers: &str| {
            format!(
                "{{apiVersion: cascading.example.com/v1alpha1, kind: Widget, metadata: {{name: {name}, namespace: {ns}, \
                 finalizers: [{finalizers}]}}}}"
            )
        };
        cluster.apply(&widget("a", "")).await;
        cluster.apply(&widget("held", "example.com/hold")).await;
        cluster.must(&format!("label crd {crd} {LABEL}=Cascading")).await;
        let said = cluster.kubectl(&format!("delete crd {crd}")).await;
        denied(&said, "Forbidden", &format!("and it has 2 custom resources ({crd}): {ns}/a, {ns}/held."));
        let orphan = cluster.kubectl(&format!("delete crd {crd} --cascade=orphan")).await;
        denied(&orphan, "Forbidden", "2 custom resources");
        cluster.must(&format!("delete {crd} a -n {ns}")).await;
        denied(&cluster.kubectl(&format!("delete crd {crd}")).await, "Forbidden", "1 custom resource");
        // One that is terminating does not count.
        cluster.must(&format!("delete {crd} held -n {ns} --wait=false")).await;
        allowed(&cluster.kubectl(&format!("delete crd {crd} --dry-run=server")).await);
        // With no served version nobody can tell.
        let unserve = r#"[{"op":"replace","path":"/spec/versions/0/served","value":false},{"op":"replace","path":"/spec/versions/1/served","value":false}]"#;
        cluster.must(&format!("patch crd {crd} --type=json -p {unserve}")).await;
        let said = cluster.kubectl(&format!("delete crd {crd}")).await;
        denied(
            &said,
            "ServiceUnavailable",
            "its custom resources could not be found out (none of its versions is served)",
        );
        // The printed command lifts the label, and has a version served: what it holds could be protected, too.
        allowed(&cluster.shell(&lifting(&said)).await);
        let gone = palisade_testkit::wait_until(crate::cluster::SOON, || async {
            cluster.kubectl(&format!("delete crd {crd} --wait=false")).await.ok
        });
        assert!(gone.await);
    });
}

#[test]
fn cluster_scoped_custom_resources_count_too() {
    shared(async |cluster| {
        let crd = "gadgets.scoped.example.com";
        cluster.apply(&definition("scoped.example.com", "Gadget", "gadgets", "Cluster", &["v1"])).await;
        cluster.must(&format!("wait crd/{crd} --for=condition=Established --timeout=30s")).await;
        cluster.eventually(&format!("get {crd}")).await;
        cluster.apply("{apiVersion: scoped.example.com/v1, kind: Gadget, metadata: {name: one}}").await;
        cluster.must(&format!("annotate crd {crd} {DISABLE}=true")).await;
        denied(&cluster.kubectl(&format!("delete crd {crd}")).await, "Forbidden", &format!("({crd}): one."));
        cluster.must(&format!("delete {crd} one")).await;
        allowed(&cluster.kubectl(&format!("delete crd {crd}")).await);
    });
}

#[test]
fn a_protected_custom_resource_stays_whatever_its_version() {
    shared(async |cluster| {
        let crd = "things.versions.example.com";
        cluster
            .apply(&definition(
                "versions.example.com",
                "Thing",
                "things",
                "Namespaced",
                &["v1alpha1", "v1beta1", "v1"],
            ))
            .await;
        cluster.must(&format!("wait crd/{crd} --for=condition=Established --timeout=30s")).await;
        let ns = cluster.namespace().await;
        cluster.eventually(&format!("get {crd} -n {ns}")).await;
        cluster
            .apply(&format!(
                "{{apiVersion: versions.example.com/v1beta1, kind: Thing, metadata: {{name: one, namespace: {ns}, \
                 labels: {{{LABEL}: Always}}}}}}"
            ))
            .await;
        for version in ["v1alpha1", "v1beta1", "v1"] {
            let path = format!("/apis/versions.example.com/{version}/namespaces/{ns}/things/one");
            denied(
                &cluster.kubectl(&format!("delete --raw {path}")).await,
                "Forbidden",
                &format!("thing.versions.example.com \"{ns}/one\" is protected from deletion"),
            );
        }
    });
}

#[test]
fn an_annotated_deployment_goes_whole_once_the_annotation_is_lifted() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("create deployment web --image=example/app --replicas=2 -n {ns}")).await;
        cluster.must(&format!("annotate deployment web -n {ns} {DISABLE}=true")).await;
        // Its controller copies the annotation to the ReplicaSet, and leaves it there.
        cluster
            .eventually_prints(
                &format!("get replicasets -n {ns} -o jsonpath={{.items[*].metadata.annotations}}"),
                |text| text.contains(DISABLE),
            )
            .await;
        let said = cluster.kubectl(&format!("delete deployment web -n {ns}")).await;
        allowed(&cluster.shell(&lifting(&said)).await);
        allowed(
            &cluster
                .kubectl(&format!("delete deployment web -n {ns} --cascade=foreground --timeout=60s"))
                .await,
        );
    });
}

#[test]
fn names_that_are_hard_to_type_are_lifted_as_printed() {
    shared(async |cluster| {
        for name in ["system:hard", "-hard", "hard-", "hard=er", "it's hard"] {
            let role = serde_json::json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": {"name": name, "labels": {LABEL: "Always"}}});
            cluster.apply(&role.to_string()).await;
            let delete = ["delete", "clusterrole", "--", name];
            let said = cluster.kubectl_with(delete, "").await;
            denied(&said, "Forbidden", LABEL);
            allowed(&cluster.shell(&lifting(&said)).await);
            allowed(&cluster.kubectl_with(delete, "").await);
        }
    });
}

#[test]
fn any_kind_can_be_protected() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        for (create, resource) in [
            (format!("create serviceaccount x -n {ns}"), format!("serviceaccount x -n {ns}")),
            (
                format!("create role x --verb=get --resource=pods -n {ns}"),
                format!("roles.rbac.authorization.k8s.io x -n {ns}"),
            ),
            (
                format!("create clusterrole x-{ns} --verb=get --resource=pods"),
                format!("clusterroles.rbac.authorization.k8s.io x-{ns}"),
            ),
            (format!("create job x --image=example/app -n {ns}"), format!("jobs.batch x -n {ns}")),
            (format!("create quota x -n {ns}"), format!("resourcequota x -n {ns}")),
            (
                format!("create priorityclass x-{ns} --value=1"),
                format!("priorityclasses.scheduling.k8s.io x-{ns}"),
            ),
            (
                format!("create ingress x --rule=a/b=c:80 -n {ns}"),
                format!("ingresses.networking.k8s.io x -n {ns}"),
            ),
        ] {
            cluster.must(&create).await;
            cluster.must(&format!("label {resource} {LABEL}=Always")).await;
            let said = cluster.kubectl(&format!("delete {resource}")).await;
            denied(&said, "Forbidden", &format!("To lift it: kubectl label {resource} {LABEL}-"));
            allowed(&cluster.shell(&lifting(&said)).await);
            allowed(&cluster.kubectl(&format!("delete {resource} --wait=false")).await);
        }
    });
}

#[test]
fn kube_system_can_be_protected_and_palisades_own_namespace_is_never_blocked() {
    shared(async |cluster| {
        cluster.must("create configmap protected -n kube-system").await;
        cluster.must(&format!("label configmap protected -n kube-system {LABEL}=Always")).await;
        denied(&cluster.kubectl("delete configmap protected -n kube-system").await, "Forbidden", LABEL);
        cluster.must(&format!("label configmap protected -n kube-system {LABEL}-")).await;
        cluster.must("delete configmap protected -n kube-system").await;

        cluster.must("create configmap ours -n palisade-system").await;
        cluster.must(&format!("label configmap ours -n palisade-system {LABEL}=Always")).await;
        allowed(&cluster.kubectl("delete configmap ours -n palisade-system").await);
        cluster.must(&format!("label namespace palisade-system {LABEL}=Always")).await;
        allowed(&cluster.kubectl("delete namespace palisade-system --dry-run=server").await);
        cluster.must(&format!("label namespace palisade-system {LABEL}-")).await;
    });
}

pub(crate) async fn evict(cluster: &Cluster, ns: &str, pod: &str, query: &str) -> crate::cluster::Said {
    let eviction = format!(
        r#"{{"apiVersion":"policy/v1","kind":"Eviction","metadata":{{"name":"{pod}","namespace":"{ns}"}}}}"#
    );
    let path = format!("/api/v1/namespaces/{ns}/pods/{pod}/eviction{query}");
    cluster.kubectl_with(["create", "--raw", &path, "-f", "-"], &eviction).await
}

#[test]
fn a_protected_pod_is_not_evicted() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.pod(&ns, "kept").await;
        cluster.pod(&ns, "free").await;
        cluster.must(&format!("label pod kept -n {ns} {LABEL}=Always")).await;
        // The rule for this namespace is registered within a moment.
        cluster
            .eventually_prints(
                "get validatingwebhookconfiguration palisade -o jsonpath={.webhooks[*].namespaceSelector}",
                |text| text.contains(&format!("\"{ns}\"")),
            )
            .await;
        let message = format!(
            "pod \"{ns}/kept\" is protected from deletion: label {LABEL}=Always. \
             To lift it: kubectl label pod kept -n {ns} {LABEL}-"
        );
        let refused = palisade_testkit::wait_until(crate::cluster::SOON, || async {
            !evict(cluster, &ns, "kept", "?dryRun=All").await.ok
        });
        assert!(refused.await, "the API server takes the new rule up");
        denied(&evict(cluster, &ns, "kept", "").await, "Forbidden", &message);
        denied(&evict(cluster, &ns, "kept", "?dryRun=All").await, "Forbidden", &message);
        let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(cluster.client.clone(), &ns);
        let parameters =
            EvictParams { delete_options: Some(DeleteParams::default().dry_run()), ..EvictParams::default() };
        let Err(kube::Error::Api(status)) = pods.evict("kept", &parameters).await else { panic!("refused") };
        assert_eq!((status.code, status.reason.as_str()), (403, "Forbidden"));
        allowed(&evict(cluster, &ns, "free", "").await);
        let gone = evict(cluster, &ns, "nobody", "").await;
        assert!(gone.err.contains("NotFound"), "{gone:?}");
        cluster.must(&format!("label pod kept -n {ns} {LABEL}-")).await;
        allowed(&evict(cluster, &ns, "kept", "").await);
        cluster
            .eventually_prints(
                "get validatingwebhookconfiguration palisade -o jsonpath={.webhooks[*].namespaceSelector}",
                |text| !text.contains(&format!("\"{ns}\"")),
            )
            .await;
    });
}

#[test]
fn a_deletion_of_something_unlabelled_never_reaches_palisade() {
    crate::cluster::alone(async |cluster| {
        let ns = cluster.namespace().await;
        let reviews = async |cluster: &Cluster| {
            let mut sum = 0.0;
            for replica in [0, 1] {
                for outcome in ["allowed", "warned", "refused"] {
                    let series = format!("palisade_reviews_total{{outcome=\"{outcome}\"}}");
                    sum += cluster.metric(replica, &series).await;
                }
            }
            sum
        };
        // What other tests left behind may still be cleaned up, and asked about: one quiet round shows it.
        let mut asked = Vec::new();
        for _ in 0..5 {
            let before = reviews(cluster).await;
            for number in 0..5 {
                cluster.must(&format!("create configmap c{number} -n {ns}")).await;
            }
            cluster.must(&format!("delete configmaps --all -n {ns}")).await;
            cluster.must(&format!("create deployment web --image=example/app -n {ns}")).await;
            cluster.must(&format!("delete deployment web -n {ns}")).await;
            asked.push(reviews(cluster).await - before);
            if asked.ends_with(&[0.0]) {
                return;
            }
        }
        panic!("unlabelled objects were asked about: {asked:?}");
    });
}
