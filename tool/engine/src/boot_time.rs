//! The clock that all processes share.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The time since this machine was booted. It counts while the machine sleeps, and is never set (CLOCK_BOOTTIME of
/// clock_gettime(2)).
pub fn boot_time() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
