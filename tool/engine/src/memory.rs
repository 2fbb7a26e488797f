//! Memory that is held for callers, and what the allocator keeps of it for later.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

/// When this much is no longer held, the allocator is asked to return free memory.
const PEAK_BYTES: usize = 16 * 1024 * 1024;
/// And not more often than this: what is returned costs time when it is needed again, as in a flood of output.
const DELAY: Duration = Duration::from_secs(5);

/// What this process holds for its callers: requests, calls and output.
pub static HELD_MEMORY: HeldMemory = HeldMemory::new();

/// About how many bytes are held: what several hold together may count for each of them.
#[derive(Debug)]
pub struct HeldMemory {
    bytes: AtomicUsize,
    /// The maximum since memory was last returned.
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
        if most.saturating_sub(left) >= PEAK_BYTES
            && self.most.compare_exchange(most, left, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            // what has come meanwhile
            self.most.fetch_max(self.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
            self.is_over.notify_one();
        }
    }

    /// Returns free memory to the system after each peak. Never returns. For one task of the process.
    pub async fn give_back(&self) {
        loop {
            self.is_over.notified().await;
            tokio::time::sleep(DELAY).await;
            // it walks all free memory, which takes a while; if there can be no thread, it is done after the next peak
            let (done, is_done) = oneshot::channel::<()>();
            let trim = move || {
                trim();
                drop(done);
            };
            if std::thread::Builder::new().name("memory".into()).spawn(trim).is_ok() {
                let _ = is_done.await;
            }
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
    fn a_peak_is_over_when_it_has_fallen_by_much_whatever_is_held_on() {
        let held = HeldMemory::new();
        let is_over = || held.is_over.notified().now_or_never().is_some();
        held.rise(10 * PEAK_BYTES);
        held.fall(PEAK_BYTES - 1);
        assert!(!is_over(), "that was little");
        held.fall(1);
        assert!(is_over() && !is_over());
        held.rise(PEAK_BYTES - 1);
        held.fall(PEAK_BYTES - 1);
        assert!(!is_over());
        held.rise(PEAK_BYTES);
        held.fall(PEAK_BYTES);
        assert!(is_over());
    }
}
