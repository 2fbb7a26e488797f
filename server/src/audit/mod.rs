//! The audit log: who asked for what, what was decided, and what came of it.
//!
//! Each record is a line of JSON, one before a command is started and one after its end, joined by the execution's id and
//! the number of the first. `record` and `command` are what they say, `redact` what they do not. `chain` ties the lines
//! together so that a change shows, which `verify` looks for. `volume` is how much of it one caller may fill, `retained`
//! whose records that would push out, `left_out` what is told of the rest, `key` stands for texts that are not told. `writer`
//! is the thread that writes them into the files of `log`; `watch` sees one execution.

mod chain;
mod command;
mod config;
mod files;
mod json;
mod key;
mod lines;
mod log;
mod omitted;
mod record;
mod redact;
mod report;
mod retained;
mod tail;
#[cfg(test)]
mod tests;
mod timestamp;
pub mod verify;
mod volume;
mod writer;

use std::collections::HashSet;
use std::num::NonZero;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use telexec_engine::ExecutionObserver;
use telexec_engine::Workers;
use telexec_executor::{Command, ExecutionId, ExecutorError, Signal};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

use self::command::{Asked, CommandDescriber};
pub use self::config::{AuditConfig, Commands, WhenFull};
use self::key::Key;
pub use self::key::digest;
use self::log::Log;
use self::omitted::OmittedRecords;
use self::record::{Body, OperationRecord, Origin, Record};
use self::redact::Redact;
pub use self::report::verify_files;
use self::volume::Volume;
use self::writer::Watch;
use self::writer::{Job, Start, State, Writer};
use crate::call::{Call, Rpc};
use crate::hostname::hostname;
use crate::invalid::InvalidSetting;
use crate::policy::Decision;
use crate::reload::Reload;

/// A disk that takes longer counts as one that cannot be written.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// When whoever was refused may try again.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// So many refusals of one caller are told in a row, and then one a second.
const REFUSALS: NonZero<u32> = NonZero::new(100).expect("it is positive");
/// From so many callers on, those that were not refused lately are forgotten; and from so many executions that were typed to.
const MANY: usize = 1024;
/// Of a longer command what is told is made on another thread, in bytes: it may have to be analysed.
const QUICK: u64 = 512;
/// What a record has beside what is told of a command, and with it that of the end, but for names.
const REST: u64 = 2048;
/// So many records may wait to be written, but for those of ends.
const MAX_WAITING: usize = 1024;

