//! The audit logs of other agents, which these send while they write them (`[audit.otlp]`): each in files of its own, which commands
//! and intruders on those machines do not reach, and `telexecd audit verify` reads as it reads the agent's. Each record is verified as it
//! arrives: one that does not follow the one before begins a new segment, and is reported.

mod agent_log;
mod config;
mod list;
mod received;
mod request;
mod segment;
mod service;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use telexec_engine::Workers;
use telexec_executor::ExecutorError;
use telexec_executor::text::error_chain;
use tracing::warn;

use self::agent_log::{AgentLog, Outcome, entries};
pub use self::config::CollectorConfig;
pub(crate) use self::list::list_collected;
use self::received::{Batch, Received};
use self::request::PartialSuccess;
pub(crate) use self::service::LogsServer;
use super::{AuditError, files};
use crate::digest::sha256;
use crate::identity::Identity;
use crate::lock::lock;

/// How the names of the agents' directories end.
const SUFFIX: &str = ".audit";
/// What is not in the name of a directory as it is in that of an identity.
const ENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_').remove(b':').remove(b'=').remove(b'@');
/// Of a directory's name, without the suffix; longer ones end with their digest.
const MAX_NAME_BYTES: usize = 200;
/// Agents' requests that are stored at once. One of them waits for its disk.
const MAX_WORKERS: usize = 4;
/// Parts of a request that do not follow one another. An agent sends one, or two where a file was removed.
const MAX_PARTS: usize = 8;
/// Between two removals of old files.
const CLEAN_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Suggested to agents whose records are refused.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// The logs of all agents; clones share them.
#[derive(Clone)]
pub(crate) struct Collector(Arc<Inner>);

struct Inner {
    config: CollectorConfig,
    /// By the names of their directories.
    logs: Mutex<HashMap<String, Arc<Mutex<AgentLog>>>>,
    /// What all of them take, in bytes.
    total: AtomicU64,
    counts: Mutex<CollectorReport>,
    workers: Workers,
    /// Of the directory, against other agents.
    _lock: File,
}

/// What was received since the agent started, and what is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CollectorReport {
    pub(crate) stored: u64,
    pub(crate) repeated: u64,
    /// No records, or changed on their way.
    pub(crate) rejected: u64,
    /// Records that do not follow the ones before them.
    pub(crate) breaks: u64,
    /// Requests that are to be sent again.
    pub(crate) refused: u64,
    /// Agents whose records are there.
    pub(crate) agents: u64,
    /// What all records take, in bytes.
    pub(crate) bytes: u64,
}

impl Collector {
    /// Opens the directory, or makes it.
    ///
    /// # Errors
    /// It cannot be used, or threads cannot be started.
    pub(crate) fn open(config: CollectorConfig) -> Result<Self, AuditError> {
        let path = config.directory.clone();
        Self::open_directory(config).map_err(|source| AuditError::Collector { path, source })
    }

