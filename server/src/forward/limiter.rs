//! Limits the forwards open at once, in all and per caller, and counts their bytes.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use telexec_executor::ExecutorError;

use crate::config::Config;
use crate::identity::Identity;

/// Clones share the counts.
#[derive(Clone)]
pub(crate) struct ForwardLimiter(Arc<Shared>);

struct Shared {
    max: u32,
    max_each: u32,
    counts: Mutex<Counts>,
    received: AtomicU64,
    sent: AtomicU64,
}

#[derive(Default)]
struct Counts {
    all: u32,
    each: HashMap<Identity, u32>,
}

/// One counted forward, until it is dropped.
pub(super) struct ForwardPermit {
    limiter: ForwardLimiter,
    identity: Identity,
}

impl ForwardLimiter {
    /// By default no caller may have more than three quarters of all.
    pub(super) fn new(config: &Config) -> Self {
        let max = config.max_forwards;
        let max_each = config.max_forwards_per_identity.map_or(max - max / 4, NonZeroU32::get);
        Self(Arc::new(Shared {
            max,
            max_each,
            counts: Mutex::default(),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
        }))
    }

    /// # Errors
    /// [`ExecutorError::Exhausted`]: a limit is reached.
    pub(super) fn acquire(&self, identity: &Identity) -> Result<ForwardPermit, ExecutorError> {
        let mut counts = self.counts();
        let own = counts.each.get(identity).copied().unwrap_or(0);
        let full = |reason| Err(ExecutorError::Exhausted { reason, retry_after: None });
        if counts.all >= self.0.max {
            return full(format!("the agent already has {} forwards open, the limit (max_forwards)", counts.all));
        }
        if own >= self.0.max_each {
            return full(format!("{identity} already has {own} forwards open, the limit (max_forwards_per_identity)"));
        }
        counts.all += 1;
        counts.each.insert(identity.clone(), own + 1);
        Ok(ForwardPermit { limiter: self.clone(), identity: identity.clone() })
    }

    /// How many are open.
    pub(crate) fn open(&self) -> u32 {
        self.counts().all
    }

    pub(crate) fn limit(&self) -> u32 {
        self.0.max
    }

    /// All bytes from callers.
    pub(crate) fn received(&self) -> u64 {
        self.0.received.load(Ordering::Relaxed)
    }

    /// All bytes to callers.
    pub(crate) fn sent(&self) -> u64 {
        self.0.sent.load(Ordering::Relaxed)
    }

    pub(super) fn add_received(&self, bytes: u64) {
        self.0.received.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn add_sent(&self, bytes: u64) {
        self.0.sent.fetch_add(bytes, Ordering::Relaxed);
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ForwardPermit {
    fn drop(&mut self) {
        let mut counts = self.limiter.counts();
        counts.all = counts.all.saturating_sub(1);
        match counts.each.get_mut(&self.identity) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(counts.each.remove(&self.identity)),
        }
    }
}
