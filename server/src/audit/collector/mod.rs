//! The audit logs of other agents, which these send while they write them (`[audit.otlp]`): each in files of its own, which commands
//! and intruders on those machines do not reach, and `telexecd audit verify` reads as it reads the agent's. Each record is verified as it
//! arrives: one that does not follow the one before begins a new segment, and is reported.

mod agent_log;
mod config;
mod error;
mod list;
mod received;
mod request;
mod search;
mod segment;
mod service;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use telexec_engine::Workers;
use telexec_executor::ExecutorError;
use telexec_executor::text::error_chain;
use telexec_proto::convert::error_to_status;
use tonic::Status;
use tracing::warn;

use self::agent_log::{AgentLog, Outcome, entries};
pub use self::config::CollectorConfig;
use self::error::StoreError;
pub(crate) use self::list::list_collected;
use self::received::{Batch, Received};
use self::request::PartialSuccess;
pub(crate) use self::service::LogsServer;
use super::{AuditError, files};
use crate::call::Call;
use crate::digest::sha256;
use crate::lock::lock;

/// How the names of the agents' directories end.
const SUFFIX: &str = ".audit";
/// What is encoded in the names of directories: all but letters, digits and these.
const ENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_').remove(b':').remove(b'=').remove(b'@');
/// Of a directory's name, without the suffix; longer ones end with their digest.
const MAX_NAME_BYTES: usize = 200;
/// Requests that are stored at once, each of another agent.
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
        if config.directory.exists() && !config.directory.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let missing: Vec<_> = config.directory.ancestors().take_while(|path| !path.exists()).collect();
        DirBuilder::new().recursive(true).mode(0o700).create(&config.directory)?;
        missing.into_iter().try_for_each(files::sync_directory)?;
        let is_other = |path: &PathBuf| path.file_name().is_some_and(|name| !is_collected(name));
        let found = entries(&config.directory)?;
        if let Some(other) = found.iter().find(|path| is_other(path)) {
            return Err(io::Error::other(format!("{} is in it: use a directory for nothing else", other.display())));
        }
        let held = files::lock(&config.directory.join("collector"))?;
        let mut logs = HashMap::new();
        for path in found {
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
    /// INVALID_ARGUMENT: it is no such request. RESOURCE_EXHAUSTED: not all of it is stored.
    async fn store(&self, call: &Call, request: Bytes) -> Result<Option<PartialSuccess>, Status> {
        let (this, identity) = (self.clone(), call.caller.identity.to_string());
        // also if the call does not wait for it
        let (owner, reservation) = (identity.clone(), Arc::clone(&call.reservation));
        let store = move || {
            let stored = this.store_request(&identity, request);
            drop(reservation);
            stored
        };
        let stored = self.0.workers.run(&owner, store).await;
        stored.map_err(|lost| error_to_status(&ExecutorError::Internal(lost.to_string())))?.map_err(|error| {
            let reason = match &error {
                StoreError::Malformed => return Status::invalid_argument(error.to_string()),
                StoreError::Full(_) => format!("the records are not stored: {error}"),
                // the path is for the log
                StoreError::File { source, .. } => format!("the records are not stored: {}", error_chain(source)),
            };
            error_to_status(&ExecutorError::Exhausted { reason, retry_after: Some(RETRY_AFTER) })
        })
    }

    fn store_request(&self, identity: &str, request: Bytes) -> Result<Option<PartialSuccess>, StoreError> {
        let mut batch = Batch::of(request).map_err(|_| StoreError::Malformed)?;
        let mut outcome = Outcome::default();
        let stored = self.store_records(identity, &mut batch, &mut outcome);
        let mut counts = lock(&self.0.counts);
        counts.stored += outcome.stored;
        counts.repeated += outcome.repeated;
        counts.breaks += outcome.breaks;
        counts.refused += u64::from(stored.is_err());
        // otherwise they come again with the others
        counts.rejected = counts.rejected.saturating_add(if stored.is_ok() { batch.rejected } else { 0 });
        drop(counts);
        stored?;
        let Batch { rejected, reason, .. } = batch;
        if rejected == 0 {
            return Ok(None);
        }
        warn!(agent = identity, rejected, reason, "log records that an agent has sent are rejected");
        let rejected_log_records = i64::try_from(rejected).unwrap_or(i64::MAX);
        Ok(Some(PartialSuccess { rejected_log_records, error_message: reason }))
    }

    fn store_records(&self, identity: &str, batch: &mut Batch, outcome: &mut Outcome) -> Result<(), StoreError> {
        let records = std::mem::take(&mut batch.records);
        if records.is_empty() {
            return Ok(());
        }
        let name = directory_name(identity);
        let known = lock(&self.0.logs).get(&name).cloned();
        let path = || self.0.config.directory.join(format!("{name}{SUFFIX}"));
        let shared = known.unwrap_or_else(|| Arc::new(Mutex::new(AgentLog::new(path(), identity))));
        let mut log = lock(&shared);
        let (before, mut reserved) = (log.bytes(), 0);
        let mut stored = Ok(());
        for (number, part) in records.chunk_by(Received::is_followed_by).enumerate() {
            if number >= MAX_PARTS {
                batch.reject(part.len() as u64, || "too many records do not follow the ones before them".to_owned());
                continue;
            }
            let reserve = |bytes, added| self.reserve(bytes, added).map(|()| reserved += added);
            stored = stored.and_then(|()| log.store(part, outcome, reserve));
        }
        self.resized(before.wrapping_add(reserved), log.bytes());
        log.log_refusal(&stored);
        // who has sent nothing that is stored takes no memory
        if log.bytes() > 0 {
            drop(log);
            lock(&self.0.logs).entry(name).or_insert(shared);
        }
        stored
    }

    /// Takes room for a log that has so many bytes, and may grow by so many.
    ///
    /// # Errors
    /// There is none.
    fn reserve(&self, bytes: u64, added: u64) -> Result<(), StoreError> {
        let CollectorConfig { max_total_bytes, max_bytes_per_identity, .. } = self.0.config;
        if bytes.saturating_add(added) > max_bytes_per_identity {
            return Err(StoreError::Full(
                "those of this identity have reached the limit, audit_collector.max_bytes_per_identity",
            ));
        }
        let grown = |total: u64| total.checked_add(added).filter(|total| *total <= max_total_bytes);
        let full = "those of all agents together have reached the limit, audit_collector.max_total_bytes";
        let total = self.0.total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown);
        total.map(drop).map_err(|_| StoreError::Full(full))
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
            log.remove_old(max_age);
            self.resized(before, log.bytes());
        }
        // while the map is locked nobody gets another reference to one
        lock(&self.0.logs).retain(|_, log| Arc::strong_count(log) > 1 || lock(log).bytes() > 0);
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

/// The lines of the records in a request.
#[cfg(fuzzing)]
pub(crate) fn records_of_request(request: &[u8]) -> Vec<Bytes> {
    let batch = Batch::of(Bytes::copy_from_slice(request)).unwrap_or_default();
    batch.records.into_iter().map(|record| record.text).collect()
}

/// Whether this is the name of something that a collector makes in its directory.
pub(crate) fn is_collected(name: &OsStr) -> bool {
    let is_own = |name: &str| name == "collector.lock" || name.ends_with(SUFFIX);
    // at the top of a file system
    name.to_str().is_some_and(|name| is_own(name) || name == "lost+found")
}