    fn open_directory(config: CollectorConfig) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(&config.directory)?;
        let held = files::lock(&config.directory.join("collector"))?;
        let mut logs = HashMap::new();
        for path in entries(&config.directory)? {
            let name = path.file_name().and_then(|name| name.to_str()?.strip_suffix(SUFFIX)).map(str::to_owned);
            if let Some(name) = name {
                let log = AgentLog::new(path, &identity_of(&name));
                logs.insert(name, Arc::new(Mutex::new(log)));
            }
        }
        let total = logs.values().map(|log| lock(log).bytes()).sum();
        // one for each agent, so that its requests are stored in their order
        let workers = Workers::with_max_each("audit-collector", 1, MAX_WORKERS, 1)?;
        let (logs, counts, total) = (Mutex::new(logs), Mutex::default(), AtomicU64::new(total));
        Ok(Self(Arc::new(Inner { config, logs, total, counts, workers, _lock: held })))
    }

    /// Stores what the agent with this identity has sent. Returns what is not to be sent again, if there is any.
    ///
    /// # Errors
    /// [`ExecutorError::Exhausted`]: not all of it is stored.
    async fn store(&self, identity: &Identity, batch: Batch) -> Result<Option<PartialSuccess>, ExecutorError> {
        let (this, identity) = (self.clone(), identity.to_string());
        let owner = identity.clone();
        let stored = self.0.workers.run(&owner, move || this.store_batch(&identity, batch)).await;
        stored.map_err(|lost| ExecutorError::Internal(lost.to_string()))?.map_err(|error| {
            let reason = format!("the records are not stored: {}", error_chain(&error));
            ExecutorError::Exhausted { reason, retry_after: Some(RETRY_AFTER) }
        })
    }

    fn store_batch(&self, identity: &str, mut batch: Batch) -> io::Result<Option<PartialSuccess>> {
        let mut outcome = Outcome::default();
        let stored = self.store_records(identity, &mut batch, &mut outcome);
        let mut counts = lock(&self.0.counts);
        counts.stored += outcome.stored;
        counts.repeated += outcome.repeated;
        counts.breaks += outcome.breaks;
        let Err(error) = stored else {
            counts.rejected = counts.rejected.saturating_add(batch.rejected);
            let Batch { rejected, reason, .. } = batch;
            let rejected = i64::try_from(rejected).unwrap_or(i64::MAX);
            let partial = PartialSuccess { rejected_log_records: rejected, error_message: reason };
            return Ok((rejected > 0).then_some(partial));
        };
        counts.refused += 1;
        Err(error)
    }

    fn store_records(&self, identity: &str, batch: &mut Batch, outcome: &mut Outcome) -> io::Result<()> {
        let records = std::mem::take(&mut batch.records);
        if records.is_empty() {
            return Ok(());
        }
        let log = self.log_of(identity);
        let mut log = lock(&log);
        let before = log.bytes();
        let parts = records.chunk_by(Received::is_followed_by);
        let mut stored = Ok(());
        for (number, part) in parts.enumerate() {
            if number >= MAX_PARTS {
                batch.reject(part.len() as u64, || "too many records do not follow the ones before them".to_owned());
                continue;
            }
            stored = stored.and_then(|()| log.store(part, outcome, |bytes, added| self.take_room(bytes, added)));
        }
        self.resized(before, log.bytes());
        if log.bytes() == 0 {
            lock(&self.0.logs).remove(&directory_name(identity));
        }
        log.refused(stored.as_ref().err());
        stored
    }

    fn log_of(&self, identity: &str) -> Arc<Mutex<AgentLog>> {
        let name = directory_name(identity);
        let mut logs = lock(&self.0.logs);
        if let Some(log) = logs.get(&name) {
            return Arc::clone(log);
        }
        let path = self.0.config.directory.join(format!("{name}{SUFFIX}"));
        let log = Arc::new(Mutex::new(AgentLog::new(path, identity)));
        logs.insert(name, Arc::clone(&log));
        log
    }

    /// # Errors
    /// A log that has so many bytes may not grow by so many.
    fn take_room(&self, bytes: u64, added: u64) -> io::Result<()> {
        let CollectorConfig { max_total_bytes, max_bytes_per_identity, .. } = self.0.config;
        let full = |text: &str| Err(io::Error::new(io::ErrorKind::StorageFull, text));
        if bytes.saturating_add(added) > max_bytes_per_identity {
            return full("those of this identity have reached the limit, audit_collector.max_bytes_per_identity");
        }
        if self.0.total.load(Ordering::Relaxed).saturating_add(added) > max_total_bytes {
            return full("those of all agents together have reached the limit, audit_collector.max_total_bytes");
        }
        Ok(())
    }

    fn resized(&self, before: u64, after: u64) {
        self.0.total.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Removes old files now and then. Never returns.
    pub(crate) async fn follow(self) {
        loop {
            let this = self.clone();
            // without an answer the next attempt follows all the same
            let _ = self.0.workers.run("", move || this.remove_old()).await;
            tokio::time::sleep(CLEAN_INTERVAL).await;
        }
    }

    fn remove_old(&self) {
        let max_age = self.0.config.max_age;
        if max_age.is_zero() {
            return;
        }
        let logs: Vec<_> = lock(&self.0.logs).values().cloned().collect();
        for log in logs {
            let mut log = lock(&log);
            let before = log.bytes();
            if let Err(error) = log.remove_old(max_age) {
                warn!(%error, "collected records that are too old cannot be removed");
            }
            self.resized(before, log.bytes());
        }
        lock(&self.0.logs).retain(|_, log| log.try_lock().map_or(true, |log| log.bytes() > 0));
    }

    /// What was received since the agent started, and what is there.
    pub(crate) fn report(&self) -> CollectorReport {
        let agents = lock(&self.0.logs).len() as u64;
        let bytes = self.0.total.load(Ordering::Relaxed);
        CollectorReport { agents, bytes, ..*lock(&self.0.counts) }
    }
}

/// The name of an agent's directory, without the suffix.
fn directory_name(identity: &str) -> String {
    let name = utf8_percent_encode(identity, ENCODED).to_string();
    match name.get(..MAX_NAME_BYTES - 65) {
        Some(begin) if name.len() > MAX_NAME_BYTES => format!("{begin}~{}", sha256(identity.as_bytes())),
        _ => name,
    }
}

/// The reverse; of a long one only the beginning, and the digest.
fn identity_of(name: &str) -> String {
    percent_decode_str(name).decode_utf8_lossy().into_owned()
}

/// Whether this is the name of something that a collector makes in its directory.
pub(crate) fn is_collected(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name == "collector.lock" || name.ends_with(SUFFIX))
}
