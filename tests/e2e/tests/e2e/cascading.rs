//! `Cascading`, by label and by annotation: what each kind stays for, and when it may go.

use crate::cascade::{known, owned};
use crate::cluster::{Cluster, Said, allowed, denied, lifting, shared, warned};
use crate::labels::definition;
use crate::protections::{lift, protect};

const LABEL: &str = "policy.kruise.io/delete-protection";
const DISABLE: &str = "policy.kruise.io/disable-cascading-deletion";

/// The marks that ask for `Cascading`: how kubectl sets them.
const MARKS: [(&str, &str, &str); 3] =
    [("label", LABEL, "Cascading"), ("label", DISABLE, "true"), ("annotate", DISABLE, "true")];

/// The deletions of an object under each mark, one by one; the marks are taken away again.
async fn deletions(cluster: &Cluster, object: &str, how: &str) -> Vec<Said> {
    let mut all = Vec::new();
    for (verb, key, value) in MARKS {
        cluster.must(&format!("{verb} {object} {key}={value}")).await;
        all.push(cluster.kubectl(&format!("delete {object} {how}")).await);
        cluster.must(&format!("{verb} {object} {key}-")).await;
    }
    all
}

/// An object stays under each mark, also in earnest.
async fn stays(cluster: &Cluster, object: &str, text: &str) {
    for said in deletions(cluster, object, "--dry-run=server").await {
        denied(&said, "Forbidden", text);
    }
    for said in deletions(cluster, object, "--cascade=orphan --wait=false").await {
        denied(&said, "Forbidden", text);
        assert!(lifting(&said).starts_with("kubectl "), "{said:?}");
    }
}

/// An object may go under each mark. Nothing is deleted.
async fn may_go(cluster: &Cluster, object: &str) {
    for said in deletions(cluster, object, "--dry-run=server").await {
        allowed(&said);
    }
}

/// The same, once controllers have done their part.
async fn may_go_soon(cluster: &Cluster, object: &str) {
    cluster.must(&format!("label {object} {LABEL}=Cascading")).await;
    cluster.eventually(&format!("delete {object} --dry-run=server")).await;
    cluster.must(&format!("label {object} {LABEL}-")).await;
    may_go(cluster, object).await;
}

/// What it holds can't be known now.
async fn is_unknown(cluster: &Cluster, object: &str, text: &str) {
    for said in deletions(cluster, object, "--dry-run=server").await {
        denied(&said, "ServiceUnavailable", text);
    }
}

fn template(ns: &str) -> String {
    format!(
        "{{metadata: {{labels: {{app: {ns}}}}}, spec: {{containers: [{{name: a, image: example/app}}]}}}}"
    )
}

#[test]
fn replication_controllers_and_daemon_sets() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let template = template(&ns);
        cluster
            .apply(&format!(
                "{{apiVersion: v1, kind: ReplicationController, metadata: {{name: web, namespace: {ns}}}, \
                 spec: {{replicas: 2, selector: {{app: {ns}}}, template: {template}}}}}"
            ))
            .await;
        let web = format!("replicationcontroller web -n {ns}");
        stays(cluster, &web, "and it has 2 replicas. Scale it to 0 first.").await;
        cluster.must(&format!("scale {web} --replicas=0")).await;
        may_go(cluster, &web).await;

        let set = |selector: &str| {
            format!(
                "{{apiVersion: apps/v1, kind: DaemonSet, metadata: {{name: agent, namespace: {ns}}}, \
                 spec: {{selector: {{matchLabels: {{app: {ns}}}}}, template: {{metadata: {{labels: {{app: {ns}}}}}, \
                 spec: {{nodeSelector: {{{selector}}}, containers: [{{name: a, image: example/app}}]}}}}}}}}"
            )
        };
        cluster.apply(&set("")).await;
        let agent = format!("daemonset agent -n {ns}");
        let desired = format!("get {agent} -o jsonpath={{.status.desiredNumberScheduled}}");
        cluster
            .eventually_prints(&desired, |number| number.parse::<u32>().is_ok_and(|number| number > 0))
            .await;
        stays(cluster, &agent, "that it should run. Give it a node selector that no Node has first.").await;
        cluster.apply(&set("no: node")).await;
        may_go_soon(cluster, &agent).await;
        // Its controller has copied the annotation to its history, and the garbage collector takes that along.
        cluster.must(&format!("annotate {agent} {DISABLE}=true")).await;
        allowed(&cluster.kubectl(&format!("delete {agent} --cascade=foreground --timeout=60s")).await);
    });
}

