//! What operators manage, end to end: etcd-druid's components by flags, others' by `ComponentProtection`.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::cluster::{Cluster, Said, allowed, alone, denied, lifting, run, shared, warned};
use crate::labels::definition;

pub(crate) const LABELS: &str = "app.kubernetes.io/managed-by: etcd-druid, app.kubernetes.io/part-of: main";
const STRIP: &str = "app.kubernetes.io/managed-by- app.kubernetes.io/part-of-";

/// A service account with all rights and a token, as `garden/etcd-druid`; returns its kubeconfig.
pub(crate) async fn account(cluster: &Cluster, namespace: &str, name: &str) -> std::path::PathBuf {
    let _ = cluster.kubectl(&format!("create namespace {namespace}")).await;
    let _ = cluster.kubectl(&format!("create serviceaccount {name} -n {namespace}")).await;
    let _ = cluster
        .kubectl(&format!(
            "create clusterrolebinding {namespace}-{name} --clusterrole=cluster-admin --serviceaccount={namespace}:{name}"
        ))
        .await;
    let token = cluster.eventually(&format!("create token {name} -n {namespace}")).await;
    let config = cluster.must("config view --raw -o json").await;
    let mut config: Value = serde_json::from_str(&config).expect("json");
    config["users"] = json!([{"name": "account", "user": {"token": token.trim()}}]);
    config["contexts"][0]["context"]["user"] = "account".into();
    let file = cluster.plane.folder().join(format!("{namespace}-{name}.kubeconfig"));
    std::fs::write(&file, config.to_string()).expect("written");
    file
}

pub(crate) async fn as_account(cluster: &Cluster, kubeconfig: &std::path::Path, words: &str) -> Said {
    run(&cluster.plane.assets().kubectl(), kubeconfig, words.split_whitespace(), "").await
}

pub(crate) async fn install(cluster: &Cluster) {
    let etcds = definition("druid.gardener.cloud", "Etcd", "etcds", "Namespaced", &["v1alpha1"]);
    cluster.apply(&etcds.replace("served: true,", "served: true, subresources: {status: {}},")).await;
    cluster.must("wait crd/etcds.druid.gardener.cloud --for=condition=Established --timeout=30s").await;
    cluster.eventually("get etcds.druid.gardener.cloud").await;
}

/// A namespace with an Etcd and one of each of its components.
pub(crate) async fn etcd(cluster: &Cluster) -> String {
    // All tests share the kind, and two that create it at once are in each other's way.
    static INSTALLED: OnceCell<()> = OnceCell::const_new();
    INSTALLED.get_or_init(|| install(cluster)).await;
    let ns = cluster.namespace().await;
    cluster
        .apply(&format!("{{apiVersion: druid.gardener.cloud/v1alpha1, kind: Etcd, metadata: {{name: main, namespace: {ns}}}}}"))
        .await;
    let metadata = |name: &str| format!("metadata: {{name: {name}, namespace: {ns}, labels: {{{LABELS}}}}}");
    let mut all = String::new();
    for (api, kind, name, rest) in [
        ("v1", "ServiceAccount", "main", String::new()),
        ("v1", "Service", "main", ", spec: {ports: [{port: 2379}]}".to_owned()),
        ("v1", "ConfigMap", "main", String::new()),
        ("rbac.authorization.k8s.io/v1", "Role", "main", String::new()),
        (
            "rbac.authorization.k8s.io/v1",
            "RoleBinding",
            "main",
            ", roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: main}".to_owned(),
        ),
        ("policy/v1", "PodDisruptionBudget", "main", ", spec: {maxUnavailable: 1, selector: {matchLabels: {app: x}}}".to_owned()),
        ("coordination.k8s.io/v1", "Lease", "main-0", String::new()),
        (
            "v1",
            "PersistentVolumeClaim",
            "data-main-0",
            ", spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}".to_owned(),
        ),
        (
            "apps/v1",
            "StatefulSet",
            "main",
            ", spec: {replicas: 0, serviceName: main, selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}, \
             spec: {containers: [{name: etcd, image: example/etcd}]}}, volumeClaimTemplates: [{metadata: {name: data}, \
             spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]}"
                .to_owned(),
        ),
    ] {
        writeln!(all, "---\n{{apiVersion: {api}, kind: {kind}, {}{rest}}}", metadata(name)).expect("written");
    }
    cluster.apply(&all).await;
    // Scales are asked about once the workload has been seen.
    let asked = "get validatingwebhookconfiguration palisade -o jsonpath={.webhooks[*].matchConditions[*].expression}";
    cluster.eventually_prints(asked, |text| text.contains(&format!("\"{ns}/main\""))).await;
    ns
}

