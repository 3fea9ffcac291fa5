//! What Palisade's own account may do, and what the roles for people allow.

use palisade_testkit::SERVICE_ACCOUNT;

use crate::cluster::{Cluster, allowed, denied, shared};

const LABEL: &str = "policy.kruise.io/delete-protection";

/// `yes` or `no`.
async fn can_i(cluster: &Cluster, user: &str, words: &str) -> String {
    cluster.kubectl(&format!("auth can-i {words} --as={user}")).await.out.trim().to_owned()
}

#[test]
fn a_thief_of_our_account_gets_no_node_no_shell_and_no_secret() {
    shared(async |cluster| {
        for words in [
            "get nodes --subresource=proxy",
            "get nodes/node-0 --subresource=proxy",
            "create nodes --subresource=proxy",
            "get pods --subresource=exec",
            "get pods --subresource=exec -A",
            "create pods --subresource=exec -A",
            "get pods --subresource=attach -A",
            "get pods --subresource=portforward -A",
            "get pods --subresource=proxy -A",
            "get pods --subresource=log -A",
            "get services --subresource=proxy -A",
            "get secrets",
            "get secrets -A",
            "get secrets -n kube-system",
            "get secrets/other -n palisade-system",
            "get configmaps -A",
            "get nodes",
            "create serviceaccounts --subresource=token -n palisade-system",
            "create pods -A",
            "delete pods -A",
            "update leases/other -n palisade-system",
            "update validatingwebhookconfigurations/other",
            "delete validatingwebhookconfigurations/other",
            "update mutatingwebhookconfigurations",
            "get * -A",
            "get *.* -A",
            "* * -A",
        ] {
            assert_eq!(can_i(cluster, SERVICE_ACCOUNT, words).await, "no", "{words}");
        }
        // The question above could be put wrongly: what we need, we may.
        for words in
            ["get pods -A", "list deployments.apps -A", "get secrets/palisade-tls -n palisade-system"]
        {
            assert_eq!(can_i(cluster, SERVICE_ACCOUNT, words).await, "yes", "{words}");
        }
        // A watch is ours to ask for, so it must not lead where a get would; and a list of one name is no subresource.
        for (path, reason) in [
            ("nodes/node-0/proxy/pods", "Forbidden"),
            ("watch/nodes/node-0/proxy/pods", "NotFound"),
            ("nodes/node-0/proxy/pods?watch=true", "Forbidden"),
            ("nodes/node-0/proxy/pods?fieldSelector=metadata.name%3Dnode-0", "Forbidden"),
            ("namespaces/kube-system/secrets/any", "Forbidden"),
        ] {
            let said = cluster.kubectl(&format!("get --raw /api/v1/{path} --as={SERVICE_ACCOUNT}")).await;
            assert!(!said.ok && said.err.contains(reason), "{path}: {said:?}");
        }
    });
}

#[test]
fn without_a_get_of_every_kind_owners_and_custom_resources_are_found() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        // The owner of the labelled object's owner is read by name, among Secrets, which we may not get.
        cluster.must(&format!("create secret generic root -n {ns}")).await;
        cluster.must(&format!("create secret generic other -n {ns}")).await;
        let uid = cluster.must(&format!("get secret root -n {ns} -o jsonpath={{.metadata.uid}}")).await;
        let owned = |name: &str, owner: &str, uid: &str, label: &str| {
            format!(
                "apiVersion: v1\nkind: Secret\nmetadata:\n  name: {name}\n  namespace: {ns}\n  labels: {{{label}}}\n  \
                 ownerReferences:\n  - {{apiVersion: v1, kind: Secret, name: {owner}, uid: {uid}}}\n"
            )
        };
        cluster.apply(&owned("middle", "root", &uid, "")).await;
        let uid = cluster.must(&format!("get secret middle -n {ns} -o jsonpath={{.metadata.uid}}")).await;
        cluster.apply(&owned("kept", "middle", &uid, &format!("{LABEL}: Always"))).await;
        let refused = palisade_testkit::wait_until(crate::cluster::EVENTUALLY, || async {
            let said = cluster.kubectl(&format!("delete secret root -n {ns} --dry-run=server")).await;
            said.err.contains("(Forbidden)")
        });
        assert!(refused.await, "the owners of owners are read");
        let said = cluster.kubectl(&format!("delete secret root -n {ns}")).await;
        denied(&said, "Forbidden", "kept");
        allowed(&cluster.kubectl(&format!("delete secret other -n {ns}")).await);
        denied(&cluster.kubectl(&format!("delete namespace {ns}")).await, "Forbidden", "kept");
    });
}

#[test]
fn who_may_edit_a_namespace_writes_its_budgets_and_no_status() {
    shared(async |cluster| {
        let ns = cluster.namespace().await;
        for (user, role) in [("vera", "view"), ("ed", "edit"), ("ada", "admin")] {
            cluster
                .must(&format!("create rolebinding {user} --clusterrole={role} --user={user} -n {ns}"))
                .await;
        }
        let budgets = "podunavailablebudgets.policy.kruise.io";
        for (user, writes) in [("vera", "no"), ("ed", "yes"), ("ada", "yes")] {
            let can = async |words: &str| can_i(cluster, user, words).await;
            for verb in ["get", "list", "watch"] {
                assert_eq!(can(&format!("{verb} {budgets} -n {ns}")).await, "yes", "{user} {verb}");
                assert_eq!(can(&format!("{verb} {budgets} -n default")).await, "no", "{user} {verb}");
            }
            for verb in ["create", "update", "patch", "delete", "deletecollection"] {
                assert_eq!(can(&format!("{verb} {budgets} -n {ns}")).await, writes, "{user} {verb}");
            }
            for verb in ["update", "patch"] {
                let status = format!("{verb} {budgets} --subresource=status -n {ns}");
                assert_eq!(can(&status).await, "no", "{user} {verb} status");
            }
            for policy in [
                "resourcedeletionprotections.palisade.dev",
                "poddeletionflowcontrols.policy.kruise.io",
                "criticalservices.palisade.dev",
                "componentprotections.palisade.dev",
            ] {
                assert_eq!(can(&format!("create {policy} -n {ns}")).await, "no", "{user} {policy}");
            }
        }
        cluster.must("create clusterrolebinding auditor --clusterrole=view --user=auditor").await;
        for policy in ["resourcedeletionprotections.palisade.dev", "poddeletionflowcontrols.policy.kruise.io"]
        {
            assert_eq!(can_i(cluster, "auditor", &format!("list {policy}")).await, "yes", "{policy}");
        }
    });
}
