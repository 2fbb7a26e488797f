//! Counts one execution.

use std::sync::Arc;
use std::time::Instant;

use telexec_engine::{ExecutionObserver, MainProcess};
use telexec_executor::{ExecutorError, ExitCause, Exited, OutputStream};

use super::{Counters, Refusal};

/// One of each.
pub(super) const CAUSES: [ExitCause; 7] = [
    ExitCause::Exited(0),
    ExitCause::Signaled,
    ExitCause::TimedOut,
    ExitCause::Cancelled,
    ExitCause::DeadlineExceeded,
    ExitCause::OutOfMemory,
    ExitCause::Shutdown,
];

/// Counts the outcome of a command, and forwards all events.
pub(super) struct ExecutionCounter {
    pub(super) counters: Arc<Counters>,
    pub(super) asked: Instant,
    pub(super) next: Option<Box<dyn ExecutionObserver>>,
}

impl ExecutionObserver for ExecutionCounter {
    fn started(&self, main: &MainProcess) {
        self.counters.started(self.asked.elapsed());
        self.next.iter().for_each(|next| next.started(main));
    }

    fn output(&self, stream: OutputStream, data: &[u8]) {
        self.counters.output(stream, data.len());
        self.next.iter().for_each(|next| next.output(stream, data));
    }

    fn ended(self: Box<Self>, exited: &Exited) {
        self.counters.ended(exited);
        self.next.into_iter().for_each(|next| next.ended(exited));
    }

    fn not_started(self: Box<Self>, error: &ExecutorError) {
        match error {
            ExecutorError::Spawn(error) => self.counters.not_started(error),
            error => refusal(error).into_iter().for_each(|refusal| self.counters.refused(refusal)),
        }
        self.next.into_iter().for_each(|next| next.not_started(error));
    }

    fn repeated(self: Box<Self>) {
        self.next.into_iter().for_each(|next| next.repeated());
    }
}

/// `None`: the start was a repetition, and follows the execution that runs.
fn refusal(error: &ExecutorError) -> Option<Refusal> {
    match error {
        ExecutorError::Exhausted { .. } => Some(Refusal::Exhausted),
        ExecutorError::Unsupported { .. } => Some(Refusal::Unsupported),
        ExecutorError::AlreadyExists(_) => Some(Refusal::Exists),
        ExecutorError::AlreadyRunning(_) => None,
        ExecutorError::ShuttingDown => Some(Refusal::Shutdown),
        _ => Some(Refusal::GivenUp),
    }
}
