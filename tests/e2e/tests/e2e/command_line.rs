//! `palisade` on a laptop.

use crate::cluster::{Cluster, Said, palisade_binary, run, shared};

pub(crate) async fn palisade(cluster: &Cluster, words: &str) -> Said {
    run(&palisade_binary(), &cluster.plane.kubeconfig(), words.split_whitespace(), "").await
}

#[test]
fn why_says_what_kubectl_delete_would() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.pod(&ns, "p").await;
        cluster.must(&format!("label namespace {ns} policy.kruise.io/delete-protection=Cascading")).await;
        let refused = cluster.kubectl(&format!("delete namespace {ns}")).await;
        for words in [format!("why namespace {ns}"), format!("why ns/{ns}"), format!("why Namespace {ns}")] {
            let said = palisade(cluster, &words).await;
            assert!(!said.ok, "{said:?}");
            assert!(refused.err.contains(said.out.trim()), "{said:?} beside {refused:?}");
        }
        let json = palisade(cluster, &format!("why namespace {ns} -o json")).await;
        let json: serde_json::Value = serde_json::from_str(&json.out).expect("json");
        assert_eq!(
            (&json["allowed"], &json["code"], &json["reason"]),
            (&false.into(), &403.into(), &"Forbidden".into())
        );
        let said = palisade(cluster, &format!("why pod p -n {ns}")).await;
        assert!(said.ok && said.out.contains("may be deleted"), "{said:?}");
    });
}

#[test]
fn why_takes_a_kind_by_its_group() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("create deployment web --image=example/app -n {ns}")).await;
        cluster
            .must(&format!("label deployment web -n {ns} policy.kruise.io/delete-protection=Always"))
            .await;
        for kind in ["deploy", "deployment", "deployments", "deployments.apps", "deployment.apps"] {
            let said = palisade(cluster, &format!("why {kind} web -n {ns}")).await;
            assert!(said.out.contains("kubectl label deployments.apps web"), "{kind}: {said:?}");
        }
    });
}

#[test]
fn why_explains_what_it_cannot_find() {
    shared(async |cluster| {
        for (words, text) in [
            ("why nonsense x", "the cluster serves no resource \"nonsense\""),
            ("why namespace nowhere", "namespaces \"nowhere\" not found"),
            ("why namespace", "name the object as KIND NAME"),
        ] {
            let said = palisade(cluster, words).await;
            assert!(!said.ok && said.err.contains(text), "{words}: {said:?}");
        }
    });
}
