//! What people may do who are bound to Kubernetes' own roles in one namespace, and what their budgets can't.

use serde_json::Value;

use crate::cluster::{Cluster, EVENTUALLY, Said, allowed, denied, run, shared, warned};
use crate::pods::pods;
use crate::why::why_as;

/// `kubectl` as a user, with the user's own certificate.
async fn kubectl_as(cluster: &Cluster, user: &str, words: &str, input: &str) -> Said {
    let kubeconfig = cluster.plane.kubeconfig_of(user).expect("a kubeconfig");
    run(&cluster.plane.assets().kubectl(), &kubeconfig, words.split_whitespace(), input).await
}

async fn bind(cluster: &Cluster, ns: &str, user: &str, role: &str) {
    cluster.must(&format!("create rolebinding {user} --clusterrole={role} --user={user} -n {ns}")).await;
}

fn budget(ns: &str, limit: &str) -> String {
    format!(
        "{{apiVersion: policy.kruise.io/v1alpha1, kind: PodUnavailableBudget, metadata: {{name: web, namespace: {ns}}}, \
         spec: {{selector: {{app: web}}, {limit}}}}}"
    )
}

/// Waits until the budget's status says who wrote it, and how many pods must stay.
async fn written(cluster: &Cluster, ns: &str, by_administrator: bool, desired: i64) {
    let fields = "{.metadata.generation}={.status.writtenBy.generation}={.status.writtenBy.administrator}={.status.desiredAvailable}";
    let expected = [by_administrator.to_string(), desired.to_string()];
    cluster
        .eventually_prints(&format!("get pub web -n {ns} -o jsonpath={fields}"), |text| {
            let told: Vec<&str> = text.split('=').collect();
            told.len() == 4 && told[0] == told[1] && told[2..] == expected
        })
        .await;
}

async fn bounded(cluster: &Cluster, ns: &str) -> Option<Value> {
    let text = cluster.must(&format!("get pub web -n {ns} -o json")).await;
    let object: Value = serde_json::from_str(&text).expect("json");
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == "Bounded")
}

async fn delete(cluster: &Cluster, ns: &str) -> Said {
    cluster.kubectl(&format!("delete pod p0 -n {ns} --dry-run=server")).await
}

#[test]
fn budgets_are_the_business_of_who_owns_the_namespace_and_their_status_is_nobodys() {
    shared(async |cluster| {
        let (ns, other) = (cluster.namespace().await, cluster.namespace().await);
        for (role, may_write) in [("view", false), ("edit", true), ("admin", true)] {
            let user = format!("{role}-of-{ns}");
            bind(cluster, &ns, &user, role).await;
            // The API server may take a moment to know of it.
            let reads = format!("auth can-i get pub -n {ns} --as={user}");
            cluster.eventually_prints(&reads, |text| text.trim() == "yes").await;
            let may = async |words: &str| {
                cluster.kubectl(&format!("auth can-i {words} --as={user}")).await.out.trim() == "yes"
            };
            for (verb, expected) in [
                ("get", true),
                ("list", true),
                ("watch", true),
                ("create", may_write),
                ("update", may_write),
                ("patch", may_write),
                ("delete", may_write),
            ] {
                assert_eq!(may(&format!("{verb} pub -n {ns}")).await, expected, "{role}: {verb}");
                assert!(!may(&format!("{verb} pub -n {other}")).await, "{role}: {verb} elsewhere");
                assert!(!may(&format!("{verb} pub -A")).await, "{role}: {verb} everywhere");
            }
            for verb in ["update", "patch"] {
                assert!(!may(&format!("{verb} pub --subresource=status -n {ns}")).await, "{role}: {verb}");
            }
            for kind in ["rdp", "poddeletionflowcontrols", "criticalservices", "componentprotections"] {
                assert!(!may(&format!("create {kind}")).await, "{role}: {kind}");
            }
        }
    });
}

