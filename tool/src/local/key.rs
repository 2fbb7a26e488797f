//! What tells an execution from all others of this machine. Its id does not: callers choose those, and two of them, or the
//! callers of two agents, may choose the same.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names one execution among all on this machine: `<the engine's random name>.<a number>`. It is no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key(Arc<str>);

impl Key {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The keys of one engine's executions.
pub(super) struct Keys {
    engine: String,
    next: AtomicU64,
}

impl Keys {
    pub(super) fn new() -> Self {
        Self { engine: uuid::Uuid::now_v7().simple().to_string(), next: AtomicU64::new(0) }
    }

    /// What all of them begin with, before a dot.
    pub(super) fn engine(&self) -> &str {
        &self.engine
    }

    /// One that no execution has.
    pub(super) fn next(&self) -> Key {
        Key(format!("{}.{}", self.engine, self.next.fetch_add(1, Ordering::Relaxed)).into())
    }
}