#[test]
fn a_status_that_is_behind_decides_nothing() {
    shared(async |cluster| {
        let group = "apps.kruise.io";
        cluster.apply(&definition(group, "DaemonSet", "daemonsets", "Namespaced", &["v1alpha1"])).await;
        let established = format!("wait crd/daemonsets.{group} --for=condition=Established --timeout=30s");
        cluster.must(&established).await;
        let ns = cluster.namespace().await;
        cluster.eventually(&format!("get daemonsets.{group} -n {ns}")).await;
        // Nobody runs it, so that its status is what this test says.
        let with = |status: &str| {
            format!(
                "{{apiVersion: {group}/v1alpha1, kind: DaemonSet, metadata: {{name: agent, namespace: {ns}}}, \
                 spec: {{}}, status: {{{status}}}}}"
            )
        };
        let agent = format!("daemonsets.{group} agent -n {ns}");
        cluster.apply(&with("")).await;
        is_unknown(cluster, &agent, "its controller has not seen its newest generation yet").await;
        cluster.apply(&with("observedGeneration: 100, desiredNumberScheduled: 3")).await;
        stays(cluster, &agent, "and it has 3 pods that it should run.").await;
        cluster.apply(&with("observedGeneration: 1, desiredNumberScheduled: 0")).await;
        is_unknown(cluster, &agent, "its controller has not seen its newest generation yet").await;
        cluster.apply(&with("observedGeneration: 100, desiredNumberScheduled: 0")).await;
        may_go(cluster, &agent).await;
    });
}

#[test]
fn jobs_and_cron_jobs() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let pod = "{spec: {restartPolicy: Never, containers: [{name: a, image: example/app}]}}";
        // Kubernetes' own controller leaves it alone, so that its status is what this test says.
        cluster
            .apply(&format!(
                "{{apiVersion: batch/v1, kind: Job, metadata: {{name: sums, namespace: {ns}}}, \
                 spec: {{managedBy: example.com/nobody, template: {pod}}}}}"
            ))
            .await;
        let sums = format!("job sums -n {ns}");
        is_unknown(
            cluster,
            &sums,
            "its active pods could not be found out (its controller has not seen it yet",
        )
        .await;
        let status = async |status: &str| {
            let patch = format!("patch {sums} --subresource=status --type=merge -p {{\"status\":{status}}}");
            cluster.must(&patch).await;
        };
        status(r#"{"startTime":"2026-01-01T00:00:00Z","active":2}"#).await;
        stays(cluster, &sums, "and it has 2 active pods. Suspend it, or wait until it has ended.").await;
        status(r#"{"active":0}"#).await;
        may_go(cluster, &sums).await;

        cluster
            .apply(&format!(
                "{{apiVersion: batch/v1, kind: CronJob, metadata: {{name: nightly, namespace: {ns}}}, \
                 spec: {{schedule: '0 0 1 1 *', suspend: true, jobTemplate: {{spec: {{suspend: true, template: {pod}}}}}}}}}"
            ))
            .await;
        let nightly = format!("cronjob nightly -n {ns}");
        may_go(cluster, &nightly).await;
        cluster.must(&format!("create job run-1 --from=cronjob/nightly -n {ns}")).await;
        let uid = cluster.must(&format!("get job run-1 -n {ns} -o jsonpath={{.metadata.uid}}")).await;
        let active =
            format!(r#"{{"status":{{"active":[{{"name":"run-1","namespace":"{ns}","uid":"{uid}"}}]}}}}"#);
        cluster.must(&format!("patch {nightly} --subresource=status --type=merge -p {active}")).await;
        stays(cluster, &nightly, "and it has 1 active Job: run-1. Delete those first.").await;
        // A Job that is suspended has no pods.
        let run = format!("job run-1 -n {ns}");
        may_go(cluster, &run).await;
        cluster.must(&format!("delete {run}")).await;
        may_go_soon(cluster, &nightly).await;
    });
}

