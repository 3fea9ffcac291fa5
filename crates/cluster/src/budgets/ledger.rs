//! The ledger: many replicas spend from one budget, and it is never overdrawn.
//!
//! Each replica runs one task per budget that is being spent from. It takes all requests that wait, decides them
//! against the newest status it knows, writes the status once for all with the resource version that it read, and
//! answers them all. If somebody else was faster it reads again and repeats, until the reviews' deadline.
//!
//! A refusal is given only on a status that was read or written just now. A pod of several budgets is charged to one
//! after the other, and given back where one of them refuses; whoever dies in between leaves reservations that end by
//! themselves.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use palisade_api::budget::{self, Budget, Chosen, Status};
use palisade_engine::{
    Answer, Loss, Metadata, Object, PodState, Spent, Standing, Unknown, Withdrawal, is_available,
};
use serde_json::json;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::budgets::account::{Admitted, Life, Loser, Numbers, Seen, admit, has_seen_enough, release, sweep};
use crate::budgets::census::{Census, Membership, census, membership};
use crate::budgets::owners::Lookup;
use crate::budgets::{Controller, Index, Key, Known, budget_resource, lock};
use crate::discovery::Discovery;
use crate::feed::number;
use crate::live::{WHOLE, get, segment};

/// How long a task waits for more requests before it ends.
const IDLE: Duration = Duration::from_secs(60);
/// How long one question to the API server may take.
const CALL: Duration = Duration::from_secs(3);
/// How long a request waits for the index to catch up with what another replica has seen.
const CATCH_UP: Duration = Duration::from_secs(2);

/// What is told to whoever counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    Reserved(usize),
    Refused(usize),
    Written,
    Conflict,
}

/// Where budgets are spent from.
pub struct Ledger {
    lookup: Lookup,
    accounts: Mutex<HashMap<Key, mpsc::UnboundedSender<Request>>>,
    count: Box<dyn Fn(Entry) + Send + Sync>,
}

struct Request {
    loser: Loser,
    /// Whether it is to be given back instead.
    release: bool,
    deadline: Instant,
    reply: oneshot::Sender<Answer<Admitted>>,
}

/// How a budget stands, and what its status should say about it.
#[derive(Clone, Debug)]
pub struct Observed {
    /// With what has been seen taken out.
    pub status: Status,
    /// Whether there is a workload by the name that it is for; `None` if it selects pods.
    pub target_found: Option<bool>,
}

impl Ledger {
    pub fn new(
        client: Client,
        index: Arc<Index>,
        discovery: watch::Receiver<Option<Discovery>>,
        count: impl Fn(Entry) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let lookup = Lookup { client, index, discovery };
        Arc::new(Self { lookup, accounts: Mutex::default(), count: Box::new(count) })
    }

    pub fn index(&self) -> &Arc<Index> {
        &self.lookup.index
    }

    /// Charges a pod to every budget that it belongs to, or to none; unless `really`, only says what would be.
    pub async fn spend(
        self: &Arc<Self>,
        withdrawal: &Withdrawal<'_>,
        deadline: Instant,
        really: bool,
    ) -> Answer<Spent> {
        let namespace = withdrawal.pod.namespace.as_deref().unwrap_or_default();
        let mut budgets = self.lookup.index.budgets_in(namespace);
        if budgets.is_empty() && withdrawal.expects_budgets && self.has_budgets(namespace).await? {
            // One that was created just now, and the watch is about to bring.
            let brought = self.lookup.index.until(|index| !index.budgets_in(namespace).is_empty());
            // Without it, it has gone again in the meantime.
            let _ = timeout(CATCH_UP, brought).await;
            budgets = self.lookup.index.budgets_in(namespace);
        }
        if budgets.is_empty() {
            return Ok(Spent::Granted);
        }
        let late = || Unknown::new("whether its budgets allow it", "there was no answer in time");
        let spending = async {
            self.lookup.index.until(Index::is_listed).await;
            let mut concerned = Vec::new();
            for known in budgets {
                if self.concerns(&known, withdrawal).await? {
                    concerned.push(known);
                }
            }
            let loser = Loser {
                uid: (&*withdrawal.pod.uid).into(),
                revision: (&*withdrawal.pod.resource_version).into(),
                goes: matches!(withdrawal.loss, Loss::Deletion | Loss::Eviction),
            };
            if really {
                self.charge(&concerned, &loser, deadline).await
            } else {
                self.peek(&concerned, &loser).await
            }
        };
        timeout_at(deadline, spending).await.unwrap_or_else(|_| Err(late()))
    }