#[test]
fn a_budget_that_no_administrator_wrote_lets_a_pod_go() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        let owner = &format!("owner-of-{ns}");
        bind(cluster, ns, owner, "edit").await;
        pods(cluster, ns, 3, "").await;
        let refuses = "budget \"web\" allows 0 more unavailable pods now (3 available, 3 desired, 3 total)";
        let apply =
            async |limit: &str| kubectl_as(cluster, owner, "replace --force -f -", &budget(ns, limit)).await;

        let said = kubectl_as(cluster, owner, "create -f -", &budget(ns, "maxUnavailable: 0")).await;
        warned(
            &said,
            "maxUnavailable: 0 would let no pod go, and so it lets 1 pod go: no administrator writes it",
        );
        written(cluster, ns, false, 2).await;
        allowed(&delete(cluster, ns).await);
        let told = bounded(cluster, ns).await.expect("a condition");
        assert_eq!((&told["status"], &told["reason"]), (&"True".into(), &"NotByAdministrator".into()));
        let columns = cluster.must(&format!("get pub web -n {ns} --no-headers")).await;
        let columns: Vec<&str> = columns.split_whitespace().collect();
        assert_eq!(columns[..5], ["web", "1", "3", "2", "3"], "what it allows, and what must stay");
        for limit in ["maxUnavailable: 0%", "minAvailable: 100%", "minAvailable: 3", "minAvailable: 9"] {
            assert!(apply(limit).await.ok, "{limit}");
            written(cluster, ns, false, 2).await;
            allowed(&delete(cluster, ns).await);
        }

        // An administrator's word holds from its first moment on.
        cluster.apply(&budget(ns, "minAvailable: 3")).await;
        let patch = "patch pub web --type=merge -p {\"spec\":{\"minAvailable\":null,\"maxUnavailable\":0}}";
        cluster.must(&format!("{patch} -n {ns}")).await;
        denied(&delete(cluster, ns).await, "TooManyRequests", refuses);
        written(cluster, ns, true, 3).await;
        denied(&delete(cluster, ns).await, "TooManyRequests", refuses);
        assert_eq!(bounded(cluster, ns).await, None);
        // Metadata is not what it says: not by its owner, who can't have it loosened, nor forged in its status.
        for words in ["annotate pub web palisade.dev/approved=x", "label pub web x=y"] {
            assert!(kubectl_as(cluster, owner, &format!("{words} -n {ns}"), "").await.ok, "{words}");
        }
        denied(&delete(cluster, ns).await, "TooManyRequests", refuses);
        // A dry run changes nothing.
        let dry = format!(
            "patch pub web -n {ns} --type=merge -p {{\"spec\":{{\"maxUnavailable\":\"0%\"}}}} --dry-run=server"
        );
        warned(&kubectl_as(cluster, owner, &dry, "").await, "no administrator writes it");
        denied(&delete(cluster, ns).await, "TooManyRequests", refuses);

        // Whoever changes it is who wrote it.
        let change =
            format!("patch pub web -n {ns} --type=merge -p {{\"spec\":{{\"maxUnavailable\":\"0%\"}}}}");
        warned(&kubectl_as(cluster, owner, &change, "").await, "no administrator writes it");
        written(cluster, ns, false, 2).await;
        allowed(&delete(cluster, ns).await);
        let forged = "{\"status\":{\"writtenBy\":{\"generation\":9,\"administrator\":true}}}";
        let forge = format!("patch pub web -n {ns} --subresource=status --type=merge -p {forged}");
        let said = kubectl_as(cluster, owner, &forge, "").await;
        assert!(!said.ok && said.err.contains("podunavailablebudgets/status"), "{said:?}");
        assert!(
            kubectl_as(
                cluster,
                owner,
                &format!("annotate pub web -n {ns} palisade.dev/approved=1 --overwrite"),
                ""
            )
            .await
            .ok
        );
        // An administrator who touches it does not take it over; one who approves of it does, by the printed command.
        cluster.must(&format!("label pub web -n {ns} touched=yes")).await;
        allowed(&delete(cluster, ns).await);
        let told = bounded(cluster, ns).await.expect("a condition");
        let message = told["message"].as_str().expect("a message");
        let (_, command) =
            message.split_once("approve of it: kubectl ").unwrap_or_else(|| panic!("{message}"));
        cluster.must(command).await;
        written(cluster, ns, true, 3).await;
        denied(&delete(cluster, ns).await, "TooManyRequests", refuses);
    });
}

