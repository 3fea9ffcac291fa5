//! Protection by default: everything in some namespaces, with exceptions.

use palisade_testkit::wait_until;

use crate::cluster::{Cluster, EVENTUALLY, allowed, denied, shared};
use crate::labels::evict;
use crate::protections::{lift, protect};

const OPERATOR: &str = "--as=system:serviceaccount:cert-manager:cert-manager --as-group=system:masters";

/// A namespace whose name no other test's begins with.
async fn production(cluster: &Cluster) -> String {
    let ns = format!("prod-{}-a", cluster.namespace().await);
    cluster.must(&format!("create namespace {ns}")).await;
    cluster.eventually(&format!("get serviceaccount default -n {ns}")).await;
    ns
}

/// Protects everything in the namespaces whose names begin as this one's.
async fn everything(cluster: &Cluster, ns: &str, more: &str) {
    let namespaces = format!("{}*", ns.trim_end_matches('a'));
    let selector = format!("{{kind: \"*\", namespace: \"{namespaces}\"}}");
    protect(cluster, ns, &format!("{{protectedResources: [{{resourceSelector: [{selector}]{more}}}]}}"))
        .await;
}

async fn uid(cluster: &Cluster, object: &str) -> String {
    cluster.must(&format!("get {object} -o jsonpath={{.metadata.uid}}")).await
}

/// What a rollout needs: pods that run on a node of their own.
fn template(node: &str) -> String {
    format!(
        "{{metadata: {{labels: {{app: web}}}}, spec: {{terminationGracePeriodSeconds: 1, nodeSelector: {{life: {node}}}, \
         tolerations: [{{key: life, operator: Exists}}], containers: [{{name: app, image: example/app}}]}}}}"
    )
}

async fn node(cluster: &Cluster, life: &str, name: &str) {
    cluster
        .apply(&format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: {name}, labels: {{life: {life}}}}}, spec: {{taints: [{{key: life, \
             effect: NoSchedule}}]}}}}"
        ))
        .await;
    cluster.must(&format!("wait node {name} --for=condition=Ready --timeout=60s")).await;
}

/// A claim that is bound asks for more.
async fn grow_a_claim(cluster: &Cluster, ns: &str) {
    let claim = format!("{ns}-claim");
    for manifest in [
        format!(
            "{{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {{name: {ns}}}, provisioner: example.com/none, \
             allowVolumeExpansion: true}}"
        ),
        format!(
            "{{apiVersion: v1, kind: PersistentVolume, metadata: {{name: {claim}}}, spec: {{storageClassName: {ns}, capacity: \
             {{storage: 1Gi}}, accessModes: [ReadWriteOnce], claimRef: {{namespace: {ns}, name: data}}, hostPath: {{path: /none}}}}}}"
        ),
        format!(
            "{{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: data, namespace: {ns}}}, spec: {{storageClassName: \
             {ns}, volumeName: {claim}, accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}}}"
        ),
    ] {
        cluster.apply(&manifest).await;
    }
    cluster
        .must(&format!("wait pvc data -n {ns} --for=jsonpath={{.status.phase}}=Bound --timeout=60s"))
        .await;
    let larger = r#"{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}"#;
    cluster.must(&format!("patch pvc data -n {ns} --type=merge -p {larger}")).await;
}

