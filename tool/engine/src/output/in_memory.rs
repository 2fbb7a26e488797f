//! How much output is in memory, of all executions and readers of this process together: where there is much of it,
//! each of them holds less.

use std::sync::atomic::{AtomicUsize, Ordering};

/// From here on it is much.
const HIGH_BYTES: usize = 64 * 1024 * 1024;

static ALL: AtomicUsize = AtomicUsize::new(0);

/// Whether so much is in memory that each is to hold less.
pub(crate) fn is_high() -> bool {
    ALL.load(Ordering::Relaxed) > HIGH_BYTES
}

/// What one execution or reader holds, in bytes; nothing any more once it is dropped.
#[derive(Debug, Default)]
pub(crate) struct HeldBytes(usize);

impl HeldBytes {
    pub(crate) fn bytes(&self) -> usize {
        self.0
    }

    pub(crate) fn set(&mut self, bytes: usize) {
        match bytes.checked_sub(self.0) {
            Some(more) => ALL.fetch_add(more, Ordering::Relaxed),
            None => ALL.fetch_sub(self.0 - bytes, Ordering::Relaxed),
        };
        self.0 = bytes;
    }

    pub(crate) fn add(&mut self, bytes: usize) {
        self.set(self.0.saturating_add(bytes));
    }

    pub(crate) fn subtract(&mut self, bytes: usize) {
        self.set(self.0.saturating_sub(bytes));
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.set(0);
    }
}
