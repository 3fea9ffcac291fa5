//! `ResourceDeletionProtection`, end to end.

use crate::cluster::{Cluster, SOON, allowed, alone, denied, lifting, shared, warned};
use crate::labels::definition;

/// Applies a protection, and waits until it is enforced.
pub(crate) async fn protect(cluster: &Cluster, name: &str, spec: &str) {
    cluster
        .apply(&format!(
            "{{apiVersion: palisade.dev/v1alpha1, kind: ResourceDeletionProtection, metadata: {{name: {name}}}, spec: {spec}}}"
        ))
        .await;
    let generation = cluster.must(&format!("get rdp {name} -o jsonpath={{.metadata.generation}}")).await;
    let observed = format!(
        "get rdp {name} -o jsonpath={{.status.conditions[?(@.type=='Enforced')].status}}/{{.status.observedGeneration}}"
    );
    cluster.eventually_prints(&observed, |text| text == format!("True/{generation}")).await;
}

pub(crate) async fn lift(cluster: &Cluster, name: &str) {
    cluster.must(&format!("delete rdp {name}")).await;
}

#[test]
fn the_seeds_example_works_as_it_stands() {
    shared(async |cluster| {
        cluster.must("create namespace sample").await;
        for name in ["deployment-1", "deployment-2", "deployment-3"] {
            cluster.must(&format!("create deployment {name} --image=example/app -n sample")).await;
        }
        for name in ["service-1", "service-2"] {
            cluster.must(&format!("create service clusterip {name} --tcp=80 -n sample")).await;
        }
        let spec = r#"
  protectedResources:
    - resourceSelector:
        - apiVersion: "apps/v1"
          kind: "Deployment"
          namespace: "sample"
      resourceNames:
        - "deployment-1"
        - "deployment-2"
    - resourceSelector:
        - apiVersion: "v1"
          kind: "Service"
          name: "service-1"
          namespace: "sample"
      resourceNames:
        - "service-1"
"#;
        cluster
            .apply(&format!(
                "kind: ResourceDeletionProtection\napiVersion: palisade.dev/v1alpha1\nmetadata:\n  name: sample\nspec:{spec}"
            ))
            .await;
        cluster.must("wait rdp/sample --for=condition=Enforced --timeout=10s").await;
        for name in ["deployment-1", "deployment-2"] {
            for how in ["", "--force", "--dry-run=server", "--cascade=orphan"] {
                let said = cluster.kubectl(&format!("delete deployment {name} -n sample {how}")).await;
                denied(&said, "Forbidden", "ResourceDeletionProtection \"sample\"");
            }
        }
        denied(&cluster.kubectl("delete service service-1 -n sample").await, "Forbidden", "\"sample\"");
        allowed(&cluster.kubectl("delete deployment deployment-3 -n sample").await);
        allowed(&cluster.kubectl("delete service service-2 -n sample").await);

        // Dry runs do not count: two deployments, two ways... and a service.
        cluster.eventually_prints("get rdp sample -o jsonpath={.status.denied}", |text| text == "7").await;
        let row = cluster.must("get rdp sample").await;
        for part in ["MODE", "ACTION", "ENFORCED", "DENIED", "AGE", "Always", "Deny", "True", "7"] {
            assert!(row.contains(part), "{part} in {row}");
        }
        let status = cluster.must("get rdp sample -o jsonpath={.status.rules}/{.status.kinds}").await;
        assert_eq!(status, r#"2/["deployments.apps","services"]"#);

        // The printed command exempts whoever asked.
        let said = cluster.kubectl("delete deployment deployment-1 -n sample").await;
        allowed(&cluster.shell(&lifting(&said)).await);
        let gone = palisade_testkit::wait_until(SOON, || async {
            cluster.kubectl("delete deployment deployment-1 -n sample").await.ok
        });
        assert!(gone.await);
        denied(
            &cluster
                .kubectl("delete deployment deployment-2 -n sample --as=jane --as-group=system:masters")
                .await,
            "Forbidden",
            "\"sample\"",
        );

        lift(cluster, "sample").await;
        let gone = palisade_testkit::wait_until(SOON, || async {
            cluster.kubectl("delete deployment deployment-2 -n sample").await.ok
        });
        assert!(gone.await, "lifted within seconds");
        cluster.must("delete namespace sample --wait=false").await;
    });
}

#[test]
fn a_selector_that_no_label_can_match_holds_up_nobody() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let (odd, plain) = (format!("{ns}-odd"), format!("{ns}-plain"));
        // A key that no object can have: the API server would refuse the whole registration with it.
        let spec = r#"{protectedResources: [{resourceSelector: [{kind: "*", labelSelector: {matchLabels: {"a b": c}}}]}]}"#;
        protect(cluster, &odd, spec).await;
        cluster.must(&format!("create configmap c -n {ns}")).await;
        protect(cluster, &plain, &format!("{{protectedResources: [{{resourceSelector: [{{apiVersion: v1, kind: ConfigMap, namespace: {ns}}}]}}]}}")).await;
        denied(&cluster.kubectl(&format!("delete configmap c -n {ns}")).await, "Forbidden", &plain);
        lift(cluster, &odd).await;
        lift(cluster, &plain).await;
    });
}