    /// Whether there is a budget in a namespace, asked of the API server.
    async fn has_budgets(&self, namespace: &str) -> Answer<bool> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.lookup.client.clone(), namespace, &budget_resource());
        match timeout(CALL, api.list_metadata(&ListParams::default().limit(1))).await {
            Ok(Ok(list)) => Ok(!list.items.is_empty()),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(false),
            Ok(Err(error)) => Err(not_read(error.to_string())),
            Err(_) => Err(not_read("the API server did not answer in time".to_owned())),
        }
    }

    /// Whether a pod costs something of a budget.
    async fn concerns(&self, known: &Known, withdrawal: &Withdrawal<'_>) -> Answer<bool> {
        let budget = readable(known)?;
        let pod = withdrawal.pod;
        let controller = Controller::of(pod);
        if self.membership(known, budget, pod, controller.as_ref()).await? != Membership::Member {
            return Ok(false);
        }
        let Some(then) = withdrawal.parting else { return Ok(true) };
        let owner = Controller::of(then);
        let member = self.membership(known, budget, then, owner.as_ref()).await? == Membership::Member;
        Ok(match (&budget.pods, owner) {
            // A workload lets go of a pod that no longer looks like one of its own.
            (Chosen::Of(_), Some(owner)) if member => {
                !self.lookup.keeps(&known.key.namespace, &owner, &then.labels).await?
            }
            _ => !member,
        })
    }

    async fn membership(
        &self,
        known: &Known,
        budget: &Budget,
        pod: &Metadata<'_>,
        controller: Option<&Controller>,
    ) -> Answer<Membership> {
        self.lookup
            .with_owners(&known.key.namespace, |owners| {
                membership(budget, pod, controller, owners).map_err(|missing| vec![missing])
            })
            .await
    }

    /// What would come of it, by what is known.
    async fn peek(&self, concerned: &[Arc<Known>], loser: &Loser) -> Answer<Spent> {
        let mut refused = Vec::new();
        for known in concerned {
            let budget = readable(known)?;
            let census = self.census(known).await?;
            let mut status = known.status.clone();
            let (admitted, _, _) =
                admit(budget, &census, &mut status, std::slice::from_ref(loser), Timestamp::now());
            if let Some(Admitted::No(numbers)) = admitted.first() {
                refused.push(standing(known, numbers));
            }
        }
        Ok(if refused.is_empty() { Spent::Granted } else { Spent::Refused(refused) })
    }

    async fn charge(
        self: &Arc<Self>,
        concerned: &[Arc<Known>],
        loser: &Loser,
        deadline: Instant,
    ) -> Answer<Spent> {
        // One that clearly does not allow it spares the others a reservation that would be given back.
        if concerned.len() > 1
            && let Spent::Refused(refused) = self.peek(concerned, loser).await?
        {
            return Ok(Spent::Refused(refused));
        }
        for (number, known) in concerned.iter().enumerate() {
            let refused = match self.ask(&known.key, loser, false, deadline).await {
                Ok(Admitted::Yes) => continue,
                Ok(Admitted::No(numbers)) => Ok(Spent::Refused(vec![standing(known, &numbers)])),
                Err(unknown) => Err(unknown),
            };
            for charged in &concerned[..number] {
                // If this fails, the reservation ends by itself: the pod is seen to live on.
                let _ = self.ask(&charged.key, loser, true, deadline).await;
            }
            return refused;
        }
        Ok(Spent::Granted)
    }

    /// Puts a request to the account's task, which is started where there is none.
    async fn ask(
        self: &Arc<Self>,
        key: &Key,
        loser: &Loser,
        release: bool,
        deadline: Instant,
    ) -> Answer<Admitted> {
        let (reply, answer) = oneshot::channel();
        let request = Request { loser: loser.clone(), release, deadline, reply };
        {
            let mut accounts = lock(&self.accounts);
            let unsent = match accounts.get(key) {
                Some(account) => account.send(request).err().map(|error| error.0),
                None => Some(request),
            };
            if let Some(request) = unsent {
                let (sender, receiver) = mpsc::unbounded_channel();
                // It was just made, and its receiver is here.
                let _ = sender.send(request);
                accounts.insert(key.clone(), sender);
                tokio::spawn(run_account(self.clone(), key.clone(), receiver));
            }
        }
        let lost = || Unknown::new("whether its budgets allow it", "the account was closed");
        answer.await.unwrap_or_else(|_| Err(lost()))
    }

    /// The pods of a budget, counted.
    async fn census(&self, known: &Known) -> Answer<Census> {
        let budget = readable(known)?;
        if let Chosen::Of(target) = &budget.pods {
            self.lookup.index.want_kind((target.group.as_str().into(), target.kind.as_str().into()));
        }
        let Key { namespace, .. } = &known.key;
        self.lookup
            .with_owners(namespace, |owners| {
                census(budget, namespace, self.lookup.index.pods().of_namespace(namespace), owners)
            })
            .await
    }

    /// How a budget stands now, for its status. `lives_on` are pods that were seen to live on.
    pub async fn observe(&self, known: &Known, lives_on: &HashMap<String, Life>) -> Answer<Observed> {
        let budget = readable(known)?;
        let census = self.census(known).await?;
        let mut status = known.status.clone();
        {
            let pods = self.lookup.index.pods();
            let seen = Seen {
                pods: pods.of_namespace(&known.key.namespace),
                revision: pods.revision(),
                event_revision: pods.event_revision(),
            };
            sweep(&mut status, seen, lives_on, Timestamp::now());
        }
        Numbers::of(budget, &census, &status).show(&mut status, known.generation);
        let target_found = match &budget.pods {
            Chosen::Selected(_) => None,
            Chosen::Of(target) => {
                let workloads = self.lookup.index.workloads();
                let find = || workloads.find(&known.key.namespace, &target.group, &target.kind, &target.name);
                // Whoever wants pods is there; the others are looked for among all.
                Some(census.total > 0 || find().is_some())
            }
        };
        Ok(Observed { status, target_found })
    }

    /// How a pod is whose reservation nothing seems to come of; `None` if it is going, gone, or nobody can tell.
    pub async fn life_of(&self, namespace: &str, uid: &str) -> Option<Life> {
        // Nobody knows it by a name any more: the index has seen it go, or will.
        let name = self.lookup.index.pods().of_namespace(namespace)?.get(uid)?.name.clone();
        let path = format!("/api/v1/namespaces/{}/pods/{}", segment(namespace), segment(&name));
        let text =
            timeout(CALL, self.lookup.client.request_text(get(&path, WHOLE).ok()?)).await.ok()?.ok()?;
        let pod = Object::parse(text.as_bytes()).ok()?;
        if pod.metadata.uid != uid || pod.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let state = PodState::read(&pod).ok()?;
        Some(if is_available(&pod, &state) { Life::Available } else { Life::Down })
    }

    /// Writes a status over the one that was read.
    pub async fn write(&self, known: &Known, status: &Status) -> kube::Result<Known> {
        let Key { namespace, name } = &known.key;
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.lookup.client.clone(), namespace, &budget_resource());
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": format!("{}/{}", budget::GROUP, budget::VERSION),
            "kind": budget::KIND,
            "metadata": {
                "name": name, "namespace": namespace, "uid": known.uid, "resourceVersion": known.resource_version,
            },
            "status": status,
        }))
        .map_err(kube::Error::SerdeError)?;
        let written = api.replace_status(name, &PostParams::default(), &object).await?;
        (self.count)(Entry::Written);
        Ok(Known::read(&written))
    }

    /// Reads a budget anew; `None` if it is gone.
    pub async fn read(&self, key: &Key) -> kube::Result<Option<Known>> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.lookup.client.clone(), &key.namespace, &budget_resource());
        Ok(api.get_opt(&key.name).await?.map(|object| Known::read(&object)))
    }
}

