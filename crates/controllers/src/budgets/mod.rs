//! The status of `PodUnavailableBudget`s.
//!
//! The leader counts anew whenever pods, workloads or budgets change, and writes what differs with the resource version
//! that it read, so that it never undoes a reservation. It drops reservations once the loss of their pod has been seen,
//! or the pod was seen to live on.

mod plan;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use palisade_api::budget::Status;
use palisade_cluster::budgets::{Budgets, Index, Key, Known};
use palisade_cluster::sync;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::leadership::Leadership;
use crate::registration::Carried;

/// How long changes are gathered.
const GATHER: Duration = Duration::from_millis(50);
/// At most one write for a budget in this time.
const PACE: Duration = Duration::from_millis(250);
const TICK: Duration = Duration::from_secs(1);
const CALL: Duration = Duration::from_secs(5);
/// A look without a reason, should a watch have missed something.
const ROUND: Duration = Duration::from_secs(30);
/// A status that has seen more than there is after this long comes from another life of the cluster: a backup.
const FORESIGHT: Duration = Duration::from_secs(30);
const AT_ONCE: usize = 8;
/// How long after a budget was seen to be written nobody will say any more by whom: it was written while no replica
/// answered, before this version, or the replica that knew has ended.
const UNSIGNED: Duration = Duration::from_secs(10);

/// What the status is derived from.
#[derive(Clone)]
pub struct Inputs {
    pub leadership: watch::Receiver<Leadership>,
    pub carried: watch::Receiver<Carried>,
    /// After this long a reservation's pod is asked after. No request that was admitted goes on for longer.
    pub expiry: Duration,
}

/// Keeps the status of all budgets while leading. Never ends.
pub async fn keep_status(budgets: Arc<Budgets>, mut inputs: Inputs) {
    let index = budgets.index().clone();
    let mut keeper = Keeper {
        accounts: budgets,
        expiry: inputs.expiry,
        since: HashMap::new(),
        unsigned: HashMap::new(),
        foreseen: HashMap::new(),
        written: HashMap::new(),
    };
    let mut leading = false;
    let mut round = Instant::now();
    loop {
        let touched = tokio::select! {
            touched = index.touched() => touched,
            Ok(()) = inputs.carried.changed() => HashSet::new(),
            Ok(()) = inputs.leadership.changed() => HashSet::new(),
            () = sleep(TICK) => HashSet::new(),
        };
        let led = std::mem::replace(&mut leading, sync::newest(&mut inputs.leadership).leading);
        if !leading {
            keeper.since.clear();
            keeper.unsigned.clear();
            continue;
        }
        sleep(GATHER).await;
        let all = !led || round.elapsed() > ROUND || inputs.carried.has_changed().unwrap_or(false);
        if all {
            round = Instant::now();
        }
        let carried = sync::newest(&mut inputs.carried);
        let due = keeper.expiring(&index);
        let unsigned = keeper.unsigned(&index);
        let budgets: Vec<Arc<Known>> = index
            .budgets()
            .into_iter()
            .filter(|known| {
                all || touched.contains(known.key.namespace.as_str())
                    || due.contains_key(&known.key)
                    || unsigned.contains(&known.key)
                    || plan::is_enforced(&known.status) != plan::is_carried(&carried, known)
            })
            .collect();
        keeper.keep(budgets, (&due, &unsigned), &carried, &index).await;
    }
}

struct Keeper {
    accounts: Arc<Budgets>,
    expiry: Duration,
    /// Since when each reservation has been seen: by budget, pod, and the time that it was made.
    since: HashMap<(Key, String, String), Instant>,
    /// Since when nobody has said who wrote a generation of a budget.
    unsigned: HashMap<(Key, String, Option<i64>), Instant>,
    /// Since when a status knows more than we do.
    foreseen: HashMap<Key, Instant>,
    written: HashMap<Key, Instant>,
}

impl Keeper {
    /// The pods whose reservations have been there for long, by budget.
    fn expiring(&mut self, index: &Index) -> HashMap<Key, HashSet<String>> {
        let mut due: HashMap<Key, HashSet<String>> = HashMap::new();
        let mut there = HashMap::new();
        for known in index.budgets() {
            let status = &known.status;
            for uid in status.deleted_pods.keys().chain(status.unavailable_pods.keys()) {
                let made = status.reserved_at.get(uid).cloned().unwrap_or_default();
                let id = (known.key.clone(), uid.clone(), made);
                let since = self.since.get(&id).copied().unwrap_or_else(Instant::now);
                if since.elapsed() >= self.expiry {
                    due.entry(known.key.clone()).or_default().insert(uid.clone());
                }
                there.insert(id, since);
            }
        }
        self.since = there;
        due
    }

