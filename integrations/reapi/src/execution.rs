//! The command of an action, on its target.

use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use telexec_executor::{
    Command, Event, Execution, ExecutionId, Executor, ExecutorError, ExitCause, Exited, OutputStream, Signal,
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::failure::{Failure, TargetError};
use crate::target::Target;

/// What is kept of each stream, in memory.
const MAX_OUTPUT_BYTES: usize = 16 * 1024 * 1024;
/// How shells tell that a signal ended a command.
const SIGNAL_BASE: i32 = 128;
const KILLED: i32 = SIGNAL_BASE + 9;

/// A command that ran.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) exit_code: i32,
    pub(crate) end: End,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    /// By this machine's clock.
    pub(crate) ended: SystemTime,
    pub(crate) wall_time: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By itself, or by a signal.
    Exited,
    TimedOut,
}

/// Runs it to its end. If it is let go of meanwhile, that is when none of its processes is left.
pub(crate) async fn run(target: &Target, command: Command, let_go: &CancellationToken) -> Result<Ran, Failure> {
    let failed = |error| failure(error, &target.name);
    let execution = target.executor.execute(command).await.map_err(failed)?;
    let (mut stdout, mut stderr) = (Kept::default(), Kept::default());
    let id = execution.id().clone();
    let (exited, is_whole) = follow(target, execution, &id, let_go, &mut stdout, &mut stderr).await.map_err(failed)?;
    let exited = exited.ok_or(Failure::LetGo)?;
    if !is_whole {
        return Err(Failure::Target { target: target.name.clone(), source: TargetError::Gap });
    }
    let (exit_code, end) = match exited.cause {
        ExitCause::Exited(code) => (code.into(), End::Exited),
        ExitCause::Signaled => (exited.signal.map_or(KILLED, |signal| SIGNAL_BASE + signal.number()), End::Exited),
        ExitCause::OutOfMemory => (KILLED, End::Exited),
        ExitCause::TimedOut => (KILLED, End::TimedOut),
        ExitCause::Cancelled | ExitCause::DeadlineExceeded | ExitCause::Shutdown => {
            return Err(Failure::Target { target: target.name.clone(), source: TargetError::Shutdown });
        }
    };
    let (stdout, stderr, wall_time) = (stdout.finish(), stderr.finish(), exited.wall_time);
    Ok(Ran { exit_code, end, stdout, stderr, ended: SystemTime::now(), wall_time })
}

/// How it ended (`None`: it was let go of), and whether all of its output is here.
async fn follow(
    target: &Target,
    mut execution: Execution,
    id: &ExecutionId,
    let_go: &CancellationToken,
    stdout: &mut Kept,
    stderr: &mut Kept,
) -> Result<(Option<Exited>, bool), ExecutorError> {
    let (mut was_let_go, mut is_whole) = (false, true);
    loop {
        let event = tokio::select! {
            event = execution.next() => event,
            () = let_go.cancelled(), if !was_let_go => {
                was_let_go = true;
                // on an error too it ends: with its connection, or with this execution
                if let Err(error) = target.executor.signal(id, Signal::KILL).await {
                    warn!(%id, error = %crate::chain(&error), "cannot end an action at once");
                    return Ok((None, is_whole));
                }
                continue;
            }
        };
        match event.transpose()? {
            Some(Event::Output(output)) => match output.stream {
                OutputStream::Stdout => stdout.add(&output.data),
                OutputStream::Stderr => stderr.add(&output.data),
            },
            Some(Event::Exited(exited)) => return Ok(((!was_let_go).then_some(exited), is_whole)),
            Some(Event::Gap(_)) => is_whole = false,
            Some(Event::Started(_)) => {}
            Some(Event::Promoted) | None => {
                return Err(ExecutorError::Internal("the agent did not say how the command ended".to_owned()));
            }
        }
    }
}

/// Whose fault it is.
fn failure(error: ExecutorError, target: &str) -> Failure {
    match error {
        ExecutorError::Invalid(error) => Failure::Invalid(error.to_string()),
        error @ (ExecutorError::Spawn(_) | ExecutorError::Unsupported { .. }) => {
            Failure::Unsatisfied(crate::chain(&error))
        }
        error @ ExecutorError::Denied { .. } => Failure::Denied(error),
        error => Failure::Target { target: target.to_owned(), source: error.into() },
    }
}

/// The beginning of a stream, and how much followed it.
#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    dropped: u64,
}

impl Kept {
    fn add(&mut self, data: &[u8]) {
        let (kept, dropped) = data.split_at(data.len().min(MAX_OUTPUT_BYTES - self.bytes.len()));
        self.bytes.extend_from_slice(kept);
        self.dropped += dropped.len() as u64;
    }

    fn finish(mut self) -> Vec<u8> {
        if self.dropped > 0 {
            self.bytes
                .extend_from_slice(format!("\n[telexec-reapi: {} more bytes were dropped]\n", self.dropped).as_bytes());
        }
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_kept_up_to_a_limit() {
        let mut kept = Kept::default();
        kept.add(&vec![b'a'; MAX_OUTPUT_BYTES - 1]);
        kept.add(b"bcd");
        kept.add(b"e");
        let text = kept.finish();
        assert!(text.ends_with(b"ab\n[telexec-reapi: 3 more bytes were dropped]\n"));
    }
}