/// An audit log that cannot be kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// It is not configured well.
    #[error(transparent)]
    Config(#[from] InvalidSetting),
    /// The file cannot be used.
    #[error("cannot keep the audit log in {path}")]
    File {
        /// The file.
        path: std::path::PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

/// Where records go; its clones go to the same place.
#[derive(Clone)]
pub(crate) struct Audit(Option<Arc<Inner>>);

struct Inner {
    queue: UnboundedSender<Job>,
    slots: Arc<Semaphore>,
    state: Arc<State>,
    describer: Arc<CommandDescriber>,
    /// Where what is told of long commands is made.
    workers: Workers,
    volume: Volume,
    omitted: OmittedRecords,
    /// Executions that were sent input, with who sent it, and by which RPC.
    typed: Mutex<HashSet<(String, ExecutionId, &'static str)>>,
    /// Counts what each caller is refused.
    refusals: DefaultKeyedRateLimiter<String>,
    when_full: WhenFull,
    output_digest: bool,
    containment: &'static str,
}

/// What was to be done to an execution.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Operation<'a> {
    /// The RPC as which it was judged, if the call is of another.
    pub(crate) action: Option<Rpc>,
    pub(crate) execution_id: Option<&'a ExecutionId>,
    pub(crate) signal: Option<Signal>,
    /// Where its output was to be followed from.
    pub(crate) position: Option<u64>,
}

impl Audit {
    /// Goes on with the configured log, if there is one.
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
        let (queue, jobs) = mpsc::unbounded_channel();
        let thread = std::thread::Builder::new().name("audit".into());
        thread.spawn(move || writer.run(jobs)).map_err(failed)?;
        Ok(Self(Some(Arc::new(Inner {
            queue,
            slots: Arc::new(Semaphore::new(MAX_WAITING)),
            state,
            describer: Arc::new(CommandDescriber { key, commands: config.commands, redact }),
            workers: Workers::new("audit-text", 1, 2).map_err(failed)?,
            volume: Volume::new(config, ages),
            omitted: OmittedRecords::default(),
            typed: Mutex::default(),
            refusals: RateLimiter::keyed(Quota::per_second(NonZero::<u32>::MIN).allow_burst(REFUSALS)),
            when_full: config.when_full,
            output_digest: config.output_digest,
            containment,
        }))))
    }

    /// Tells of a command that is to be started, and waits until that is written. Gives who is to see it, and the id under
    /// which it is to be started if it names none; `None`: nobody.
    ///
    /// # Errors
    /// [`ExecutorError::Exhausted`]: that cannot be written, or would push out the records of others; nothing is to run
    /// then.
    pub(crate) async fn start(
        &self,
        call: &Call,
        command: &Command,
        decision: &Decision,
    ) -> Result<Option<(ExecutionId, Box<dyn ExecutionObserver>)>, ExecutorError> {
        let Some(inner) = &self.0 else { return Ok(None) };
        let asked = inner.room_for(call, command).await?;
        let id = command.execution_id().cloned().unwrap_or_else(ExecutionId::generate);
        let origin = Origin::of(call);
        let body = Body::Start { decision: decision.into(), asked };
        let record = Record::new(body).of(&origin).about(Some(&id));
        let watch = || inner.watch(&origin, &id);
        let (watch, reason) = match inner.begin(record, watch()).await {
            Some((watch, Ok(()))) => (watch, None),
            Some((watch, Err(reason))) => (watch, Some(reason)),
            None => {
                inner.state.lose();
                (watch(), Some("the disk does not answer".to_owned()))
            }
        };
        match reason {
            Some(reason) if inner.when_full == WhenFull::Refuse => Err(ExecutorError::Exhausted {
                reason: format!("the audit log cannot be written: {reason}; nothing ran"),
                retry_after: Some(RETRY_AFTER),
            }),
            _ => Ok(Some((id, Box::new(watch)))),
        }
    }

    /// Tells of a command that is not started, since the policy says so.
    pub(crate) async fn denied(&self, call: &Call, command: &Command, decision: &Decision, error: &ExecutorError) {
        let Some(inner) = self.0.as_ref().filter(|inner| inner.spares(call)) else { return };
        // who asked, and for what, is known all the same
        let asked = inner.describe(call, command, CommandDescriber::brief).await.unwrap_or_default();
        if !inner.fits(call, json::length(&asked) + rest(call), true) {
            return;
        }
        let decision = decision.into();
        let body = Body::Denied { decision, failure: error.into(), asked };
        inner.write(Record::new(body).of(&Origin::of(call)).about(command.execution_id())).await;
    }

    /// Tells of a command that is allowed and not started for another reason.
    pub(crate) async fn refused(&self, call: &Call, command: &Command, decision: &Decision, error: &ExecutorError) {
        let Some(inner) = self.0.as_ref().filter(|inner| inner.spares(call)) else { return };
        let asked = inner.describe(call, command, CommandDescriber::brief).await.unwrap_or_default();
        if !inner.fits(call, json::length(&asked) + rest(call), true) {
            return;
        }
        let decision = decision.into();
        let body = Body::Refused { decision, failure: error.into(), asked };
        inner.write(Record::new(body).of(&Origin::of(call)).about(command.execution_id())).await;
    }

    /// Tells of what was done to an execution, or of any other call that was denied.
    pub(crate) async fn touched(
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

    /// Tells of a call that is ended, since it is not permitted any more. Nobody waits until that is written.
    pub(crate) fn ended(&self, call: &Call, operation: Operation<'_>, decision: &Decision, error: &ExecutorError) {
        let Some(inner) = self.0.clone() else { return };
        if let Some(record) = inner.operation(call, operation, decision, Some(error)) {
            tokio::spawn(async move { inner.write(record).await });
        }
    }

    /// Whether this is, as far as is remembered, the first input that a caller sends to an execution by this RPC.
    pub(crate) fn is_first_input(&self, call: &Call, id: &ExecutionId) -> bool {
        let Some(inner) = &self.0 else { return false };
        let mut typed = inner.typed.lock().unwrap_or_else(PoisonError::into_inner);
        if typed.len() >= MANY {
            typed.clear();
        }
        typed.insert((call.caller.identity.to_string(), id.clone(), call.rpc.as_str()))
    }

    /// How many records are missing, and whether it cannot be written at this time; `None`: there is no log.
    pub(crate) fn faults(&self) -> Option<(u64, bool)> {
        let state = &self.0.as_ref()?.state;
        let fails = state.fails.load(Ordering::Relaxed) || state.is_stuck.load(Ordering::Relaxed);
        Some((state.missing.load(Ordering::Relaxed), fails))
    }

    /// Looks whether the file was moved away whenever that is asked for; for ever.
    pub(crate) async fn follow(self, mut reload: Reload) {
        let Some(inner) = &self.0 else { return };
        loop {
            reload.asked().await;
            let _ = inner.queue.send(Job::Reopen);
        }
    }

    /// Waits until all is written, for as long as a disk may take.
    pub(crate) async fn close(&self) {
        let Some(inner) = &self.0 else { return };
        for record in inner.omitted.take_all() {
            inner.write(record).await;
        }
        let (reply, closed) = oneshot::channel();
        let _ = inner.queue.send(Job::Close(reply));
        if tokio::time::timeout(WRITE_TIMEOUT, closed).await.is_err() {
            tracing::warn!("the audit log may lack its end: the disk does not answer");
        }
    }
}

/// What the records of a start and its end have beside what is told of the command: both name the caller.
fn rest(call: &Call) -> u64 {
    REST + 2 * json::length(&call.caller.identity.as_str())
}

impl Inner {
    /// What is told of a command that is to be started: less, if its caller has told much.
    ///
    /// # Errors
    /// [`ExecutorError::Exhausted`]: it has told too much.
    async fn room_for(self: &Arc<Self>, call: &Call, command: &Command) -> Result<Box<Asked>, ExecutorError> {
        let identity = call.caller.identity.as_str();
        let asked = self.describe(call, command, CommandDescriber::full).await?;
        if self.volume.takes_whole(identity, json::length(&asked) + rest(call)) {
            return Ok(asked);
        }
        let asked = self.describe(call, command, CommandDescriber::shortened).await?;
        self.volume.take(identity, json::length(&asked) + rest(call)).map_err(|wait| {
            self.leave_out(call, true);
            let reason =
                format!("{identity} has filled its share of the audit log, audit.max_bytes_per_identity; nothing ran");
            ExecutorError::Exhausted { reason, retry_after: Some(wait) }
        })?;
        Ok(asked)
    }

    /// What is told of a command.
    async fn describe(
        &self,
        call: &Call,
        command: &Command,
        describe: fn(&CommandDescriber, &Command) -> Box<Asked>,
    ) -> Result<Box<Asked>, ExecutorError> {
        if command::length(command.program()) <= QUICK {
            return Ok(describe(&self.describer, command));
        }
        let (describer, command) = (Arc::clone(&self.describer), command.clone());
        let asked = self.workers.run(call.caller.identity.as_str(), move || describe(&describer, &command)).await;
        asked.map_err(|lost| ExecutorError::Internal(format!("no audit record was made of the command: {lost}")))
    }

    /// Whether there is a record left for what a caller is refused: who is told no again and again does not fill the log.
    fn spares(self: &Arc<Self>, call: &Call) -> bool {
        if self.refusals.len() > MANY {
            self.refusals.retain_recent();
        }
        let spares = self.refusals.check_key(&call.caller.identity.as_str().to_owned()).is_ok();
        if !spares {
            self.leave_out(call, true);
        }
        spares
    }

    /// Whether there is room for a record of so many bytes.
    fn fits(self: &Arc<Self>, call: &Call, bytes: u64, was_denied: bool) -> bool {
        let fits = self.volume.take(call.caller.identity.as_str(), bytes).is_ok();
        if !fits {
            self.leave_out(call, was_denied);
        }
        fits
    }

    /// Counts what is not told one by one, and sees that it is told soon how much that is.
    fn leave_out(self: &Arc<Self>, call: &Call, was_denied: bool) {
        let identity = call.caller.identity.as_str();
        if !self.omitted.count(identity, || Origin::of(call), was_denied) {
            return;
        }
        let (this, identity) = (Arc::clone(self), identity.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(omitted::DELAY).await;
            if let Some(record) = this.omitted.take(&identity) {
                this.write(record).await;
            }
        });
    }

    /// What is told of a call; `None`: nothing.
    fn operation(
        self: &Arc<Self>,
        call: &Call,
        operation: Operation<'_>,
        decision: &Decision,
        error: Option<&ExecutorError>,
    ) -> Option<Record> {
        if error.is_some() && !self.spares(call) || !self.fits(call, rest(call) / 2, error.is_some()) {
            return None;
        }
        let action = operation.action.filter(|action| *action != call.rpc).map(Rpc::as_str);
        let signal = operation.signal.map(|signal| signal.to_string());
        let record = OperationRecord { action, signal, position: operation.position };
        let body = Body::Call { decision: decision.into(), operation: record, failure: error.map(Into::into) };
        Some(Record::new(body).of(&Origin::of(call)).about(operation.execution_id))
    }

    fn watch(&self, origin: &Arc<Origin>, id: &ExecutionId) -> Watch {
        let (queue, state) = (self.queue.clone(), Arc::clone(&self.state));
        Watch::new(queue, state, Arc::clone(origin), id.clone(), self.containment, self.output_digest)
    }

    /// Has a start written; `None`: that takes too long, and it will not be.
    async fn begin(&self, record: Record, watch: Watch) -> Option<writer::StartOutcome> {
        let until = Instant::now() + WRITE_TIMEOUT;
        let slot = self.slot(until).await?;
        let (reply, mut begun) = oneshot::channel();
        self.queue.send(Job::Start(Box::new(Start { record, watch, reply, slot }))).ok()?;
        if let Ok(begun) = timeout_at(until, &mut begun).await {
            return begun.ok();
        }
        self.state.is_stuck.store(true, Ordering::Relaxed);
        let _ = self.queue.send(Job::Revive);
        // from here on it is not written any more, if it has not been
        begun.close();
        begun.try_recv().ok()
    }

    async fn write(&self, record: Record) {
        match self.slot(Instant::now() + WRITE_TIMEOUT).await {
            Some(slot) => drop(self.queue.send(Job::Record(Box::new(record), Some(slot)))),
            None => self.state.lose(),
        }
    }

    /// A place in the queue; `None`: there is none in time.
    async fn slot(&self, until: Instant) -> Option<OwnedSemaphorePermit> {
        if self.state.is_stuck.load(Ordering::Relaxed) {
            return None;
        }
        timeout_at(until, Arc::clone(&self.slots).acquire_owned()).await.ok()?.ok()
    }
}
