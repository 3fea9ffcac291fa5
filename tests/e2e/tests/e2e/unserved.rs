//! A kind of policy whose definition is there, and which is not served: stored policies go on protecting.

use palisade_testkit::wait_until;

use crate::cluster::{Cluster, EVENTUALLY, alone};

const PROTECTIONS: &str = "resourcedeletionprotections.palisade.dev";
const BUDGETS: &str = "podunavailablebudgets.policy.kruise.io";

async fn serve(cluster: &Cluster, definition: &str, served: bool) {
    let patch = format!(r#"[{{"op":"replace","path":"/spec/versions/0/served","value":{served}}}]"#);
    let words = ["patch", "customresourcedefinition", definition, "--type=json", "-p", &patch];
    let said = cluster.kubectl_with(words, "").await;
    assert!(said.ok, "{said:?}");
    let plural = definition.split_once('.').expect("a plural").0;
    let done = wait_until(EVENTUALLY, || async {
        cluster.kubectl(&format!("get {definition} -A")).await.ok == served
    });
    assert!(done.await, "{plural} served: {served}");
}

/// What came of deletions while the kinds were not served; looked at once all is mended.
struct Answers {
    map: String,
    pod: String,
    labelled: String,
}

async fn ask(cluster: &Cluster, ns: &str) -> Answers {
    let ask = async |words: &str| {
        let said = cluster.kubectl(&format!("delete {words} -n {ns} --wait=false")).await;
        if said.ok { "allowed".to_owned() } else { said.err }
    };
    Answers {
        map: ask("configmap kept").await,
        pod: ask("pod p0").await,
        labelled: ask("secret labelled").await,
    }
}

#[test]
fn what_stored_policies_protect_stays_protected_through_a_restart() {
    alone(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("create configmap kept -n {ns}")).await;
        cluster.must(&format!("create secret generic labelled -n {ns}")).await;
        cluster
            .must(&format!("label secret labelled -n {ns} policy.kruise.io/delete-protection=Always"))
            .await;
        cluster.must(&format!("run p0 --image=example/app -n {ns} --restart=Never --labels=app=web")).await;
        cluster.must(&format!("wait pod --all -n {ns} --for=condition=Ready --timeout=60s")).await;
        cluster
            .apply(&format!(
                "{{apiVersion: palisade.dev/v1alpha1, kind: ResourceDeletionProtection, metadata: {{name: unserved}}, spec: \
                 {{protectedResources: [{{resourceSelector: [{{apiVersion: v1, kind: ConfigMap, namespace: {ns}}}]}}]}}}}"
            ))
            .await;
        cluster
            .apply(&format!(
                "{{apiVersion: policy.kruise.io/v1alpha1, kind: PodUnavailableBudget, metadata: {{name: web, namespace: {ns}}}, \
                 spec: {{selector: {{matchLabels: {{app: web}}}}, maxUnavailable: 0}}}}"
            ))
            .await;
        cluster.must("wait rdp/unserved --for=condition=Enforced --timeout=60s").await;
        cluster.must(&format!("wait pub/web -n {ns} --for=condition=Enforced --timeout=60s")).await;

        serve(cluster, PROTECTIONS, false).await;
        serve(cluster, BUDGETS, false).await;
        let running = ask(cluster, &ns).await;
        cluster.palisade.kill(0);
        cluster.palisade.kill(1);
        tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
        cluster.palisade.revive().expect("started again");
        let ready = cluster.palisade.wait_ready().await;
        let restarted = ask(cluster, &ns).await;
        serve(cluster, PROTECTIONS, true).await;
        serve(cluster, BUDGETS, true).await;

        ready.expect("ready: what is known is answered");
        assert!(running.map.contains("(Forbidden)"), "what was known holds: {}", running.map);
        assert!(running.pod != "allowed", "the budget can't be charged");
        assert!(running.labelled.contains("(Forbidden)"), "{}", running.labelled);
        let not_served = "is defined but not served";
        assert!(restarted.map.contains("(ServiceUnavailable)"), "{}", restarted.map);
        assert!(restarted.map.contains(not_served), "{}", restarted.map);
        assert!(restarted.pod.contains("(ServiceUnavailable)"), "{}", restarted.pod);
        assert!(
            restarted.labelled.contains("(Forbidden)"),
            "labels need no policies: {}",
            restarted.labelled
        );

        for (what, code) in [("configmap kept", "(Forbidden)"), ("pod p0", "(TooManyRequests)")] {
            let refused = wait_until(EVENTUALLY, || async {
                let said = cluster.kubectl(&format!("delete {what} -n {ns}")).await;
                assert!(!said.ok, "{said:?}");
                said.err.contains(code)
            });
            assert!(refused.await, "{what}: {code}");
        }
        cluster.must("delete rdp unserved").await;
        let free = wait_until(EVENTUALLY, || async {
            cluster.kubectl(&format!("delete configmap kept -n {ns}")).await.ok
        });
        assert!(free.await, "and what is not protected any more goes");
    });
}
