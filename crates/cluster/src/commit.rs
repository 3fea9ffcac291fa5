//! Group commit: many replicas spend from one account, and it is never overdrawn.
//!
//! An account is the status of an object. Each replica runs one task per account that is being spent from. It takes all
//! requests that wait, decides them against the newest status it knows, writes the status once for all with the
//! resource version that it read, and answers them all. If somebody else was faster it reads again and repeats, until
//! the reviews' deadline.
//!
//! An answer that needs no write is given only on a status that was read or written just now.

use std::collections::HashMap;
use std::future::Future;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade_engine::{Answer, Unknown};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use crate::feed::number;
use crate::sync::lock;

/// How long a task waits for more requests before it ends.
const IDLE: Duration = Duration::from_secs(60);
/// How long one question to the API server may take.
pub(crate) const CALL: Duration = Duration::from_secs(3);

/// What is told to whoever counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    Reserved(usize),
    Refused(usize),
    Written,
    Conflict,
}

/// A kind of account.
pub(crate) trait Account: Send + Sync + 'static {
    type Key: Clone + Eq + Hash + Send + Sync + 'static;
    /// The object that carries an account, as it was last seen.
    type Known: Clone + Send + Sync + 'static;
    type Status: Send + Sync;
    type Ask: Send + Sync + 'static;
    type Said: Clone + Send + Sync + 'static;

    /// What is not known without an answer: "whether its budgets allow it".
    const QUESTION: &'static str;

    fn tasks(&self) -> &Tasks<Self>;

    /// What the watch last brought; `None` if the object is gone.
    fn watched(&self, key: &Self::Key) -> Option<Arc<Self::Known>>;

    /// The uid and the resource version.
    fn version(known: &Self::Known) -> (&str, &str);

    /// Decides all that waits at once: the answers, and the status to write if it changes.
    fn decide(
        &self,
        known: &Self::Known,
        asked: &[&Self::Ask],
    ) -> impl Future<Output = Answer<Decided<Self>>> + Send;

    /// Writes a status over the one that was read.
    fn write(
        &self,
        known: &Self::Known,
        status: &Self::Status,
    ) -> impl Future<Output = kube::Result<Self::Known>> + Send;

    /// Reads the object anew; `None` if it is gone.
    fn read(&self, key: &Self::Key) -> impl Future<Output = kube::Result<Option<Self::Known>>> + Send;

    /// The answer where the object is gone: it refuses nothing any more.
    fn free() -> Self::Said;

    /// What came of a request, if it was for a pod: whether it was refused.
    fn is_refused(ask: &Self::Ask, said: &Self::Said) -> Option<bool>;

    fn count(&self, entry: Entry);
}

/// The answers to all that was asked, and the status to write.
pub(crate) type Decided<A> = (Vec<<A as Account>::Said>, Option<<A as Account>::Status>);

/// The tasks of all accounts of a kind.
pub(crate) struct Tasks<A: Account + ?Sized>(Mutex<HashMap<A::Key, Sender<A>>>);

type Sender<A> = mpsc::UnboundedSender<Request<A>>;
type Receiver<A> = mpsc::UnboundedReceiver<Request<A>>;

impl<A: Account> Default for Tasks<A> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

struct Request<A: Account + ?Sized> {
    ask: A::Ask,
    deadline: Instant,
    reply: oneshot::Sender<Answer<A::Said>>,
}

pub(crate) fn unknown<A: Account>(why: impl Into<String>) -> Unknown {
    Unknown::new(A::QUESTION, why)
}

/// Asks the API server, for as long as that may take.
pub(crate) async fn call<A: Account, T>(asked: impl Future<Output = kube::Result<T>>) -> Answer<T> {
    match timeout(CALL, asked).await {
        Ok(answer) => answer.map_err(|error| unknown::<A>(error.to_string())),
        Err(_) => Err(unknown::<A>(NO_ANSWER)),
    }
}

/// Puts a request to the account's task, which is started where there is none.
pub(crate) async fn ask<A: Account>(
    account: &Arc<A>,
    key: &A::Key,
    ask: A::Ask,
    deadline: Instant,
) -> Answer<A::Said> {
    let (reply, answer) = oneshot::channel();
    let mut unsent = Some(Request { ask, deadline, reply });
    while let Some(request) = unsent {
        let (sender, started) = task_of(&**account, key);
        // A task that ends in this very moment takes no more: the next round starts another.
        unsent = sender.send(request).err().map(|error| error.0);
        if let Some(requests) = started {
            tokio::spawn(run(account.clone(), key.clone(), requests));
        }
    }
    answer.await.unwrap_or_else(|_| Err(unknown::<A>("the account was closed")))
}