const KINDS: [&str; 8] = [
    "serviceaccount",
    "service",
    "configmap",
    "role",
    "rolebinding",
    "poddisruptionbudget",
    "lease",
    "statefulset",
];

fn name_of(kind: &str) -> &str {
    if kind == "lease" { "main-0" } else { "main" }
}

pub(crate) async fn set_operation(cluster: &Cluster, ns: &str, operation: &str, state: &str) {
    let patch = json!({"status": {"lastOperation": {"type": operation, "state": state}}});
    cluster
        .must(&format!(
            "patch etcds.druid.gardener.cloud main -n {ns} --subresource=status --type=merge -p {patch}"
        ))
        .await;
}

#[test]
fn only_etcd_druid_changes_and_deletes_what_it_manages() {
    shared(async |cluster| {
        let ns = etcd(cluster).await;
        let druid = account(cluster, "garden", "etcd-druid").await;
        let care = account(cluster, "garden", "care").await;
        let says = |change: &str| {
            format!(
                "it is a component of etcd.druid.gardener.cloud \"{ns}/main\", and only etcd-druid may {change} it"
            )
        };
        for kind in KINDS {
            let name = name_of(kind);
            let (update, delete) = (
                format!("label {kind} {name} -n {ns} x=y --overwrite"),
                format!("delete {kind} {name} -n {ns} --dry-run=server"),
            );
            denied(&cluster.kubectl(&update).await, "Forbidden", &says("change"));
            denied(&cluster.kubectl(&delete).await, "Forbidden", &says("delete"));
            allowed(&as_account(cluster, &druid, &format!("{update} --dry-run=server")).await);
            allowed(&as_account(cluster, &druid, &delete).await);
            allowed(&as_account(cluster, &care, &delete).await);
            allowed(
                &cluster
                    .kubectl(&format!("{delete} --as=joe --as-group=etcd-admins --as-group=system:masters"))
                    .await,
            );
            // Stripped of its labels it would be nobody's.
            denied(
                &cluster.kubectl(&format!("label {kind} {name} -n {ns} {STRIP}")).await,
                "Forbidden",
                &says("change"),
            );
        }
        let refused = cluster.kubectl(&format!("delete configmap main -n {ns}")).await;
        let why = crate::command_line::palisade(cluster, &format!("why configmap main -n {ns}")).await;
        assert!(!why.ok && refused.err.contains(why.out.trim()), "{why:?} beside {refused:?}");
        let claim = format!("delete pvc data-main-0 -n {ns} --dry-run=server");
        denied(&cluster.kubectl(&claim).await, "Forbidden", &says("delete"));
        denied(
            &cluster.kubectl(&format!("scale statefulset main -n {ns} --replicas=3")).await,
            "Forbidden",
            &says("scale"),
        );
        allowed(
            &as_account(
                cluster,
                &druid,
                &format!("scale statefulset main -n {ns} --replicas=1 --dry-run=server"),
            )
            .await,
        );
        // Others' workloads are not asked about.
        cluster.must(&format!("create deployment other --image=example/app -n {ns} --replicas=0")).await;
        allowed(&cluster.kubectl(&format!("scale deployment other -n {ns} --replicas=0")).await);
        allowed(&cluster.kubectl(&format!("create configmap free -n {ns}")).await);
        allowed(&cluster.kubectl(&format!("delete configmap free -n {ns}")).await);

        let said = cluster.kubectl(&format!("delete configmap main -n {ns}")).await;
        allowed(&cluster.shell(&lifting(&said)).await);
        allowed(&cluster.kubectl(&format!("delete configmap main -n {ns}")).await);
    });
}

