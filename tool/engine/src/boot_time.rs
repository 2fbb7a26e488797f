//! The clock that all processes share.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The time since this machine was booted. It counts while the machine sleeps, and is never set (CLOCK_BOOTTIME of
/// clock_gettime(2)).
pub fn boot_time() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// A moment on a clock that all processes share, and that counts while the machine sleeps.
pub(crate) fn since_boot(moment: Instant) -> Duration {
    let (now, boot) = (Instant::now(), boot_time());
    match moment.checked_duration_since(now) {
        Some(later) => boot.saturating_add(later),
        None => boot.saturating_sub(now.saturating_duration_since(moment)),
    }
}

/// The same moment on the clock of this process; if that does not reach back so far, its beginning.
pub(crate) fn instant(since_boot: Duration) -> Instant {
    let (now, boot) = (Instant::now(), boot_time());
    match since_boot.checked_sub(boot) {
        Some(later) => now.checked_add(later).unwrap_or(now),
        None => now.checked_sub(boot.saturating_sub(since_boot)).unwrap_or(now),
    }
}
