//! How much output is in memory, of all executions and readers of this process together, and of those of an identity: where
//! there is much of it, each of them holds less.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::lock::lock;
use crate::memory::HELD_MEMORY;

/// What is counted together.
#[derive(Debug)]
pub(crate) struct Pool {
    bytes: AtomicUsize,
    /// From here on it is much.
    high: usize,
    /// And from here on too much.
    full: usize,
}

const MIB: usize = 1024 * 1024;

/// Output that waits for readers, or was read last.
pub(crate) static WAITING: Pool = Pool::new(64 * MIB, usize::MAX);
/// Output that was read, and stays until its reader has certainly got it.
static RETAINED: Pool = Pool::new(384 * MIB, 512 * MIB);
/// That of each identity, while it has any: a single one leaves enough for others.
static SHARES: Mutex<BTreeMap<String, Weak<Pool>>> = Mutex::new(BTreeMap::new());

impl Pool {
    const fn new(high: usize, full: usize) -> Self {
        Self { bytes: AtomicUsize::new(0), high, full }
    }

    /// Whether so much is in memory that each is to hold less.
    pub(crate) fn is_high(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.high
    }

    fn is_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.full
    }

    fn change(&self, from: usize, to: usize) {
        match to.checked_sub(from) {
            Some(more) => self.bytes.fetch_add(more, Ordering::Relaxed),
            None => self.bytes.fetch_sub(from - to, Ordering::Relaxed),
        };
    }
}

/// What an identity retains.
fn share(identity: &str) -> Arc<Pool> {
    let mut shares = lock(&SHARES);
    if let Some(share) = shares.get(identity).and_then(Weak::upgrade) {
        return share;
    }
    shares.retain(|_, share| share.strong_count() > 0);
    let share = Arc::new(Pool::new(128 * MIB, 256 * MIB));
    shares.insert(identity.to_owned(), Arc::downgrade(&share));
    share
}

/// What one execution or reader holds, in bytes; nothing any more once it is dropped.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    bytes: usize,
    pool: &'static Pool,
    share: Option<Arc<Pool>>,
}

impl HeldBytes {
    /// Of what waits, nothing yet.
    pub(crate) fn waiting() -> Self {
        Self { bytes: 0, pool: &WAITING, share: None }
    }

    /// Of what is retained for an identity, nothing yet; `None`: for none.
    pub(crate) fn retained(identity: Option<&str>) -> Self {
        Self { bytes: 0, pool: &RETAINED, share: identity.map(share) }
    }

    pub(crate) fn set(&mut self, bytes: usize) {
        match bytes.checked_sub(self.bytes) {
            Some(0) => return,
            Some(more) => HELD_MEMORY.rise(more),
            None => HELD_MEMORY.fall(self.bytes - bytes),
        }
        self.pools().for_each(|pool| pool.change(self.bytes, bytes));
        self.bytes = bytes;
    }

    /// Whether so much is in memory that each is to hold less.
    pub(crate) fn is_high(&self) -> bool {
        self.pools().any(Pool::is_high)
    }

    /// Whether nothing more is to be held.
    pub(crate) fn is_full(&self) -> bool {
        self.pools().any(Pool::is_full)
    }

    fn pools(&self) -> impl Iterator<Item = &Pool> {
        [self.pool].into_iter().chain(self.share.as_deref())
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_identity_leaves_others_their_share() {
        let [mut first, mut second, mut third] =
            ["first", "first", "another"].map(|identity| HeldBytes::retained(Some(identity)));
        first.set(129 * MIB);
        assert!(first.is_high() && second.is_high() && !second.is_full() && !third.is_high());
        second.set(128 * MIB);
        third.set(6 * MIB);
        assert!(first.is_full() && second.is_full() && !third.is_high());
        drop(first);
        assert!(!second.is_high());
    }
}