#[test]
fn an_ordinary_life_goes_on_under_it() {
    shared(async |cluster| {
        let ns = production(cluster).await;
        let (one, other) = (format!("{ns}-one"), format!("{ns}-other"));
        node(cluster, &ns, &one).await;
        everything(cluster, &ns, "").await;
        let template = template(&ns);
        let workload = |kind: &str, name: &str, more: &str| {
            format!(
                "{{apiVersion: apps/v1, kind: {kind}, metadata: {{name: {name}, namespace: {ns}}}, spec: {{replicas: 3, \
                 selector: {{matchLabels: {{app: web}}}}, template: {template}{more}}}}}"
            )
        };
        let job = |name: &str, more: &str| {
            format!(
                "{{apiVersion: batch/v1, kind: Job, metadata: {{name: {name}, namespace: {ns}}}, spec: {{ttlSecondsAfterFinished: 1, \
                 template: {{spec: {{restartPolicy: Never, containers: [{{name: app, image: example/app}}]}}}}{more}}}}}"
            )
        };
        cluster.apply(&workload("Deployment", "web", ", revisionHistoryLimit: 1")).await;
        cluster.must(&format!("expose deployment web --port=80 -n {ns}")).await;
        cluster
            .apply(&workload("StatefulSet", "db", ", serviceName: web, podManagementPolicy: Parallel"))
            .await;
        cluster.apply(&job("once", "")).await;
        cluster
            .apply(&format!(
                "{{apiVersion: batch/v1, kind: CronJob, metadata: {{name: often, namespace: {ns}}}, spec: {{schedule: \
                 \"0 0 1 1 *\", successfulJobsHistoryLimit: 1, jobTemplate: {{spec: {{template: {{spec: {{restartPolicy: Never, \
                 containers: [{{name: app, image: example/app}}]}}}}}}}}}}}}"
            ))
            .await;
        for number in 0..3 {
            cluster.must(&format!("create job often-{number} --from=cronjob/often -n {ns}")).await;
        }
        // Rollouts, a rollback, more and fewer of them.
        for image in ["example/app:2", "example/app:3"] {
            cluster.must(&format!("set image deployment/web app={image} -n {ns}")).await;
            cluster.must(&format!("rollout status deployment/web -n {ns} --timeout=120s")).await;
        }
        cluster.must(&format!("rollout undo deployment/web -n {ns}")).await;
        cluster.must(&format!("rollout status deployment/web -n {ns} --timeout=120s")).await;
        for replicas in [5, 1, 3] {
            cluster.must(&format!("scale deployment web --replicas={replicas} -n {ns}")).await;
            cluster.must(&format!("rollout status deployment/web -n {ns} --timeout=120s")).await;
        }
        cluster.must(&format!("set image statefulset/db app=example/app:2 -n {ns}")).await;
        cluster.must(&format!("rollout status statefulset/db -n {ns} --timeout=120s")).await;
        // Histories are pruned, and what has outlived its time goes.
        let replicasets = format!("get replicasets -n {ns} -l app=web -o name");
        cluster.eventually_prints(&replicasets, |names| names.lines().count() == 2).await;
        let jobs = format!("get jobs -n {ns} -o name");
        cluster.eventually_prints(&jobs, |names| names.lines().count() == 1).await;
        let pods = format!("get pods -n {ns} -l job-name=once -o name");
        cluster.eventually_prints(&pods, str::is_empty).await;
        // Endpoints, Leases, Events come and go.
        let lease = "{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: l, namespace: NS}}";
        cluster.apply(&lease.replace("NS", &ns)).await;
        allowed(&cluster.kubectl(&format!("delete lease l -n {ns}")).await);
        allowed(&cluster.kubectl(&format!("delete events --all -n {ns}")).await);
        allowed(&cluster.kubectl(&format!("delete endpointslices --all -n {ns}")).await);
        // An operator renews what it owns as controller.
        cluster.must(&format!("create configmap certificate -n {ns}")).await;
        let owner = uid(cluster, &format!("configmap certificate -n {ns}")).await;
        let secret = format!(
            "{{apiVersion: v1, kind: Secret, metadata: {{name: tls, namespace: {ns}, ownerReferences: [{{apiVersion: v1, \
             kind: ConfigMap, name: certificate, uid: {owner}, controller: true}}]}}}}"
        );
        cluster.apply(&secret).await;
        for _ in 0..2 {
            allowed(&cluster.kubectl(&format!("delete secret tls -n {ns} {OPERATOR}")).await);
            cluster.apply(&secret).await;
        }
        grow_a_claim(cluster, &ns).await;
        // A node is drained and replaced.
        node(cluster, &ns, &other).await;
        cluster.must(&format!("drain {one} --timeout=120s")).await;
        cluster.must(&format!("delete node {one}")).await;
        for workload in ["deployment/web", "statefulset/db"] {
            cluster.must(&format!("rollout status {workload} -n {ns} --timeout=120s")).await;
        }
        // Not one of all these was refused.
        cluster.must(&format!("create configmap last -n {ns}")).await;
        denied(&cluster.kubectl(&format!("delete configmap last -n {ns}")).await, "Forbidden", &ns);
        let count = format!("get rdp {ns} -o jsonpath={{.status.denied}}");
        cluster.eventually_prints(&count, |count| count != "0").await;
        assert_eq!(cluster.must(&count).await, "1");
        lift(cluster, &ns).await;
        cluster.must(&format!("delete node {other}")).await;
    });
}