#[test]
fn labels_are_not_stripped_through_a_status_and_other_status_writes_pass() {
    shared(async |cluster| {
        let ns = etcd(cluster).await;
        for kind in ["service", "statefulset"] {
            let patch =
                |body: &str| format!("patch {kind} main -n {ns} --subresource=status --type=merge -p {body}");
            let said = cluster.kubectl(&patch(r#"{"metadata":{"labels":null}}"#)).await;
            denied(&said, "Forbidden", "may change the labels and owners that it is known by");
            let status = if kind == "service" {
                r#"{"status":{"loadBalancer":{}}}"#
            } else {
                r#"{"status":{"collisionCount":0}}"#
            };
            allowed(&cluster.kubectl(&patch(status)).await);
        }
    });
}

#[test]
fn what_is_in_progress_decides_who_may() {
    shared(async |cluster| {
        let ns = etcd(cluster).await;
        let (druid, care) =
            (account(cluster, "garden", "etcd-druid").await, account(cluster, "garden", "care").await);
        let delete = format!("delete configmap main -n {ns} --dry-run=server");
        let update = format!("label configmap main -n {ns} x=y --dry-run=server");
        set_operation(cluster, &ns, "Reconcile", "Processing").await;
        for words in [&delete, &update] {
            denied(&as_account(cluster, &care, words).await, "Forbidden", "which is being reconciled");
            allowed(&as_account(cluster, &druid, words).await);
        }
        set_operation(cluster, &ns, "Reconcile", "Succeeded").await;
        allowed(&as_account(cluster, &care, &update).await);
        set_operation(cluster, &ns, "Delete", "Error").await;
        allowed(&as_account(cluster, &care, &delete).await);
        denied(&as_account(cluster, &care, &update).await, "Forbidden", "which is being deleted");
        denied(&cluster.kubectl(&delete).await, "Forbidden", "which is being deleted");
        cluster.must(&format!("delete etcds.druid.gardener.cloud main -n {ns}")).await;
        warned(&cluster.kubectl(&delete).await, "it is a component of Etcd \"main\", which is not there");
    });
}

#[test]
fn a_claim_without_labels_is_known_by_the_template_it_comes_from() {
    shared(async |cluster| {
        let ns = etcd(cluster).await;
        // Updates of claims are not the guard's business.
        allowed(&cluster.kubectl(&format!("label pvc data-main-0 -n {ns} {STRIP}")).await);
        let said = cluster.kubectl(&format!("delete pvc data-main-0 -n {ns} --wait=false")).await;
        denied(&said, "Forbidden", "and only etcd-druid may delete it");
        cluster
            .apply(&format!(
                "{{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: data-other-0, namespace: {ns}}}, \
                 spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}}}"
            ))
            .await;
        allowed(&cluster.kubectl(&format!("delete pvc data-other-0 -n {ns} --wait=false")).await);
        // Labels that name another Etcd do not hide whose it is.
        let nope = "app.kubernetes.io/managed-by=etcd-druid app.kubernetes.io/part-of=nope";
        allowed(&cluster.kubectl(&format!("label pvc data-main-0 -n {ns} {nope}")).await);
        let said = cluster.kubectl(&format!("delete pvc data-main-0 -n {ns} --wait=false")).await;
        denied(&said, "Forbidden", &format!("a component of etcd.druid.gardener.cloud \"{ns}/main\""));
    });
}

/// Lets etcd-druid make the Etcd the owner of its components.
async fn own(cluster: &Cluster, ns: &str, kinds: &[&str]) {
    let uid = cluster
        .must(&format!("get etcds.druid.gardener.cloud main -n {ns} -o jsonpath={{.metadata.uid}}"))
        .await;
    let druid = account(cluster, "garden", "etcd-druid").await;
    let owner = json!({"metadata": {"ownerReferences": [{"apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd",
        "name": "main", "uid": uid, "controller": true, "blockOwnerDeletion": true}]}});
    for kind in kinds {
        let words = format!("patch {kind} main -n {ns} --type=merge -p {owner}");
        allowed(&as_account(cluster, &druid, &words).await);
    }
}

#[test]
fn the_components_of_an_etcd_that_goes_are_collected() {
    shared(async |cluster| {
        let ns = etcd(cluster).await;
        own(cluster, &ns, &["statefulset", "configmap", "service"]).await;
        cluster
            .must(&format!(
                "delete etcds.druid.gardener.cloud main -n {ns} --cascade=foreground --timeout=80s"
            ))
            .await;
        for kind in ["statefulset", "configmap", "service"] {
            assert!(!cluster.exists(&format!("{kind} main -n {ns}")).await, "{kind}");
        }
    });
}

#[test]
fn the_components_of_an_etcd_can_be_orphaned() {
    shared(async |cluster| {
        let ns = etcd(cluster).await;
        own(cluster, &ns, &["configmap"]).await;
        cluster
            .must(&format!("delete etcds.druid.gardener.cloud main -n {ns} --cascade=orphan --timeout=80s"))
            .await;
        let owners = format!("get configmap main -n {ns} -o jsonpath={{.metadata.ownerReferences}}");
        assert_eq!(cluster.must(&owners).await, "", "left behind, and nobody's");
    });
}

#[test]
fn a_workload_that_somebody_labels_is_not_told_to_the_api_server() {
    shared(async |cluster| {
        let ns = etcd(cluster).await;
        cluster
            .apply(&format!(
                "{{apiVersion: apps/v1, kind: StatefulSet, metadata: {{name: impostor, namespace: {ns}, labels: \
                 {{app.kubernetes.io/managed-by: etcd-druid, app.kubernetes.io/part-of: nobody}}}}, spec: {{replicas: 0, serviceName: s, \
                 selector: {{matchLabels: {{app: i}}}}, template: {{metadata: {{labels: {{app: i}}}}, spec: {{containers: \
                 [{{name: a, image: example/app}}]}}}}}}}}"
            ))
            .await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let asked = "get validatingwebhookconfiguration palisade -o jsonpath={.webhooks[*].matchConditions[*].expression}";
        assert!(!cluster.must(asked).await.contains("impostor"));
        allowed(&cluster.kubectl(&format!("scale statefulset impostor -n {ns} --replicas=0")).await);
    });
}

#[test]
fn long_lists_hold_up_nobody() {
    shared(async |cluster| {
        let (ns, group) = postgres(cluster).await;
        let users: Vec<String> = (0..256).map(|n| format!("{}{n:03}", "u".repeat(500))).collect();
        let spec = json!({"parent": {"apiVersion": format!("{group}/v1"), "kind": "Postgres"},
            "kinds": [{"apiVersion": "v1", "kind": "ConfigMap"}], "selector": {"matchLabels": {"by": ns}}, "parentLabel": "of",
            "operators": users});
        protect(cluster, &ns, &spec.to_string()).await;
        cluster
            .apply(&format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: c, namespace: {ns}, labels: {{by: {ns}, of: main}}}}}}"))
            .await;
        let said = cluster.kubectl(&format!("delete configmap c -n {ns}")).await;
        denied(&said, "Forbidden", &format!("kubectl get cprot {ns} -o yaml shows who may."));
        let operator = format!("delete configmap c -n {ns} --as={} --as-group=system:masters", users[7]);
        allowed(&cluster.kubectl(&operator).await);
        cluster.must(&format!("delete cprot {ns}")).await;
    });
}

