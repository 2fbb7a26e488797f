//! The `[audit]` table of the configuration.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use regex::Regex;
use serde::Deserialize;

use super::recording::RecordingsConfig;
use super::shipping::{DestinationConfig, Protocol};
use crate::invalid::InvalidSetting;

/// Bounds of an identity's share: room for some commands, and no more than can be counted.
const SHARES: RangeInclusive<u64> = 64 * 1024..=u32::MAX as u64;

/// Settings of the audit log.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditConfig {
    /// An absolute path. Default: no audit log.
    pub file: Option<PathBuf>,
    /// A file is rotated before it would grow larger; 0: never. Default 64 MiB.
    pub max_bytes: u64,
    /// How many rotated files are kept, the newest; 0: all. Default 10.
    pub keep: usize,
    /// Bytes of records per identity and [`identity_period`](Self::identity_period); 0: unlimited. Up to half of them,
    /// commands are recorded in full, then by digest, and then refused. Default: a quarter of what is retained (`max_bytes`
    /// times `keep` + 1), and beyond it as long as no record of others younger than `identity_period` is rotated out;
    /// unlimited if all files are kept.
    pub max_bytes_per_identity: Option<u64>,
    /// Default 1 h.
    #[serde(with = "humantime_serde")]
    pub identity_period: Duration,
    /// What happens to new commands while the log cannot be written. Default: they are refused.
    pub when_full: WhenFull,
    /// Wait until each record is on disk (fdatasync), not only in the page cache. Default: no.
    pub sync: bool,
    /// Record the SHA-256 of a command's output. Default: yes.
    pub output_digest: bool,
    /// How much of a command's text is recorded. Default: all of it.
    pub commands: Commands,
    /// Regular expressions: their matches in commands and reasons are redacted.
    pub redact: Vec<String>,
    /// The syslog server that records are sent to as well. Requires `file`. Default: none.
    pub syslog: Option<DestinationConfig>,
    /// The OpenTelemetry collector that records are sent to as well, as logs. Requires `file`. Default: none.
    pub otlp: Option<DestinationConfig>,
    /// The recordings of executions, which are made where the policy has `@record`.
    pub recordings: RecordingsConfig,
}

/// What happens to new commands while the log cannot be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenFull {
    /// They are refused.
    #[default]
    Refuse,
    /// They run, and the missing records are counted.
    Count,
}

/// How much of a command's text is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Commands {
    /// The text or all arguments.
    #[default]
    Full,
    /// The names of the programs that it would run.
    Programs,
    /// Nothing.
    None,
}

impl Default for AuditConfig {
    fn default() -> Self {
        Self {
            file: None,
            max_bytes: 64 * 1024 * 1024,
            keep: 10,
            max_bytes_per_identity: None,
            identity_period: Duration::from_secs(3600),
            when_full: WhenFull::Refuse,
            sync: false,
            output_digest: true,
            commands: Commands::Full,
            redact: Vec::new(),
            syslog: None,
            otlp: None,
            recordings: RecordingsConfig::default(),
        }
    }
}

impl AuditConfig {
    pub(crate) fn check(&self) -> Result<(), InvalidSetting> {
        if let Some(file) = &self.file
            && (!file.is_absolute() || file.file_name().is_none())
        {
            let text = format!("audit.file: {} is not the absolute path of a file", file.display());
            return Err(InvalidSetting(text));
        }
        if self.max_bytes_per_identity.is_some_and(|bytes| bytes > 0 && !SHARES.contains(&bytes)) {
            let text = "audit.max_bytes_per_identity: expected 0, or 65536 (64 KiB) to 4294967295 (4 GiB) bytes";
            return Err(InvalidSetting(text.into()));
        }
        if self.identity_period.is_zero() {
            return Err(InvalidSetting("audit.identity_period: expected a duration such as 1h".into()));
        }
        for (protocol, destination) in self.destinations() {
            if self.file.is_none() {
                return Err(InvalidSetting(format!("audit.{}: requires audit.file", protocol.key())));
            }
            destination.check(protocol)?;
        }
        self.recordings.check()?;
        self.patterns().map(drop)
    }

    /// Where records are sent as well.
    pub(crate) fn destinations(&self) -> impl Iterator<Item = (Protocol, &DestinationConfig)> {
        let all = [(Protocol::Syslog, &self.syslog), (Protocol::Otlp, &self.otlp)];
        all.into_iter().filter_map(|(protocol, config)| Some((protocol, config.as_ref()?)))
    }

    /// The patterns to redact.
    pub(super) fn patterns(&self) -> Result<Vec<Regex>, InvalidSetting> {
        let compile =
            |pattern: &String| Regex::new(pattern).map_err(|error| InvalidSetting(format!("audit.redact: {error}")));
        self.redact.iter().map(compile).collect()
    }
}
