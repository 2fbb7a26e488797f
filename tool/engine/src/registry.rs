//! The executions that this executor knows of: running, lingering, and, for a while, ended.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use telexec_executor::{
    Command, DuplicatePolicy, ExecutionId, ExecutionInfo, ExecutionState, ExecutorError, Exited, Fingerprint,
    InvalidCommand, ListQuery, Program, Started,
};
use tokio_util::sync::CancellationToken;

use super::containment::Containment;
use super::handover::{Ended, Inherited};
use super::input::InputSender;
use super::kept::Kept;
use super::remembered::Remembered;
use super::spool::SpoolFile;
use super::terminal::Terminal;
use super::transcript::Transcript;
use super::watch::MainProcess;

/// A page of a list fits the 4 MiB that gRPC clients accept by default.
const PAGE_BYTES: usize = 2 * 1024 * 1024;

/// How long ended executions are remembered, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// From the end on. Default 1 h.
    pub age: Duration,
    /// Default 1,000. Past this and the other limits, the oldest of the identity that has the most are forgotten first.
    pub count: usize,
    /// So much memory they may take, with the output of theirs that is in memory. Default 64 MiB.
    pub bytes: usize,
    /// Of this, those of one identity. Default 32 MiB.
    pub bytes_per_identity: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            age: Duration::from_secs(3600),
            count: 1000,
            bytes: 64 * 1024 * 1024,
            bytes_per_identity: 32 * 1024 * 1024,
        }
    }
}

/// What an execution is known by. An id is its identity's: equal ids of others are other executions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    // first, so that all executions of an id are beside each other
    id: ExecutionId,
    identity: String,
}

impl Key {
    pub(super) fn new(identity: &str, id: &ExecutionId) -> Self {
        Self { id: id.clone(), identity: identity.to_owned() }
    }
}

/// One execution.
pub(super) struct Record {
    pub(super) id: ExecutionId,
    /// Counts up in the order of the starts.
    sequence: u64,
    asked: Asked,
    labels: BTreeMap<String, String>,
    /// Tells a repeat of the request; only of those whose id was chosen by the caller.
    fingerprint: Option<Fingerprint>,
    pub(super) transcript: Arc<Transcript>,
    /// Cancelled by a request to kill it.
    pub(super) kill: CancellationToken,
    /// Cancelled when nobody wants it any more.
    pub(super) cancel: CancellationToken,
    /// How many calls there are that it ends with.
    bound: AtomicUsize,
    /// Cancelled once it has started, or could not.
    settled: CancellationToken,
    state: Mutex<State>,
}

/// What makes two commands the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) identity: String,
    pub(super) program: Kept,
    pub(super) working_directory: Option<String>,
    pub(super) user: Option<String>,
    pub(super) terminal: bool,
}

/// Who a command is for, now that its request is known.
pub(super) enum Reserved {
    /// It is to be started.
    New(Arc<Record>),
    /// It was asked for before, with the same id.
    Repeated(Arc<Record>),
    /// The same runs already, and another one is not wanted.
    Duplicate(Arc<Record>),
}

/// What reaches a command that runs.
#[derive(Clone, Default)]
pub(super) struct Channels {
    /// `None`: it accepts no input.
    pub(super) input: Option<InputSender>,
    pub(super) terminal: Option<Arc<Terminal>>,
}

/// What an execution does now.
#[derive(Clone)]
enum State {
    /// It has no process yet; nobody else sees it.
    Starting,
    Running(MainProcess, Containment, Channels),
    Lingering(MainProcess, Containment, Exited),
    Exited(MainProcess, Exited),
}

impl Record {
    /// One that has ended under an earlier engine.
    fn inherited(Inherited { ended, file }: Inherited, sequence: u64) -> Self {
        let settled = CancellationToken::new();
        settled.cancel();
        Self {
            id: ended.id,
            sequence,
            asked: ended.asked,
            labels: ended.labels,
            fingerprint: ended.fingerprint,
            transcript: Arc::new(Transcript::ended(ended.output, file, ended.exited.clone())),
            kill: CancellationToken::new(),
            cancel: CancellationToken::new(),
            bound: AtomicUsize::new(0),
            settled,
            state: Mutex::new(State::Exited(ended.main, ended.exited)),
        }
    }

    /// What the next engine is to know of it; `None`: it has not ended. Processes that it has left behind are not known
    /// to that engine.
    fn to_leave(&self) -> Option<Ended> {
        let (State::Lingering(main, _, exited) | State::Exited(main, exited)) = lock(&self.state).clone() else {
            return None;
        };
        Some(Ended {
            id: self.id.clone(),
            sequence: self.sequence,
            asked: self.asked.clone(),
            labels: self.labels.clone(),
            fingerprint: self.fingerprint,
            main,
            exited,
            output: self.transcript.printed(),
        })
    }