fn readable(known: &Known) -> Answer<&Budget> {
    known.budget.as_ref().map_err(|why| Unknown::new(format!("what budget {} asks for", known.key.name), why))
}

fn standing(known: &Known, numbers: &Numbers) -> Standing {
    let Numbers { allowed, available, desired, total } = *numbers;
    Standing { budget: known.key.name.clone(), allowed, available, desired, total }
}

/// Serves one account until nobody has asked for a while.
async fn run_account(ledger: Arc<Ledger>, key: Key, mut requests: mpsc::UnboundedReceiver<Request>) {
    let mut newest: Option<Known> = None;
    while let Ok(Some(first)) = timeout(IDLE, requests.recv()).await {
        let mut batch = vec![first];
        while let Ok(next) = requests.try_recv() {
            batch.push(next);
        }
        settle(&ledger, &key, batch, &mut newest).await;
    }
    let mut accounts = lock(&ledger.accounts);
    // Whoever asked in this very moment finds the sender gone, or the channel closed, and starts another task.
    requests.close();
    accounts.remove(&key);
    while let Ok(late) = requests.try_recv() {
        let _ = late.reply.send(Err(Unknown::new("whether its budgets allow it", "the account was closed")));
    }
}

/// Decides a batch, and answers it.
async fn settle(ledger: &Ledger, key: &Key, batch: Vec<Request>, newest: &mut Option<Known>) {
    let mut waiting = batch;
    // Whether what we know was read or written for this very batch.
    let mut fresh = false;
    loop {
        let now = Instant::now();
        let (late, rest): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|request| request.deadline <= now);
        for request in late {
            let _ = request.reply.send(Err(Unknown::new(
                "whether its budgets allow it",
                "too many others asked at the same time",
            )));
        }
        waiting = rest;
        if waiting.is_empty() {
            return;
        }
        let Some(known) = newest_known(ledger, key, newest) else {
            // The budget is gone, and refuses nothing any more.
            return answer_all(waiting, &Ok(Admitted::Yes));
        };
        let outcome = decide(ledger, &known, &waiting).await;
        let (admitted, status) = match outcome {
            Ok(decided) => decided,
            Err(unknown) => return answer_all(waiting, &Err(unknown)),
        };
        let step = match status {
            None if fresh => Step::Answer,
            // Neither a no nor a reservation that is there already is believed from memory.
            None => Step::Read,
            Some(status) => match timeout(CALL, ledger.write(&known, &status)).await {
                Ok(Ok(written)) => {
                    *newest = Some(written);
                    Step::Answer
                }
                Ok(Err(kube::Error::Api(status))) if status.code == 409 => {
                    (ledger.count)(Entry::Conflict);
                    sleep(jitter()).await;
                    Step::Read
                }
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
                    return answer_all(waiting, &Ok(Admitted::Yes));
                }
                Ok(Err(error)) => Step::Fail(error.to_string()),
                Err(_) => Step::Fail("the API server did not answer in time".to_owned()),
            },
        };
        match step {
            Step::Answer => {
                let refused = admitted.iter().filter(|admitted| **admitted != Admitted::Yes).count();
                (ledger.count)(Entry::Reserved(admitted.len() - refused));
                (ledger.count)(Entry::Refused(refused));
                for (request, admitted) in waiting.into_iter().zip(admitted) {
                    let _ = request.reply.send(Ok(admitted));
                }
                return;
            }
            Step::Read => match timeout(CALL, ledger.read(key)).await {
                Ok(Ok(Some(read))) => {
                    *newest = Some(read);
                    fresh = true;
                }
                Ok(Ok(None)) => return answer_all(waiting, &Ok(Admitted::Yes)),
                Ok(Err(error)) => return answer_all(waiting, &Err(not_read(error.to_string()))),
                Err(_) => {
                    return answer_all(
                        waiting,
                        &Err(not_read("the API server did not answer in time".to_owned())),
                    );
                }
            },
            Step::Fail(why) => return answer_all(waiting, &Err(not_read(why))),
        }
    }
}