#[test]
fn bad_objects_never_get_in() {
    shared(async |cluster| {
        let entry = |selector: &str| format!("{{protectedResources: [{{resourceSelector: [{selector}]}}]}}");
        for (spec, text) in [
            ("{}".to_owned(), "protectedResources"),
            ("{protectedResources: []}".to_owned(), "at least 1 items"),
            ("{protectedResources: [{resourceSelector: []}]}".to_owned(), "at least 1 items"),
            ("{protectedResources: [{resourceNames: [a]}]}".to_owned(), "resourceSelector: Required value"),
            (entry("{apiVersion: v1}"), "kind: Required value"),
            (entry("{apiVersion: v1, kind: \"\"}"), "kind"),
            (entry("{kind: Pod}"), "apiVersion is needed"),
            (entry("{apiVersion: apps/v1/v2, kind: Pod}"), "apiVersion"),
            (entry("{apiVersion: \"\", kind: Pod}"), "apiVersion"),
            (entry("{apiVersion: /v1, kind: Pod}"), "apiVersion"),
            (entry("{apiVersion: apps/, kind: Pod}"), "apiVersion"),
            (entry("{apiVersion: Apps/V1, kind: Pod}"), "apiVersion"),
            (entry("{apiVersion: v1, kind: Pod, labelSelector: {}}"), "at least 1 properties"),
            (entry("{apiVersion: v1, kind: Pod, namespaceSelector: {}}"), "at least 1 properties"),
            (entry("{apiVersion: v1, kind: Pod, labelSelector: {matchLabels: {}}}"), "at least 1 properties"),
            (entry("{apiVersion: v1, kind: Pod, labelSelector: {matchExpressions: [{key: a, operator: Is}]}}"), "Unsupported value: \"Is\""),
            (entry("{apiVersion: v1, kind: Pod, labelSelector: {matchExpressions: [{key: a, operator: In}]}}"), "In and NotIn need values"),
            (entry("{apiVersion: v1, kind: Pod, labelSelector: {matchExpressions: [{key: a, operator: NotIn, values: []}]}}"), "In and NotIn need values"),
            (entry("{apiVersion: v1, kind: Pod, labelSelector: {matchLabels: {a: \"b c\"}}}"), "should match"),
            (entry("{apiVersion: v1, kind: Pod, labelSelector: {matchExpressions: [{key: \"a b\", operator: Exists}]}}"), "should match"),
            (entry("{kind: \"*\"}"), "needs a name, a namespace or a label selector"),
            (entry("{apiVersion: v1, kind: Pod, color: red}"), "unknown field \"spec.protectedResources[0].resourceSelector[0].color\""),
            ("{mode: Never, protectedResources: [{resourceSelector: [{apiVersion: v1, kind: Pod}]}]}".to_owned(), "Unsupported value: \"Never\""),
            ("{action: Ask, protectedResources: [{resourceSelector: [{apiVersion: v1, kind: Pod}]}]}".to_owned(), "Unsupported value: \"Ask\""),
            ("{exempt: {serviceAccounts: [{name: a}]}, protectedResources: [{resourceSelector: [{apiVersion: v1, kind: Pod}]}]}".to_owned(), "namespace: Required value"),
        ] {
            let manifest = format!("{{apiVersion: palisade.dev/v1alpha1, kind: ResourceDeletionProtection, metadata: {{name: bad}}, spec: {spec}}}");
            let said = cluster.kubectl_with(["create", "-f", "-"], &manifest).await;
            assert!(!said.ok, "{spec} got in");
            assert!(said.err.contains(text), "{spec}: {said:?}");
        }
    });
}