    /// The budgets of which nobody will say any more who wrote them.
    fn unsigned(&mut self, index: &Index) -> HashSet<Key> {
        let unsigned = index.budgets().into_iter().filter(|known| !known.author.is_known());
        self.unsigned = unsigned
            .map(|known| {
                let id = (known.key.clone(), known.uid.clone(), known.generation);
                let since = self.unsigned.get(&id).copied().unwrap_or_else(Instant::now);
                (id, since)
            })
            .collect();
        let due = self.unsigned.iter().filter(|(_, since)| since.elapsed() >= UNSIGNED);
        due.map(|((key, ..), _)| key.clone()).collect()
    }

    async fn keep(
        &mut self,
        budgets: Vec<Arc<Known>>,
        (due, unsigned): (&HashMap<Key, HashSet<String>>, &HashSet<Key>),
        carried: &Carried,
        index: &Arc<Index>,
    ) {
        self.written.retain(|_, at| at.elapsed() < PACE);
        let revision = index.pods().revision();
        let mut ready = Vec::new();
        for known in budgets {
            if let Some(at) = self.written.get(&known.key) {
                let (index, namespace, rest) =
                    (index.clone(), known.key.namespace.clone(), PACE.saturating_sub(at.elapsed()));
                tokio::spawn(async move {
                    sleep(rest).await;
                    index.touch(&namespace);
                });
                continue;
            }
            let reset = if plan::has_foresight(&known.status, revision) {
                self.foreseen.entry(known.key.clone()).or_insert_with(Instant::now).elapsed() > FORESIGHT
            } else {
                self.foreseen.remove(&known.key);
                false
            };
            ready.push((known, reset));
        }
        let accounts = &self.accounts;
        let none = HashSet::new();
        let kept: Vec<(Key, Kept)> = futures::stream::iter(ready)
            .map(|(known, reset)| {
                let due = due.get(&known.key).unwrap_or(&none);
                let is_unsigned = unsigned.contains(&known.key);
                async move {
                    if let Some(signed) = plan::unsigned(&known).filter(|_| is_unsigned) {
                        let written = timeout(CALL, write(accounts, &known, &signed)).await;
                        let kept = written.unwrap_or_else(|_| Kept::Failed(NO_ANSWER.to_owned()));
                        // What follows from it is written when the watch brings it.
                        return (known.key.clone(), kept);
                    }
                    let reconciled = timeout(CALL, reconcile(accounts, &known, due, carried, reset)).await;
                    (known.key.clone(), reconciled.unwrap_or_else(|_| Kept::Failed(NO_ANSWER.to_owned())))
                }
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        for (key, kept) in kept {
            match kept {
                Kept::Same => {}
                Kept::Written => drop(self.written.insert(key, Instant::now())),
                Kept::Failed(why) => {
                    tracing::warn!(
                        budget = key.name,
                        namespace = key.namespace,
                        why,
                        "keeping a budget's status"
                    );
                    let index = index.clone();
                    tokio::spawn(async move {
                        sleep(TICK).await;
                        index.touch(&key.namespace);
                    });
                }
            }
        }
    }
}

const NO_ANSWER: &str = "no answer in time";

enum Kept {
    Same,
    Written,
    Failed(String),
}

async fn reconcile(
    accounts: &Arc<Budgets>,
    known: &Known,
    due: &HashSet<String>,
    carried: &Carried,
    reset: bool,
) -> Kept {
    let mut lives_on = HashMap::new();
    for uid in due {
        if let Some(life) = accounts.life_of(&known.key.namespace, uid).await {
            lives_on.insert(uid.clone(), life);
        }
    }
    let observed = if known.budget.is_ok() {
        match accounts.observe(known, &lives_on).await {
            Ok(observed) => Some(observed),
            Err(unknown) => return Kept::Failed(format!("{}: {}", unknown.question, unknown.why)),
        }
    } else {
        None
    };
    let mut status = plan::status(known, observed, carried, Timestamp::now());
    if reset {
        status.observed_pods_resource_version = None;
    }
    if status == known.status {
        return Kept::Same;
    }
    write(accounts, known, &status).await
}

async fn write(accounts: &Arc<Budgets>, known: &Known, status: &Status) -> Kept {
    match accounts.write(known, status).await {
        Ok(_) => Kept::Written,
        // Somebody was faster, and the watch brings what they wrote.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Kept::Same,
        Err(error) => Kept::Failed(error.to_string()),
    }
}
