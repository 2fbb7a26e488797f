//! The audit log: who asked for what, what was decided, and what came of it.
//!
//! Each record is a line of JSON: one before a command starts and one after its end, which has the number of the first.
//! `record`, `command`, `operation` and `rejected` are their contents, `redact` removes secrets, `key` makes the digests of texts that are not
//! recorded. `chain` links the lines by hashes, which `verify` checks. `volume` limits how much one caller may fill, with
//! `retained` as its model of the files; `room` takes what a record needs of that, and `omitted` counts the rest. `writer` is the thread that appends to the files of
//! `log`, `writer::execution_recorder` observes one execution. `recording` stores what executions are sent and
//! write, and `play` plays it. `shipping` sends the records elsewhere, and `collector` keeps those of other agents.

mod chain;
mod collector;
mod command;
mod config;
mod ends;
mod files;
mod follower;
mod json;
mod key;
mod lines;
mod log;
mod omitted;
mod operation;
mod play;
mod reading;
mod record;
mod recording;
mod redact;
mod rejected;
mod report;
mod retained;
mod room;
mod search;
mod shipping;
mod show;
mod start;
mod tail;
#[cfg(test)]
mod tests;
pub mod verify;
mod volume;
pub mod witness;
mod writer;

use std::collections::HashSet;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use telexec_engine::Workers;
use telexec_executor::{Command, ExecutionId, ExecutorError};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

pub use self::collector::CollectorConfig;
#[cfg(fuzzing)]
pub(crate) use self::collector::records_of_request;
pub(crate) use self::collector::{Collector, CollectorReport, LogsServer, is_collected, list_collected};
pub(crate) use self::command::clip_line;
use self::command::{Asked, CommandDescriber};
pub use self::config::{AuditConfig, Commands, WhenFull};
pub(crate) use self::json::length as json_length;
use self::key::Key;
pub use self::key::digest;
use self::log::Log;
use self::omitted::OmittedRecords;
pub(crate) use self::operation::{FileOutcome, ForwardOutcome, Operation};
use self::operation::{FileRecord, ForwardRecord, OperationRecord};
pub(crate) use self::play::{Playback, Which, play, verify_recordings};
use self::record::{Body, Origin, Record};
use self::recording::Recordings;
pub use self::recording::RecordingsConfig;
pub(crate) use self::recording::RecordingsReport;
use self::redact::Redact;
pub use self::report::verify_files;
pub(crate) use self::search::{Format, NOT_FOUND, Outcome, Query, search_files};
pub use self::shipping::DestinationConfig;
use self::shipping::Shipper;
pub(crate) use self::shipping::{Protocol, ShippingReport};
use self::volume::Volume;
use self::writer::{Job, State, Writer};
use crate::analysis::CommandAnalysis;
use crate::call::Call;
use crate::hostname::hostname;
use crate::invalid::InvalidSetting;
use crate::policy::{Decision, FileUse, PortUse};
use crate::reload::Reload;

/// After this the log, or a recording, counts as not writable.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// For the last records to be sent elsewhere.
const SHIPPING_TIMEOUT: Duration = Duration::from_secs(2);
/// Suggested to refused callers.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Refusals of one caller that are recorded in a burst; then one a second.
const REFUSALS: NonZero<u32> = NonZero::new(100).expect("it is positive");
/// The size at which the tables of refused callers and of executions with input are cleaned.
const CLEANUP_SIZE: usize = 1024;
/// An upper bound of the records of a start and its end, without the command and the caller's name.
const MAX_REST_BYTES: u64 = 2048;
/// Records that may be queued, not counting those of ends.
const MAX_WAITING: usize = 1024;