#[test]
fn claims_and_volumes() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let volume = |name: &str, class: &str| {
            format!(
                "{{apiVersion: v1, kind: PersistentVolume, metadata: {{name: {name}}}, spec: {{capacity: {{storage: 1Gi}}, \
                 accessModes: [ReadWriteOnce], storageClassName: {class}, hostPath: {{path: /data}}}}}}"
            )
        };
        let claim = |name: &str, class: &str| {
            format!(
                "{{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: {name}, namespace: {ns}}}, \
                 spec: {{accessModes: [ReadWriteOnce], storageClassName: {class}, resources: {{requests: {{storage: 1Gi}}}}}}}}"
            )
        };
        cluster.apply(&volume(&ns, &ns)).await;
        cluster.apply(&volume(&format!("{ns}-free"), &format!("{ns}-free"))).await;
        cluster.apply(&claim("data", &ns)).await;
        cluster.apply(&claim("waiting", "none")).await;
        let data = format!("pvc data -n {ns}");
        cluster.must(&format!("wait {data} --for=jsonpath={{.status.phase}}=Bound --timeout=30s")).await;
        stays(cluster, &data, &format!("and it has a volume that it is bound to: {ns}. To lift it: ")).await;
        stays(cluster, &format!("pv {ns}"), &format!("and it has a claim that it is bound to: {ns}/data."))
            .await;
        may_go(cluster, &format!("pv {ns}-free")).await;

        let waiting = format!("pvc waiting -n {ns}");
        may_go(cluster, &waiting).await;
        cluster
            .apply(&format!(
                "{{apiVersion: v1, kind: Pod, metadata: {{name: reader, namespace: {ns}}}, \
                 spec: {{containers: [{{name: a, image: example/app}}], \
                 volumes: [{{name: v, persistentVolumeClaim: {{claimName: waiting}}}}]}}}}"
            ))
            .await;
        stays(cluster, &waiting, "and it has 1 pod that mounts it: reader. Delete those first.").await;

        // They guard what they are in.
        cluster.must(&format!("label {waiting} {LABEL}=Cascading")).await;
        cluster.must(&format!("annotate {data} {DISABLE}=true")).await;
        let said = cluster.kubectl(&format!("delete namespace {ns}")).await;
        denied(&said, "Forbidden", "2 protected objects would go with it");
        denied(
            &said,
            "Forbidden",
            &format!("\"{ns}/waiting\" (label {LABEL}=Cascading, and it has 1 pod that mounts it"),
        );
        denied(
            &said,
            "Forbidden",
            &format!("\"{ns}/data\" (annotation {DISABLE}=true, and it has a volume that"),
        );
        cluster.must(&format!("annotate {data} {DISABLE}-")).await;
        cluster.must(&format!("delete pod reader -n {ns} --grace-period=0 --force")).await;
        allowed(&cluster.kubectl(&format!("delete namespace {ns} --wait=false")).await);
        cluster.must(&format!("delete pv {ns} {ns}-free --wait=false")).await;
    });
}

#[test]
fn services() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let parent = owned(cluster, &ns, "parent", "", &[]).await;
        cluster
            .apply(&format!(
                "{{apiVersion: v1, kind: Service, metadata: {{name: web, namespace: {ns}, ownerReferences: \
                 [{{apiVersion: v1, kind: ConfigMap, name: parent, uid: {parent}}}]}}, \
                 spec: {{selector: {{run: web}}, ports: [{{port: 80}}]}}}}"
            ))
            .await;
        cluster.must(&format!("create service externalname away --external-name=example.com -n {ns}")).await;
        let web = format!("service web -n {ns}");
        may_go(cluster, &web).await;
        may_go(cluster, &format!("service away -n {ns}")).await;
        cluster.pod(&ns, "web").await;
        let ready = format!(
            "get endpointslices -n {ns} -l kubernetes.io/service-name=web -o jsonpath={{.items[*].endpoints[*].conditions.ready}}"
        );
        cluster.eventually_prints(&ready, |text| text == "true").await;
        stays(cluster, &web, "and it has 1 ready endpoint: web. Scale what is behind it to 0 first.").await;

        // It guards its Namespace and its owner.
        let here = "and it has 1 ready endpoint: web";
        for said in deletions_of(cluster, &web, &format!("namespace {ns} --dry-run=server")).await {
            denied(&said, "Forbidden", here);
        }
        cluster.must(&format!("label {web} {DISABLE}=true")).await;
        known(cluster, &parent).await;
        let said = cluster.kubectl(&format!("delete configmap parent -n {ns}")).await;
        denied(&said, "Forbidden", &format!("service \"{ns}/web\" (label {DISABLE}=true, {here})"));
        cluster.must(&format!("label {web} {DISABLE}-")).await;

        // A protection in mode Cascading follows the same table.
        let rule = format!(
            "{{mode: Cascading, protectedResources: [{{resourceSelector: [{{apiVersion: v1, kind: Service, namespace: {ns}}}]}}]}}"
        );
        protect(cluster, &format!("cascading-{ns}"), &rule).await;
        let said = cluster.kubectl(&format!("delete {web}")).await;
        denied(&said, "Forbidden", &format!("ResourceDeletionProtection \"cascading-{ns}\", {here}"));
        cluster.must(&format!("delete pod web -n {ns} --grace-period=0 --force")).await;
        cluster.eventually(&format!("delete {web} --dry-run=server")).await;
        lift(cluster, &format!("cascading-{ns}")).await;
        may_go_soon(cluster, &web).await;
    });
}

