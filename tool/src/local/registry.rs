//! The executions that this executor knows of: running, lingering, and, for a while, ended.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio_util::sync::CancellationToken;

use super::containment::Containment;
use crate::{
    Command, ExecutionId, ExecutionInfo, ExecutionState, ExecutorError, Exited, InvalidCommand, ListQuery, Program,
};

/// A page of a list fits the 4 MiB that gRPC clients accept by default.
const PAGE_BYTES: usize = 2 * 1024 * 1024;

/// How long ended executions are remembered, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// From the end on. Default 1 h.
    pub age: Duration,
    /// Default 1,000; the oldest are forgotten first.
    pub count: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Self { age: Duration::from_secs(3600), count: 1000 }
    }
}

/// One execution.
pub(super) struct Record {
    pub(super) id: ExecutionId,
    /// Counts up in the order of the starts.
    sequence: u64,
    program: Program,
    identity: String,
    labels: std::collections::BTreeMap<String, String>,
    /// Bytes of both streams read so far.
    pub(super) position: AtomicU64,
    /// Cancelled by a request to kill it.
    pub(super) kill: CancellationToken,
    state: Mutex<State>,
}

/// What an execution does now.
#[derive(Clone)]
enum State {
    /// It has no process yet; nobody else sees it.
    Starting,
    Running(Main, Containment),
    Lingering(Main, Containment, Exited),
    Exited(Main, Exited),
}

/// The main process, as it was started.
#[derive(Clone)]
pub(super) struct Main {
    pub(super) pid: u32,
    pub(super) start_time: SystemTime,
    pub(super) user: String,
    pub(super) working_directory: String,
}

impl Record {
    pub(super) fn started(&self, main: Main, containment: Containment) {
        *lock(&self.state) = State::Running(main, containment);
    }

    fn ended(&self, exited: Exited, lingers: bool) {
        let mut state = lock(&self.state);
        *state = match state.clone() {
            State::Running(main, containment) if lingers => State::Lingering(main, containment, exited),
            State::Running(main, _) => State::Exited(main, exited),
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
        &self.identity
    }

    /// The processes that may still live.
    pub(super) fn containment(&self) -> Option<Containment> {
        match &*lock(&self.state) {
            State::Running(_, containment) | State::Lingering(_, containment, _) => Some(containment.clone()),
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
            State::Running(main, _) => (ExecutionState::Running, main, None),
            State::Lingering(main, _, exited) => (ExecutionState::Lingering, main, Some(exited)),
            State::Exited(main, exited) => (ExecutionState::Exited, main, Some(exited)),
        };
        Some(ExecutionInfo {
            id: self.id.clone(),
            program: self.program.clone(),
            working_directory: main.working_directory,
            user: main.user,
            identity: self.identity.clone(),
            terminal: false,
            labels: self.labels.clone(),
            state,
            pid: main.pid,
            start_time: main.start_time,
            position: self.position.load(Ordering::Relaxed),
            exited,
            processes: if state == ExecutionState::Exited { 0 } else { processes },
        })
    }

    /// About how much it is as a message, in bytes.
    fn size(&self) -> usize {
        let program = match &self.program {
            Program::Shell { text, .. } => text.len(),
            Program::Argv(argv) => argv.iter().map(|argument| argument.len() + 4).sum(),
        };
        let labels: usize = self.labels.iter().map(|(key, value)| key.len() + value.len() + 8).sum();
        // a directory is no longer than PATH_MAX, and usually far shorter
        program + labels + 1024
    }

    fn matches(&self, query: &ListQuery) -> bool {
        let exited = match &*lock(&self.state) {
            State::Starting => return false,
            State::Exited(..) => true,
            State::Running(..) | State::Lingering(..) => false,
        };
        (query.include_exited || !exited)
            && query.identity.as_ref().is_none_or(|identity| *identity == self.identity)
            && query.labels.iter().all(|(key, value)| self.labels.get(key) == Some(value))
    }
}

/// All records by id.
pub(super) struct Registry {
    retention: Retention,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    by_id: HashMap<ExecutionId, Arc<Record>>,
    ended: VecDeque<(Instant, ExecutionId)>,
    next_sequence: u64,
}

impl Registry {
    pub(super) fn new(retention: Retention) -> Self {
        Self { retention, entries: Mutex::default() }
    }

    /// Takes the command's id, or makes one. It is visible once it has [`started`](Record::started).
    ///
    /// # Errors
    /// The id is taken.
    pub(super) fn reserve(&self, command: &Command, program: Program) -> Result<Arc<Record>, ExecutorError> {
        let id = command.execution_id().cloned().unwrap_or_else(ExecutionId::generate);
        let mut entries = self.entries();
        if entries.by_id.contains_key(&id) {
            return Err(ExecutorError::AlreadyExists(id));
        }
        let record = Arc::new(Record {
            id: id.clone(),
            sequence: entries.next_sequence,
            program,
            identity: command.identity().to_owned(),
            labels: command.labels().clone(),
            position: AtomicU64::new(0),
            kill: CancellationToken::new(),
            state: Mutex::new(State::Starting),
        });
        entries.next_sequence += 1;
        entries.by_id.insert(id, Arc::clone(&record));
        Ok(record)
    }

    /// It could not be started: its id is free again.
    pub(super) fn release(&self, record: &Record) {
        self.entries().by_id.remove(&record.id);
    }

    /// Its main process has ended.
    pub(super) fn ended(&self, record: &Record, exited: Exited, lingers: bool) {
        record.ended(exited, lingers);
        if !lingers {
            self.entries().ended.push_back((Instant::now(), record.id.clone()));
        }
    }

    /// Its last process has ended.
    pub(super) fn outlived(&self, record: &Record) {
        record.outlived();
        self.entries().ended.push_back((Instant::now(), record.id.clone()));
    }

    /// # Errors
    /// [`ExecutorError::NotFound`].
    pub(super) fn get(&self, id: &ExecutionId) -> Result<Arc<Record>, ExecutorError> {
        self.entries().by_id.get(id).cloned().ok_or_else(|| ExecutorError::NotFound(id.clone()))
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
            self.entries().by_id.values().filter(|r| r.sequence >= from && r.matches(query)).cloned().collect();
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
        entries.by_id.values().filter(|record| matches!(*lock(&record.state), State::Running(..))).count()
    }

    /// The entries, without those whose time is over.
    fn entries(&self) -> MutexGuard<'_, Entries> {
        let mut entries = lock(&self.entries);
        while let Some((when, id)) = entries.ended.front() {
            if entries.ended.len() <= self.retention.count && when.elapsed() < self.retention.age {
                break;
            }
            let id = id.clone();
            entries.by_id.remove(&id);
            entries.ended.pop_front();
        }
        entries
    }
}

/// A panic while the lock was held leaves nothing half done here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