#[test]
fn members_renew_their_leases_and_nobody_is_asked() {
    alone(async |cluster| {
        let ns = etcd(cluster).await;
        let member = account(cluster, &ns, "main").await;
        let client = cluster.plane.client_with(&member).await.expect("a client");
        tokio::time::sleep(Duration::from_secs(2)).await;
        let reviews = async || {
            let mut total = 0.0;
            for replica in [0, 1] {
                let text = cluster.admin(replica, "/metrics").await;
                let counts = text.lines().filter(|line| line.starts_with("palisade_reviews_total"));
                total += counts.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum::<f64>();
            }
            total
        };
        let before = reviews().await;
        let leases: kube::Api<k8s_openapi::api::coordination::v1::Lease> = kube::Api::namespaced(client, &ns);
        let started = std::time::Instant::now();
        for number in 0..400 {
            let patch = kube::api::Patch::Merge(json!({"spec": {"leaseTransitions": number}}));
            leases.patch("main-0", &kube::api::PatchParams::default(), &patch).await.expect("renewed");
        }
        assert!(started.elapsed() < Duration::from_secs(30));
        // What other tests left behind is still being cleaned up, and may be asked about.
        let asked = reviews().await - before;
        assert!(asked < 40.0, "{asked} of 400 renewals were asked about");
        let said = as_account(cluster, &member, &format!("delete lease main-0 -n {ns}")).await;
        denied(&said, "Forbidden", "and only etcd-druid may delete it");
        assert!(reviews().await > before, "the metric moves");
    });
}

