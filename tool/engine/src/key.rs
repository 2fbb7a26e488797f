//! What identifies an execution on this machine. Its id does not: callers choose those, and two callers, or the callers
//! of two agents, may choose the same.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names one execution among all on this machine: `<the engine's random name>.<a number>`. It is no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    text: Arc<str>,
    number: u64,
}

impl Key {
    /// That of an execution of an earlier engine, whose number means nothing here.
    pub(crate) fn inherited(text: &str) -> Self {
        Self { text: text.into(), number: u64::MAX }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Unique among the executions of the same engine.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The keys of one engine's executions.
pub(crate) struct Keys {
    engine: String,
    next: AtomicU64,
}

impl Keys {
    pub(crate) fn new() -> Self {
        Self { engine: uuid::Uuid::now_v7().simple().to_string(), next: AtomicU64::new(0) }
    }

    /// What all of them begin with, before a dot.
    pub(crate) fn engine(&self) -> &str {
        &self.engine
    }

    /// One that no execution has.
    pub(crate) fn next(&self) -> Key {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Key { text: text(&self.engine, number).into(), number }
    }
}

/// The key with this number of an engine.
pub(crate) fn text(engine: &str, number: u64) -> String {
    format!("{engine}.{number}")
}
