//! The `[audit_collector]` table of the configuration.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::invalid::InvalidSetting;

/// Room for the longest request.
const MIN_BYTES: u64 = 8 * 1024 * 1024;

/// Where the audit logs of other agents are kept, which these send with `[audit.otlp]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectorConfig {
    /// An absolute path. What an agent sends is in `IDENTITY.audit` below it.
    pub directory: PathBuf,
    /// The most that all audit logs take, in bytes; more is refused, and none is removed to make room. Default 16 GiB.
    #[serde(default = "default_total")]
    pub max_total_bytes: u64,
    /// The same for those of one identity. Default 1 GiB.
    #[serde(default = "default_each")]
    pub max_bytes_per_identity: u64,
    /// Files that were last written longer ago are removed; 0 s: none are. Default 90 days.
    #[serde(default = "default_age", with = "humantime_serde")]
    pub max_age: Duration,
}

fn default_total() -> u64 {
    16 * 1024 * 1024 * 1024
}

fn default_each() -> u64 {
    1024 * 1024 * 1024
}

fn default_age() -> Duration {
    Duration::from_secs(90 * 24 * 60 * 60)
}

impl CollectorConfig {
    pub(crate) fn check(&self) -> Result<(), InvalidSetting> {
        let invalid = |key: &str, fault: &str| Err(InvalidSetting(format!("audit_collector.{key}: {fault}")));
        if !self.directory.is_absolute() {
            return invalid("directory", &format!("{} is not an absolute path", self.directory.display()));
        }
        let sizes =
            [("max_total_bytes", self.max_total_bytes), ("max_bytes_per_identity", self.max_bytes_per_identity)];
        match sizes.iter().find(|(_, bytes)| *bytes < MIN_BYTES) {
            Some((key, _)) => invalid(key, &format!("expected at least {MIN_BYTES} bytes (8 MiB)")),
            None => Ok(()),
        }
    }
}
