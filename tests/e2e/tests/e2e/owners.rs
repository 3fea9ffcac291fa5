//! What tenants write into `ownerReferences`, end to end: it reaches no expression, no walk without an end, no rule of
//! somebody else's, and no object of somebody else's.

use std::fmt::Write;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, PostParams};
use palisade_controllers::registration::cel;
use palisade_testkit::wait_until;
use serde_json::json;

use crate::cascade::{EXPRESSIONS, known, owned};
use crate::cluster::{Cluster, EVENTUALLY, allowed, alone, denied, shared, warned};

const LABEL: &str = "policy.kruise.io/delete-protection";

/// A uid that no object has.
fn invented(number: usize) -> String {
    format!("deadbeef-{:04x}-4000-8000-{number:012x}", number % 0x1_0000)
}

async fn uid(cluster: &Cluster, object: &str) -> String {
    cluster.must(&format!("get {object} -o jsonpath={{.metadata.uid}}")).await
}

/// A `ConfigMap` that is labelled `Always`, with owners as JSON.
async fn labelled(cluster: &Cluster, ns: &str, name: &str, owners: &serde_json::Value) {
    let manifest = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata":
        {"name": name, "namespace": ns, "labels": {LABEL: "Always"}, "ownerReferences": owners}});
    let said = cluster.kubectl_with(["create", "-f", "-"], &manifest.to_string()).await;
    assert!(said.ok, "{said:?}");
}

/// A labelled object with a real owner, which the registration must come to know after everything before it.
async fn marker(cluster: &Cluster, ns: &str, name: &str) -> String {
    let top = owned(cluster, ns, name, "", &[]).await;
    let label = format!("{LABEL}: Always");
    owned(cluster, ns, &format!("{name}-kept"), &label, &[("v1", "ConfigMap", name, &top)]).await;
    known(cluster, &top).await;
    top
}

#[test]
fn the_api_server_reads_quoted_texts_as_they_are_written() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let texts = [
            "x'] || oldObject.metadata.nope == 'y' || 'n' in ['",
            r#"x"] || true || "n" in [""#,
            "'\"`\\",
            "\\u0041\\x41\\101\\n",
            "line\nand\r\nanother\ttab",
            "\u{0}\u{1}\u{7f}\u{85}\u{2028}\u{2029}\u{feff}\u{fffd}\u{ffff}",
            "größer 🦀 \u{10ffff} {0} ${x} %s",
            "",
        ];
        let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), &ns);
        let mut webhooks = Vec::new();
        for (number, text) in texts.iter().enumerate() {
            let map = json!({"metadata": {"name": format!("t{number}")}, "data": {"text": text}});
            maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
            let name = cel::string(&format!("t{number}"));
            let expression = format!(
                "oldObject.metadata.name == {} && oldObject.data.text == {}",
                name.as_str(),
                cel::string(text).as_str()
            );
            // Nobody answers there: what matches can't be deleted.
            webhooks.push(json!({
                "name": format!("t{number}.quoted.example.com"),
                "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
                "clientConfig": {"url": "https://127.0.0.1:1/"},
                "rules": [{"operations": ["DELETE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": ns}},
                "matchConditions": [{"name": "same", "expression": expression}],
            }));
        }
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(cluster.client.clone());
        let configuration = json!({"metadata": {"name": format!("quoted-{ns}")}, "webhooks": webhooks});
        let configuration = serde_json::from_value(configuration).unwrap();
        configurations.create(&PostParams::default(), &configuration).await.expect("it is taken");
        for (number, text) in texts.iter().enumerate() {
            let matched = wait_until(EVENTUALLY, || async {
                let dry = DeleteParams { dry_run: true, ..DeleteParams::default() };
                let deleted = maps.delete(&format!("t{number}"), &dry).await;
                deleted.is_err_and(|error| error.to_string().contains("failed calling webhook"))
            });
            assert!(matched.await, "{text:?} is not read as {}", cel::string(text).as_str());
        }
        let other = json!({"metadata": {"name": "t1x"}, "data": {"text": "true"}});
        maps.create(&PostParams::default(), &serde_json::from_value(other).unwrap()).await.unwrap();
        maps.delete("t1x", &DeleteParams::default()).await.expect("nothing matches it");
        configurations
            .delete(&format!("quoted-{ns}"), &DeleteParams::default())
            .await
            .expect("it goes again");
    });
}

