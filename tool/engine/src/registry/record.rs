//! One execution, from its reservation until it is forgotten.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use telexec_executor::{
    ExecutionId, ExecutionInfo, ExecutionState, ExecutorError, Exited, Fingerprint, ListQuery, Started, Usage,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::bindings::Bindings;
use super::inherited::Ended;
use super::kept_program::KeptProgram;
use crate::containment::Containment;
use crate::lock::lock;
use crate::observer::MainProcess;
use crate::output::transcript::Transcript;
use crate::streams::input::InputSender;
use crate::streams::terminal::Terminal;

/// What a checkpoint takes of memory after the end, about: its description, how it ended, and the kernel's own.
const CHECKPOINT_BYTES: usize = 24 * 1024;

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
    /// Cancelled to end it since its agent hands over.
    pub(crate) shutdown: CancellationToken,
    pub(super) bindings: Mutex<Bindings>,
    /// See [`Grant::internal_of`](crate::Grant::internal_of).
    pub(super) internal_of: Option<String>,
    /// Another call was bound, or one is over.
    pub(super) bound: Notify,
    /// It was started by a call that it is bound to, and waits for that after a lost connection.
    pub(crate) waits_for_caller: bool,
    /// It is bound to no call.
    pub(super) is_detached: bool,
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
    pub(crate) receipt: bool,
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
    pub(crate) fn asked(&self) -> &Asked {
        &self.asked
    }

    pub(crate) fn labels(&self) -> &BTreeMap<String, String> {
        &self.labels
    }

    pub(crate) fn fingerprint(&self) -> Option<Fingerprint> {
        self.fingerprint
    }

    /// What the next engine is to know of it; `None`: it has not ended. Processes that it has left behind are not known
    /// to that engine.
    pub(crate) fn to_leave(&self) -> Option<Ended> {
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

    /// Forgets the output that is kept for a caller which loses its connection, when none has been there for this time.
    pub(crate) fn release_retained_after(&self, grace: Duration) {
        if grace.is_zero() {
            return;
        }
        // once forgotten it holds nothing
        tokio::spawn(release_retained_after(Arc::downgrade(&self.transcript), grace));
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

    /// It is a means of the admission.
    pub(crate) fn is_internal(&self) -> bool {
        self.internal_of.is_some()
    }

    /// The identity that it counts for.
    pub(crate) fn counts_for(&self) -> &str {
        self.internal_of.as_deref().unwrap_or_else(|| self.identity())
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

    /// The next agent of the same keeper continues it.
    pub(crate) fn survives(&self) -> bool {
        let needs_no_call = self.is_detached || self.waits_for_caller || self.transcript.is_promoted();
        needs_no_call && self.transcript.checkpoint().is_some()
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
        let (processes, used) = match self.containment() {
            Some(containment) => (containment.count(asked).await, containment.usage()),
            None => (0, Usage::default()),
        };
        let (state, main, exited) = match lock(&self.state).clone() {
            State::Starting => return None,
            State::Running(main, ..) => (ExecutionState::Running, main, None),
            State::Lingering(main, _, exited) => (ExecutionState::Lingering, main, Some(exited)),
            State::Exited(main, exited) => (ExecutionState::Exited, main, Some(exited)),
        };
        let usage = match &exited {
            // what the cgroup has counted until it was removed
            Some(exited) if used == Usage::default() => exited.usage,
            _ => used,
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
            usage,
        })
    }

    /// Its approximate size as a message, in bytes.
    pub(super) fn size(&self) -> usize {
        let labels: usize = self.labels.iter().map(|(key, value)| key.len() + value.len() + 8).sum();
        // a directory is no longer than PATH_MAX, and usually far shorter
        self.asked.program.bytes() + labels + 1024
    }

    /// Lists do not have it.
    fn receipt_bytes(&self) -> usize {
        match &*lock(&self.state) {
            State::Lingering(_, _, exited) | State::Exited(_, exited) => {
                exited.receipt.as_ref().map_or(0, |text| text.len())
            }
            State::Starting | State::Running(..) => 0,
        }
    }

    /// About how much memory it takes after its end.
    pub(super) fn bytes(&self) -> usize {
        let receipt = self.receipt_bytes();
        // there it is once more, and what was known of it at the start, in base64
        let saved = if self.transcript.checkpoint().is_some() { CHECKPOINT_BYTES + 2 * receipt } else { 0 };
        self.size() + receipt + self.asked.identity.len() + self.transcript.bytes() + saved
    }

    pub(super) fn matches(&self, query: &ListQuery) -> bool {
        let exited = match &*lock(&self.state) {
            State::Starting => return false,
            State::Exited(..) => true,
            State::Running(..) | State::Lingering(..) => false,
        };
        !self.is_internal()
            && (query.include_exited || !exited)
            && query.identity.as_ref().is_none_or(|identity| *identity == self.asked.identity)
            && query.labels.iter().all(|(key, value)| self.labels.get(key) == Some(value))
    }
}

/// Again when another owner has come meanwhile.
async fn release_retained_after(transcript: Weak<Transcript>, grace: Duration) {
    while let Some(present) = transcript.upgrade() {
        present.left().await;
        drop(present);
        tokio::time::sleep(grace).await;
        if transcript.upgrade().is_none_or(|transcript| transcript.release_retained()) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// However short the grace is, it must not be measured again and again while the owner stays. Outside of a runtime, where
    /// a timer would panic.
    #[test]
    fn the_grace_begins_when_the_owner_leaves() {
        let transcript = Arc::new(Transcript::new(None, Some("owner")));
        let release = release_retained_after(Arc::downgrade(&transcript), Duration::from_nanos(1));
        assert!(release.now_or_never().is_none());
    }
}
