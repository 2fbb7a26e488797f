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
    /// When only reserved descriptors are left.
    max_in_reserve: usize,
    all: Mutex<All>,
}

#[derive(Default)]
struct All {
    count: usize,
    /// By source, in the order of arrival.
    each: HashMap<Source, BTreeMap<u64, Entry>>,
    came: u64,
}

struct Entry {
    displaced: CancellationToken,
    /// Its descriptor is none of the reserved ones, or one that was not was closed for it.
    has_room: bool,
}

/// One pending connection, until it is dropped.
pub(crate) struct PendingConnection {
    pending: PendingConnections,
    source: Source,
    number: u64,
    displaced: CancellationToken,
}

impl PendingConnections {
    /// At most `max` may be pending, and at most `max_in_reserve` while only reserved descriptors are left; at least one.
    pub(crate) fn new(max: usize, max_in_reserve: usize) -> Self {
        let max = max.max(1);
        Self(Arc::new(Shared { max, max_in_reserve: max_in_reserve.clamp(1, max), all: Mutex::default() }))
    }

    /// Adds a connection. Above the limit one is displaced, perhaps of the same source.
    pub(crate) fn enter(&self, source: Source, has_room: bool) -> PendingConnection {
        let displaced = CancellationToken::new();
        let mut all = self.all();
        let number = all.came;
        all.came += 1;
        all.count += 1;
        all.each.entry(source).or_default().insert(number, Entry { displaced: displaced.clone(), has_room });
        let max = if has_room { self.0.max } else { self.0.max_in_reserve };
        if all.count > max
            && all.displace().is_some_and(|other| other.has_room)
            && let Some(entry) = all.entry(source, number)
        {
            entry.has_room = true;
        }
        PendingConnection { pending: self.clone(), source, number, displaced }
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl All {
    /// Displaces the oldest connection of the source with the most; among several such sources, the oldest of all.
    fn displace(&mut self) -> Option<Entry> {
        let oldest = |connections: &BTreeMap<u64, _>| connections.keys().next().copied();
        let most = self.each.iter().max_by_key(|(_, all)| (all.len(), Reverse(oldest(all))));
        let (source, number) = most.and_then(|(source, all)| Some((*source, oldest(all)?)))?;
        self.remove(source, number).inspect(|entry| entry.displaced.cancel())
    }

    fn entry(&mut self, source: Source, number: u64) -> Option<&mut Entry> {
        self.each.get_mut(&source)?.get_mut(&number)
    }

    fn remove(&mut self, source: Source, number: u64) -> Option<Entry> {
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

    /// Whether it takes no reserved descriptor.
    pub(crate) fn has_room(&self) -> bool {
        self.pending.all().entry(self.source, self.number).is_some_and(|entry| entry.has_room)
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
    fn without_room_fewer_may_be_pending() {
        let pending = PendingConnections::new(8, 2);
        let enter = |has_room| pending.enter(Source::Cid(1), has_room);
        let all = [enter(false), enter(true), enter(false), enter(false), enter(false)];
        assert_eq!(still(&all), 2);
        assert_eq!(all.map(|one| one.has_room()), [false, false, false, true, false], "that of whom it displaced");
    }
}