#[test]
fn a_uid_that_is_an_expression_reaches_none() {
    shared(async |cluster| {
        let (ns, elsewhere) = (cluster.namespace().await, cluster.namespace().await);
        for pod in ["one", "two", "three"] {
            cluster.pod(&elsewhere, pod).await;
        }
        marker(cluster, &ns, "before").await;
        let injections = [
            ("all", "x'] || oldObject.metadata.nope == 'y' || 'n' in ['"),
            ("none", "x'] && false && 'n' in ['"),
            ("broken", "'"),
            ("double", "x\"] || oldObject.metadata.nope == \"y\" || \"n\" in [\""),
            ("packed", "|\" == \"\" || true || \"|"),
        ];
        for (name, uid) in injections {
            let pod = json!([{"apiVersion": "v1", "kind": "Pod", "name": "one", "uid": uid}]);
            labelled(cluster, &ns, &format!("{name}-pod"), &pod).await;
            let map = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "before", "uid": uid}]);
            labelled(cluster, &ns, name, &map).await;
        }
        // The registration goes on: it comes to know owners and protections that are created now.
        marker(cluster, &ns, "after").await;
        let expressions = cluster.must(EXPRESSIONS).await;
        assert!(!expressions.contains("nope"), "{expressions}");
        let spec = format!(
            "{{protectedResources: [{{resourceSelector: [{{apiVersion: v1, kind: Secret, namespace: {ns}}}]}}]}}"
        );
        let kind = "apiVersion: palisade.dev/v1alpha1, kind: ResourceDeletionProtection";
        cluster.apply(&format!("{{{kind}, metadata: {{name: injected-{ns}}}, spec: {spec}}}")).await;
        let enforced =
            format!("get rdp injected-{ns} -o jsonpath={{.status.conditions[?(@.type=='Enforced')].status}}");
        cluster.eventually_prints(&enforced, |status| status == "True").await;
        cluster.must(&format!("delete rdp injected-{ns}")).await;
        for pod in ["one", "two", "three"] {
            allowed(&cluster.kubectl(&format!("delete pod {pod} -n {elsewhere} --grace-period=1")).await);
        }
        for owner in ["before", "after"] {
            let said = cluster.kubectl(&format!("delete configmap {owner} -n {ns} --wait=false")).await;
            denied(&said, "Forbidden", &format!("configmap \"{ns}/{owner}-kept\""));
        }
    });
}

#[test]
fn owners_that_are_named_many_times_are_walked_once() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("create configmap c0 -n {ns}")).await;
        let mut above = uid(cluster, &format!("configmap c0 -n {ns}")).await;
        let first = above.clone();
        for number in 1..=16 {
            let mut owners = Vec::new();
            for controller in [None, Some(false)] {
                for blocks in [None, Some(false), Some(true)] {
                    let mut owner = json!({"apiVersion": "v1", "kind": "ConfigMap",
                        "name": format!("c{}", number - 1), "uid": above});
                    if let Some(controller) = controller {
                        owner["controller"] = controller.into();
                    }
                    if let Some(blocks) = blocks {
                        owner["blockOwnerDeletion"] = blocks.into();
                    }
                    owners.push(owner);
                }
            }
            let labels = if number == 16 { json!({LABEL: "Always"}) } else { json!({}) };
            let manifest = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata":
                {"name": format!("c{number}"), "namespace": ns, "labels": labels, "ownerReferences": owners}});
            let said = cluster.kubectl_with(["create", "-f", "-"], &manifest.to_string()).await;
            assert!(said.ok, "{said:?}");
            above = uid(cluster, &format!("configmap c{number} -n {ns}")).await;
        }
        let count = format!("get configmap c16 -n {ns} -o jsonpath={{.metadata.ownerReferences[*].name}}");
        assert_eq!(cluster.must(&count).await.split(' ').count(), 6, "the API server keeps them all");
        known(cluster, &first).await;
        for _ in 0..3 {
            let said = cluster.kubectl(&format!("delete configmap c0 -n {ns} --wait=false")).await;
            denied(
                &said,
                "Forbidden",
                &format!("a protected object would go with it: configmap \"{ns}/c16\""),
            );
        }
        for replica in [0, 1] {
            assert!(cluster.admin(replica, "/healthz").await.contains("200 OK"), "replica {replica}");
        }
        let said = cluster.kubectl(&format!("delete configmap c16 -n {ns}")).await;
        denied(&said, "Forbidden", "is protected from deletion");
        cluster.must(&format!("label configmap c16 -n {ns} {LABEL}-")).await;
        allowed(&cluster.kubectl(&format!("delete configmap c0 -n {ns} --wait=false")).await);
    });
}

#[test]
fn a_tenants_label_keeps_no_node() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let node = format!("extra-{ns}");
        cluster.node(&node).await;
        let node_uid = uid(cluster, &format!("node {node}")).await;
        let of_node = json!([{"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}]);
        labelled(cluster, &ns, "kept", &of_node).await;
        known(cluster, &node_uid).await;
        // Where the search takes too long, it says that instead.
        let sentence = format!("and they stay behind: configmap \"{ns}/kept\" (label {LABEL}=Always)");
        let told = wait_until(EVENTUALLY, || async {
            let said = cluster.kubectl(&format!("delete node {node} --dry-run=server")).await;
            warned(&said, "stay behind");
            said.err.contains(&sentence)
        });
        assert!(told.await, "{sentence}");
        let said = cluster.kubectl(&format!("delete node {node}")).await;
        warned(&said, "stay behind");
        assert!(!cluster.exists(&format!("node {node}")).await);
        // The garbage collector's deletion of it is refused.
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        assert!(cluster.exists(&format!("configmap kept -n {ns}")).await);
        let said = cluster.kubectl(&format!("delete configmap kept -n {ns}")).await;
        denied(&said, "Forbidden", "is protected from deletion");
    });
}