/// A kind of parents of one's own, with a namespace.
async fn postgres(cluster: &Cluster) -> (String, String) {
    let ns = cluster.namespace().await;
    let group = format!("{ns}.db.example");
    cluster.apply(&definition(&group, "Postgres", "postgreses", "Namespaced", &["v1"])).await;
    cluster.must(&format!("wait crd/postgreses.{group} --for=condition=Established --timeout=30s")).await;
    cluster.eventually(&format!("get postgreses.{group}")).await;
    cluster
        .apply(&format!(
            "{{apiVersion: {group}/v1, kind: Postgres, metadata: {{name: main, namespace: {ns}}}}}"
        ))
        .await;
    (ns, group)
}

async fn protect(cluster: &Cluster, name: &str, spec: &str) {
    cluster
        .apply(&format!("{{apiVersion: palisade.dev/v1alpha1, kind: ComponentProtection, metadata: {{name: {name}}}, spec: {spec}}}"))
        .await;
    let enforced =
        format!("get cprot {name} -o jsonpath={{.status.conditions[?(@.type==\"Enforced\")].status}}");
    cluster.eventually_prints(&enforced, |text| text == "True").await;
}

#[test]
fn any_operators_components_are_protected_by_label() {
    shared(async |cluster| {
        let (ns, group) = postgres(cluster).await;
        let operator = account(cluster, &ns, "operator").await;
        let spec = format!(
            "{{parent: {{apiVersion: {group}/v1, kind: Postgres}}, kinds: [{{apiVersion: apps/v1, kind: StatefulSet}}, \
             {{apiVersion: v1, kind: Service}}, {{apiVersion: coordination.k8s.io/v1, kind: Lease}}], \
             selector: {{matchLabels: {{by: {ns}}}}}, parentLabel: {group}/postgres, \
             operators: [\"system:serviceaccount:{ns}:operator\"], exempt: {{users: [ci], groups: [], serviceAccounts: []}}, \
             disableAnnotation: {group}/hands-off, reconciling: [{{path: .status.phase, values: [Reconciling]}}], \
             deleting: [{{path: .status.phase, values: [Deleting]}}], freeUpdates: [{{kinds: [{{apiVersion: coordination.k8s.io/v1, \
             kind: Lease}}], users: [\"system:serviceaccount:{{namespace}}:{{parent}}\"]}}]}}"
        );
        protect(cluster, &ns, &spec).await;
        let labels = format!("labels: {{by: {ns}, {group}/postgres: main}}");
        cluster
            .apply(&format!(
                "{{apiVersion: v1, kind: Service, metadata: {{name: s, namespace: {ns}, {labels}}}, spec: {{ports: [{{port: 1}}]}}}}\n---\n\
                 {{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {{name: l, namespace: {ns}, {labels}}}}}\n---\n\
                 {{apiVersion: apps/v1, kind: StatefulSet, metadata: {{name: w, namespace: {ns}, {labels}}}, spec: {{replicas: 0, \
                 serviceName: s, selector: {{matchLabels: {{app: x}}}}, template: {{metadata: {{labels: {{app: x}}}}, \
                 spec: {{containers: [{{name: a, image: example/app}}]}}}}}}}}"
            ))
            .await;
        let says = format!(
            "it is a component of postgres.{group} \"{ns}/main\", and only the operators of ComponentProtection \"{ns}\" may"
        );
        denied(
            &cluster.kubectl(&format!("delete service s -n {ns}")).await,
            "Forbidden",
            &format!("{says} delete it"),
        );
        denied(
            &cluster.kubectl(&format!("label service s -n {ns} by-")).await,
            "Forbidden",
            &format!("{says} change it"),
        );
        allowed(&as_account(cluster, &operator, &format!("label service s -n {ns} x=y")).await);
        let scale = format!("scale statefulset w -n {ns} --replicas=1");
        let asked = "get validatingwebhookconfiguration palisade -o jsonpath={.webhooks[*].matchConditions[*].expression}";
        cluster.eventually_prints(asked, |text| text.contains(&format!("\"{ns}/w\""))).await;
        denied(&cluster.kubectl(&scale).await, "Forbidden", &format!("{says} scale it"));
        let member = format!(
            "annotate lease l -n {ns} x=y --overwrite --as=system:serviceaccount:{ns}:main --as-group=system:masters"
        );
        allowed(&cluster.kubectl(&member).await);
        let ci = format!("label service s -n {ns} z=y --dry-run=server --as=ci --as-group=system:masters");
        allowed(&cluster.kubectl(&ci).await);
        let phase = async |phase: &str| {
            cluster.must(&format!("patch postgreses.{group} main -n {ns} --type=merge -p {{\"status\":{{\"phase\":\"{phase}\"}}}}")).await;
        };
        phase("Reconciling").await;
        denied(&cluster.kubectl(&ci).await, "Forbidden", "which is being reconciled");
        phase("Ready").await;

        let refused = format!("get cprot {ns} -o jsonpath={{.status.refused}}");
        cluster.eventually_prints(&refused, |text| text.parse::<u64>().is_ok_and(|count| count >= 3)).await;
        let table = cluster.must(&format!("get cprot {ns}")).await;
        let mut lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(
            lines.next().expect("a header"),
            ["NAME", "PARENT", "KINDS", "ENFORCED", "REFUSED", "AGE"]
        );
        assert_eq!(lines.next().expect("a row")[..4], [&*ns, "Postgres", "3/3", "True"]);
        cluster
            .eventually_prints(&format!("get cprot {ns} -o jsonpath={{.status.parents}}"), |text| text == "1")
            .await;
        assert!(
            !cluster.must(&format!("get cprot {ns} -o jsonpath={{.status.lastRefused}}")).await.is_empty()
        );

        let said = cluster.kubectl(&format!("delete service s -n {ns}")).await;
        allowed(&cluster.shell(&lifting(&said)).await);
        allowed(&cluster.kubectl(&format!("delete service s -n {ns}")).await);
        cluster.must(&format!("annotate postgreses.{group} main -n {ns} {group}/hands-off-")).await;
        cluster.must(&format!("delete cprot {ns}")).await;
        let lifted = palisade_testkit::wait_until(Duration::from_secs(10), || async {
            cluster.kubectl(&format!("delete lease l -n {ns}")).await.ok
        });
        assert!(lifted.await, "lifted within seconds");
    });
}

