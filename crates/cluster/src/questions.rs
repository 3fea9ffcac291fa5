//! How many questions a replica asks the API server at once, for all reviews together.
//!
//! A search asks one question for each kind that is served, so that a hundred deletions of Namespaces at once would ask
//! thousands. Each review has a few of them under way, and waits for the others in the order in which they came: one that
//! comes later is not behind all that an earlier one has still to ask. All other questions are few, and do not wait for
//! searches. A connection carries one question at a time, so the limits hold for connections as well.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Mutex;

use kube::Client;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use crate::live::NoAnswer;
use crate::sync::lock;

/// Lists of all searches together.
pub const SEARCHES: usize = 64;
/// All other questions together.
pub(crate) const OTHERS: usize = 32;
/// Lists of one search.
pub(crate) const OF_ONE_REVIEW: usize = 16;

/// What all reviews of a replica share.
#[derive(Debug)]
pub(crate) struct Questions {
    searches: Semaphore,
    others: Semaphore,
}

/// Clients for searches. One that is asked one question at a time has one connection; one that is asked many opens
/// more of them than there are questions, since it makes a new one whenever none is free, and keeps it.
pub(crate) struct SearchClients(Mutex<VecDeque<Client>>);

/// A client that nobody else has, until it is given back.
pub(crate) struct Lent<'a> {
    clients: &'a SearchClients,
    client: Client,
}

impl SearchClients {
    pub(crate) fn new(clients: Vec<Client>) -> Self {
        Self(Mutex::new(clients.into()))
    }

    /// The client that has been free for longest; `other`, where there are not enough.
    pub(crate) fn lend(&self, other: &Client) -> Lent<'_> {
        let client = lock(&self.0).pop_front().unwrap_or_else(|| other.clone());
        Lent { clients: self, client }
    }
}

impl Lent<'_> {
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        lock(&self.clients.0).push_back(self.client.clone());
    }
}

/// What one review may have under way of a search.
#[derive(Debug)]
pub(crate) struct Share(Semaphore);

impl Default for Questions {
    fn default() -> Self {
        Self { searches: Semaphore::new(SEARCHES), others: Semaphore::new(OTHERS) }
    }
}

impl Default for Share {
    fn default() -> Self {
        Self(Semaphore::new(OF_ONE_REVIEW))
    }
}

impl Questions {
    /// Asks a question of a search, once it is its turn.
    pub(crate) async fn search<T>(
        &self,
        share: &Share,
        deadline: Instant,
        question: impl Future<Output = Result<T, NoAnswer>>,
    ) -> Result<T, NoAnswer> {
        let _own = turn(&share.0, deadline).await?;
        let _all = turn(&self.searches, deadline).await?;
        answer(deadline, question).await
    }

    /// Asks any other question.
    pub(crate) async fn ask<T>(
        &self,
        deadline: Instant,
        question: impl Future<Output = Result<T, NoAnswer>>,
    ) -> Result<T, NoAnswer> {
        let _all = turn(&self.others, deadline).await?;
        answer(deadline, question).await
    }
}

/// Waits in line: permits are given in the order in which they were asked for.
async fn turn(permits: &Semaphore, deadline: Instant) -> Result<SemaphorePermit<'_>, NoAnswer> {
    match timeout_at(deadline, permits.acquire()).await {
        Ok(Ok(permit)) => Ok(permit),
        _ => Err(NoAnswer::new("too many questions wait for the API server".to_owned())),
    }
}

/// The client has no read timeout: the deadline is what keeps a review from waiting with it.
async fn answer<T>(
    deadline: Instant,
    question: impl Future<Output = Result<T, NoAnswer>>,
) -> Result<T, NoAnswer> {
    timeout_at(deadline, question)
        .await
        .unwrap_or_else(|_| Err(NoAnswer::new("the API server did not answer in time".to_owned())))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use futures::future::join_all;
    use tokio::time::sleep;

    use super::*;

    /// An API server that takes a tenth of a second for everything, and counts.
    #[derive(Default)]
    struct Server {
        now: AtomicUsize,
        most: AtomicUsize,
    }

    impl Server {
        async fn answer(&self) -> Result<(), NoAnswer> {
            let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
            self.most.fetch_max(now, Ordering::Relaxed);
            sleep(Duration::from_millis(100)).await;
            self.now.fetch_sub(1, Ordering::Relaxed);
            Ok(())
        }
    }

    async fn search(questions: &Questions, server: &Server, kinds: usize) -> Duration {
        let (share, started) = (Share::default(), Instant::now());
        let deadline = started + Duration::from_secs(3_600);
        let lists = (0..kinds).map(|_| questions.search(&share, deadline, server.answer()));
        for answer in join_all(lists).await {
            assert!(answer.is_ok());
        }
        started.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn searches_have_so_many_questions_under_way_and_no_more() {
        let (questions, server) = (Questions::default(), Server::default());
        search(&questions, &server, 100).await;
        assert_eq!(server.most.load(Ordering::Relaxed), OF_ONE_REVIEW);
        join_all((0..100).map(|_| search(&questions, &server, 70))).await;
        assert_eq!(server.most.load(Ordering::Relaxed), SEARCHES);
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_search_is_not_behind_all_that_an_earlier_one_has_to_ask() {
        let (questions, server) = (Arc::new(Questions::default()), Arc::new(Server::default()));
        let large = join_all((0..4).map(|_| search(&questions, &server, 1_000)));
        let small = async {
            sleep(Duration::from_millis(50)).await;
            search(&questions, &server, 16).await
        };
        let (large, small) = futures::join!(large, small);
        assert!(small <= Duration::from_millis(300), "{small:?}");
        assert!(large.iter().all(|took| *took > Duration::from_secs(6)), "{large:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn other_questions_do_not_wait_for_searches() {
        let (questions, server) = (Questions::default(), Server::default());
        let searches = join_all((0..100).map(|_| search(&questions, &server, 70)));
        let other = async {
            sleep(Duration::from_millis(50)).await;
            let started = Instant::now();
            assert!(questions.ask(started + Duration::from_secs(1), server.answer()).await.is_ok());
            started.elapsed()
        };
        let (_, other) = futures::join!(searches, other);
        assert_eq!(other, Duration::from_millis(100));
        assert!(server.most.load(Ordering::Relaxed) <= SEARCHES + OTHERS);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_too_long_is_told() {
        let (questions, server) = (Questions::default(), Server::default());
        let searches = join_all((0..100).map(|_| search(&questions, &server, 70)));
        let late = async {
            sleep(Duration::from_millis(50)).await;
            let deadline = Instant::now() + Duration::from_millis(20);
            questions.search(&Share::default(), deadline, server.answer()).await
        };
        let (_, late) = futures::join!(searches, late);
        assert_eq!(late.unwrap_err().text, "too many questions wait for the API server");
    }
}
