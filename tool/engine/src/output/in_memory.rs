//! How much output is in memory, of all executions and readers of this process together: where there is much of it,
//! each of them holds less.

use std::sync::atomic::{AtomicUsize, Ordering};

/// What is counted together.
#[derive(Debug)]
pub(crate) struct Pool {
    bytes: AtomicUsize,
    /// From here on it is much.
    high: usize,
}

/// Output that waits for readers, or was read last.
pub(crate) static WAITING: Pool = Pool::new(64 * 1024 * 1024);
/// Output that was read, and stays until its reader has certainly got it.
pub(crate) static RETAINED: Pool = Pool::new(256 * 1024 * 1024);

impl Pool {
    const fn new(high: usize) -> Self {
        Self { bytes: AtomicUsize::new(0), high }
    }

    /// Whether so much is in memory that each is to hold less.
    pub(crate) fn is_high(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.high
    }

    /// Whether it is twice as much as that.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) / 2 > self.high
    }
}

/// What one execution or reader holds, in bytes; nothing any more once it is dropped.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    bytes: usize,
    pool: &'static Pool,
}

impl HeldBytes {
    /// Nothing yet.
    pub(crate) fn of(pool: &'static Pool) -> Self {
        Self { bytes: 0, pool }
    }

    pub(crate) fn set(&mut self, bytes: usize) {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.pool.bytes.fetch_add(more, Ordering::Relaxed),
            None => self.pool.bytes.fetch_sub(self.bytes - bytes, Ordering::Relaxed),
        };
        self.bytes = bytes;
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.set(0);
    }
}
