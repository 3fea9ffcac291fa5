//! Labels that controllers copy.

use std::time::Duration;

use palisade_testkit::wait_until;

use crate::cluster::{Cluster, allowed, denied, shared, warned};
use crate::labels::definition;

const LABEL: &str = "policy.kruise.io/delete-protection";
/// For what many pods do, however busy the machine is.
const LONG: Duration = Duration::from_secs(120);

/// A workload whose templates carry the label.
fn workload(kind: &str, ns: &str, name: &str, replicas: usize, more: &str) -> String {
    format!(
        "{{apiVersion: apps/v1, kind: {kind}, metadata: {{name: {name}, namespace: {ns}}}, spec: {{replicas: {replicas}, \
         selector: {{matchLabels: {{app: {name}}}}}, {more} template: {{metadata: {{labels: {{app: {name}, {LABEL}: Always}}}}, \
         spec: {{terminationGracePeriodSeconds: 1, containers: [{{name: a, image: example/app}}]}}}}}}}}"
    )
}

async fn prints(cluster: &Cluster, words: &str, expected: impl Fn(&str) -> bool) {
    let matches = wait_until(LONG, || async { expected(&cluster.kubectl(words).await.out) }).await;
    assert!(matches, "kubectl {words} still prints {:?}", cluster.kubectl(words).await);
}

#[test]
fn a_labelled_service_sends_no_traffic_to_pods_that_are_gone() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("create deployment web --image=example/app --replicas=105 -n {ns}")).await;
        cluster.must(&format!("expose deployment web --port=80 -n {ns}")).await;
        cluster.must(&format!("label service web -n {ns} {LABEL}=Always")).await;
        let slices =
            format!("get endpointslices -n {ns} -l kubernetes.io/service-name=web,{LABEL}=Always -o name");
        // At most 100 endpoints fit into one.
        prints(cluster, &slices, |text| text.lines().count() == 2).await;
        let endpoints = format!(
            "get endpointslices -n {ns} -l kubernetes.io/service-name=web -o jsonpath={{.items[*].endpoints[*].targetRef.name}}"
        );
        prints(cluster, &endpoints, |text| text.split_whitespace().count() == 105).await;
        cluster.must(&format!("scale deployment web --replicas=1 -n {ns}")).await;
        prints(cluster, &endpoints, |text| text.split_whitespace().count() == 1).await;
        prints(cluster, &slices, |text| text.lines().count() == 1).await;
        // They guard nothing either.
        let said = cluster.kubectl(&format!("delete namespace {ns}")).await;
        denied(&said, "Forbidden", &format!("a protected object would go with it: service \"{ns}/web\""));
        cluster.must(&format!("label service web -n {ns} {LABEL}-")).await;
        allowed(&cluster.kubectl(&format!("delete namespace {ns} --wait=false")).await);
    });
}

#[test]
fn a_label_in_a_pod_template_stops_neither_rollout_nor_scale_down() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let said =
            cluster.kubectl_with(["apply", "-f", "-"], &workload("Deployment", &ns, "web", 3, "")).await;
        warned(
            &said,
            &format!("deployment \"{ns}/web\": label {LABEL}=Always in its template is copied to all"),
        );
        cluster.must(&format!("rollout status deployment web -n {ns} --timeout=60s")).await;
        allowed(&cluster.kubectl(&format!("rollout restart deployment web -n {ns}")).await);
        cluster.must(&format!("rollout status deployment web -n {ns} --timeout=60s")).await;
        allowed(&cluster.kubectl(&format!("scale deployment web --replicas=1 -n {ns}")).await);
        let pods = format!("get pods -n {ns} -l app=web -o name");
        prints(cluster, &pods, |text| text.lines().count() == 1).await;

        // They bind people, whatever they are.
        let pod = cluster.must(&pods).await;
        let said = cluster.kubectl(&format!("delete -n {ns} {}", pod.trim())).await;
        denied(&said, "Forbidden", &format!("is protected from deletion: label {LABEL}=Always"));
        let said = cluster.kubectl(&format!("delete replicasets -l app=web -n {ns}")).await;
        denied(&said, "Forbidden", &format!("replicaset \"{ns}/web-"));
        // What somebody labels by hand is no copy.
        cluster.must(&format!("create deployment plain --image=example/app -n {ns}")).await;
        cluster.must(&format!("rollout status deployment plain -n {ns} --timeout=60s")).await;
        cluster.must(&format!("label pods -l app=plain -n {ns} {LABEL}=Always")).await;
        let controller =
            "--as=system:serviceaccount:kube-system:replicaset-controller --as-group=system:masters";
        let said = cluster.kubectl(&format!("delete pods -l app=plain -n {ns} {controller}")).await;
        denied(&said, "Forbidden", "is protected from deletion");
        cluster.must(&format!("label pods -l app=plain -n {ns} {LABEL}-")).await;

        // Copies guard neither their owner nor their namespace, and the garbage collector takes them.
        allowed(&cluster.kubectl(&format!("delete deployment web -n {ns} --wait=false")).await);
        prints(cluster, &format!("get replicasets,pods -n {ns} -l app=web -o name"), str::is_empty).await;
        cluster.kubectl_with(["apply", "-f", "-"], &workload("Deployment", &ns, "again", 2, "")).await;
        cluster.must(&format!("rollout status deployment again -n {ns} --timeout=60s")).await;
        allowed(&cluster.kubectl(&format!("delete namespace {ns} --wait=false")).await);
        let gone = wait_until(LONG, || async { !cluster.exists(&format!("namespace {ns}")).await }).await;
        assert!(gone, "{}", cluster.must(&format!("get namespace {ns} -o yaml")).await);
    });
}

