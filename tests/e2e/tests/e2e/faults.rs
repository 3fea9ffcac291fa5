//! What happens when something dies.

use std::time::{Duration, Instant};

use palisade_testkit::wait_until;

use crate::cluster::{Cluster, SOON, allowed, alone, denied, lifting};

const LABEL: &str = "policy.kruise.io/delete-protection";

async fn protected(cluster: &Cluster) -> String {
    let ns = cluster.namespace().await;
    cluster.must(&format!("create configmap kept -n {ns}")).await;
    cluster.must(&format!("label configmap kept -n {ns} {LABEL}=Always")).await;
    cluster.must(&format!("create configmap free -n {ns}")).await;
    ns
}

fn delete(ns: &str, name: &str) -> String {
    format!("delete configmap {name} -n {ns}")
}

#[test]
fn with_one_replica_killed_the_other_answers() {
    alone(async |cluster| {
        let ns = protected(cluster).await;
        cluster.palisade.kill(0);
        // A call that was on its way to the dead one may fail, and then fails closed; those after it do not.
        let _ = cluster.kubectl(&delete(&ns, "kept")).await;
        for _ in 0..10 {
            denied(&cluster.kubectl(&delete(&ns, "kept")).await, "Forbidden", "is protected from deletion");
        }
    });
}

#[test]
fn with_every_replica_killed_what_is_protected_stays_and_the_rest_goes_on() {
    alone(async |cluster| {
        let ns = protected(cluster).await;
        cluster.palisade.kill(0);
        cluster.palisade.kill(1);
        let said = cluster.kubectl(&delete(&ns, "kept")).await;
        assert!(!said.ok && said.err.contains("failed calling webhook"), "{said:?}");
        allowed(&cluster.kubectl(&delete(&ns, "free")).await);
        let ours = cluster.kubectl("delete lease palisade -n palisade-system --dry-run=server").await;
        assert!(ours.ok, "what we need to come back is never blocked by us: {ours:?}");

        tokio::time::sleep(Duration::from_millis(1100)).await;
        cluster.palisade.revive().expect("revived");
        cluster.palisade.wait_ready().await.expect("ready");
        denied(&cluster.kubectl(&delete(&ns, "kept")).await, "Forbidden", "is protected from deletion");
    });
}

#[test]
fn when_the_leader_is_killed_another_repairs_the_registration() {
    alone(async |cluster| {
        let mut leader = None;
        for replica in [0, 1] {
            if cluster.metric(replica, "palisade_leader").await > 0.5 {
                leader = Some(replica);
            }
        }
        cluster.palisade.kill(leader.expect("one of them leads"));
        cluster.must("delete validatingwebhookconfiguration palisade").await;
        let back = wait_until(Duration::from_secs(20), || async {
            cluster.exists("validatingwebhookconfiguration palisade").await
        });
        assert!(back.await);
    });
}

#[test]
fn a_replica_that_is_asked_to_end_finishes_first() {
    alone(async |cluster| {
        let ns = protected(cluster).await;
        let started = Instant::now();
        cluster.palisade.terminate(0);
        while started.elapsed() < Duration::from_secs(3) {
            let said = cluster.kubectl(&delete(&ns, "kept")).await;
            denied(&said, "Forbidden", "is protected from deletion");
        }
    });
}

#[test]
fn after_a_restart_of_the_api_server_all_is_as_before() {
    alone(async |cluster| {
        let ns = protected(cluster).await;
        cluster.pod(&ns, "p").await;
        cluster.plane.restart_apiserver().await.expect("restarted");
        let refused = wait_until(SOON, || async {
            cluster.kubectl(&delete(&ns, "kept")).await.err.contains("(Forbidden)")
        });
        assert!(refused.await);
        allowed(&cluster.kubectl(&delete(&ns, "free")).await);
        // The watches have come back too.
        cluster.must(&format!("label pod p -n {ns} {LABEL}=Always")).await;
        let named = wait_until(Duration::from_secs(30), || async {
            let selectors =
                "get validatingwebhookconfiguration palisade -o jsonpath={.webhooks[*].namespaceSelector}";
            cluster.kubectl(selectors).await.out.contains(&format!("\"{ns}\""))
        });
        assert!(named.await);
    });
}

#[test]
fn what_palisade_may_not_ask_is_refused_and_says_so() {
    alone(async |cluster| {
        let ns = cluster.namespace().await;
        cluster.must(&format!("label namespace {ns} {LABEL}=Cascading")).await;
        let binding = cluster.must("get clusterrolebinding palisade -o json").await;
        let instances = cluster.must("get clusterrolebinding palisade-reader -o json").await;
        cluster.must("delete clusterrolebinding palisade palisade-reader").await;
        let refused = wait_until(SOON, || async {
            cluster
                .kubectl(&format!("delete namespace {ns} --dry-run=server"))
                .await
                .err
                .contains("(Forbidden)")
        });
        assert!(refused.await);
        let said = cluster.kubectl(&format!("delete namespace {ns}")).await;
        denied(&said, "Forbidden", "its active pods could not be found out (403: pods is forbidden");
        assert!(said.err.contains("Palisade may not list configmaps, "), "{said:?}");
        assert!(lifting(&said).contains("--serviceaccount=palisade-system:palisade"), "{said:?}");
        cluster.apply(&binding).await;
        cluster.apply(&instances).await;
        let allowed_again = wait_until(SOON, || async {
            cluster.kubectl(&format!("delete namespace {ns} --wait=false")).await.ok
        });
        assert!(allowed_again.await);
    });
}