/// The deletions of something else, while an object carries each mark.
async fn deletions_of(cluster: &Cluster, object: &str, other: &str) -> Vec<Said> {
    let mut all = Vec::new();
    for (verb, key, value) in MARKS {
        cluster.must(&format!("{verb} {object} {key}={value}")).await;
        all.push(cluster.kubectl(&format!("delete {other}")).await);
        cluster.must(&format!("{verb} {object} {key}-")).await;
    }
    all
}

#[test]
fn nodes() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let node = format!("node-of-{ns}");
        cluster.node(&node).await;
        cluster.must(&format!("label node {node} only={ns}")).await;
        cluster
            .apply(&format!(
                "{{apiVersion: apps/v1, kind: DaemonSet, metadata: {{name: agent, namespace: {ns}}}, \
                 spec: {{selector: {{matchLabels: {{app: {ns}}}}}, template: {{metadata: {{labels: {{app: {ns}}}}}, \
                 spec: {{nodeSelector: {{only: {ns}}}, containers: [{{name: a, image: example/app}}]}}}}}}}}"
            ))
            .await;
        let agents = format!("get pods -n {ns} -l app={ns} -o jsonpath={{.items[*].spec.nodeName}}");
        cluster.eventually_prints(&agents, |text| text == node).await;
        let this = format!("node {node}");
        may_go(cluster, &this).await;
        cluster
            .apply(&format!(
                "{{apiVersion: v1, kind: Pod, metadata: {{name: web, namespace: {ns}}}, \
                 spec: {{nodeName: {node}, containers: [{{name: a, image: example/app}}]}}}}"
            ))
            .await;
        let text = format!(
            "and it has 1 pod that is not a DaemonSet's: {ns}/web. Drain it first: kubectl drain {node} --ignore-daemonsets."
        );
        stays(cluster, &this, &text).await;
        cluster.must(&format!("label {this} {LABEL}=Cascading")).await;
        let as_account = async |account: &str| {
            let words =
                format!("delete {this} --dry-run=server --as=system:serviceaccount:kube-system:{account}");
            cluster.kubectl(&words).await
        };
        allowed(&as_account("node-controller").await);
        denied(&as_account("generic-garbage-collector").await, "Forbidden", &text);
        let drained =
            cluster.kubectl(&format!("drain {node} --ignore-daemonsets --force --timeout=60s")).await;
        assert!(drained.ok, "{drained:?}");
        allowed(&cluster.kubectl(&format!("delete {this} --wait=false")).await);
    });
}

