//! In which order ended executions are forgotten: when their time is over, and when there are too many of them or they
//! take too much memory, the oldest of the identity first that has the most.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use crate::Retention;

/// Ended executions, each with a key of its own.
pub(crate) struct Remembered<K> {
    all: BTreeMap<u64, One<K>>,
    shares: HashMap<Arc<str>, Share>,
    bytes: usize,
    next: u64,
}

struct One<K> {
    key: K,
    when: Instant,
    identity: Arc<str>,
    bytes: usize,
}

/// What one identity has of them.
#[derive(Default)]
struct Share {
    /// From the oldest on.
    places: VecDeque<u64>,
    bytes: usize,
}

impl<K> Default for Remembered<K> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), shares: HashMap::new(), bytes: 0, next: 0 }
    }
}

impl<K> Remembered<K> {
    /// Remembers one that takes this many bytes of memory, and ended then.
    pub(crate) fn push(&mut self, key: K, identity: &str, bytes: usize, when: Instant) {
        let identity =
            self.shares.get_key_value(identity).map_or_else(|| identity.into(), |(known, _)| Arc::clone(known));
        let share = self.shares.entry(Arc::clone(&identity)).or_default();
        share.places.push_back(self.next);
        share.bytes += bytes;
        self.bytes += bytes;
        self.all.insert(self.next, One { key, when, identity, bytes });
        self.next += 1;
    }

    /// The next one that is to be forgotten, and is from now on.
    pub(crate) fn pop(&mut self, retention: &Retention) -> Option<K> {
        let place = self.place(retention)?;
        let One { key, identity, bytes, .. } = self.all.remove(&place)?;
        self.bytes -= bytes;
        if let Some(share) = self.shares.get_mut(&identity) {
            share.bytes -= bytes;
            // the oldest is nearly always the first one; of others the end may lie back further
            if let Some(at) = share.places.iter().position(|own| *own == place) {
                share.places.remove(at);
            }
            if share.places.is_empty() {
                self.shares.remove(&identity);
            }
        }
        Some(key)
    }

    fn place(&self, retention: &Retention) -> Option<u64> {
        let (first, oldest) = self.all.first_key_value()?;
        if oldest.when.elapsed() >= retention.age {
            return Some(*first);
        }
        if self.all.len() > retention.count {
            return self.oldest_of_most(|share| share.places.len());
        }
        if self.bytes > retention.bytes {
            return self.oldest_of_most(|share| share.bytes);
        }
        // only the identity of the last one can have got too much
        let last = self.all.last_key_value().and_then(|(_, last)| self.shares.get(&last.identity))?;
        (last.bytes > retention.bytes_per_identity).then(|| last.places.front().copied()).flatten()
    }

    fn oldest_of_most(&self, most: impl Fn(&Share) -> usize) -> Option<u64> {
        self.shares.values().max_by_key(|share| most(share))?.places.front().copied()
    }

    /// Those of an identity, from the oldest on.
    pub(crate) fn keys_of(&self, identity: &str) -> impl Iterator<Item = &K> {
        let places = self.shares.get(identity).into_iter().flat_map(|share| &share.places);
        places.filter_map(|place| self.all.get(place)).map(|one| &one.key)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const RETENTION: Retention =
        Retention { age: Duration::from_secs(3600), count: 6, bytes: 1000, bytes_per_identity: 600 };

    fn forgotten(ended: &[(&'static str, &str, usize)]) -> Vec<&'static str> {
        let mut remembered = Remembered::default();
        let mut forgotten = Vec::new();
        for (key, identity, bytes) in ended {
            remembered.push(*key, identity, *bytes, Instant::now());
            while let Some(key) = remembered.pop(&RETENTION) {
                forgotten.push(key);
            }
        }
        assert_eq!(remembered.all.len() + forgotten.len(), ended.len());
        let bytes = |one: &One<_>| one.bytes;
        assert_eq!(remembered.bytes, remembered.all.values().map(bytes).sum::<usize>());
        assert_eq!(remembered.bytes, remembered.shares.values().map(|share| share.bytes).sum::<usize>());
        forgotten
    }

    #[test]
    fn the_oldest_of_who_has_most_are_forgotten_first() {
        let few = [("a1", "a", 1), ("b1", "b", 1), ("b2", "b", 1), ("b3", "b", 1), ("b4", "b", 1), ("b5", "b", 1)];
        assert_eq!(forgotten(&few), [""; 0]);
        assert_eq!(forgotten(&[&few[..], &[("c1", "c", 1), ("b6", "b", 1)]].concat()), ["b1", "b2"]);
        assert_eq!(forgotten(&[("a1", "a", 300), ("b1", "b", 400), ("b2", "b", 150), ("c1", "c", 200)]), ["b1"]);
        assert_eq!(forgotten(&[("a1", "a", 300), ("b1", "b", 400), ("b2", "b", 250)]), ["b1"]);
        assert_eq!(forgotten(&[("a1", "a", 700)]), ["a1"]);
    }

    #[test]
    fn what_is_old_is_forgotten() {
        let mut remembered = Remembered::default();
        let Some(long_ago) = Instant::now().checked_sub(RETENTION.age) else { return };
        remembered.push("old", "a", 1, long_ago);
        remembered.push("new", "a", 1, Instant::now());
        assert_eq!((remembered.pop(&RETENTION), remembered.pop(&RETENTION)), (Some("old"), None));
    }
}