#[test]
fn any_operators_components_are_protected_by_owner() {
    shared(async |cluster| {
        let (ns, group) = postgres(cluster).await;
        let spec = format!(
            "{{parent: {{apiVersion: {group}/v1, kind: Postgres}}, kinds: [{{apiVersion: v1, kind: ConfigMap}}], ownedByParent: true, \
             operators: [\"system:serviceaccount:{ns}:operator\"]}}"
        );
        protect(cluster, &ns, &spec).await;
        let uid =
            cluster.must(&format!("get postgreses.{group} main -n {ns} -o jsonpath={{.metadata.uid}}")).await;
        cluster
            .apply(&format!(
                "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: c, namespace: {ns}, ownerReferences: [{{apiVersion: {group}/v1, \
                 kind: Postgres, name: main, uid: {uid}}}]}}}}"
            ))
            .await;
        cluster.must(&format!("create configmap free -n {ns}")).await;
        let says = format!("it is a component of postgres.{group} \"{ns}/main\"");
        denied(&cluster.kubectl(&format!("delete configmap c -n {ns}")).await, "Forbidden", &says);
        let patch = r#"{"metadata":{"ownerReferences":null}}"#;
        denied(
            &cluster.kubectl(&format!("patch configmap c -n {ns} --type=merge -p {patch}")).await,
            "Forbidden",
            &says,
        );
        allowed(&cluster.kubectl(&format!("delete configmap free -n {ns}")).await);
        cluster.must(&format!("delete cprot {ns}")).await;
    });
}

