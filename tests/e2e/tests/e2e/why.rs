//! `palisade why` for people with few rights, and by what the replicas decide.

use std::path::Path;

use palisade_testkit::wait_until;

use crate::cluster::{Cluster, EVENTUALLY, Said, palisade_binary, run, shared};

const LABEL: &str = "policy.kruise.io/delete-protection";

/// What `palisade why` says to a user, and its exit code.
pub(crate) async fn why_as(cluster: &Cluster, user: &str, words: &str) -> (Said, i32) {
    let kubeconfig = cluster.plane.kubeconfig_of(user).expect("a kubeconfig");
    let script = format!("{} why {words}; echo $?", palisade_binary().display());
    let mut said = run(Path::new("bash"), &kubeconfig, ["-c", &*script], "").await;
    let out = said.out.trim_end().to_owned();
    let (text, code) = out.rsplit_once('\n').unwrap_or(("", &*out));
    text.clone_into(&mut said.out);
    (said, code.parse().expect("an exit code"))
}

/// What the API server says to the same user about the deletion itself.
async fn deletes_as(cluster: &Cluster, user: &str, words: &str) -> Said {
    let kubeconfig = cluster.plane.kubeconfig_of(user).expect("a kubeconfig");
    let words = format!("delete {words} --dry-run=server");
    run(&cluster.plane.assets().kubectl(), &kubeconfig, words.split_whitespace(), "").await
}

async fn bind(cluster: &Cluster, ns: &str, user: &str, role: &str) {
    cluster.must(&format!("create rolebinding {user} --clusterrole={role} --user={user} -n {ns}")).await;
}

#[test]
fn who_may_only_edit_one_namespace_gets_the_webhooks_answer() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        bind(cluster, &ns, "edith", "edit").await;
        for name in ["labelled", "ruled", "free"] {
            cluster.must(&format!("create configmap {name} -n {ns}")).await;
        }
        cluster.must(&format!("label configmap labelled -n {ns} {LABEL}=Always")).await;
        cluster
            .apply(&format!(
                "apiVersion: palisade.dev/v1alpha1\nkind: ResourceDeletionProtection\nmetadata: {{name: why-{ns}}}\n\
                 spec:\n  protectedResources:\n  - resourceSelector:\n    \
                 - {{apiVersion: v1, kind: ConfigMap, namespace: {ns}, name: ruled}}\n"
            ))
            .await;
        cluster.pod(&ns, "p").await;
        cluster.must(&format!("label pod p -n {ns} app=web")).await;
        // One that the user wrote would let a pod go.
        let budget = format!(
            "apiVersion: policy.kruise.io/v1alpha1\nkind: PodUnavailableBudget\nmetadata: {{name: b, namespace: {ns}}}\n\
             spec: {{selector: {{matchLabels: {{app: web}}}}, maxUnavailable: 0}}\n"
        );
        cluster.apply(&budget).await;

        for (object, reason) in [
            ("configmap labelled", "(Forbidden)"),
            ("configmap ruled", "(Forbidden)"),
            ("pod p", "(TooManyRequests)"),
        ] {
            let words = format!("{object} -n {ns}");
            let is_refused = wait_until(EVENTUALLY, || async {
                deletes_as(cluster, "edith", &words).await.err.contains(reason)
            });
            assert!(is_refused.await, "{object}");
            let refused = deletes_as(cluster, "edith", &words).await;
            let (said, code) = why_as(cluster, "edith", &words).await;
            assert_eq!(code, 1, "{said:?}");
            assert!(!said.out.is_empty() && refused.err.contains(&said.out), "{said:?} beside {refused:?}");
            assert!(!said.out.contains("denied the request"), "{said:?}");
            assert!(!said.err.contains("Warning"), "{said:?}");
            // Who may read everything is told the same, but for the own name.
            let admin = crate::command_line::palisade(cluster, &format!("why {words}")).await;
            assert_eq!(admin.out.trim().replace("\"admin\"", "\"edith\""), said.out, "{admin:?}");
        }
        let (said, _) = why_as(cluster, "edith", &format!("configmap labelled -n {ns} -o json")).await;
        let json: serde_json::Value = serde_json::from_str(&said.out).expect("json");
        assert_eq!((&json["allowed"], &json["code"]), (&false.into(), &403.into()), "{said:?}");
        assert_eq!(json["lift"][0], format!("kubectl label configmap labelled -n {ns} {LABEL}-"), "{said:?}");

        let (said, code) = why_as(cluster, "edith", &format!("configmap free -n {ns}")).await;
        assert!(code == 0 && said.out.contains("may be deleted: nothing protects it"), "{said:?}");
        assert!(cluster.exists(&format!("configmap free -n {ns}")).await, "nothing is deleted");
        let (said, code) = why_as(cluster, "edith", &format!("configmap nowhere -n {ns}")).await;
        assert!(code == 2 && said.err.contains("not found"), "{said:?}");
    });
}

