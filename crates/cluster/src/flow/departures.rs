//! Pods that have been seen to go.
//!
//! Whoever leads watches pods from now on, without a list: what went unseen is asked for by name.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::sync::watch;
use tokio::time::sleep;

use super::Flows;
use crate::feed::{Fed, watch_from_now};
use crate::sync;

/// More than that are not remembered.
const REMEMBERED: usize = 20_000;
const PAUSE: Duration = Duration::from_millis(500);

/// How a pod was seen to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It is terminating: whoever is asked about it again sees that, too.
    Going,
    /// It is gone, and was never seen to terminate: its deletion may still be asked about as if it were there.
    Gone,
}

/// The uids of pods that went, the newest of them.
#[derive(Debug, Default)]
pub(super) struct Departures {
    uids: HashMap<Box<str>, Departure>,
    order: VecDeque<Box<str>>,
}

impl Departures {
    pub(super) fn of(&self, uid: &str) -> Option<Departure> {
        self.uids.get(uid).copied()
    }

    /// The first that was seen counts.
    pub(super) fn add(&mut self, uid: &str, departure: Departure) {
        if self.uids.contains_key(uid) {
            return;
        }
        self.uids.insert(uid.into(), departure);
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
        specs.mark_unchanged();
        let wanted = sync::newest(&mut leading) && !flows.controls().is_empty();
        let watching = async {
            if !wanted {
                return std::future::pending().await;
            }
            let take = |fed: Fed<'_>| match fed {
                Fed::Applied(pod) if pod.metadata.deletion_timestamp.is_none() => {}
                Fed::Applied(pod) if pod.metadata.deletion_grace_seconds != Some(0) => {
                    flows.depart(&pod.metadata.uid, Departure::Going);
                }
                // Without grace it is as good as gone.
                Fed::Applied(pod) | Fed::Deleted(pod) => flows.depart(&pod.metadata.uid, Departure::Gone),
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
            departures.add(&number.to_string(), Departure::Going);
            departures.add(&number.to_string(), Departure::Gone);
        }
        assert_eq!(departures.of("0"), None);
        assert_eq!(departures.of("1"), Some(Departure::Going));
        assert_eq!(departures.uids.len(), REMEMBERED);
    }
}
