//! What etcd-druid makes besides the parts of a running Etcd, and what it no longer makes: Jobs, and an Etcd whose members
//! run elsewhere.

use crate::cluster::{allowed, denied, shared, warned};
use crate::components::{LABELS, account, as_account, etcd, set_operation};
use crate::labels::definition;

const JOB: &str = "spec: {suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: backup, image: example/etcdbr}]}}}";

#[test]
fn jobs_of_etcd_druid_are_components() {
    shared(async |cluster| {
        let ns = etcd(cluster).await;
        let druid = account(cluster, "garden", "etcd-druid").await;
        let care = account(cluster, "garden", "care").await;
        let tasks = definition(
            "druid.gardener.cloud",
            "EtcdCopyBackupsTask",
            "etcdcopybackupstasks",
            "Namespaced",
            &["v1alpha1"],
        );
        cluster.apply(&tasks).await;
        let established =
            "wait crd/etcdcopybackupstasks.druid.gardener.cloud --for=condition=Established --timeout=60s";
        cluster.must(established).await;
        cluster.eventually("get etcdcopybackupstasks.druid.gardener.cloud").await;
        cluster
            .apply(&format!(
                "{{apiVersion: druid.gardener.cloud/v1alpha1, kind: EtcdCopyBackupsTask, metadata: {{name: copy, namespace: {ns}}}}}"
            ))
            .await;
        let job = |name: &str, labels: &str| {
            format!(
                "---\n{{apiVersion: batch/v1, kind: Job, metadata: {{name: {name}, namespace: {ns}, labels: {{{labels}}}}}, {JOB}}}\n"
            )
        };
        let of_task = LABELS.replace("part-of: main", "part-of: copy");
        let of_nobody = LABELS.replace("part-of: main", "part-of: nobody");
        let jobs = [job("main-compactor", LABELS), job("copy-worker", &of_task), job("stray", &of_nobody)];
        cluster.apply(&jobs.concat()).await;

        for (name, parent) in [("main-compactor", "etcd.druid"), ("copy-worker", "etcdcopybackupstask.druid")]
        {
            let delete = format!("delete job {name} -n {ns} --dry-run=server");
            let resume = format!(
                "patch job {name} -n {ns} --type=merge -p {{\"spec\":{{\"parallelism\":2}}}} --dry-run=server"
            );
            let says = format!("it is a component of {parent}.gardener.cloud");
            denied(&cluster.kubectl(&delete).await, "Forbidden", &says);
            denied(&cluster.kubectl(&resume).await, "Forbidden", &says);
            allowed(&as_account(cluster, &druid, &delete).await);
            allowed(&as_account(cluster, &druid, &resume).await);
            allowed(&as_account(cluster, &care, &delete).await);
        }
        let stray = cluster.kubectl(&format!("delete job stray -n {ns} --dry-run=server")).await;
        warned(&stray, "it is a component of Etcd \"nobody\", which is not there");

        // While the Etcd is being reconciled, exempt accounts wait for it; the task is none of its business.
        set_operation(cluster, &ns, "Reconcile", "Processing").await;
        let delete = |name: &str| format!("delete job {name} -n {ns} --dry-run=server");
        let waits = "which is being reconciled";
        denied(&as_account(cluster, &care, &delete("main-compactor")).await, "Forbidden", waits);
        allowed(&as_account(cluster, &care, &delete("copy-worker")).await);

        // What the refusal prints lifts it.
        let lift = format!(
            "annotate etcdcopybackupstasks.druid.gardener.cloud copy -n {ns} druid.gardener.cloud/disable-etcd-component-protection="
        );
        cluster.must(&lift).await;
        allowed(&cluster.kubectl(&delete("copy-worker")).await);
    });
}

#[test]
fn what_etcd_druid_no_longer_makes_for_an_etcd_is_free() {
    shared(async |cluster| {
        let ns = etcd(cluster).await;
        cluster
            .apply(&format!(
                "{{apiVersion: batch/v1, kind: Job, metadata: {{name: main, namespace: {ns}, labels: {{{LABELS}}}}}, {JOB}}}"
            ))
            .await;
        let released = [
            ("service", "main"),
            ("poddisruptionbudget", "main"),
            ("lease", "main-0"),
            ("role", "main"),
            ("rolebinding", "main"),
            ("serviceaccount", "main"),
        ];
        let kept = [("statefulset", "main"), ("configmap", "main"), ("pvc", "data-main-0"), ("job", "main")];
        let delete = |(kind, name): (&str, &str)| format!("delete {kind} {name} -n {ns} --dry-run=server");
        let label = |(kind, name): (&str, &str)| format!("label {kind} {name} -n {ns} x=y --dry-run=server");
        for each in released {
            denied(&cluster.kubectl(&delete(each)).await, "Forbidden", "and only etcd-druid may delete it");
        }
        cluster
            .must(&format!(
                "annotate etcds.druid.gardener.cloud main -n {ns} druid.gardener.cloud/disable-etcd-runtime-component-creation="
            ))
            .await;
        for each in released {
            allowed(&cluster.kubectl(&delete(each)).await);
            allowed(&cluster.kubectl(&label(each)).await);
        }
        for each in kept {
            denied(&cluster.kubectl(&delete(each)).await, "Forbidden", "and only etcd-druid may delete it");
        }
    });
}