#[test]
fn kinds_with_a_scale() {
    shared(async |cluster| {
        let group = "scaled.example.com";
        let definition = definition(group, "Ring", "rings", "Namespaced", &["v1"]);
        let scale = "subresources: {scale: {specReplicasPath: .spec.size.members, statusReplicasPath: .status.members}}, schema:";
        cluster.apply(&definition.replace("schema:", scale)).await;
        cluster.must(&format!("wait crd/rings.{group} --for=condition=Established --timeout=30s")).await;
        let ns = cluster.namespace().await;
        cluster.eventually(&format!("get rings.{group} -n {ns}")).await;
        let with = |spec: &str| {
            format!(
                "{{apiVersion: {group}/v1, kind: Ring, metadata: {{name: main, namespace: {ns}}}, spec: {{{spec}}}}}"
            )
        };
        let main = format!("rings.{group} main -n {ns}");
        cluster.apply(&with("size: {members: 3}")).await;
        stays(cluster, &main, "and it has 3 replicas. Scale it to 0 first.").await;
        for said in deletions_of(cluster, &main, &format!("namespace {ns} --dry-run=server")).await {
            denied(&said, "Forbidden", "and it has 3 replicas");
        }
        cluster.must(&format!("scale {main} --replicas=0")).await;
        may_go(cluster, &main).await;
        for said in deletions_of(cluster, &main, &format!("namespace {ns} --dry-run=server")).await {
            allowed(&said);
        }
        cluster.must(&format!("delete {main}")).await;
        cluster.apply(&with("")).await;
        stays(cluster, &main, "and it has 1 replica. Scale it to 0 first.").await;
    });
}

#[test]
fn any_other_kind() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let uid = owned(cluster, &ns, "parent", "", &[]).await;
        let parent = format!("configmap parent -n {ns}");
        may_go(cluster, &parent).await;
        for child in ["one", "two"] {
            owned(cluster, &ns, child, "", &[("v1", "ConfigMap", "parent", &uid)]).await;
        }
        let text =
            format!("2 objects that it owns: configmap {ns}/one, configmap {ns}/two. Delete those first.");
        stays(cluster, &parent, &text).await;
        for said in deletions_of(cluster, &parent, &format!("namespace {ns} --dry-run=server")).await {
            denied(&said, "Forbidden", &format!("configmap \"{ns}/parent\" ("));
            denied(&said, "Forbidden", "2 objects that it owns");
        }
        // What is terminating is on its way already.
        cluster.must(&format!("delete configmap one -n {ns}")).await;
        let hold = r#"{"metadata":{"finalizers":["example.com/hold"]}}"#;
        cluster.must(&format!("patch configmap two -n {ns} --type=merge -p {hold}")).await;
        cluster.must(&format!("delete configmap two -n {ns} --wait=false")).await;
        may_go(cluster, &parent).await;
        let free = r#"{"metadata":{"finalizers":null}}"#;
        cluster.must(&format!("patch configmap two -n {ns} --type=merge -p {free}")).await;

        // An owner without a namespace has dependents anywhere. How many of them are counted depends on the time that is left.
        let role = format!("clusterrole cascading-{ns}");
        cluster.must(&format!("create {role} --verb=get --resource=pods")).await;
        let uid = cluster.must(&format!("get {role} -o jsonpath={{.metadata.uid}}")).await;
        may_go(cluster, &role).await;
        let api = "rbac.authorization.k8s.io/v1";
        owned(cluster, &ns, "three", "", &[(api, "ClusterRole", &format!("cascading-{ns}"), &uid)]).await;
        stays(cluster, &role, &format!(" that it owns: configmap {ns}/three.")).await;
        cluster.must(&format!("delete configmap three -n {ns}")).await;
        may_go(cluster, &role).await;
        cluster.must(&format!("delete {role}")).await;
    });
}

#[test]
fn kinds_that_come_and_go_by_themselves() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let kinds = [
            ("v1", "Endpoints", ""),
            ("discovery.k8s.io/v1", "EndpointSlice", ", addressType: IPv4, endpoints: []"),
            ("coordination.k8s.io/v1", "Lease", ""),
            ("v1", "Event", &format!(", involvedObject: {{namespace: {ns}}}")),
        ];
        for (api, kind, rest) in kinds {
            let metadata = format!("name: x, namespace: {ns}");
            cluster
                .apply(&format!("{{apiVersion: {api}, kind: {kind}, metadata: {{{metadata}}}{rest}}}"))
                .await;
            let object = format!("{} x -n {ns}", kind.to_lowercase());
            for (verb, key, value) in MARKS {
                let set = format!("{verb} {object} {key}={value}");
                let said = cluster.kubectl(&set).await;
                warned(&said, &format!("{key}={value} does not protect it"));
                let again = cluster.kubectl(&format!("{set} --overwrite")).await;
                assert!(!again.err.contains("does not protect"), "{again:?}");
            }
            let said = cluster.kubectl(&format!("delete {object}")).await;
            assert!(said.ok && !said.err.contains("protect"), "{said:?}");
        }
    });
}
