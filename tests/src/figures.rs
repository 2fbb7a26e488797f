//! Figures of the benches.

use std::time::Duration;

/// The time that this part of them, in percent, stayed below.
pub fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times.get((times.len() * percent / 100).min(times.len().saturating_sub(1))).copied().unwrap_or_default()
}