#[test]
fn rights_and_not_names_make_an_administrator() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 3, "").await;
        let user = &format!("gitops-of-{ns}");
        let writes = format!(
            "create clusterrole {user} --verb=get,list,create,update,patch --resource=podunavailablebudgets.policy.kruise.io"
        );
        cluster.must(&writes).await;
        cluster.must(&format!("create rolebinding {user} --clusterrole={user} --user={user} -n {ns}")).await;
        let apply = async |limit: &str| {
            let said = kubectl_as(cluster, user, "apply --server-side -f -", &budget(ns, limit)).await;
            assert!(said.ok, "{said:?}");
        };
        apply("maxUnavailable: 0").await;
        written(cluster, ns, false, 2).await;
        cluster.must(&format!("create clusterrolebinding {user} --clusterrole={user} --user={user}")).await;
        let may = format!("auth can-i create pub -A --as={user}");
        cluster.eventually_prints(&may, |text| text.trim() == "yes").await;
        apply("maxUnavailable: 0%").await;
        written(cluster, ns, true, 3).await;
        denied(&delete(cluster, ns).await, "TooManyRequests", "3 desired");
        cluster.must(&format!("delete clusterrolebinding {user}")).await;
        cluster.must(&format!("delete clusterrole {user}")).await;
    });
}

#[test]
fn a_budget_that_nobody_is_known_to_have_written_lets_a_pod_go() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        pods(cluster, ns, 3, "").await;
        cluster.apply(&budget(ns, "maxUnavailable: 0")).await;
        written(cluster, ns, true, 3).await;
        // As it is after an update from a version that did not look.
        let forget =
            "--subresource=status --type=json -p [{\"op\":\"remove\",\"path\":\"/status/writtenBy\"}]";
        cluster.must(&format!("patch pub web -n {ns} {forget}")).await;
        written(cluster, ns, false, 2).await;
        allowed(&delete(cluster, ns).await);
        // What an administrator writes is theirs again.
        cluster
            .must(&format!(
                "patch pub web -n {ns} --type=merge -p {{\"spec\":{{\"maxUnavailable\":\"0%\"}}}}"
            ))
            .await;
        denied(&delete(cluster, ns).await, "TooManyRequests", "3 desired");
        written(cluster, ns, true, 3).await;
    });
}

#[test]
fn who_may_delete_it_is_told_what_protects_it() {
    shared(async |cluster| {
        let ns = &cluster.namespace().await;
        let user = &format!("keeper-of-{ns}");
        // The right to delete Namespaces, and to read no policy of any kind.
        cluster.must(&format!("create clusterrole {user} --verb=get,delete --resource=namespaces")).await;
        cluster.must(&format!("create clusterrolebinding {user} --clusterrole={user} --user={user}")).await;
        cluster
            .apply(&format!(
                "{{apiVersion: palisade.dev/v1alpha1, kind: ResourceDeletionProtection, metadata: {{name: {ns}}}, spec: {{protectedResources: \
                 [{{resourceSelector: [{{apiVersion: v1, kind: Namespace, name: {ns}}}]}}]}}}}"
            ))
            .await;
        let delete = format!("delete namespace {ns} --dry-run=server");
        let is_refused = palisade_testkit::wait_until(EVENTUALLY, || async {
            kubectl_as(cluster, user, &delete, "").await.err.contains("is protected from deletion")
        });
        assert!(is_refused.await);
        let refused = kubectl_as(cluster, user, &delete, "").await;
        let (said, code) = why_as(cluster, user, &format!("namespace {ns}")).await;
        assert_eq!(code, 1, "{said:?}");
        assert!(
            said.out.contains("is protected from deletion") && refused.err.contains(&said.out),
            "{said:?}"
        );
        cluster.must(&format!("delete rdp {ns}")).await;
        cluster.must(&format!("delete clusterrolebinding,clusterrole {user}")).await;
    });
}