#[test]
fn people_and_their_tools_are_bound_by_it() {
    shared(async |cluster| {
        let ns = production(cluster).await;
        let deployment = format!("create deployment web --image=example/app --replicas=2 -n {ns}");
        cluster.must(&deployment).await;
        cluster.must(&format!("rollout status deployment/web -n {ns} --timeout=60s")).await;
        cluster.pod(&ns, "naked").await;
        cluster.must(&format!("create configmap settings -n {ns}")).await;
        cluster.must(&format!("create configmap owner -n {ns}")).await;
        cluster.must(&format!("create configmap scratch -n {ns}")).await;
        cluster.must(&format!("label configmap scratch -n {ns} tier=scratch")).await;
        // A dependent of what is excepted: the garbage collector must not take it.
        let owner = uid(cluster, &format!("configmap scratch -n {ns}")).await;
        for (name, controller) in [("kept", false), ("controlled", true)] {
            cluster
                .apply(&format!(
                    "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}, namespace: {ns}, ownerReferences: [{{apiVersion: \
                     v1, kind: ConfigMap, name: scratch, uid: {owner}, controller: {controller}}}]}}}}"
                ))
                .await;
        }
        let except = ", except: [{kind: \"*\", labelSelector: {matchLabels: {tier: scratch}}}, {apiVersion: v1, kind: Secret}]";
        everything(cluster, &ns, except).await;
        let argo =
            "--as=system:serviceaccount:argocd:argocd-application-controller --as-group=system:masters";
        let replicaset = cluster.must(&format!("get replicasets -n {ns} -o name")).await;
        for object in
            ["deployment/web", replicaset.trim(), "configmap/settings", "pod/naked", "serviceaccount/default"]
        {
            for user in ["", "--as=jane --as-group=system:masters"] {
                let said = cluster.kubectl(&format!("delete {object} -n {ns} {user}")).await;
                denied(&said, "Forbidden", &format!("ResourceDeletionProtection \"{ns}\""));
            }
        }
        denied(&cluster.kubectl(&format!("delete deployment web -n {ns} {argo}")).await, "Forbidden", &ns);
        denied(
            &cluster.kubectl(&format!("delete configmap settings -n {ns} {argo}")).await,
            "Forbidden",
            &ns,
        );
        denied(&cluster.kubectl(&format!("delete namespace {ns}")).await, "Forbidden", &ns);
        denied(&evict(cluster, &ns, "naked", "").await, "Forbidden", &ns);

        // A controller's pods come back: anybody may delete and evict them.
        let pods = cluster.must(&format!("get pods -n {ns} -l app=web -o name")).await;
        let mut pods = pods.lines().map(|pod| pod.trim_start_matches("pod/"));
        allowed(&cluster.kubectl(&format!("delete pod {} -n {ns}", pods.next().unwrap())).await);
        allowed(&evict(cluster, &ns, pods.next().unwrap(), "").await);

        // Exceptions are free; to enter one is to leave the rule.
        cluster.must(&format!("create secret generic s -n {ns}")).await;
        allowed(&cluster.kubectl(&format!("delete secret s -n {ns}")).await);
        let said = cluster.kubectl(&format!("label configmap settings -n {ns} tier=scratch")).await;
        denied(&said, "Forbidden", "This change of its labels would end that.");
        allowed(&cluster.kubectl(&format!("label configmap settings -n {ns} tier=web")).await);
        allowed(&cluster.kubectl(&format!("delete configmap scratch -n {ns}")).await);

        // To make an object a controller's would free it.
        let owner = uid(cluster, &format!("configmap owner -n {ns}")).await;
        let patch = format!(
            r#"{{"metadata":{{"ownerReferences":[{{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":"{owner}","controller":true}}]}}}}"#
        );
        for object in ["configmap settings", "pod naked"] {
            for user in ["", &format!("--as=system:serviceaccount:{ns}:default --as-group=system:masters")] {
                let said =
                    cluster.kubectl(&format!("patch {object} -n {ns} --type=merge -p {patch} {user}")).await;
                denied(&said, "Forbidden", "To make it a controller's would end that.");
            }
        }
        allowed(
            &cluster
                .kubectl(&format!("patch configmap settings -n {ns} --type=merge -p {patch} {OPERATOR}"))
                .await,
        );
        allowed(&cluster.kubectl(&format!("delete configmap settings -n {ns} {OPERATOR}")).await);

        // The garbage collector tried, and was refused.
        let tried = wait_until(EVENTUALLY, || async {
            let denied = cluster.must(&format!("get rdp {ns} -o jsonpath={{.status.denied}}")).await;
            denied.parse::<u64>().is_ok_and(|denied| denied > 17)
        });
        assert!(tried.await);
        for kept in ["kept", "controlled"] {
            assert!(cluster.exists(&format!("configmap {kept} -n {ns}")).await, "{kept}");
        }
        lift(cluster, &ns).await;
    });
}