#[test]
fn selectors_of_every_form() {
    shared(async |cluster| {
        let (ns, other) = (cluster.namespace().await, cluster.namespace().await);
        cluster.must(&format!("label namespace {ns} env={ns}")).await;
        for (namespace, name) in [(&ns, "db-1"), (&ns, "web"), (&other, "db-1")] {
            cluster.must(&format!("create configmap {name} -n {namespace}")).await;
        }
        cluster.must(&format!("label configmap web -n {ns} tier=front")).await;
        let dry = async |namespace: &str, name: &str| {
            cluster.kubectl(&format!("delete configmap {name} -n {namespace} --dry-run=server")).await.ok
        };
        // Each with what it lets go: ns/db-1, ns/web, other/db-1.
        for (selector, expected) in [
            (format!("{{apiVersion: v1, kind: ConfigMap, namespace: {ns}}}"), [false, false, true]),
            (format!("{{apiVersion: v1, kind: ConfigMap, namespace: {ns}, name: web}}"), [true, false, true]),
            (
                format!("{{apiVersion: v1, kind: ConfigMap, name: \"db-*\", namespace: \"{}*\"}}", &ns),
                [false, true, true],
            ),
            (
                format!(
                    "{{apiVersion: v2, kind: ConfigMap, namespace: {ns}, labelSelector: {{matchLabels: {{tier: front}}}}}}"
                ),
                [true, false, true],
            ),
            (
                format!(
                    "{{apiVersion: v1, kind: ConfigMap, namespaceSelector: {{matchLabels: {{env: {ns}}}}}}}"
                ),
                [false, false, true],
            ),
            (format!("{{kind: \"*\", namespace: {ns}}}"), [false, false, true]),
            (
                format!(
                    "{{apiVersion: v1, kind: \"*\", namespace: {ns}, labelSelector: {{matchExpressions: [{{key: tier, operator: Exists}}]}}}}"
                ),
                [true, false, true],
            ),
            (format!("{{apiVersion: apps/v1, kind: \"*\", namespace: {ns}}}"), [true, true, true]),
        ] {
            protect(cluster, &ns, &format!("{{protectedResources: [{{resourceSelector: [{selector}]}}]}}"))
                .await;
            let got = [dry(&ns, "db-1").await, dry(&ns, "web").await, dry(&other, "db-1").await];
            assert_eq!(got, expected, "{selector}");
        }
        lift(cluster, &ns).await;
    });
}

#[test]
fn warn_passes_with_a_warning_and_audit_with_an_event() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        for name in ["w", "a"] {
            cluster.must(&format!("create configmap {name} -n {ns}")).await;
        }
        let spec = |name: &str, action: &str| {
            format!(
                "{{action: {action}, message: ask the team, protectedResources: [{{resourceSelector: \
                 [{{apiVersion: v1, kind: ConfigMap, namespace: {ns}}}], resourceNames: [{name}]}}]}}"
            )
        };
        let (warn, audit) = (format!("{ns}-warn"), format!("{ns}-audit"));
        protect(cluster, &warn, &spec("w", "Warn")).await;
        protect(cluster, &audit, &spec("a", "Audit")).await;
        warned(
            &cluster.kubectl(&format!("delete configmap w -n {ns}")).await,
            &format!("ResourceDeletionProtection \"{warn}\" (ask the team)"),
        );
        allowed(&cluster.kubectl(&format!("delete configmap a -n {ns}")).await);
        cluster
            .eventually_prints(&format!("get rdp {warn} -o jsonpath={{.status.warned}}"), |text| text == "1")
            .await;
        cluster
            .eventually_prints(&format!("get rdp {audit} -o jsonpath={{.status.audited}}"), |text| {
                text == "1"
            })
            .await;
        let events = format!(
            "get events -A --field-selector involvedObject.name={audit} -o jsonpath={{.items[*].message}}"
        );
        cluster
            .eventually_prints(&events, |text| text.contains(&format!("configmap \"{ns}/a\" was deleted")))
            .await;
        lift(cluster, &warn).await;
        lift(cluster, &audit).await;
    });
}

