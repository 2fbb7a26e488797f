//! One execution, from its reservation until it is forgotten.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use telexec_executor::{
    ExecutionId, ExecutionInfo, ExecutionState, ExecutorError, Exited, Fingerprint, ListQuery, Started,
};
use tokio_util::sync::CancellationToken;

use super::kept_program::KeptProgram;
use crate::containment::Containment;
use crate::lock::lock;
use crate::observer::MainProcess;
use crate::output::printed::Printed;
use crate::output::spool::SpoolFile;
use crate::output::transcript::Transcript;
use crate::streams::input::InputSender;
use crate::streams::terminal::Terminal;

/// What an execution is known by. An id is its identity's: equal ids of others are other executions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    // first, so that all executions of an id are beside each other
    pub(super) id: ExecutionId,
    pub(super) identity: String,
}

impl Key {
    pub(crate) fn new(identity: &str, id: &ExecutionId) -> Self {
        Self { id: id.clone(), identity: identity.to_owned() }
    }
}

/// One execution.
pub(crate) struct Record {
    pub(crate) id: ExecutionId,
    /// Counts up in the order of the starts.
    pub(super) sequence: u64,
    pub(super) asked: Asked,
    pub(super) labels: BTreeMap<String, String>,
    /// Identifies a repeat of the request; only for those whose id was chosen by the caller.
    pub(super) fingerprint: Option<Fingerprint>,
    pub(crate) transcript: Arc<Transcript>,
    /// Cancelled by a request to kill it.
    pub(crate) kill: CancellationToken,
    /// Cancelled when it is no longer wanted.
    pub(crate) cancel: CancellationToken,
    /// How many calls there are whose end ends it.
    pub(super) bound: AtomicUsize,
    /// Cancelled once it has started, or could not.
    pub(super) settled: CancellationToken,
    pub(super) state: Mutex<State>,
}

/// What two commands have in common that count as the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) identity: String,
    pub(crate) program: KeptProgram,
    pub(crate) working_directory: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) terminal: bool,
}

/// The channels to a running command.
#[derive(Clone, Default)]
pub(crate) struct Channels {
    /// `None`: it accepts no input.
    pub(crate) input: Option<InputSender>,
    pub(crate) terminal: Option<Arc<Terminal>>,
}

/// What an execution does now.
#[derive(Clone)]
pub(super) enum State {
    /// It has no process yet; nothing else sees it.
    Starting,
    Running(MainProcess, Containment, Channels),
    Lingering(MainProcess, Containment, Exited),
    Exited(MainProcess, Exited),
}

impl Record {
    /// One that has ended under an earlier engine.
    pub(super) fn inherited(Inherited { ended, file }: Inherited, sequence: u64) -> Self {
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
    pub(super) fn to_leave(&self) -> Option<Ended> {
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

    pub(crate) fn started(&self, main: MainProcess, containment: Containment, channels: Channels) {
        *lock(&self.state) = State::Running(main, containment, channels);
        self.settled.cancel();
    }

    /// How it started, once that is known; `None`: it did not.
    pub(crate) async fn start(&self) -> Option<Started> {
        self.settled.cancelled().await;
        let (State::Running(main, ..) | State::Lingering(main, ..) | State::Exited(main, _)) = &*lock(&self.state)
        else {
            return None;
        };
        Some(Started { id: self.id.clone(), pid: main.pid, start_time: main.start_time })
    }

    /// Another call whose end ends it.
    pub(crate) fn bind(&self) {
        self.bound.fetch_add(1, Ordering::Relaxed);
    }

    /// Such a call is over.
    pub(crate) fn unbind(&self) {
        if self.bound.fetch_sub(1, Ordering::Relaxed) == 1 && !self.transcript.is_promoted() {
            self.cancel.cancel();
        }
    }

    /// The channels to it.
    ///
    /// # Errors
    /// [`ExecutorError::FailedPrecondition`] if it has ended.
    pub(crate) fn channels(&self) -> Result<Channels, ExecutorError> {
        match &*lock(&self.state) {
            State::Running(_, _, channels) => Ok(channels.clone()),
            State::Starting | State::Lingering(..) | State::Exited(..) => {
                Err(ExecutorError::FailedPrecondition { reason: "the command has ended".into() })
            }
        }
    }

    pub(super) fn ended(&self, exited: Exited, lingers: bool) {
        let mut state = lock(&self.state);
        *state = match state.clone() {
            State::Running(main, containment, _) if lingers => State::Lingering(main, containment, exited),
            State::Running(main, ..) => State::Exited(main, exited),
            kept @ (State::Starting | State::Lingering(..) | State::Exited(..)) => kept,
        };
    }

    pub(super) fn outlived(&self) {
        let mut state = lock(&self.state);
        if let State::Lingering(main, _, exited) = state.clone() {
            *state = State::Exited(main, exited);
        }
    }

    pub(crate) fn identity(&self) -> &str {
        &self.asked.identity
    }

    pub(super) fn key(&self) -> Key {
        Key::new(&self.asked.identity, &self.id)
    }

    /// No process of it is left.
    pub(super) fn has_ended(&self) -> bool {
        matches!(&*lock(&self.state), State::Exited(..))
    }

    /// It has not ended.
    pub(super) fn may_run(&self) -> bool {
        matches!(&*lock(&self.state), State::Starting | State::Running(..))
    }

    /// The processes that may still live.
    pub(crate) fn containment(&self) -> Option<Containment> {
        match &*lock(&self.state) {
            State::Running(_, containment, _) | State::Lingering(_, containment, _) => Some(containment.clone()),
            State::Starting | State::Exited(..) => None,
        }
    }

    /// The execution now; `None` while it is starting.
    ///
    /// Its processes are counted no earlier than `asked`.
    pub(crate) async fn info(&self, asked: Instant) -> Option<ExecutionInfo> {
        // counted first, so that no execution is reported as ended with processes
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

    /// Its approximate size as a message, in bytes.
    pub(super) fn size(&self) -> usize {
        let labels: usize = self.labels.iter().map(|(key, value)| key.len() + value.len() + 8).sum();
        // a directory is no longer than PATH_MAX, and usually far shorter
        self.asked.program.bytes() + labels + 1024
    }

    /// About how much memory it takes after its end.
    pub(super) fn bytes(&self) -> usize {
        self.size() + self.asked.identity.len() + self.transcript.bytes()
    }

    pub(super) fn matches(&self, query: &ListQuery) -> bool {
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

/// An ended execution, as one engine leaves it to the next.
#[derive(Debug, PartialEq)]
pub(crate) struct Ended {
    pub(crate) id: ExecutionId,
    pub(crate) sequence: u64,
    pub(crate) asked: Asked,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) main: MainProcess,
    pub(crate) exited: Exited,
    pub(crate) output: Printed,
}

/// An ended execution of an earlier engine, and its output on disk.
pub(crate) struct Inherited {
    pub(crate) ended: Ended,
    pub(crate) file: Option<SpoolFile>,
}
