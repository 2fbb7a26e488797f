//! The open connections of a service: a bounded number, shared among their sources.
//!
//! A new connection never waits. If there are too many, one without a request makes way: first one that has never made an
//! authorized request, of the source with the most of them, then the one that is idle the longest.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::future::pending;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::commands::source::source;

/// Open at once.
pub(crate) const MAX_CONNECTIONS: usize = 256;
/// Of one source, with authorized requests: the rest is for others.
const MAX_PER_SOURCE: usize = MAX_CONNECTIONS - MAX_CONNECTIONS / 4;
/// From the beginning of a connection to the head of its first authorized request.
const AUTHORIZATION_TIMEOUT: Duration = Duration::from_secs(10);

/// All connections; clones share them.
#[derive(Clone, Default)]
pub(crate) struct Connections(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    entries: HashMap<u64, Entry>,
    next_number: u64,
}

struct Entry {
    source: IpAddr,
    /// It has made an authorized request.
    is_admitted: bool,
    /// Authorized requests that have not ended.
    requests: usize,
    /// Its beginning, or the end of its last request.
    since: Instant,
    displaced: CancellationToken,
}

/// A connection, until it is dropped.
pub(crate) struct Connection {
    connections: Connections,
    number: u64,
    displaced: CancellationToken,
}

/// An authorized request, until it is dropped.
pub(crate) struct ActiveRequest {
    connections: Connections,
    number: u64,
}

impl Connections {
    /// Adds a connection. `None`: there are too many, and all have requests.
    pub(crate) fn enter(&self, address: IpAddr) -> Option<Connection> {
        let mut table = self.table();
        if table.entries.len() >= MAX_CONNECTIONS && !table.displace(|_| true) {
            return None;
        }
        let (number, displaced) = (table.next_number, CancellationToken::new());
        table.next_number += 1;
        let entry = Entry {
            source: source(address),
            is_admitted: false,
            requests: 0,
            since: Instant::now(),
            displaced: displaced.clone(),
        };
        table.entries.insert(number, entry);
        Some(Connection { connections: self.clone(), number, displaced })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Displaces one of these connections. `false`: all of them have requests.
    fn displace(&mut self, is_eligible: impl Fn(&Entry) -> bool) -> bool {
        let mut shares: HashMap<(bool, IpAddr), usize> = HashMap::new();
        for entry in self.entries.values() {
            *shares.entry((entry.is_admitted, entry.source)).or_default() += 1;
        }
        let share = |entry: &Entry| shares.get(&(entry.is_admitted, entry.source)).copied();
        let idle = self.entries.iter().filter(|(_, entry)| entry.requests == 0 && is_eligible(entry));
        let rank = |(number, entry): &(&u64, &Entry)| (entry.is_admitted, Reverse(share(entry)), entry.since, **number);
        let Some(number) = idle.min_by_key(rank).map(|(number, _)| *number) else { return false };
        self.entries.remove(&number).inspect(|entry| entry.displaced.cancel()).is_some()
    }

    /// Counts a request. `false`: the connection was displaced, or its source has too many.
    fn begin(&mut self, number: u64) -> bool {
        let Some(&Entry { source, is_admitted, .. }) = self.entries.get(&number) else { return false };
        let is_of_source = |entry: &Entry| entry.is_admitted && entry.source == source;
        let is_full = self.entries.values().filter(|entry| is_of_source(entry)).count() >= MAX_PER_SOURCE;
        if !is_admitted && is_full && !self.displace(is_of_source) {
            return false;
        }
        let Some(entry) = self.entries.get_mut(&number) else { return false };
        entry.is_admitted = true;
        entry.requests += 1;
        true
    }
}

impl Connection {
    /// Counts an authorized request. `None`: the connection was displaced, or its source has too many.
    pub(crate) fn begin(&self) -> Option<ActiveRequest> {
        let begun = self.connections.table().begin(self.number);
        begun.then(|| ActiveRequest { connections: self.connections.clone(), number: self.number })
    }

    /// Returns when this connection must make way, or has not made an authorized request in time.
    pub(crate) async fn closed(&self) {
        let overdue = async {
            sleep(AUTHORIZATION_TIMEOUT).await;
            if self.connections.table().entries.get(&self.number).is_some_and(|entry| entry.is_admitted) {
                pending::<()>().await;
            }
        };
        tokio::select! {
            () = self.displaced.cancelled() => {}
            () = overdue => {}
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.connections.table().entries.remove(&self.number);
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        if let Some(entry) = self.connections.table().entries.get_mut(&self.number) {
            entry.requests = entry.requests.saturating_sub(1);
            entry.since = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(connections: &[Connection]) -> usize {
        connections.iter().filter(|connection| !connection.displaced.is_cancelled()).count()
    }

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[tokio::test]
    async fn the_oldest_without_a_request_of_the_largest_source_makes_way() {
        let connections = Connections::default();
        let enter = |last, count| (0..count).map(|_| connections.enter(address(last)).unwrap()).collect::<Vec<_>>();
        let (few, many) = (enter(1, 2), enter(2, 2 * MAX_CONNECTIONS));
        assert_eq!((open(&few), open(&many)), (2, MAX_CONNECTIONS - 2));
        assert!(many[..MAX_CONNECTIONS + 2].iter().all(|connection| connection.displaced.is_cancelled()));
        drop((few, many));
        assert!(connections.table().entries.is_empty());
    }

    #[tokio::test]
    async fn requests_are_not_displaced_and_idle_connections_are_last() {
        let connections = Connections::default();
        let callers: Vec<_> = (1..=4).flat_map(|last| vec![last; 64]).collect();
        let callers: Vec<_> = callers.into_iter().map(|last| connections.enter(address(last)).unwrap()).collect();
        let mut requests: Vec<_> = callers.iter().map(|caller| caller.begin().unwrap()).collect();
        assert!(connections.enter(address(5)).is_none());
        requests.pop();
        let new = connections.enter(address(5)).unwrap();
        assert!(callers[255].displaced.is_cancelled() && open(&callers) == 255 && callers[255].begin().is_none());
        let newer = connections.enter(address(6)).unwrap();
        assert!(new.displaced.is_cancelled() && newer.begin().is_some() && open(&callers) == 255);
    }

    #[tokio::test]
    async fn a_source_has_its_share() {
        let connections = Connections::default();
        let callers: Vec<_> = (0..=MAX_PER_SOURCE).map(|_| connections.enter(address(1)).unwrap()).collect();
        let mut requests: Vec<_> = callers[..MAX_PER_SOURCE].iter().map(|caller| caller.begin().unwrap()).collect();
        assert!(callers[MAX_PER_SOURCE].begin().is_none());
        requests.pop();
        assert!(callers[MAX_PER_SOURCE].begin().is_some(), "an idle one makes way");
        assert!(connections.enter(address(2)).unwrap().begin().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_makes_no_authorized_request_in_time_goes() {
        let connections = Connections::default();
        let (silent, caller) = (connections.enter(address(1)).unwrap(), connections.enter(address(1)).unwrap());
        drop(caller.begin());
        silent.closed().await;
        let is_closed = tokio::time::timeout(AUTHORIZATION_TIMEOUT * 10, caller.closed()).await;
        assert!(is_closed.is_err());
    }
}
