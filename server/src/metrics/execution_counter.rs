//! Counts one execution.

use std::sync::Arc;
use std::time::Instant;

use telexec_engine::{ExecutionObserver, MainProcess};
use telexec_executor::{ExecutorError, Exited, OutputStream};

use super::{Counters, Refusal};

/// Counts the outcome of a command.
pub(super) struct ExecutionCounter {
    pub(super) counters: Arc<Counters>,
    pub(super) asked: Instant,
}

impl ExecutionObserver for ExecutionCounter {
    fn started(&self, _: &MainProcess) {
        self.counters.started(self.asked.elapsed());
    }

    fn output(&self, stream: OutputStream, data: &[u8]) {
        self.counters.output(stream, data.len());
    }

    fn ended(self: Box<Self>, exited: &Exited) {
        self.counters.ended(exited);
    }

    fn not_started(self: Box<Self>, error: &ExecutorError) {
        match error {
            ExecutorError::Spawn(error) => self.counters.not_started(error),
            error => refusal(error).into_iter().for_each(|refusal| self.counters.refused(refusal)),
        }
    }
}

/// `None`: it is no refusal.
fn refusal(error: &ExecutorError) -> Option<Refusal> {
    match error {
        ExecutorError::Exhausted { .. } => Some(Refusal::Exhausted),
        ExecutorError::Unsupported { .. } => Some(Refusal::Unsupported),
        ExecutorError::AlreadyExists(_) => Some(Refusal::Exists),
        ExecutorError::ShuttingDown => Some(Refusal::Shutdown),
        // the start was a repetition, and follows the execution that runs
        ExecutorError::AlreadyRunning(_) => None,
        // counted by its stage
        ExecutorError::Spawn(_) => None,
        ExecutorError::Invalid(_)
        | ExecutorError::Unauthenticated { .. }
        | ExecutorError::Denied { .. }
        | ExecutorError::ApprovalRequired { .. }
        | ExecutorError::NoApproval(_)
        | ExecutorError::File(_)
        | ExecutorError::Corrupted { .. }
        | ExecutorError::NoUpload(_)
        | ExecutorError::NotFound(_)
        | ExecutorError::FailedPrecondition { .. }
        | ExecutorError::OutOfRange { .. }
        | ExecutorError::DeadlineExceeded
        | ExecutorError::Unreachable { .. }
        | ExecutorError::Untrusted { .. }
        | ExecutorError::Lost { .. }
        | ExecutorError::Internal(_) => Some(Refusal::GivenUp),
    }
}