    pub(super) fn started(&self, main: MainProcess, containment: Containment, channels: Channels) {
        *lock(&self.state) = State::Running(main, containment, channels);
        self.settled.cancel();
    }

    /// How it started, once that is known; `None`: it did not.
    pub(super) async fn start(&self) -> Option<Started> {
        self.settled.cancelled().await;
        let (State::Running(main, ..) | State::Lingering(main, ..) | State::Exited(main, _)) = &*lock(&self.state)
        else {
            return None;
        };
        Some(Started { id: self.id.clone(), pid: main.pid, start_time: main.start_time })
    }

    /// Another call that it ends with.
    pub(super) fn bind(&self) {
        self.bound.fetch_add(1, Ordering::Relaxed);
    }

    /// A call that it ends with is over.
    pub(super) fn unbind(&self) {
        if self.bound.fetch_sub(1, Ordering::Relaxed) == 1 && !self.transcript.is_promoted() {
            self.cancel.cancel();
        }
    }

    /// What reaches it.
    ///
    /// # Errors
    /// [`ExecutorError::FailedPrecondition`] if it has ended.
    pub(super) fn channels(&self) -> Result<Channels, ExecutorError> {
        match &*lock(&self.state) {
            State::Running(_, _, channels) => Ok(channels.clone()),
            _ => Err(ExecutorError::FailedPrecondition { reason: "the command has ended".into() }),
        }
    }

    fn ended(&self, exited: Exited, lingers: bool) {
        let mut state = lock(&self.state);
        *state = match state.clone() {
            State::Running(main, containment, _) if lingers => State::Lingering(main, containment, exited),
            State::Running(main, ..) => State::Exited(main, exited),
            other => other,
        };
    }

    fn outlived(&self) {
        let mut state = lock(&self.state);
        if let State::Lingering(main, _, exited) = state.clone() {
            *state = State::Exited(main, exited);
        }
    }

    pub(super) fn identity(&self) -> &str {
        &self.asked.identity
    }

    fn key(&self) -> Key {
        Key::new(&self.asked.identity, &self.id)
    }

    /// No process of it is left.
    fn has_ended(&self) -> bool {
        matches!(&*lock(&self.state), State::Exited(..))
    }

    /// It has not ended.
    fn may_run(&self) -> bool {
        matches!(&*lock(&self.state), State::Starting | State::Running(..))
    }

    /// The processes that may still live.
    pub(super) fn containment(&self) -> Option<Containment> {
        match &*lock(&self.state) {
            State::Running(_, containment, _) | State::Lingering(_, containment, _) => Some(containment.clone()),
            State::Starting | State::Exited(..) => None,
        }
    }

    /// The execution now; `None` while it is starting.
    ///
    /// Its processes are counted no earlier than `asked`.
    pub(super) async fn info(&self, asked: Instant) -> Option<ExecutionInfo> {
        // counted first, so that no execution is told as ended with processes
        let processes = match self.containment() {
            Some(containment) => containment.count(asked).await,
            None => 0,
        };
        let (state, main, exited) = match lock(&self.state).clone() {
            State::Starting => return None,
            State::Running(main, ..) => (ExecutionState::Running, main, None),
            State::Lingering(main, _, exited) => (ExecutionState::Lingering, main, Some(exited)),
            State::Exited(main, exited) => (ExecutionState::Exited, main, Some(exited)),
        };
        Some(ExecutionInfo {
            id: self.id.clone(),
            program: Arc::unwrap_or_clone(self.asked.program.get()),
            working_directory: main.working_directory,
            user: main.user,
            identity: self.asked.identity.clone(),
            terminal: self.asked.terminal,
            labels: self.labels.clone(),
            state,
            pid: main.pid,
            start_time: main.start_time,
            position: self.transcript.end(),
            exited,
            processes: if state == ExecutionState::Exited { 0 } else { processes },
        })
    }

    /// About how much it is as a message, in bytes.
    fn size(&self) -> usize {
        let labels: usize = self.labels.iter().map(|(key, value)| key.len() + value.len() + 8).sum();
        // a directory is no longer than PATH_MAX, and usually far shorter
        self.asked.program.bytes() + labels + 1024
    }

    /// About how much memory it takes, now that it has ended.
    fn bytes(&self) -> usize {
        self.size() + self.asked.identity.len() + self.transcript.bytes()
    }