#[test]
fn exempt_accounts_may_delete() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("create configmap c -n {ns}")).await;
        let spec = format!(
            "{{exempt: {{users: [jane], groups: [sre], serviceAccounts: [{{namespace: ci, name: deployer}}]}}, \
             protectedResources: [{{resourceSelector: [{{apiVersion: v1, kind: ConfigMap, namespace: {ns}}}]}}]}}"
        );
        protect(cluster, &ns, &spec).await;
        let delete = async |who: &str| {
            cluster
                .kubectl(&format!(
                    "delete configmap c -n {ns} --dry-run=server --as-group=system:masters {who}"
                ))
                .await
        };
        allowed(&delete("--as=jane").await);
        allowed(&delete("--as=joe --as-group=sre").await);
        allowed(&delete("--as=system:serviceaccount:ci:deployer").await);
        denied(&delete("--as=joe").await, "Forbidden", &ns);
        lift(cluster, &ns).await;
    });
}

#[test]
fn a_protected_pod_is_not_evicted() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.pod(&ns, "p").await;
        protect(cluster, &ns, &format!("{{protectedResources: [{{resourceSelector: [{{apiVersion: v1, kind: Pod, namespace: {ns}}}]}}]}}")).await;
        denied(
            &crate::labels::evict(cluster, &ns, "p", "").await,
            "Forbidden",
            &format!("ResourceDeletionProtection \"{ns}\""),
        );
        lift(cluster, &ns).await;
        let gone = palisade_testkit::wait_until(SOON, || async {
            crate::labels::evict(cluster, &ns, "p", "").await.ok
        });
        assert!(gone.await);
    });
}

#[test]
fn a_kind_that_is_installed_later_is_protected_from_then_on() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let spec = "{protectedResources: [{resourceSelector: [{apiVersion: later.example.com/v1beta9, kind: Widget}]}]}";
        protect(cluster, "later", spec).await;
        let resolved = "get rdp later -o jsonpath={.status.conditions[?(@.type=='Resolved')]}";
        cluster
            .eventually_prints(resolved, |text| {
                text.contains("Widget of later.example.com") && text.contains("False")
            })
            .await;
        cluster.apply(&definition("later.example.com", "Widget", "widgets", "Namespaced", &["v1"])).await;
        cluster.eventually(&format!("get widgets.later.example.com -n {ns}")).await;
        cluster
            .apply(&format!(
                "{{apiVersion: later.example.com/v1, kind: Widget, metadata: {{name: w, namespace: {ns}}}}}"
            ))
            .await;
        cluster.eventually_prints(resolved, |text| text.contains("\"status\":\"True\"")).await;
        let refused = palisade_testkit::wait_until(SOON, || async {
            !cluster.kubectl(&format!("delete widgets.later.example.com w -n {ns} --dry-run=server")).await.ok
        });
        assert!(refused.await);
        let said = cluster.kubectl("delete crd widgets.later.example.com").await;
        denied(
            &said,
            "Forbidden",
            &format!("widget.later.example.com \"{ns}/w\" (ResourceDeletionProtection \"later\")"),
        );
        lift(cluster, "later").await;
        let gone = palisade_testkit::wait_until(SOON, || async {
            cluster.kubectl("delete crd widgets.later.example.com --wait=false").await.ok
        });
        assert!(gone.await);
    });
}