enum Step {
    Answer,
    Read,
    Fail(String),
}

fn not_read(why: String) -> Unknown {
    Unknown::new("whether its budgets allow it", why)
}

fn answer_all(requests: Vec<Request>, answer: &Answer<Admitted>) {
    for request in requests {
        let _ = request.reply.send(answer.clone());
    }
}

/// The newest that we know of a budget: by the watch, or by what we read or wrote ourselves.
fn newest_known(ledger: &Ledger, key: &Key, newest: &mut Option<Known>) -> Option<Known> {
    let watched = ledger.lookup.index.budget(key)?;
    let newer = newest.as_ref().is_none_or(|known| {
        number(&known.resource_version) < number(&watched.resource_version) || known.uid != watched.uid
    });
    if newer {
        *newest = Some((*watched).clone());
    }
    newest.clone()
}

/// Decides what waits by one reading of the index: the answers, and the status to write if it changes.
async fn decide(
    ledger: &Ledger,
    known: &Known,
    waiting: &[Request],
) -> Answer<(Vec<Admitted>, Option<Status>)> {
    let behind = || Unknown::new("whether its budgets allow it", "this replica has not seen all pods yet");
    let caught_up =
        ledger.lookup.index.until(|index| has_seen_enough(&known.status, index.pods().revision()));
    timeout(CATCH_UP, caught_up).await.map_err(|_| behind())?;
    let budget = readable(known)?;
    let census = ledger.census(known).await?;
    let mut status = known.status.clone();
    let mut changed = false;
    for request in waiting.iter().filter(|request| request.release) {
        changed |= release(&mut status, &request.loser.uid);
    }
    let losers: Vec<Loser> =
        waiting.iter().filter(|request| !request.release).map(|request| request.loser.clone()).collect();
    let (admitted, numbers, reserved) = admit(budget, &census, &mut status, &losers, Timestamp::now());
    let mut admitted = admitted.into_iter();
    let answers = waiting
        .iter()
        .map(|request| if request.release { Admitted::Yes } else { admitted.next().unwrap_or(Admitted::Yes) })
        .collect();
    if !changed && !reserved {
        return Ok((answers, None));
    }
    numbers.show(&mut status, known.generation);
    Ok((answers, Some(status)))
}

/// A few milliseconds, different for everybody.
fn jitter() -> Duration {
    Duration::from_micros(1_000 + RandomState::new().hash_one(0) % 7_000)
}