    fn matches(&self, query: &ListQuery) -> bool {
        let exited = match &*lock(&self.state) {
            State::Starting => return false,
            State::Exited(..) => true,
            State::Running(..) | State::Lingering(..) => false,
        };
        (query.include_exited || !exited)
            && query.identity.as_ref().is_none_or(|identity| *identity == self.asked.identity)
            && query.labels.iter().all(|(key, value)| self.labels.get(key) == Some(value))
    }
}

/// All records.
pub(super) struct Registry {
    retention: Retention,
    /// So many executions of one identity may run or linger at once.
    max_per_identity: u32,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    by_key: BTreeMap<Key, Arc<Record>>,
    ended: Remembered<Key>,
    next_sequence: u64,
}

impl Registry {
    pub(super) fn new(retention: Retention, max_per_identity: u32) -> Self {
        Self { retention, max_per_identity, entries: Mutex::default() }
    }

    /// Remembers what has ended under earlier engines, for as long as if it had ended here.
    pub(super) fn inherit(&self, inherited: Vec<Inherited>) {
        let mut entries = self.entries();
        let first = entries.next_sequence;
        for one in inherited {
            let key = Key::new(&one.ended.asked.identity, &one.ended.id);
            if entries.by_key.contains_key(&key) {
                continue;
            }
            let sequence = first.saturating_add(one.ended.sequence);
            entries.next_sequence = entries.next_sequence.max(sequence.saturating_add(1));
            let age = SystemTime::now().duration_since(one.ended.exited.end_time).unwrap_or_default();
            let when = Instant::now();
            let record = Arc::new(Record::inherited(one, sequence));
            record.asked.program.cut();
            entries.remember(&record, when.checked_sub(age).unwrap_or(when));
            entries.by_key.insert(key, record);
            entries.forget(&self.retention);
        }
    }

    /// What the next engine is to know: in the order of the ends.
    pub(super) fn to_leave(&self) -> Vec<Ended> {
        let entries = self.entries();
        let mut left: Vec<_> = entries.by_key.values().filter_map(|record| record.to_leave()).collect();
        left.sort_by_key(|ended| ended.exited.end_time);
        left
    }

    /// Takes the command's id for its identity, or `fresh` if it has none; or finds the execution that answers the request.
    /// A new one is visible once it has [`started`](Record::started). `file` is for its output, if that may be kept on disk.
    ///
    /// # Errors
    /// The identity has used the id for something else.
    pub(super) fn reserve(
        &self,
        command: &Command,
        program: Program,
        fresh: &ExecutionId,
        file: impl FnOnce() -> SpoolFile,
    ) -> Result<Reserved, ExecutorError> {
        let asked = Asked {
            identity: command.identity().to_owned(),
            program: Kept::new(program),
            working_directory: command.working_directory().map(str::to_owned),
            user: command.user().map(str::to_owned),
            terminal: command.terminal().is_some(),
        };
        let fingerprint = command.execution_id().map(|_| command.fingerprint());
        let key = Key::new(&asked.identity, command.execution_id().unwrap_or(fresh));
        let mut entries = self.entries();
        if let Some(record) = command.execution_id().and_then(|_| entries.by_key.get(&key)) {
            return match record.fingerprint == fingerprint {
                true => Ok(Reserved::Repeated(Arc::clone(record))),
                false => Err(ExecutorError::AlreadyExists(record.id.clone())),
            };
        }
        if command.duplicate_policy() == DuplicatePolicy::ReuseRunning
            && let Some(record) = entries.by_key.values().find(|record| record.asked == asked && record.may_run())
        {
            return Ok(Reserved::Duplicate(Arc::clone(record)));
        }
        self.check_share(&entries, command)?;
        let may_be_kept = command.may_go_to_background() || fingerprint.is_some();
        let record = Arc::new(Record {
            id: key.id.clone(),
            sequence: entries.next_sequence,
            asked,
            labels: command.labels().clone(),
            fingerprint,
            transcript: Arc::new(Transcript::new(may_be_kept.then(file))),
            kill: CancellationToken::new(),
            cancel: CancellationToken::new(),
            bound: AtomicUsize::new(0),
            settled: CancellationToken::new(),
            state: Mutex::new(State::Starting),
        });
        entries.next_sequence += 1;
        entries.by_key.insert(key, Arc::clone(&record));
        Ok(Reserved::New(record))
    }

