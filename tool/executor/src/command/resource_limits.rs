//! What the processes of an execution may use together.

use super::builder::check;
use crate::InvalidCommand;

/// The most that the processes of an execution may use together; `None`: no limit of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ResourceLimits {
    /// Memory in bytes, page cache and tmpfs included, as the kernel's controllers count it.
    pub memory_bytes: Option<u64>,
    /// Processes and threads at once.
    pub max_processes: Option<u32>,
    /// Processors' worth of time: 0.5 is half of one. From 0.01, the kernel's smallest quota, to 10,000.
    pub cpus: Option<f64>,
}

impl ResourceLimits {
    /// Nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn check(&self) -> Result<(), InvalidCommand> {
        check(self.memory_bytes != Some(0), "limits.memory_bytes", "is not positive")?;
        check(self.max_processes != Some(0), "limits.max_processes", "is not positive")?;
        let cpus_in_range = self.cpus.is_none_or(|cpus| (0.01..=10_000.0).contains(&cpus));
        check(cpus_in_range, "limits.cpus", "is not a number from 0.01 to 10000")
    }
}