#[test]
fn a_kind_everywhere() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let group = format!("{ns}.example.com");
        cluster.apply(&crate::labels::definition(&group, "Widget", "widgets", "Namespaced", &["v1"])).await;
        cluster.eventually(&format!("get widgets.{group} -n {ns}")).await;
        for (name, labels) in [("a", ""), ("b", "tier: scratch")] {
            cluster
                .apply(&format!(
                    "{{apiVersion: {group}/v1, kind: Widget, metadata: {{name: {name}, namespace: {ns}, labels: {{{labels}}}}}}}"
                ))
                .await;
        }
        let spec = format!(
            "{{protectedResources: [{{resourceSelector: [{{apiVersion: {group}/v1, kind: Widget}}], except: [{{apiVersion: \
             {group}/v1, kind: Widget, labelSelector: {{matchLabels: {{tier: scratch}}}}}}]}}]}}"
        );
        protect(cluster, &ns, &spec).await;
        denied(&cluster.kubectl(&format!("delete widgets.{group} a -n {ns}")).await, "Forbidden", &ns);
        let said = cluster.kubectl(&format!("label widgets.{group} a -n {ns} tier=scratch")).await;
        denied(&said, "Forbidden", "This change of its labels would end that.");
        allowed(&cluster.kubectl(&format!("delete widgets.{group} b -n {ns}")).await);
        denied(
            &cluster.kubectl(&format!("delete namespace {ns}")).await,
            "Forbidden",
            &format!("\"{ns}/a\""),
        );
        // An exception of everything is a mistake.
        let nothing = spec.replace(
            &format!(
                "apiVersion: {group}/v1, kind: Widget, labelSelector: {{matchLabels: {{tier: scratch}}}}"
            ),
            "kind: \"*\"",
        );
        let manifest = format!(
            "{{apiVersion: palisade.dev/v1alpha1, kind: ResourceDeletionProtection, metadata: {{name: nothing}}, spec: {nothing}}}"
        );
        let said = cluster.kubectl_with(["apply", "-f", "-"], &manifest).await;
        assert!(said.err.contains("an exception of kind \"*\" needs a name"), "{said:?}");
        lift(cluster, &ns).await;
        let goes = wait_until(EVENTUALLY, || async {
            cluster.kubectl(&format!("delete crd widgets.{group} --wait=false")).await.ok
        });
        assert!(goes.await);
    });
}
