//! What stays of a refusal: a line in the log, and Events.

use std::collections::BTreeSet;
use std::fs;

use crate::cluster::{Cluster, allowed, denied, shared};
use crate::pods::pods;

/// The lines of all replicas' logs that hold a text.
fn logged(cluster: &Cluster, text: &str) -> Vec<String> {
    let logs = cluster.plane.folder().join("logs");
    let read = |replica| fs::read_to_string(logs.join(format!("palisade-{replica}.log"))).unwrap_or_default();
    let all = [0, 1].map(read).concat();
    all.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
}

fn events(ns: &str, name: &str) -> String {
    format!(
        "get events -n {ns} --field-selector involvedObject.name={name} \
         -o jsonpath={{range.items[*]}}{{.reason}}:{{.message}}{{\"\\n\"}}{{end}}"
    )
}

#[test]
fn a_refusal_is_one_line_in_the_log_and_an_event_on_the_object_and_on_the_policy() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        for name in ["kept", "ruled", "tried"] {
            cluster.must(&format!("create configmap {name} -n {ns}")).await;
        }
        for name in ["kept", "tried"] {
            let label = "policy.kruise.io/delete-protection=Always";
            cluster.must(&format!("label configmap {name} -n {ns} {label}")).await;
        }
        cluster
            .apply(&format!(
                "apiVersion: palisade.dev/v1alpha1\nkind: ResourceDeletionProtection\nmetadata: {{name: {ns}}}\n\
                 spec: {{protectedResources: [{{resourceSelector: [{{apiVersion: v1, kind: ConfigMap, namespace: {ns}, \
                 name: ruled}}]}}]}}\n"
            ))
            .await;
        cluster
            .must(&format!("wait resourcedeletionprotection {ns} --for=condition=Enforced --timeout=60s"))
            .await;
        let dry = cluster.kubectl(&format!("delete configmap tried -n {ns} --dry-run=server")).await;
        denied(&dry, "Forbidden", "protected");
        for _ in 0..3 {
            denied(
                &cluster.kubectl(&format!("delete configmap kept -n {ns}")).await,
                "Forbidden",
                "protected",
            );
        }
        denied(&cluster.kubectl(&format!("delete configmap ruled -n {ns}")).await, "Forbidden", "protected");

        cluster
            .eventually_prints(&events(&ns, "kept"), |out| out.contains("DeletionRefused:configmap"))
            .await;
        cluster
            .eventually_prints(&events(&ns, "ruled"), |out| out.contains("DeletionRefused:configmap"))
            .await;
        cluster
            .eventually_prints(&format!("describe configmap kept -n {ns}"), |out| {
                out.contains("DeletionRefused")
            })
            .await;
        cluster
            .eventually_prints(&format!("describe resourcedeletionprotection {ns}"), |out| {
                out.contains("DeletionRefused") && out.contains("/ruled\"")
            })
            .await;
        // Two windows of time may have met.
        assert!(cluster.must(&events(&ns, "kept")).await.lines().count() <= 2, "the same is said once");
        assert_eq!(cluster.must(&events(&ns, "tried")).await, "", "a dry run writes nothing");

        // Several of our webhooks may ask about one deletion, each with a review of its own.
        let lines = logged(cluster, &format!("namespace=\"{ns}\" name=\"kept\""));
        let uid = |line: &String| line.split_once("uid=\"").map(|(_, rest)| rest[..36].to_owned());
        let reviews: BTreeSet<_> = lines.iter().filter_map(uid).collect();
        assert!(lines.len() >= 3 && lines.len() == reviews.len(), "one line for each refusal: {lines:?}");
        let line = &lines[0];
        for part in [
            "INFO",
            "guard=\"labels\"",
            "code=403",
            "kind=\"ConfigMap\"",
            "user=\"admin\"",
            "uid=\"",
            "duration=",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert!(!logged(cluster, &format!("namespace=\"{ns}\" name=\"tried\"")).is_empty());
        cluster.must(&format!("delete resourcedeletionprotection {ns}")).await;
    });
}

#[test]
fn a_namespace_that_is_refused_has_its_event_in_the_default_namespace() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("label namespace {ns} policy.kruise.io/delete-protection=Always")).await;
        denied(&cluster.kubectl(&format!("delete namespace {ns}")).await, "Forbidden", "protected");
        cluster
            .eventually_prints(&events("default", &ns), |out| out.contains("DeletionRefused:namespace"))
            .await;
    });
}

#[test]
fn a_protection_label_that_is_lifted_is_an_event_where_updates_are_seen() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        pods(cluster, &ns, 2, "").await;
        cluster
            .apply(&format!(
                "apiVersion: policy.kruise.io/v1alpha1\nkind: PodUnavailableBudget\n\
                 metadata: {{name: web, namespace: {ns}}}\n\
                 spec: {{selector: {{matchLabels: {{app: web}}}}, maxUnavailable: 1}}\n"
            ))
            .await;
        cluster.must(&format!("wait pub web -n {ns} --for=condition=Enforced --timeout=60s")).await;
        cluster.must(&format!("label pod p0 -n {ns} policy.kruise.io/delete-protection=Always")).await;
        denied(&cluster.kubectl(&format!("delete pod p0 -n {ns}")).await, "Forbidden", "protected");
        allowed(&cluster.kubectl(&format!("label pod p0 -n {ns} policy.kruise.io/delete-protection-")).await);
        cluster
            .eventually_prints(&events(&ns, "p0"), |out| {
                out.contains(
                    "ProtectionLifted:label policy.kruise.io/delete-protection=Always was removed, by admin",
                )
            })
            .await;
    });
}
