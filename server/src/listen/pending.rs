//! Connections that are not authenticated yet: a bounded number, shared fairly among their sources.
//!
//! A new connection never waits. If there are too many, the source with the most loses its oldest one: a source that opens
//! many idle connections displaces its own, and others have time for their handshakes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::identity::source::Source;

/// The pending connections of one listener; clones share them.
#[derive(Clone)]
pub(crate) struct PendingConnections(Arc<Shared>);

struct Shared {
    max: usize,
    /// No more are displaced for lack of room when there are only so many.
    min: usize,
    all: Mutex<All>,
}

#[derive(Default)]
struct All {
    count: usize,
    /// By source, in the order of arrival.
    each: HashMap<Source, BTreeMap<u64, CancellationToken>>,
    came: u64,
}

/// One pending connection, until it is dropped.
pub(crate) struct PendingConnection {
    pending: PendingConnections,
    source: Source,
    number: u64,
    displaced: CancellationToken,
    has_room: bool,
}

impl PendingConnections {
    /// With a limit of at least one, and as many as `min` even where there is no room.
    pub(crate) fn new(max: usize, min: usize) -> Self {
        Self(Arc::new(Shared { max: max.max(1), min, all: Mutex::default() }))
    }

    /// Adds a connection; above the limit, or above the minimum if there is no room for it, one is displaced, perhaps of
    /// the same source.
    pub(crate) fn enter(&self, source: Source, has_room: bool) -> PendingConnection {
        let displaced = CancellationToken::new();
        let mut all = self.all();
        let number = all.came;
        all.came += 1;
        all.count += 1;
        all.each.entry(source).or_default().insert(number, displaced.clone());
        let too_many = all.count > if has_room { self.0.max } else { self.0.min.clamp(1, self.0.max) };
        let displaces = too_many && all.displace();
        PendingConnection { pending: self.clone(), source, number, displaced, has_room: has_room || displaces }
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl All {
    /// Displaces the oldest connection of the source with the most; among several such sources, the oldest of all. False
    /// if there is none.
    fn displace(&mut self) -> bool {
        let oldest = |connections: &BTreeMap<u64, _>| connections.keys().next().copied();
        let most = self.each.iter().max_by_key(|(_, all)| (all.len(), Reverse(oldest(all))));
        let oldest = most.and_then(|(source, all)| Some((*source, oldest(all)?)));
        let displaced = oldest.and_then(|(source, number)| self.remove(source, number));
        displaced.inspect(CancellationToken::cancel).is_some()
    }

    fn remove(&mut self, source: Source, number: u64) -> Option<CancellationToken> {
        let connections = self.each.get_mut(&source)?;
        let removed = connections.remove(&number)?;
        self.count -= 1;
        if connections.is_empty() {
            self.each.remove(&source);
        }
        Some(removed)
    }
}

impl PendingConnection {
    /// Cancelled when this connection is displaced.
    pub(crate) fn displaced(&self) -> CancellationToken {
        self.displaced.clone()
    }

    /// Whether there was room for it, or another one made room.
    pub(crate) fn has_room(&self) -> bool {
        self.has_room
    }

    /// Displaces another connection for this one, which is authenticated: false if there is none.
    pub(crate) fn displace_another(&self) -> bool {
        let mut all = self.pending.all();
        all.remove(self.source, self.number);
        all.displace()
    }
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        self.pending.all().remove(self.source, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn still(connections: &[PendingConnection]) -> usize {
        connections.iter().filter(|connection| !connection.displaced.is_cancelled()).count()
    }

    #[test]
    fn the_oldest_of_whoever_has_the_most_makes_way() {
        let pending = PendingConnections::new(8, 1);
        let enter = |source, count| (0..count).map(|_| pending.enter(Source::Cid(source), true)).collect::<Vec<_>>();
        let (few, mut many) = (enter(1, 2), enter(2, 20));
        assert_eq!((still(&few), still(&many)), (2, 6));
        assert!(many.drain(..14).all(|connection| connection.displaced.is_cancelled()));
        let others = enter(3, 4);
        assert_eq!((still(&few), still(&many), still(&others)), (2, 3, 3), "it shares with them, and no more");
        drop((few, many, others));
        assert!(pending.all().each.is_empty() && pending.all().count == 0);
    }

    #[test]
    fn whoever_goes_leaves_room() {
        let pending = PendingConnections::new(2, 1);
        let first = pending.enter(Source::Cid(1), true);
        drop(pending.enter(Source::Cid(1), true));
        let second = pending.enter(Source::Cid(2), true);
        assert_eq!(still(&[first, second]), 2);
    }

    #[test]
    fn without_room_each_above_the_minimum_displaces_another() {
        let pending = PendingConnections::new(8, 2);
        let enter = |has_room| pending.enter(Source::Cid(1), has_room);
        let all = [enter(false), enter(true), enter(false), enter(false)];
        assert_eq!(all.each_ref().map(|one| one.displaced.is_cancelled()), [true, true, false, false]);
        assert_eq!(all.map(|one| one.has_room()), [false, true, true, true]);
    }

    #[test]
    fn whoever_is_authenticated_displaces_who_is_not() {
        let pending = PendingConnections::new(8, 4);
        let [stranger, caller] = [1, 2].map(|cid| pending.enter(Source::Cid(cid), false));
        assert!(!caller.has_room() && caller.displace_another() && stranger.displaced.is_cancelled());
        assert!(!caller.displace_another() && !caller.displaced.is_cancelled());
    }
}
