//! What stands still for longer than a Lease and goes on: the API server, etcd, the leader, all replicas. And a replica
//! that is stuck, which ends by itself.

use std::time::Duration;

use palisade_testkit::wait_until;

use crate::cluster::{Cluster, EVENTUALLY, alone};

const LABEL: &str = "policy.kruise.io/delete-protection";
/// A Lease lasts six seconds.
const LONGER_THAN_A_LEASE: Duration = Duration::from_secs(9);

async fn protected(cluster: &Cluster) -> String {
    let ns = cluster.namespace().await;
    cluster.must(&format!("create configmap kept -n {ns}")).await;
    cluster.must(&format!("label configmap kept -n {ns} {LABEL}=Always")).await;
    ns
}

pub(crate) async fn leader(cluster: &Cluster) -> Option<usize> {
    let mut leaders = Vec::new();
    for replica in [0, 1] {
        if cluster.metric(replica, "palisade_leader").await > 0.5 {
            leaders.push(replica);
        }
    }
    // One that was stopped takes a moment to learn that it does not lead any more.
    leaders.pop().filter(|_| leaders.is_empty())
}

/// Waits until one leads.
pub(crate) async fn elected(cluster: &Cluster) -> usize {
    assert!(wait_until(EVENTUALLY, || async { leader(cluster).await.is_some() }).await, "somebody leads");
    leader(cluster).await.expect("it still does")
}

/// Every replica is healthy, refuses what is protected, and one of them leads.
async fn all_is_well(cluster: &Cluster, ns: &str) {
    for replica in [0, 1] {
        let healthy = wait_until(EVENTUALLY, || async {
            let asked = cluster.admin(replica, "/healthz");
            let answered = tokio::time::timeout(Duration::from_secs(2), asked).await;
            answered.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
        });
        assert!(healthy.await, "replica {replica} answers");
        cluster.palisade.send_only_to(Some(replica));
        let refuses = wait_until(EVENTUALLY, || async {
            let said = cluster.kubectl(&format!("delete configmap kept -n {ns}")).await;
            assert!(!said.ok, "{said:?}");
            said.err.contains("(Forbidden)") && said.err.contains("is protected from deletion")
        });
        assert!(refuses.await, "replica {replica} refuses");
    }
    cluster.palisade.send_only_to(None);
    elected(cluster).await;
}

#[test]
fn the_api_server() {
    alone(async |cluster| {
        let ns = protected(cluster).await;
        elected(cluster).await;
        cluster.plane.apiserver_stands_still(true);
        tokio::time::sleep(LONGER_THAN_A_LEASE).await;
        assert_eq!(leader(cluster).await, None, "nobody leads without a Lease, and both replicas answer");
        cluster.plane.apiserver_stands_still(false);
        all_is_well(cluster, &ns).await;
    });
}

#[test]
fn etcd() {
    alone(async |cluster| {
        let ns = protected(cluster).await;
        elected(cluster).await;
        cluster.plane.etcd_stands_still(true);
        tokio::time::sleep(LONGER_THAN_A_LEASE).await;
        cluster.plane.etcd_stands_still(false);
        all_is_well(cluster, &ns).await;
    });
}

#[test]
fn the_leader() {
    alone(async |cluster| {
        let ns = protected(cluster).await;
        let stopped = elected(cluster).await;
        cluster.palisade.stand_still(stopped);
        let other = 1 - stopped;
        let takes_over =
            wait_until(EVENTUALLY, || async { cluster.metric(other, "palisade_leader").await > 0.5 });
        let took_over = takes_over.await;
        cluster.palisade.go_on(stopped);
        assert!(took_over, "the other leads");
        all_is_well(cluster, &ns).await;
    });
}

#[test]
fn all_replicas() {
    alone(async |cluster| {
        let ns = protected(cluster).await;
        elected(cluster).await;
        let before = [cluster.palisade.process_id(0), cluster.palisade.process_id(1)];
        cluster.palisade.stand_still(0);
        cluster.palisade.stand_still(1);
        tokio::time::sleep(LONGER_THAN_A_LEASE).await;
        cluster.palisade.go_on(0);
        cluster.palisade.go_on(1);
        all_is_well(cluster, &ns).await;
        assert!(cluster.palisade.revive().expect("looked").is_empty(), "no watchdog took it for stuck");
        assert_eq!(before, [cluster.palisade.process_id(0), cluster.palisade.process_id(1)]);
    });
}

#[test]
fn a_stuck_replica_ends_itself_and_another_is_started() {
    alone(async |cluster| {
        let ns = protected(cluster).await;
        cluster.palisade.stall(0);
        let silent = wait_until(EVENTUALLY, || async {
            tokio::time::timeout(Duration::from_secs(1), cluster.admin(0, "/healthz")).await.is_err()
        });
        assert!(silent.await, "/healthz of a stuck replica does not answer");
        let mut ended = None;
        for _ in 0..600 {
            ended = cluster.palisade.exit_code(0);
            if ended.is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(ended, Some(70), "it ends by itself");
        cluster.palisade.revive().expect("started again");
        cluster.palisade.wait_ready().await.expect("ready again");
        all_is_well(cluster, &ns).await;
    });
}