#[test]
fn what_a_user_may_neither_delete_nor_see_is_not_said_to_be_free() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        bind(cluster, &ns, "viola", "view").await;
        for name in ["labelled", "free"] {
            cluster.must(&format!("create configmap {name} -n {ns}")).await;
        }
        cluster.must(&format!("label configmap labelled -n {ns} {LABEL}=Always")).await;
        let (said, code) = why_as(cluster, "viola", &format!("configmap free -n {ns}")).await;
        assert!(code == 2 && said.out.contains("is not known"), "{said:?}");
        assert!(said.err.contains("ResourceDeletionProtections"), "{said:?}");
        let (said, _) = why_as(cluster, "viola", &format!("configmap free -n {ns} -o json")).await;
        let json: serde_json::Value = serde_json::from_str(&said.out).expect("json");
        assert!(json["allowed"].is_null() && json["unseen"][0] == "ResourceDeletionProtections", "{said:?}");

        // What the user can see is enough to say no.
        let (said, code) = why_as(cluster, "viola", &format!("configmap labelled -n {ns}")).await;
        assert!(code == 1 && said.out.contains("is protected from deletion"), "{said:?}");
        let (said, code) = why_as(cluster, "viola", "node node-0").await;
        assert!(code == 2 && said.err.contains("you may neither read node"), "{said:?}");
    });
}

#[test]
fn it_answers_by_what_the_replicas_publish() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("create configmap labelled -n {ns}")).await;
        cluster.must(&format!("label configmap labelled -n {ns} {LABEL}=Always")).await;

        // Whoever the API server knows may read it.
        let kubeconfig = cluster.plane.kubeconfig_of("nobody-in-particular").expect("a kubeconfig");
        let words = "get configmap palisade-settings -n palisade-system -o jsonpath={.data}";
        let kubectl = cluster.plane.assets().kubectl();
        let said = run(&kubectl, &kubeconfig, words.split_whitespace(), "").await;
        let data: serde_json::Value = serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{said:?}"));
        assert_eq!(data["reconciler-service-account"], "system:serviceaccount:garden:etcd-druid");
        assert_eq!(data["etcd-components-webhook-exempt-groups"], "etcd-admins");
        assert!(data["feature-gates"].as_str().is_some_and(|gates| gates.contains("CriticalService=true")));
        assert_eq!(data["registered"], "true");
        let secret = run(&kubectl, &kubeconfig, ["get", "secrets", "-n", "palisade-system"], "").await;
        assert!(!secret.ok, "{secret:?}");

        // Replicas of another namespace, with a gate that is off, would let it go.
        let why = format!("why configmap labelled -n {ns} --palisade-namespace {ns}");
        let said = crate::command_line::palisade(cluster, &why).await;
        assert!(said.err.contains("what the replicas decide by is not known"), "{said:?}");
        let off = "--from-literal=feature-gates=ResourcesDeletionProtection=false";
        let other = cluster.namespace().await;
        cluster.must(&format!("create configmap palisade-settings -n {other} {off}")).await;
        let why = format!("why configmap labelled -n {ns} --palisade-namespace {other}");
        let said = crate::command_line::palisade(cluster, &why).await;
        assert!(said.ok && said.out.contains("may be deleted"), "{said:?}");
        let said = crate::command_line::palisade(cluster, &format!("why configmap labelled -n {ns}")).await;
        assert!(!said.ok && said.err.is_empty(), "{said:?}");
    });
}