#[test]
fn replicasets_are_pruned_after_the_template_lost_its_label() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let labelled = workload("Deployment", &ns, "web", 1, "revisionHistoryLimit: 0,");
        cluster.kubectl_with(["apply", "-f", "-"], &labelled).await;
        cluster.must(&format!("rollout status deployment web -n {ns} --timeout=60s")).await;
        let remove = format!(
            r#"[{{"op":"remove","path":"/spec/template/metadata/labels/{}"}}]"#,
            LABEL.replace('/', "~1")
        );
        allowed(&cluster.kubectl(&format!("patch deployment web -n {ns} --type=json -p {remove}")).await);
        cluster.must(&format!("rollout status deployment web -n {ns} --timeout=60s")).await;
        prints(cluster, &format!("get replicasets -n {ns} -l {LABEL} -o name"), str::is_empty).await;
    });
}

#[test]
fn a_label_in_a_claim_template_does_not_stop_a_scale_down() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let more = format!(
            "serviceName: db, podManagementPolicy: Parallel, persistentVolumeClaimRetentionPolicy: {{whenScaled: Delete, \
             whenDeleted: Retain}}, volumeClaimTemplates: [{{metadata: {{name: data, labels: {{{LABEL}: Always}}}}, spec: \
             {{accessModes: [ReadWriteOnce], storageClassName: none, resources: {{requests: {{storage: 1Gi}}}}}}}}],"
        );
        let said =
            cluster.kubectl_with(["apply", "-f", "-"], &workload("StatefulSet", &ns, "db", 2, &more)).await;
        warned(&said, "in its template is copied to all");
        prints(cluster, &format!("get pods,pvc -n {ns} -o name"), |text| text.lines().count() == 4).await;
        let said = cluster.kubectl(&format!("delete pvc data-db-1 -n {ns}")).await;
        denied(
            &said,
            "Forbidden",
            &format!("persistentvolumeclaim \"{ns}/data-db-1\" is protected from deletion"),
        );
        allowed(&cluster.kubectl(&format!("scale statefulset db --replicas=1 -n {ns}")).await);
        prints(cluster, &format!("get pvc -n {ns} -o name"), |text| {
            text.trim() == "persistentvolumeclaim/data-db-0"
        })
        .await;

        // Without its set, a claim is nobody's copy.
        let operator = "--as=system:serviceaccount:ops:volumes --as-group=system:masters --dry-run=server";
        allowed(&cluster.kubectl(&format!("delete pvc data-db-0 -n {ns} {operator}")).await);
        allowed(&cluster.kubectl(&format!("delete namespace {ns} --dry-run=server")).await);
        allowed(&cluster.kubectl(&format!("delete statefulset db -n {ns}")).await);
        let said = cluster.kubectl(&format!("delete pvc data-db-0 -n {ns} {operator}")).await;
        denied(&said, "Forbidden", "data-db-0");
        let said = cluster.kubectl(&format!("delete namespace {ns}")).await;
        denied(&said, "Forbidden", &format!("persistentvolumeclaim \"{ns}/data-db-0\""));
        // With it, the namespace goes, and the claim after its set.
        cluster.kubectl_with(["apply", "-f", "-"], &workload("StatefulSet", &ns, "db", 1, &more)).await;
        allowed(&cluster.kubectl(&format!("delete namespace {ns} --wait=false")).await);
        let gone = wait_until(LONG, || async { !cluster.exists(&format!("namespace {ns}")).await }).await;
        assert!(gone, "{}", cluster.must(&format!("get namespace {ns} -o yaml")).await);
    });
}