#[test]
fn bad_protections_never_get_in_and_the_examples_do() {
    shared(async |cluster| {
        let whole = |change: &dyn Fn(&mut Value)| {
            let mut spec = json!({"parent": {"apiVersion": "db.example/v1", "kind": "Postgres"},
                "kinds": [{"apiVersion": "v1", "kind": "Service"}], "ownedByParent": true, "operators": ["x"]});
            change(&mut spec);
            spec
        };
        let remove =
            |field: &'static str| whole(&|spec| drop(spec.as_object_mut().map(|spec| spec.remove(field))));
        for (spec, text) in [
            (remove("parent"), "spec.parent: Required value"),
            (remove("kinds"), "spec.kinds: Required value"),
            (whole(&|spec| spec["kinds"] = json!([])), "spec.kinds"),
            (remove("operators"), "spec.operators: Required value"),
            (whole(&|spec| spec["operators"] = json!([])), "spec.operators"),
            (remove("ownedByParent"), "give exactly one of selector and ownedByParent: true"),
            (
                whole(&|spec| spec["ownedByParent"] = json!(false)),
                "give exactly one of selector and ownedByParent: true",
            ),
            (
                whole(&|spec| spec["selector"] = json!({"matchLabels": {"a": "b"}})),
                "give exactly one of selector and ownedByParent: true",
            ),
            (
                whole(&|spec| spec["reconciling"] = json!([{"path": "status.phase", "values": ["x"]}])),
                "is no path such as .status.phase",
            ),
            (
                whole(&|spec| spec["deleting"] = json!([{"path": ".a[", "values": ["x"]}])),
                "a bracket is not closed",
            ),
            (whole(&|spec| spec["colour"] = json!("red")), "unknown field \"spec.colour\""),
            (whole(&|spec| spec["parent"]["apiVersion"] = json!("a/b/c")), "spec.parent.apiVersion"),
        ] {
            let manifest = json!({"apiVersion": "palisade.dev/v1alpha1", "kind": "ComponentProtection", "metadata": {"name": "bad"}, "spec": spec});
            let said = cluster.kubectl_with(["create", "-f", "-"], &manifest.to_string()).await;
            assert!(!said.ok && said.err.contains(text), "{spec}: {said:?}");
        }
        let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/component-protection");
        let created = cluster.must(&format!("apply -f {examples}")).await;
        assert_eq!(created.lines().count(), 3, "{created}");
        for name in ["cloudnative-pg", "rook-ceph", "strimzi"] {
            let conditions = format!("get cprot {name} -o jsonpath={{.status.conditions[*].reason}}");
            cluster.eventually_prints(&conditions, |text| text == "Registered NotServed").await;
        }
        cluster.must(&format!("delete -f {examples}")).await;
    });
}