    /// # Errors
    /// [`ExecutorError::Exhausted`]: the identity has as many executions as one may have.
    fn check_share(&self, entries: &Entries, command: &Command) -> Result<(), ExecutorError> {
        let identity = command.identity();
        let most = command.allowance().concurrent.map_or(self.max_per_identity, |most| most.min(self.max_per_identity));
        if entries.by_key.len() < most as usize {
            return Ok(());
        }
        let is_its = |record: &&Arc<Record>| record.asked.identity == identity && !record.has_ended();
        if entries.by_key.values().filter(is_its).count() < most as usize {
            return Ok(());
        }
        Err(ExecutorError::Exhausted {
            reason: format!(
                "{most} executions of {identity} run already, which is the limit for one caller (max_executions_per_identity)"
            ),
            retry_after: Some(Duration::from_secs(1)),
        })
    }

    /// No other one was asked for since.
    pub(super) fn is_newest(&self, record: &Record) -> bool {
        self.entries().next_sequence == record.sequence + 1
    }

    /// Gives up what is kept on disk of the execution that ended first. False: there is none, or it cannot be done now.
    pub(super) async fn make_room(&self) -> bool {
        let oldest = {
            let entries = self.entries();
            let mut ended = entries.ended.keys().filter_map(|key| entries.by_key.get(key));
            ended.find(|record| record.transcript.is_on_disk()).map(|record| Arc::clone(&record.transcript))
        };
        match oldest {
            Some(transcript) => transcript.forget_spool().await,
            None => false,
        }
    }

    /// It could not be started: its id is free again.
    pub(super) fn release(&self, record: &Record) {
        self.entries().by_key.remove(&record.key());
        record.settled.cancel();
    }

    /// Its main process has ended.
    pub(super) fn ended(&self, record: &Record, exited: Exited, lingers: bool) {
        record.ended(exited, lingers);
        record.asked.program.cut();
        if !lingers {
            self.entries().remember(record, Instant::now());
        }
    }

    /// Its last process has ended.
    pub(super) fn outlived(&self, record: &Record) {
        record.outlived();
        self.entries().remember(record, Instant::now());
    }

    /// # Errors
    /// [`ExecutorError::NotFound`]: the identity has none with this id.
    pub(super) fn get(&self, identity: &str, id: &ExecutionId) -> Result<Arc<Record>, ExecutorError> {
        let found = self.entries().by_key.get(&Key::new(identity, id)).cloned();
        found.ok_or_else(|| ExecutorError::NotFound(id.clone()))
    }

    /// The identities that have an execution with this id.
    pub(super) fn owners(&self, id: &ExecutionId) -> Vec<String> {
        let entries = self.entries();
        let from = entries.by_key.range(Key::new("", id)..);
        from.map(|(key, _)| key).take_while(|key| key.id == *id).map(|key| key.identity.clone()).collect()
    }

    /// A page of records, and the token of the next.
    ///
    /// # Errors
    /// The page token was not made here.
    pub(super) fn list(&self, query: &ListQuery) -> Result<(Vec<Arc<Record>>, String), InvalidCommand> {
        let from: u64 = match query.page_token.as_str() {
            "" => 0,
            token => token.parse().map_err(|_| InvalidCommand::new("page_token", "was not made by this agent"))?,
        };
        let size = match query.page_size {
            0 => 100,
            size => size.min(1000) as usize,
        };
        let mut found: Vec<_> =
            self.entries().by_key.values().filter(|r| r.sequence >= from && r.matches(query)).cloned().collect();
        found.sort_by_key(|record| record.sequence);
        let mut bytes = 0;
        let fits = found.iter().take_while(|record| {
            bytes += record.size();
            bytes <= PAGE_BYTES
        });
        // at least one, or there would be no end
        let size = size.min(fits.count().max(1));
        let next = found.get(size).map(|record| record.sequence.to_string()).unwrap_or_default();
        found.truncate(size);
        Ok((found, next))
    }

    /// How many run now.
    pub(super) fn running(&self) -> usize {
        let entries = self.entries();
        entries.by_key.values().filter(|record| matches!(*lock(&record.state), State::Running(..))).count()
    }

    /// The entries, without those whose time is over.
    fn entries(&self) -> MutexGuard<'_, Entries> {
        let mut entries = lock(&self.entries);
        entries.forget(&self.retention);
        entries
    }
}

impl Entries {
    /// It has ended, and is remembered for a while.
    fn remember(&mut self, record: &Record, when: Instant) {
        self.ended.push(record.key(), &record.asked.identity, record.bytes(), when);
    }

    /// Forgets those whose time is over, and what is too much.
    fn forget(&mut self, retention: &Retention) {
        while let Some(key) = self.ended.pop(retention) {
            self.by_key.remove(&key);
        }
    }
}

/// A panic while the lock was held leaves nothing half done here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