#[test]
fn an_operator_prunes_what_it_copied_its_label_to() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let group = format!("{ns}.example.com");
        for (kind, plural) in [("Certificate", "certificates"), ("CertificateRequest", "certificaterequests")]
        {
            cluster.apply(&definition(&group, kind, plural, "Namespaced", &["v1"])).await;
            cluster
                .must(&format!("wait crd/{plural}.{group} --for=condition=Established --timeout=30s"))
                .await;
            cluster.eventually(&format!("get {plural}.{group} -n {ns}")).await;
        }
        let certificate = |template: &str| {
            format!(
                "{{apiVersion: {group}/v1, kind: Certificate, metadata: {{name: c, namespace: {ns}, labels: {{{LABEL}: Always}}}}, \
                 spec: {{template: {{metadata: {{labels: {{{template}}}}}}}}}}}"
            )
        };
        cluster.apply(&certificate("")).await;
        let uid =
            cluster.must(&format!("get certificates.{group} c -n {ns} -o jsonpath={{.metadata.uid}}")).await;
        let request = |name: &str, uid: &str| {
            format!(
                "{{apiVersion: {group}/v1, kind: CertificateRequest, metadata: {{name: {name}, namespace: {ns}, labels: {{{LABEL}: \
                 Always}}, ownerReferences: [{{apiVersion: {group}/v1, kind: Certificate, name: c, uid: {uid}, controller: true}}]}}}}"
            )
        };
        cluster.apply(&request("copy", &uid)).await;
        cluster.apply(&request("other", "0b5c7b50-0000-4000-8000-000000000000")).await;
        let operator = format!("--as=system:serviceaccount:{ns}:cert-manager --as-group=system:masters");
        let delete =
            |name: &str, how: &str| format!("delete certificaterequests.{group} {name} -n {ns} {how}");
        denied(&cluster.kubectl(&delete("copy", "")).await, "Forbidden", &format!("label {LABEL}=Always"));
        allowed(&cluster.kubectl(&delete("copy", &format!("{operator} --dry-run=server"))).await);
        // Another certificate of that name is not its owner.
        denied(
            &cluster.kubectl(&delete("other", &operator)).await,
            "Forbidden",
            &format!("label {LABEL}=Always"),
        );
        cluster.must(&format!("label certificaterequests.{group} other -n {ns} {LABEL}-")).await;

        let said = cluster.kubectl(&format!("delete namespace {ns}")).await;
        let only = format!("a protected object would go with it: certificate.{group} \"{ns}/c\"");
        denied(&said, "Forbidden", &only);
        assert!(
            !said.err.contains("\"copy\"") && !said.err.contains("/copy"),
            "copies are not named: {said:?}"
        );
        let said = cluster.kubectl(&format!("delete crd certificaterequests.{group} --dry-run=server")).await;
        allowed(&said);

        // The label in its template is copied as well, and does not keep the certificate.
        cluster.apply(&certificate(&format!("{LABEL}: Always"))).await;
        cluster.must(&format!("label certificates.{group} c -n {ns} {LABEL}-")).await;
        allowed(&cluster.kubectl(&delete("copy", &format!("{operator} --dry-run=server"))).await);
        allowed(&cluster.kubectl(&format!("delete certificates.{group} c -n {ns}")).await);
        let words = format!("get certificaterequests.{group} copy -n {ns} --ignore-not-found -o name");
        prints(cluster, &words, str::is_empty).await;
        cluster
            .must(&format!("delete crd certificates.{group} certificaterequests.{group} --wait=false"))
            .await;
    });
}

#[test]
fn who_labels_what_no_label_protects_is_warned() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        for manifest in [
            format!("{{apiVersion: v1, kind: Endpoints, metadata: {{name: e, namespace: {ns}}}}}"),
            format!(
                "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: e, namespace: {ns}}}, addressType: IPv4, endpoints: []}}"
            ),
            format!(
                "{{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {{name: e, namespace: {ns}}}}}"
            ),
        ] {
            let kind = manifest.split("kind: ").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
            let said = cluster.kubectl_with(["create", "-f", "-"], &manifest).await;
            assert!(said.ok, "{said:?}");
            let said = cluster.kubectl(&format!("label {kind} e -n {ns} {LABEL}=Always")).await;
            warned(&said, "are never protected by label");
            assert!(cluster.kubectl(&format!("delete {kind} e -n {ns}")).await.ok);
        }
        let said = cluster.kubectl(&format!("create configmap c -n {ns}")).await;
        allowed(&said);
        allowed(&cluster.kubectl(&format!("label configmap c -n {ns} {LABEL}=Always")).await);
    });
}
