//! Pods that have been seen to go.
//!
//! Whoever leads watches pods from now on, without a list: what went unseen is asked for by name.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::sync::watch;
use tokio::time::sleep;

use super::Flows;
use crate::feed::{Fed, watch_from_now};

/// More than that are not remembered.
const REMEMBERED: usize = 20_000;
const PAUSE: Duration = Duration::from_millis(500);

/// The uids of pods that went, the newest of them.
#[derive(Debug, Default)]
pub(super) struct Departures {
    uids: HashSet<Box<str>>,
    order: VecDeque<Box<str>>,
}

impl Departures {
    pub(super) fn contain(&self, uid: &str) -> bool {
        self.uids.contains(uid)
    }

    pub(super) fn add(&mut self, uid: &str) {
        if !self.uids.insert(uid.into()) {
            return;
        }
        self.order.push_back(uid.into());
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.uids.remove(&oldest);
        }
    }
}

/// Watches pods go while we lead and there are flow controls, for ever.
pub async fn watch_departures(client: Client, flows: Arc<Flows>, mut leading: watch::Receiver<bool>) {
    let mut specs = flows.specs();
    loop {
        let wanted = *leading.borrow_and_update() && !flows.controls().is_empty();
        specs.borrow_and_update();
        let watching = async {
            if !wanted {
                return std::future::pending().await;
            }
            let take = |fed: Fed<'_>| match fed {
                Fed::Applied(pod) if pod.metadata.deletion_timestamp.is_none() => {}
                Fed::Applied(pod) | Fed::Deleted(pod) => flows.depart(&pod.metadata.uid),
                _ => {}
            };
            if let Err(broken) = watch_from_now(&client, "/api/v1/pods", take).await {
                tracing::warn!(why = %broken, "watching pods go");
            }
            sleep(PAUSE).await;
        };
        tokio::select! {
            () = watching => {}
            changed = leading.changed() => if changed.is_err() { return },
            changed = specs.changed() => if changed.is_err() { return },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_remembered() {
        let mut departures = Departures::default();
        for number in 0..=REMEMBERED {
            departures.add(&number.to_string());
            departures.add(&number.to_string());
        }
        assert!(!departures.contain("0"));
        assert!(departures.contain("1"));
        assert_eq!(departures.uids.len(), REMEMBERED);
    }
}
