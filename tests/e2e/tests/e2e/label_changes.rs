//! Labels that a `ResourceDeletionProtection` selects by.

use palisade_testkit::wait_until;

use crate::cluster::{EVENTUALLY, allowed, denied, lifting, shared, warned};
use crate::protections::{lift, protect};

/// A protection of everything of a kind in a namespace that has `app=web`.
fn by_label(kind: &str, ns: &str, more: &str) -> String {
    format!(
        "{{{more} protectedResources: [{{resourceSelector: [{{{kind}, namespace: {ns}, labelSelector: {{matchLabels: {{app: web}}}}}}]}}]}}"
    )
}

#[test]
fn a_label_that_a_rule_selects_by_can_not_be_taken_away() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let map = |labels: &str| {
            format!(
                "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: c, namespace: {ns}, labels: {{{labels}}}}}}}"
            )
        };
        cluster.apply(&map("app: web")).await;
        protect(cluster, &ns, &by_label("apiVersion: v1, kind: ConfigMap", &ns, "exempt: {users: [jane]},"))
            .await;
        let sentence = format!(
            "configmap \"{ns}/c\" is protected from deletion: ResourceDeletionProtection \"{ns}\". This change of its labels \
             would end that. To lift it: kubectl patch rdp {ns}"
        );
        let unset = r#"{"metadata":{"labels":{"app":null}}}"#;
        for how in [
            format!("label configmap c -n {ns} app-"),
            format!("label configmap c -n {ns} app- --dry-run=server"),
            format!("label configmap c -n {ns} app=api --overwrite"),
            format!("patch configmap c -n {ns} --type=merge -p {unset}"),
            format!(
                "label configmap c -n {ns} app- --as=system:serviceaccount:{ns}:default --as-group=system:masters"
            ),
        ] {
            denied(&cluster.kubectl(&how).await, "Forbidden", &sentence);
        }
        for how in [
            &["apply", "-f", "-"][..],
            &["replace", "-f", "-"],
            &["apply", "--server-side", "--force-conflicts", "-f", "-"],
        ] {
            // A server-side apply takes away only what its manager set.
            let labels = if how.contains(&"--server-side") { "app: api" } else { "" };
            denied(&cluster.kubectl_with(how.iter().copied(), &map(labels)).await, "Forbidden", &sentence);
        }
        // Anything else may change.
        allowed(&cluster.kubectl(&format!("label configmap c -n {ns} tier=x")).await);
        allowed(&cluster.kubectl(&format!("annotate configmap c -n {ns} app=api")).await);
        cluster.must(&format!("create configmap other -n {ns}")).await;
        allowed(&cluster.kubectl(&format!("label configmap other -n {ns} app=api")).await);
        allowed(&cluster.kubectl(&format!("label configmap other -n {ns} app-")).await);
        denied(&cluster.kubectl(&format!("delete configmap c -n {ns}")).await, "Forbidden", &ns);

        // Whom it exempts it does not concern, and the printed command exempts whoever asked.
        let jane = "--as=jane --as-group=system:masters --dry-run=server";
        allowed(&cluster.kubectl(&format!("label configmap c -n {ns} app- {jane}")).await);
        let said = cluster.kubectl(&format!("label configmap c -n {ns} app-")).await;
        allowed(&cluster.shell(&lifting(&said)).await);
        let may = wait_until(EVENTUALLY, || async {
            cluster.kubectl(&format!("label configmap c -n {ns} app-")).await.ok
        });
        assert!(may.await, "exempt within seconds");
        lift(cluster, &ns).await;
    });
}

#[test]
fn nor_through_a_subresource() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.pod(&ns, "p").await;
        cluster.must(&format!("create service clusterip s --tcp=80 -n {ns}")).await;
        for object in [format!("pod p -n {ns}"), format!("service s -n {ns}"), format!("namespace {ns}")] {
            cluster.must(&format!("label {object} app=web --overwrite")).await;
        }
        let namespaces = format!("{ns}-itself");
        protect(cluster, &ns, &by_label("kind: \"*\"", &ns, "")).await;
        let spec = format!(
            "{{protectedResources: [{{resourceSelector: [{{apiVersion: v1, kind: Namespace, name: {ns}, labelSelector: {{matchLabels: \
             {{app: web}}}}}}]}}]}}"
        );
        protect(cluster, &namespaces, &spec).await;
        let unset = r#"{"metadata":{"labels":{"app":null}}}"#;
        for object in [format!("pod p -n {ns}"), format!("service s -n {ns}"), format!("namespace {ns}")] {
            for part in ["", "--subresource=status"] {
                let said = cluster.kubectl(&format!("patch {object} {part} --type=merge -p {unset}")).await;
                denied(&said, "Forbidden", "This change of its labels would end that.");
            }
        }
        let namespace = cluster.must(&format!("get namespace {ns} -o json")).await;
        let bare = namespace.replace("\"app\": \"web\",", "");
        assert_ne!(namespace, bare);
        let path = format!("/api/v1/namespaces/{ns}/finalize");
        let said = cluster.kubectl_with(["replace", "--raw", &path, "-f", "-"], &bare).await;
        denied(&said, "Forbidden", "This change of its labels would end that.");
        // What else goes through them goes through.
        let status = r#"{"status":{"message":"x"}}"#;
        allowed(
            &cluster
                .kubectl(&format!("patch pod p -n {ns} --subresource=status --type=merge -p {status}"))
                .await,
        );
        lift(cluster, &ns).await;
        lift(cluster, &namespaces).await;
    });
}

#[test]
fn a_rule_may_warn_about_label_changes_or_ignore_them() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("create configmap c -n {ns}")).await;
        cluster.must(&format!("label configmap c -n {ns} app=web")).await;
        let config_maps = "apiVersion: v1, kind: ConfigMap";
        protect(cluster, &ns, &by_label(config_maps, &ns, "action: Warn,")).await;
        let said = cluster.kubectl(&format!("label configmap c -n {ns} app- --dry-run=server")).await;
        warned(
            &said,
            &format!("ResourceDeletionProtection \"{ns}\"; with this change of its labels it no longer is"),
        );
        protect(cluster, &ns, &by_label(config_maps, &ns, "action: Deny,")).await;
        denied(&cluster.kubectl(&format!("label configmap c -n {ns} app-")).await, "Forbidden", &ns);
        protect(cluster, &ns, &by_label(config_maps, &ns, "action: Deny, labelChanges: Ignore,")).await;
        denied(&cluster.kubectl(&format!("delete configmap c -n {ns}")).await, "Forbidden", &ns);
        allowed(&cluster.kubectl(&format!("label configmap c -n {ns} app-")).await);
        allowed(&cluster.kubectl(&format!("delete configmap c -n {ns}")).await);
        lift(cluster, &ns).await;
    });
}
