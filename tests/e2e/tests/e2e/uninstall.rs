//! Palisade is taken away, whatever state it is in, and comes back.

use std::time::Duration;

use palisade_testkit::wait_until;

use crate::cluster::{Cluster, EVENTUALLY, Said, allowed, alone, denied, separate};
use crate::command_line::palisade;

const LABEL: &str = "policy.kruise.io/delete-protection";
const REGISTRATION: &str = "validatingwebhookconfiguration palisade";

/// A namespace that is labelled.
async fn protected(cluster: &Cluster) -> String {
    let ns = cluster.namespace().await;
    cluster.must(&format!("label namespace {ns} {LABEL}=Always")).await;
    ns
}

async fn deletes(cluster: &Cluster, ns: &str) -> Said {
    cluster.kubectl(&format!("delete namespace {ns} --wait=false --dry-run=server")).await
}

async fn is_denied_again(cluster: &Cluster, ns: &str) {
    let denied_again =
        wait_until(EVENTUALLY, || async { deletes(cluster, ns).await.err.contains("(Forbidden)") });
    assert!(denied_again.await, "{:?}", deletes(cluster, ns).await);
    denied(&deletes(cluster, ns).await, "Forbidden", ns);
}

async fn uninstalls(cluster: &Cluster) -> Said {
    let said = palisade(cluster, "uninstall").await;
    assert!(said.ok, "{said:?}");
    assert!(!said.out.contains("customresourcedefinition"), "{said:?}");
    said
}

