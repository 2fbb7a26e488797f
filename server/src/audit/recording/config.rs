//! The `[audit.recordings]` table of the configuration.

use std::time::Duration;

use serde::Deserialize;

use crate::invalid::InvalidSetting;

/// Room for some commands.
const MIN_BYTES: u64 = 64 * 1024;

/// Settings of the recordings that a policy asks for with `@record`. They are in the directory `FILE.recordings` of the audit log
/// `FILE`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RecordingsConfig {
    /// The most that one takes, in bytes; what would take more is ended, or recorded no further
    /// ([`AuditConfig::when_full`](super::super::AuditConfig)). Default 256 MiB.
    pub max_bytes: u64,
    /// The most that all take together, in bytes, of which new ones leave a tenth to those that are being written; none is removed
    /// to make room. Default 4 GiB.
    pub max_total_bytes: u64,
    /// The most that those of one identity take, in bytes. Default: a quarter of `max_total_bytes`.
    pub max_bytes_per_identity: Option<u64>,
    /// Older ones are removed; 0: none are. Default 90 days.
    #[serde(with = "humantime_serde")]
    pub max_age: Duration,
    /// Record what is typed while the terminal reads whole lines without an echo, as at a password prompt, instead of asterisks.
    /// Default: no.
    pub hidden_input: bool,
}

impl Default for RecordingsConfig {
    fn default() -> Self {
        Self {
            max_bytes: 256 * 1024 * 1024,
            max_total_bytes: 4 * 1024 * 1024 * 1024,
            max_bytes_per_identity: None,
            max_age: Duration::from_secs(90 * 24 * 60 * 60),
            hidden_input: false,
        }
    }
}

impl RecordingsConfig {
    pub(in crate::audit) fn check(&self) -> Result<(), InvalidSetting> {
        let sizes = [
            ("max_bytes", Some(self.max_bytes)),
            ("max_total_bytes", Some(self.max_total_bytes)),
            ("max_bytes_per_identity", self.max_bytes_per_identity),
        ];
        match sizes.iter().find(|(_, bytes)| bytes.is_some_and(|bytes| bytes < MIN_BYTES)) {
            Some((key, _)) => {
                Err(InvalidSetting(format!("audit.recordings.{key}: expected at least {MIN_BYTES} bytes (64 KiB)")))
            }
            None => Ok(()),
        }
    }

    /// The share of one identity.
    pub(super) fn share(&self) -> u64 {
        self.max_bytes_per_identity.unwrap_or(self.max_total_bytes / 4)
    }
}
