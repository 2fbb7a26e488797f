//! Memory that is held for callers, and what the allocator keeps of it for later.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// After a peak of at least this size the allocator is asked to return free memory.
const PEAK_BYTES: usize = 16 * 1024 * 1024;
/// What was counted is freed a little later, and more may follow.
const DELAY: Duration = Duration::from_secs(1);

/// What this process holds for its callers: requests, calls and output.
pub static HELD_MEMORY: HeldMemory = HeldMemory::new();

/// About how many bytes are held, and when that was much.
#[derive(Debug)]
pub struct HeldMemory {
    bytes: AtomicUsize,
    /// The maximum since the last peak was over.
    most: AtomicUsize,
    is_over: Notify,
}

impl HeldMemory {
    const fn new() -> Self {
        Self { bytes: AtomicUsize::new(0), most: AtomicUsize::new(0), is_over: Notify::const_new() }
    }

    /// So many bytes more are held.
    pub fn rise(&self, more: usize) {
        let bytes = self.bytes.fetch_add(more, Ordering::Relaxed).saturating_add(more);
        self.most.fetch_max(bytes, Ordering::Relaxed);
    }

    /// So many bytes of those are held no longer.
    pub fn fall(&self, less: usize) {
        let left = self.bytes.fetch_sub(less, Ordering::Relaxed).saturating_sub(less);
        let most = self.most.load(Ordering::Relaxed);
        if most >= PEAK_BYTES && left < most / 4 {
            self.most.store(left, Ordering::Relaxed);
            self.is_over.notify_one();
        }
    }

    /// Returns free memory to the system after each peak. Never returns. For one task of the process.
    pub async fn give_back(&self) {
        loop {
            self.is_over.notified().await;
            tokio::time::sleep(DELAY).await;
            // walks all free memory, which takes a while; if there is no thread it is done after the next peak
            let _ = std::thread::Builder::new().name("memory".into()).spawn(trim);
        }
    }
}

/// Gives back to the system what the allocator keeps for later, of all threads; elsewhere than with glibc that is left
/// to the allocator.
fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the allocator's own locks, and touches nothing that is in use. See malloc_trim(3).
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_peak_is_over_when_most_of_it_is_free() {
        let held = HeldMemory::new();
        let is_over = || held.is_over.notified().now_or_never().is_some();
        held.rise(PEAK_BYTES - 1);
        held.fall(PEAK_BYTES - 1);
        assert!(!is_over(), "that was no peak");
        held.rise(4 * PEAK_BYTES);
        held.fall(3 * PEAK_BYTES);
        assert!(!is_over());
        held.fall(1);
        assert!(is_over() && !is_over());
        // of what is left another one
        held.fall(PEAK_BYTES - 1);
        assert!(!is_over());
        held.rise(PEAK_BYTES);
        held.fall(PEAK_BYTES);
        assert!(is_over());
    }
}