#[test]
fn an_administrators_protection_keeps_owners_without_a_namespace() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        let node = format!("ruled-{ns}");
        cluster.node(&node).await;
        let node_uid = uid(cluster, &format!("node {node}")).await;
        owned(cluster, &ns, "kept", "", &[("v1", "Node", &node, &node_uid)]).await;
        cluster
            .apply(&format!(
                "{{apiVersion: palisade.dev/v1alpha1, kind: ResourceDeletionProtection, metadata: {{name: {node}}}, spec: \
                 {{protectedResources: [{{resourceSelector: [{{apiVersion: v1, kind: ConfigMap, namespace: {ns}}}], \
                 resourceNames: [kept]}}]}}}}"
            ))
            .await;
        known(cluster, &node_uid).await;
        let said = cluster.kubectl(&format!("delete node {node}")).await;
        denied(
            &said,
            "Forbidden",
            &format!("configmap \"{ns}/kept\" (ResourceDeletionProtection \"{node}\")"),
        );
        cluster.must(&format!("delete rdp {node}")).await;
        let goes =
            wait_until(EVENTUALLY, || async { cluster.kubectl(&format!("delete node {node}")).await.ok });
        assert!(goes.await);
    });
}

#[test]
fn invented_owners_cost_nothing() {
    alone(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.pod(&ns, "real").await;
        let real = uid(cluster, &format!("pod real -n {ns}")).await;
        let mut manifests = String::new();
        for map in 0..5 {
            let owners: Vec<_> = (map * 500..(map + 1) * 500)
                .map(|number| {
                    let kind = ["Pod", "ConfigMap", "Secret"][number % 3];
                    json!({"apiVersion": "v1", "kind": kind, "name": format!("o{number}"), "uid": invented(number)})
                })
                .collect();
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata":
                {"name": format!("m{map}"), "namespace": ns, "labels": {LABEL: "Always"}, "ownerReferences": owners}});
            writeln!(manifests, "{map}\n---").unwrap();
        }
        let said = cluster.kubectl_with(["create", "-f", "-"], &manifests).await;
        assert!(said.ok, "{said:?}");
        // One that is there, by its name, and not by its uid.
        let other = json!([{"apiVersion": "v1", "kind": "Pod", "name": "real", "uid": invented(9_999)}]);
        labelled(cluster, &ns, "other", &other).await;
        let owner = json!([{"apiVersion": "v1", "kind": "Secret", "name": "s", "uid": invented(1)},
            {"apiVersion": "v1", "kind": "Pod", "name": "real", "uid": real}]);
        labelled(cluster, &ns, "real", &owner).await;
        known(cluster, &real).await;
        marker(cluster, &ns, "last").await;
        let configuration = cluster.must("get validatingwebhookconfiguration palisade -o json").await;
        assert!(!configuration.contains("deadbeef"), "only owners that were read count");
        assert!(configuration.len() < 200_000, "it holds {} characters", configuration.len());

        // The garbage collector asks about the ConfigMaps meanwhile, but by other webhooks.
        let asked_about_pods = async || {
            let text = cluster.must("get --raw /metrics").await;
            let of_pods = text.lines().filter(|line| {
                line.starts_with("apiserver_admission_webhook_request_total{") && line.contains("owners-pods")
            });
            of_pods.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum::<f64>()
        };
        let before = asked_about_pods().await;
        cluster.pod(&ns, "free").await;
        cluster.must(&format!("delete pod free -n {ns} --force --grace-period=0")).await;
        let after = asked_about_pods().await;
        assert!((after - before).abs() < 0.5, "nobody is asked about a pod that owns nothing");
        denied(&cluster.kubectl(&format!("delete pod real -n {ns}")).await, "Forbidden", "would go with it");
        assert!(asked_about_pods().await > after, "and the count follows one that owns something");
    });
}

#[test]
fn a_new_leader_takes_no_owner_away() {
    alone(async |cluster| {
        let ns = cluster.namespace().await;
        let top = marker(cluster, &ns, "top").await;
        cluster.palisade.kill(0);
        cluster.palisade.kill(1);
        tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
        cluster.palisade.revive().expect("revived");
        // From the new leader's first moment until it has listed everything.
        let deadline = std::time::Instant::now() + EVENTUALLY;
        let mut led = 0;
        while std::time::Instant::now() < deadline && led < 10 {
            let expressions = cluster.must(EXPRESSIONS).await;
            assert!(expressions.contains(&top[..8]), "{expressions}");
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            if cluster.palisade.wait_ready().await.is_ok() {
                led += 1;
            }
        }
        let said = cluster.kubectl(&format!("delete configmap top -n {ns} --wait=false")).await;
        denied(&said, "Forbidden", "top-kept");
    });
}