/// The audit log cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// Its configuration is invalid.
    #[error(transparent)]
    Config(#[from] InvalidSetting),
    /// The file cannot be used.
    #[error("cannot keep the audit log in {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The directory for the audit logs of other agents cannot be used.
    #[error("cannot keep the audit logs of other agents in {path}")]
    Collector {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

/// The audit log, if there is one; clones share it.
#[derive(Clone)]
pub(crate) struct Audit(Option<Arc<Inner>>);

struct Inner {
    /// Of the current file.
    path: PathBuf,
    queue: UnboundedSender<Job>,
    recordings: Recordings,
    shippers: Vec<Shipper>,
    slots: Arc<Semaphore>,
    state: Arc<State>,
    describer: Arc<CommandDescriber>,
    /// For describing long commands.
    workers: Workers,
    volume: Volume,
    omitted: OmittedRecords,
    /// Executions that were sent input, with the caller and the RPC.
    typed: Mutex<HashSet<(String, ExecutionId, &'static str)>>,
    /// Limits the recorded peers of each source.
    rejections: DefaultKeyedRateLimiter<String>,
    /// Limits the recorded refusals of each caller.
    refusals: DefaultKeyedRateLimiter<String>,
    when_full: WhenFull,
    output_digest: bool,
    containment: &'static str,
}

impl Audit {
    /// Opens the configured log, if any.
    ///
    /// # Errors
    /// It cannot be used.
    pub(crate) fn open(config: &AuditConfig, containment: &'static str) -> Result<Self, AuditError> {
        let redact = Redact::new(config.patterns()?);
        let Some(path) = config.file.clone() else { return Ok(Self(None)) };
        let failed = |source| AuditError::File { path: path.clone(), source };
        let (log, aside) = Log::open(path.clone(), config).map_err(failed)?;
        let ages = files::ages(&path).map_err(failed)?;
        let key = Key::open(&path).map_err(failed)?;
        let state = Arc::new(State::default());
        let mut writer = Writer::new(log, hostname(), Arc::clone(&state));
        writer.open(aside, containment);
        let shipper =
            |(protocol, to): (Protocol, &DestinationConfig)| Shipper::start(protocol, to.clone(), &path, writer.last());
        let shippers = config.destinations().map(shipper).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        writer.shippers.clone_from(&shippers);
        let recordings = Recordings::start(config, &path).map_err(failed)?;
        let (queue, jobs) = mpsc::unbounded_channel();
        let thread = std::thread::Builder::new().name("audit".into());
        thread.spawn(move || writer.run(jobs)).map_err(failed)?;
        Ok(Self(Some(Arc::new(Inner {
            path: path.clone(),
            queue,
            recordings,
            shippers,
            slots: Arc::new(Semaphore::new(MAX_WAITING)),
            state,
            describer: Arc::new(CommandDescriber { key, commands: config.commands, redact }),
            workers: Workers::new("audit-text", 1, 2).map_err(failed)?,
            volume: Volume::new(config, ages),
            omitted: OmittedRecords::default(),
            typed: Mutex::default(),
            refusals: RateLimiter::keyed(Quota::per_second(NonZero::<u32>::MIN).allow_burst(REFUSALS)),
            rejections: rejected::limiter(),
            when_full: config.when_full,
            output_digest: config.output_digest,
            containment,
        }))))
    }

    /// Describes a command that is refused; `None`: that is not recorded.
    async fn describe_refused(
        &self,
        call: &Call,
        command: &Command,
        analysis: &Arc<CommandAnalysis>,
    ) -> Option<(&Arc<Inner>, Box<Asked>)> {
        let origin = || Origin::of(call);
        let identity = call.caller.identity.as_str();
        let inner = self.0.as_ref().filter(|inner| inner.spares(identity, origin))?;
        // if it cannot be described, the caller and the decision are recorded all the same
        let asked = inner.describe(call, command, analysis, CommandDescriber::brief).await.unwrap_or_default();
        inner.fits(identity, json::length(&asked) + rest(identity), true, origin).then_some((inner, asked))
    }

    /// Records a command that the policy denied.
    pub(crate) async fn record_denied(
        &self,
        call: &Call,
        command: &Command,
        analysis: &Arc<CommandAnalysis>,
        decision: &Decision,
        error: &ExecutorError,
    ) {
        let Some((inner, asked)) = self.describe_refused(call, command, analysis).await else { return };
        let decision = decision.into();
        let body = Body::Denied { decision, failure: error.into(), asked };
        inner.write(Record::new(body).of(&Origin::of(call)).about(command.execution_id())).await;
    }

    /// Records a command that was permitted, but refused for another reason.
    pub(crate) async fn record_refused(
        &self,
        call: &Call,
        command: &Command,
        analysis: &Arc<CommandAnalysis>,
        decision: &Decision,
        error: &ExecutorError,
    ) {
        let Some((inner, asked)) = self.describe_refused(call, command, analysis).await else { return };
        let decision = decision.into();
        let body = Body::Refused { decision, failure: error.into(), asked };
        inner.write(Record::new(body).of(&Origin::of(call)).about(command.execution_id())).await;
    }

    /// Records an operation on an execution, or any other call that was denied.
    pub(crate) async fn record_access(
        &self,
        call: &Call,
        operation: Operation<'_>,
        decision: &Decision,
        error: Option<&ExecutorError>,
    ) {
        let Some(inner) = &self.0 else { return };
        if let Some(record) = inner.operation(call, operation, decision, error) {
            inner.write(record).await;
        }
    }

    /// Records that a request is approved or rejected, before it is.
    ///
    /// # Errors
    /// [`ExecutorError::Exhausted`]: the record cannot be written, or the caller's share is used up, and commands are refused then.
    pub(crate) async fn record_review(
        &self,
        call: &Call,
        operation: Operation<'_>,
        decision: &Decision,
        command: &Command,
        analysis: &Arc<CommandAnalysis>,
    ) -> Result<(), ExecutorError> {
        let Some(inner) = &self.0 else { return Ok(()) };
        let asked = inner.describe(call, command, analysis, CommandDescriber::brief).await?;
        let (identity, origin) = (call.caller.identity.as_str(), || Origin::of(call));
        let exhausted = |reason: String| Err(ExecutorError::Exhausted { reason, retry_after: Some(RETRY_AFTER) });
        if !inner.fits(identity, json::length(&asked) + rest(identity), false, origin) {
            return exhausted(format!("{identity} has filled its share of the audit log; nothing was done"));
        }
        let operation = Box::new(OperationRecord::new(call, operation, None));
        let body = Body::Review { decision: decision.into(), operation, asked };
        match inner.write_now(Record::new(body).of(&Origin::of(call))).await {
            Err(reason) if inner.when_full == WhenFull::Refuse => {
                exhausted(format!("the audit log cannot be written: {reason}; nothing was done"))
            }
            _ => Ok(()),
        }
    }

    /// Records that a call was ended because it is no longer permitted. Does not wait for the write.
    pub(crate) fn record_ended(
        &self,
        call: &Call,
        operation: Operation<'_>,
        decision: &Decision,
        error: &ExecutorError,
    ) {
        let Some(inner) = self.0.clone() else { return };
        if let Some(record) = inner.operation(call, operation, decision, Some(error)) {
            tokio::spawn(async move { inner.write(record).await });
        }
    }

    /// Whether the use of a file or a forward can be recorded, if it must be.
    ///
    /// # Errors
    /// [`ExecutorError::Exhausted`].
    pub(crate) fn check_writable(&self) -> Result<(), ExecutorError> {
        let refuses = self.0.as_ref().is_some_and(|inner| inner.when_full == WhenFull::Refuse);
        match self.faults() {
            Some((_, true)) if refuses => Err(ExecutorError::Exhausted {
                reason: "the audit log cannot be written; nothing was done".to_owned(),
                retry_after: Some(RETRY_AFTER),
            }),
            _ => Ok(()),
        }
    }

    /// Records the end of a forward. Does not wait for the write.
    pub(crate) fn record_forward(&self, call: &Call, used: &PortUse, outcome: ForwardOutcome<'_>) {
        let Some(inner) = self.0.clone() else { return };
        let identity = call.caller.identity.as_str();
        if inner.fits(identity, rest(identity) / 2, false, || Origin::of(call)) {
            let record = Record::new(Body::Forward(ForwardRecord::new(used, outcome))).of(&Origin::of(call));
            tokio::spawn(async move { inner.write(record).await });
        }
    }

    /// Records what came of the use of a file. Does not wait for the write.
    pub(crate) fn record_file(&self, call: &Call, file: &FileUse, mut outcome: FileOutcome) {
        let Some(inner) = self.0.clone() else { return };
        outcome.pattern = outcome.pattern.and_then(|pattern| inner.describer.pattern(&pattern));
        let length = operation::file_length(file) + json::length(&outcome.pattern);
        let identity = call.caller.identity.as_str();
        if inner.fits(identity, rest(identity) / 2 + length, false, || Origin::of(call)) {
            let record = Record::new(Body::File(FileRecord::new(file, outcome))).of(&Origin::of(call));
            tokio::spawn(async move { inner.write(record).await });
        }
    }

    /// Whether there is a log.
    pub(crate) fn is_kept(&self) -> bool {
        self.0.is_some()
    }

    /// Whether this is the caller's first input to an execution by this RPC, as far as remembered.
    pub(crate) fn is_first_input(&self, call: &Call, id: &ExecutionId) -> bool {
        let Some(inner) = &self.0 else { return false };
        let mut typed = inner.typed.lock().unwrap_or_else(PoisonError::into_inner);
        if typed.len() >= CLEANUP_SIZE {
            typed.clear();
        }
        typed.insert((call.caller.identity.to_string(), id.clone(), call.rpc.as_str()))
    }

    /// The number of missing records, and whether writing fails now; `None`: there is no log.
    pub(crate) fn faults(&self) -> Option<(u64, bool)> {
        let state = &self.0.as_ref()?.state;
        let fails = state.fails.load(Ordering::Relaxed) || state.is_stuck.load(Ordering::Relaxed);
        Some((state.missing.load(Ordering::Relaxed), fails))
    }

    /// What the recordings take; `None`: there is no log.
    pub(crate) fn recordings(&self) -> Option<RecordingsReport> {
        self.0.as_ref().map(|inner| inner.recordings.report())
    }

    /// How sending records elsewhere goes, for each destination.
    pub(crate) fn shipping(&self) -> impl Iterator<Item = ShippingReport> {
        let shippers = self.0.iter().flat_map(|inner| inner.shippers.iter().map(move |shipper| (inner, shipper)));
        shippers.map(|(inner, shipper)| shipper.report(inner.state.last.load(Ordering::Relaxed)))
    }

    /// On each reload, checks whether the file was moved away. Never returns.
    pub(crate) async fn follow(self, mut reload: Reload) {
        let Some(inner) = &self.0 else { return };
        loop {
            reload.asked().await;
            let _ = inner.queue.send(Job::Reopen);
        }
    }

    /// Waits until all is written, up to [`WRITE_TIMEOUT`], and sent, up to [`SHIPPING_TIMEOUT`].
    pub(crate) async fn close(&self) {
        let Some(inner) = &self.0 else { return };
        for record in inner.omitted.take_all() {
            inner.write(record).await;
        }
        // their ends are records too
        inner.recordings.close().await;
        let (reply, closed) = oneshot::channel();
        let _ = inner.queue.send(Job::Close(reply));
        if tokio::time::timeout(WRITE_TIMEOUT, closed).await.is_err() {
            tracing::warn!("the last records of the audit log may be missing: the disk does not answer");
        }
        // what is not sent by then is sent by the next agent
        let _ = tokio::time::timeout(SHIPPING_TIMEOUT, join_all(inner.shippers.iter().map(Shipper::close))).await;
    }
}

/// An upper bound of the records of a start and its end, without the command: both name the caller.
fn rest(identity: &str) -> u64 {
    MAX_REST_BYTES + 2 * json::length(&identity)
}

impl Inner {
    /// The record of an operation; `None`: it is omitted.
    fn operation(
        self: &Arc<Self>,
        call: &Call,
        operation: Operation<'_>,
        decision: &Decision,
        error: Option<&ExecutorError>,
    ) -> Option<Record> {
        let pattern = operation.pattern.and_then(|pattern| self.describer.pattern(pattern));
        let (identity, origin) = (call.caller.identity.as_str(), || Origin::of(call));
        let bytes = rest(identity) / 2 + operation.file.map_or(0, operation::file_length) + json::length(&pattern);
        let is_spared = error.is_none() || self.spares(identity, origin);
        if !is_spared || !self.fits(identity, bytes, error.is_some(), origin) {
            return None;
        }
        let record = OperationRecord::new(call, operation, pattern);
        let record = Box::new(record);
        let body = Body::Call { decision: decision.into(), operation: record, failure: error.map(Into::into) };
        Some(Record::new(body).of(&Origin::of(call)).about(operation.execution_id))
    }

    /// Has a record written before anything else happens.
    ///
    /// # Errors
    /// Why it is not.
    async fn write_now(&self, record: Record) -> Result<(), String> {
        let written = self.answered(|slot, reply| Job::Awaited(Box::new(record), slot, reply)).await;
        written.unwrap_or_else(|| {
            self.state.lose();
            Err("the disk does not answer".to_owned())
        })
    }

    /// The reply to a job; `None`: it timed out, and will not be done.
    async fn answered<T>(&self, job: impl FnOnce(OwnedSemaphorePermit, oneshot::Sender<T>) -> Job) -> Option<T> {
        let until = Instant::now() + WRITE_TIMEOUT;
        let slot = self.slot(until).await?;
        let (reply, mut answer) = oneshot::channel();
        self.queue.send(job(slot, reply)).ok()?;
        if let Ok(answer) = timeout_at(until, &mut answer).await {
            return answer.ok();
        }
        self.state.is_stuck.store(true, Ordering::Relaxed);
        let _ = self.queue.send(Job::Revive);
        // if it has not been written by now, it will not be
        answer.close();
        answer.try_recv().ok()
    }

    async fn write(&self, record: Record) {
        match self.slot(Instant::now() + WRITE_TIMEOUT).await {
            Some(slot) => drop(self.queue.send(Job::Record(Box::new(record), Some(slot)))),
            None => self.state.lose(),
        }
    }

    /// A slot in the queue; `None`: timed out.
    async fn slot(&self, until: Instant) -> Option<OwnedSemaphorePermit> {
        if self.state.is_stuck.load(Ordering::Relaxed) {
            return None;
        }
        timeout_at(until, Arc::clone(&self.slots).acquire_owned()).await.ok()?.ok()
    }
}