/// The way to an account's task, and the other end of it where the task is yet to be started.
fn task_of<A: Account>(account: &A, key: &A::Key) -> (Sender<A>, Option<Receiver<A>>) {
    let mut tasks = lock(&account.tasks().0);
    if let Some(task) = tasks.get(key).filter(|task| !task.is_closed()) {
        return (task.clone(), None);
    }
    let (sender, receiver) = mpsc::unbounded_channel();
    tasks.insert(key.clone(), sender.clone());
    (sender, Some(receiver))
}

/// Serves one account until nobody has asked for a while.
async fn run<A: Account>(account: Arc<A>, key: A::Key, mut requests: Receiver<A>) {
    let mut newest: Option<A::Known> = None;
    while let Ok(Some(first)) = timeout(IDLE, requests.recv()).await {
        let mut batch = vec![first];
        while let Ok(next) = requests.try_recv() {
            batch.push(next);
        }
        settle(&*account, &key, batch, &mut newest).await;
    }
    // Whoever asks from now on finds the channel closed, and starts another task.
    requests.close();
    {
        let mut tasks = lock(&account.tasks().0);
        if tasks.get(&key).is_some_and(mpsc::UnboundedSender::is_closed) {
            tasks.remove(&key);
        }
    }
    while let Ok(late) = requests.try_recv() {
        let _ = late.reply.send(Err(unknown::<A>("the account was closed")));
    }
}

/// Decides a batch, and answers it.
async fn settle<A: Account>(
    account: &A,
    key: &A::Key,
    batch: Vec<Request<A>>,
    newest: &mut Option<A::Known>,
) {
    let mut waiting = batch;
    // Whether what we know was read or written for this very batch.
    let mut fresh = false;
    loop {
        let now = Instant::now();
        let (late, rest): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|request| request.deadline <= now);
        answer_all(late, &Err(unknown::<A>("too many others asked at the same time")));
        waiting = rest;
        if waiting.is_empty() {
            return;
        }
        let Some(known) = newest_known(account, key, newest) else {
            return answer_all(waiting, &Ok(A::free()));
        };
        let asked: Vec<&A::Ask> = waiting.iter().map(|request| &request.ask).collect();
        let (said, status) = match account.decide(&known, &asked).await {
            Ok(decided) => decided,
            Err(unknown) => return answer_all(waiting, &Err(unknown)),
        };
        let step = match status {
            None if fresh => Step::Answer,
            // Neither a no nor a reservation that is there already is believed from memory.
            None => Step::Read,
            Some(status) => match timeout(CALL, account.write(&known, &status)).await {
                Ok(Ok(written)) => {
                    account.count(Entry::Written);
                    *newest = Some(written);
                    Step::Answer
                }
                Ok(Err(kube::Error::Api(status))) if status.code == 409 => {
                    account.count(Entry::Conflict);
                    sleep(jitter()).await;
                    Step::Read
                }
                // It is gone, or its kind is not served: reading it tells.
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => Step::Read,
                Ok(Err(error)) => Step::Fail(error.to_string()),
                Err(_) => Step::Fail(NO_ANSWER.to_owned()),
            },
        };
        match step {
            Step::Answer => {
                let outcomes = asked.iter().zip(&said).filter_map(|(ask, said)| A::is_refused(ask, said));
                let (refused, reserved): (Vec<bool>, Vec<bool>) = outcomes.partition(|refused| *refused);
                account.count(Entry::Reserved(reserved.len()));
                account.count(Entry::Refused(refused.len()));
                for (request, said) in waiting.into_iter().zip(said) {
                    let _ = request.reply.send(Ok(said));
                }
                return;
            }
            Step::Read => match call::<A, _>(account.read(key)).await {
                Ok(Some(read)) => {
                    *newest = Some(read);
                    fresh = true;
                }
                Ok(None) => return answer_all(waiting, &Ok(A::free())),
                Err(unknown) => return answer_all(waiting, &Err(unknown)),
            },
            Step::Fail(why) => return answer_all(waiting, &Err(unknown::<A>(why))),
        }
    }
}

const NO_ANSWER: &str = "the API server did not answer in time";

enum Step {
    Answer,
    Read,
    Fail(String),
}

fn answer_all<A: Account>(requests: Vec<Request<A>>, answer: &Answer<A::Said>) {
    for request in requests {
        let _ = request.reply.send(answer.clone());
    }
}

/// The newest that we know: by the watch, or by what we read or wrote ourselves.
fn newest_known<A: Account>(account: &A, key: &A::Key, newest: &mut Option<A::Known>) -> Option<A::Known> {
    let watched = account.watched(key)?;
    let (uid, revision) = A::version(&watched);
    let newer = newest.as_ref().is_none_or(|known| {
        let (known_uid, known_revision) = A::version(known);
        number(known_revision) < number(revision) || known_uid != uid
    });
    if newer {
        *newest = Some((*watched).clone());
    }
    newest.clone()
}

/// A few milliseconds, different for everybody.
fn jitter() -> Duration {
    Duration::from_micros(1_000 + RandomState::new().hash_one(0) % 7_000)
}