/// Longer than a Lease lasts, and longer than a leader waits before it puts a registration back.
async fn stays_away(cluster: &Cluster) {
    let until = std::time::Instant::now() + Duration::from_secs(9);
    while std::time::Instant::now() < until {
        assert!(!cluster.exists(REGISTRATION).await, "nobody puts it back");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn revives(cluster: &mut Cluster) {
    // A replica that ended within a second of its start is left alone.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    cluster.palisade.revive().expect("replicas start again");
}

#[test]
fn uninstalling_needs_no_replica_and_lasts_when_one_comes_back() {
    alone(async |cluster| {
        let ns = protected(cluster).await;
        cluster.palisade.kill(0);
        cluster.palisade.kill(1);
        let said = deletes(cluster, &ns).await;
        assert!(!said.ok && said.err.contains("failed calling webhook"), "{said:?}");

        let said = uninstalls(cluster).await;
        assert!(said.out.contains("removed the registration"), "{said:?}");
        allowed(&deletes(cluster, &ns).await);

        // They come back as after a crash: nobody has asked them to protect again.
        revives(cluster).await;
        stays_away(cluster).await;
        allowed(&deletes(cluster, &ns).await);
        let warned = palisade(cluster, &format!("why namespace {ns}")).await;
        assert!(warned.err.contains("nothing is registered"), "{warned:?}");

        let said = palisade(cluster, "resume").await;
        assert!(said.ok && said.out.contains("the registration is in place"), "{said:?}");
        is_denied_again(cluster, &ns).await;
    });
}

#[test]
fn without_a_lease_uninstalling_makes_one_so_that_running_replicas_obey() {
    alone(async |cluster| {
        let ns = protected(cluster).await;
        cluster.must("delete lease palisade -n palisade-system").await;
        uninstalls(cluster).await;
        stays_away(cluster).await;
        allowed(&deletes(cluster, &ns).await);

        // The same with nobody there to make another Lease.
        cluster.palisade.stop();
        cluster.must("delete lease palisade -n palisade-system").await;
        uninstalls(cluster).await;
        let mark = "get lease palisade -n palisade-system -o jsonpath={.metadata.annotations}";
        assert!(cluster.must(mark).await.contains("palisade.dev/suspended"));
        revives(cluster).await;
        is_denied_again(cluster, &ns).await;
    });
}

#[test]
fn stopped_and_started_again_it_protects_again() {
    alone(async |cluster| {
        let ns = protected(cluster).await;
        // The mark alone is enough: the leader removes the registration.
        cluster.must("annotate lease palisade -n palisade-system palisade.dev/suspended=true").await;
        let gone = wait_until(EVENTUALLY, || async { !cluster.exists(REGISTRATION).await });
        assert!(gone.await);
        stays_away(cluster).await;
        cluster.palisade.stop();
        revives(cluster).await;
        is_denied_again(cluster, &ns).await;
    });
}

#[test]
fn what_uninstalling_prints_deletes_no_policy() {
    separate("uninstall", async |cluster| {
        let ns = protected(cluster).await;
        let policies = [
            "apiVersion: palisade.dev/v1alpha1\nkind: ResourceDeletionProtection\nmetadata: {name: kept}\n\
             spec:\n  protectedResources:\n  - resourceSelector:\n    - {apiVersion: v1, kind: ConfigMap, name: x}\n",
            "apiVersion: policy.kruise.io/v1alpha1\nkind: PodUnavailableBudget\n\
             metadata: {name: kept, namespace: palisade-system}\n\
             spec: {selector: {matchLabels: {app: web}}, maxUnavailable: 1}\n",
        ];
        for policy in policies {
            cluster.apply(policy).await;
        }
        let said = uninstalls(cluster).await;
        cluster.palisade.stop();
        let commands: Vec<&str> =
            said.out.lines().filter_map(|line| Some(&line[line.find("kubectl ")?..])).collect();
        assert!(commands.len() >= 3, "{said:?}");
        for command in &commands {
            let said = cluster.shell(command).await;
            assert!(said.ok, "{command}: {said:?}");
        }
        assert!(!cluster.exists("clusterrole palisade").await, "the rest is gone");
        assert!(cluster.exists("resourcedeletionprotection kept").await);
        assert!(cluster.exists("podunavailablebudget kept -n palisade-system").await);

        // Its own kinds are gone, and somebody has put an old registration back.
        let binary = crate::cluster::palisade_binary();
        let installed = cluster.shell(&format!("{} manifests | kubectl apply -f -", binary.display())).await;
        assert!(installed.ok, "{installed:?}");
        revives(cluster).await;
        is_denied_again(cluster, &ns).await;
        let jsonpath = "get validatingwebhookconfiguration palisade -o json";
        let mut old: serde_json::Value = serde_json::from_str(&cluster.must(jsonpath).await).expect("json");
        old["metadata"] = serde_json::json!({"name": "palisade"});
        cluster.palisade.kill(0);
        cluster.must("delete validatingwebhookconfiguration palisade").await;
        let all = cluster.must("get customresourcedefinitions -o name").await;
        assert!(all.lines().count() >= 5, "{all}");
        cluster.must(&format!("delete {}", all.replace('\n', " "))).await;
        cluster.apply(&old.to_string()).await;
        assert!(deletes(cluster, &ns).await.err.contains("failed calling webhook"));
        uninstalls(cluster).await;
        allowed(&deletes(cluster, &ns).await);
    });
}

#[test]
fn our_own_namespace_takes_the_registration_with_it() {
    separate("namespace", async |cluster| {
        let ns = protected(cluster).await;
        is_denied_again(cluster, &ns).await;
        let owner = format!("get {REGISTRATION} -o jsonpath={{.metadata.ownerReferences[0].uid}}");
        let uid = "get namespace palisade-system -o jsonpath={.metadata.uid}";
        assert_eq!(cluster.must(&owner).await, cluster.must(uid).await);

        // A finalizer holds the namespace, so it is not the garbage collector who removes the registration.
        cluster.must("create configmap held -n palisade-system").await;
        let hold = r#"{"metadata":{"finalizers":["example.com/held"]}}"#;
        cluster.must(&format!("patch configmap held -n palisade-system --type=merge -p {hold}")).await;
        allowed(&cluster.kubectl("delete namespace palisade-system --wait=false").await);
        let gone = wait_until(EVENTUALLY, || async { !cluster.exists(REGISTRATION).await });
        assert!(gone.await);
        stays_away(cluster).await;
        allowed(&deletes(cluster, &ns).await);
        let free = r#"{"metadata":{"finalizers":null}}"#;
        cluster.must(&format!("patch configmap held -n palisade-system --type=merge -p {free}")).await;
        let gone = wait_until(EVENTUALLY, || async { !cluster.exists("namespace palisade-system").await });
        assert!(gone.await);

        // Installed again, it protects again, and a registration without replicas goes with its namespace.
        let binary = crate::cluster::palisade_binary();
        let installed = cluster.shell(&format!("{} manifests | kubectl apply -f -", binary.display())).await;
        assert!(installed.ok, "{installed:?}");
        is_denied_again(cluster, &ns).await;
        cluster.eventually_prints(&owner, |owner| !owner.is_empty()).await;
        cluster.palisade.kill(0);
        assert!(deletes(cluster, &ns).await.err.contains("failed calling webhook"));
        allowed(&cluster.kubectl("delete namespace palisade-system --wait=false").await);
        let gone = wait_until(EVENTUALLY, || async { !cluster.exists(REGISTRATION).await });
        assert!(gone.await);
        allowed(&deletes(cluster, &ns).await);
        assert!(palisade(cluster, "uninstall").await.ok, "there is nothing left to do, and that is no error");
    });
}
