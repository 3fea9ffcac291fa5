//! Who may hold a connection, and for how long.
//!
//! Anybody who reaches the port can open one; only whoever sends reviews has business here. A connection that has not
//! sent a well-formed review yet is one of few, and is closed soon. Where there are too many, the longest silent one
//! goes of the caller that has the most, so that nobody takes the places of all others.
//!
//! ```text
//! accepted ─▶ unproven, at most 128, for seconds ─ a review that can be read ─▶ proven, at most 896, kept while idle
//! ```

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use palisade_cluster::sync;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How many there may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) unproven: usize,
    pub(crate) proven: usize,
}

/// An API server keeps at most 25 idle connections for each webhook.
pub(crate) const LIMITS: Limits = Limits { unproven: 128, proven: 896 };

/// The open connections of one port.
#[derive(Debug)]
pub(crate) struct Connections {
    limits: Limits,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    by_number: HashMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    peer: IpAddr,
    proven: bool,
    /// Requests that are being answered.
    busy: usize,
    /// Since when it has been silent.
    since: Instant,
    close: Arc<Notify>,
}

/// One connection. Its place is free again when all of its clones are dropped.
#[derive(Clone, Debug)]
pub(crate) struct Connection(Arc<Place>);

#[derive(Debug)]
struct Place {
    number: u64,
    connections: Arc<Connections>,
    close: Arc<Notify>,
}

impl Connections {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, open: Mutex::default() })
    }

    /// Takes a place for a new connection. Where there is none, another one is told to close.
    pub(crate) fn open(self: &Arc<Self>, peer: IpAddr) -> Connection {
        let close = Arc::new(Notify::new());
        let mut open = self.lock();
        // An unproven one can always be closed, so that there is room now.
        let _ = open.make_room(false, self.limits.unproven);
        let number = open.next;
        open.next += 1;
        let entry = Entry { peer, proven: false, busy: 0, since: Instant::now(), close: close.clone() };
        open.by_number.insert(number, entry);
        drop(open);
        Connection(Arc::new(Place { number, connections: self.clone(), close }))
    }

    fn lock(&self) -> sync::Guard<MutexGuard<'_, Open>> {
        sync::lock(&self.open)
    }
}

impl Open {
    /// Makes room for one more among the proven or the unproven: whoever has the most loses the one of them that was
    /// silent for longest. A proven one that is being answered stays. Returns whether there is room.
    fn make_room(&mut self, proven: bool, limit: usize) -> bool {
        let mut by_peer: HashMap<IpAddr, (usize, Option<(Instant, u64)>)> = HashMap::new();
        let mut count = 0;
        for (&number, entry) in self.by_number.iter().filter(|(_, entry)| entry.proven == proven) {
            count += 1;
            let (held, oldest) = by_peer.entry(entry.peer).or_default();
            *held += 1;
            let own = (entry.since, number);
            if (!proven || entry.busy == 0) && oldest.is_none_or(|oldest| own < oldest) {
                *oldest = Some(own);
            }
        }
        if count < limit {
            return true;
        }
        let silent =
            by_peer.into_values().filter_map(|(held, oldest)| oldest.map(|(_, number)| (held, number)));
        let loser = silent.max_by_key(|&(held, number)| (held, std::cmp::Reverse(number)));
        match loser.and_then(|(_, number)| self.by_number.remove(&number)) {
            Some(entry) => {
                entry.close.notify_one();
                true
            }
            None => false,
        }
    }
}

impl Connection {
    /// A review has arrived, and is answered once the guard is dropped.
    pub(crate) fn answering(&self) -> Answering {
        self.update(|entry| entry.busy += 1);
        Answering(self.clone())
    }

    /// Says that it has sent something that only a rightful caller sends. It stays unproven where all others that are
    /// proven are being answered.
    pub(crate) fn prove(&self) {
        let connections = &self.0.connections;
        let mut open = connections.lock();
        let is_unproven = open.by_number.get(&self.0.number).is_some_and(|entry| !entry.proven);
        if is_unproven
            && open.make_room(true, connections.limits.proven)
            && let Some(entry) = open.by_number.get_mut(&self.0.number)
        {
            entry.proven = true;
        }
    }

    /// Whether it is proven, or about to be answered.
    pub(crate) fn may_stay(&self) -> bool {
        let open = self.0.connections.lock();
        open.by_number.get(&self.0.number).is_some_and(|entry| entry.proven || entry.busy > 0)
    }

    /// Waits until its place is needed by another.
    pub(crate) async fn crowded_out(&self) {
        self.0.close.notified().await;
    }

    fn update(&self, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.0.connections.lock().by_number.get_mut(&self.0.number) {
            entry.since = Instant::now();
            change(entry);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.lock().by_number.remove(&self.number);
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct Answering(Connection);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.update(|entry| entry.busy -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 9));

    async fn is_closed(connection: &Connection) -> bool {
        tokio::time::timeout(Duration::from_millis(1), connection.crowded_out()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_silent_one_makes_room() {
        let connections = Connections::new(Limits { unproven: 2, proven: 2 });
        let first = connections.open(HERE);
        tokio::time::advance(Duration::from_secs(1)).await;
        let second = connections.open(HERE);
        let third = connections.open(HERE);
        assert!(is_closed(&first).await && !is_closed(&second).await && !is_closed(&third).await);
        drop(second);
        let fourth = connections.open(HERE);
        assert!(!is_closed(&third).await && !is_closed(&fourth).await, "there was a place");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_has_the_most_makes_room() {
        let connections = Connections::new(Limits { unproven: 4, proven: 2 });
        let patient = connections.open(THERE);
        let flood: Vec<Connection> = (0..50).map(|_| connections.open(HERE)).collect();
        assert!(!is_closed(&patient).await);
        assert!(is_closed(&flood[0]).await && is_closed(&flood[46]).await);
        assert!(!is_closed(&flood[47]).await && !is_closed(&flood[49]).await);
    }

    #[tokio::test(start_paused = true)]
    async fn the_unproven_do_not_take_the_places_of_the_proven() {
        let connections = Connections::new(Limits { unproven: 2, proven: 2 });
        let proven = connections.open(HERE);
        proven.prove();
        assert!(proven.may_stay());
        let flood: Vec<Connection> = (0..50).map(|_| connections.open(HERE)).collect();
        assert!(!is_closed(&proven).await);
        assert!(!flood[49].may_stay());
    }

    #[tokio::test(start_paused = true)]
    async fn a_proven_one_is_closed_only_while_it_is_silent() {
        let connections = Connections::new(Limits { unproven: 2, proven: 2 });
        let busy = connections.open(HERE);
        busy.prove();
        let answering = busy.answering();
        let idle = connections.open(HERE);
        idle.prove();
        tokio::time::advance(Duration::from_secs(1)).await;
        let another = connections.open(HERE);
        another.prove();
        assert!(!is_closed(&busy).await && is_closed(&idle).await);
        let answering_too = another.answering();
        let one_more = connections.open(HERE);
        one_more.prove();
        assert!(!one_more.may_stay(), "all places are in use");
        drop((answering, answering_too));
        one_more.prove();
        assert!(one_more.may_stay());
    }
}