#[test]
fn a_namespace_on_a_kind_that_has_none_is_named() {
    shared(async |cluster| {
        let spec =
            "{protectedResources: [{resourceSelector: [{apiVersion: v1, kind: Node, namespace: nowhere}]}]}";
        protect(cluster, "impossible", spec).await;
        let resolved = "get rdp impossible -o jsonpath={.status.conditions[?(@.type=='Resolved')]}";
        cluster.eventually_prints(resolved, |text| text.contains("Node has no namespace")).await;
        lift(cluster, "impossible").await;
    });
}

#[test]
fn protections_survive_a_restart_of_everything() {
    alone(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("create configmap c -n {ns}")).await;
        protect(cluster, &ns, &format!("{{protectedResources: [{{resourceSelector: [{{apiVersion: v1, kind: ConfigMap, namespace: {ns}}}]}}]}}")).await;
        cluster.palisade.kill(0);
        cluster.palisade.kill(1);
        cluster.plane.restart_apiserver().await.expect("restarted");
        tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
        cluster.palisade.revive().expect("revived");
        let started = std::time::Instant::now();
        // Never let go, at no moment: refused by us, or because nobody answers.
        while started.elapsed() < std::time::Duration::from_secs(5) {
            let said = cluster.kubectl(&format!("delete configmap c -n {ns}")).await;
            assert!(!said.ok, "{said:?}");
        }
        cluster.palisade.wait_ready().await.expect("ready");
        denied(&cluster.kubectl(&format!("delete configmap c -n {ns}")).await, "Forbidden", &ns);
        lift(cluster, &ns).await;
    });
}

#[test]
fn objects_of_an_aggregated_api_are_protected_too() {
    alone(async |cluster| {
        let manifests = cluster.plane.start_sample_apiserver().expect("started");
        cluster.apply(&manifests).await;
        cluster
            .must("wait apiservice/v1alpha1.wardle.example.com --for=condition=Available --timeout=60s")
            .await;
        let ns = cluster.namespace().await;
        cluster.eventually(&format!("get flunders.wardle.example.com -n {ns}")).await;
        for name in ["labelled", "ruled", "free"] {
            let flunder = format!(
                "{{apiVersion: wardle.example.com/v1alpha1, kind: Flunder, metadata: {{name: {name}, namespace: {ns}}}}}"
            );
            cluster.apply(&flunder).await;
        }
        cluster
            .must(&format!(
                "label flunders.wardle.example.com labelled -n {ns} policy.kruise.io/delete-protection=Always"
            ))
            .await;
        let delete = |name: &str| format!("delete flunders.wardle.example.com {name} -n {ns}");
        let said = cluster.kubectl(&delete("labelled")).await;
        denied(
            &said,
            "Forbidden",
            &format!("flunder.wardle.example.com \"{ns}/labelled\" is protected from deletion"),
        );
        protect(
            cluster,
            "flunders",
            "{protectedResources: [{resourceSelector: [{apiVersion: wardle.example.com/v1alpha1, kind: Flunder}], resourceNames: [ruled]}]}",
        )
        .await;
        denied(
            &cluster.kubectl(&delete("ruled")).await,
            "Forbidden",
            "ResourceDeletionProtection \"flunders\"",
        );
        let condition = "get rdp flunders -o jsonpath={.status.conditions[?(@.type=='Aggregated')].message}";
        cluster
            .eventually_prints(condition, |text| {
                text.contains("flunders.wardle.example.com: served by another API server")
            })
            .await;
        // Its namespace is guarded with it.
        let said = cluster.kubectl(&format!("delete namespace {ns} --wait=false")).await;
        denied(&said, "Forbidden", &format!("flunder.wardle.example.com \"{ns}/labelled\""));
        cluster.must(&delete("free")).await;

        cluster.must("delete rdp flunders").await;
        cluster
            .must(&format!(
                "label flunders.wardle.example.com labelled -n {ns} policy.kruise.io/delete-protection-"
            ))
            .await;
        let gone = palisade_testkit::wait_until(SOON, || async {
            cluster.kubectl(&format!("delete namespace {ns} --wait=false")).await.ok
        });
        assert!(gone.await);
        cluster.must(&format!("wait namespace/{ns} --for=delete --timeout=60s")).await;
        cluster.must("delete apiservice v1alpha1.wardle.example.com").await;
    });
}
