//! The command of an action, on its target.

use std::pin::pin;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use telexec_executor::{
    Command, Event, Execution, ExecutionId, Executor, ExecutorError, ExitCause, Exited, OutputStream, Signal,
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::failure::{Failure, TargetError};
use crate::target::{GIVE_UP_AFTER, Pause, Target};

/// What is kept of each stream, in memory.
const MAX_OUTPUT_BYTES: usize = 16 * 1024 * 1024;
/// An agent that has as many executions as it takes is asked this many times, over about six seconds.
const BUSY_ATTEMPTS: usize = 6;
/// For an end that comes: longer than any action.
const MAX_WAIT: Duration = Duration::from_secs(365 * 24 * 60 * 60);
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
    let execution = start(target, command, let_go).await?;
    let (mut stdout, mut stderr) = (Kept::default(), Kept::default());
    let exited = follow(target, execution, let_go, &mut stdout, &mut stderr).await?;
    if exited.cause == ExitCause::OutOfMemory {
        stderr.note("the kernel's OOM killer ended it: the target ran out of memory, or it reached the limit of the platform property \"memory\"");
    }
    let (exit_code, end) = match exited.cause {
        ExitCause::Exited(code) => (code.into(), End::Exited),
        ExitCause::Signaled => (exited.signal.map_or(KILLED, |signal| SIGNAL_BASE + signal.number()), End::Exited),
        ExitCause::OutOfMemory => (KILLED, End::Exited),
        ExitCause::TimedOut => (KILLED, End::TimedOut),
        ExitCause::Cancelled | ExitCause::DeadlineExceeded | ExitCause::Shutdown => {
            return Err(Failure::of_target(&target.name, TargetError::Shutdown));
        }
    };
    let (stdout, stderr, wall_time) = (stdout.finish(), stderr.finish(), exited.wall_time);
    Ok(Ran { exit_code, end, stdout, stderr, ended: SystemTime::now(), wall_time })
}

/// Starts it, once the agent has room for it.
async fn start(target: &Target, command: Command, let_go: &CancellationToken) -> Result<Execution, Failure> {
    let mut pause = Pause::default();
    for _ in 1..BUSY_ATTEMPTS {
        match start_once(target, command.clone(), let_go).await {
            Err(Failure::Busy { .. }) => let_go.run_until_cancelled(pause.wait()).await.ok_or(Failure::LetGo)?,
            started => return started,
        }
    }
    start_once(target, command, let_go).await
}

async fn start_once(target: &Target, command: Command, let_go: &CancellationToken) -> Result<Execution, Failure> {
    if let_go.is_cancelled() {
        return Err(Failure::LetGo);
    }
    let mut starting = pin!(target.executor.execute(command));
    let started = tokio::select! {
        started = &mut starting => started,
        // it may run by now: then it is to be ended
        () = let_go.cancelled() => timeout(GIVE_UP_AFTER, starting).await.map_err(|_| Failure::LetGo)?,
    };
    started.map_err(|error| failure(error, &target.name))
}

/// How it ended. If it is ended early, none of its processes is left when this returns, as far as the agent can be asked.
async fn follow(
    target: &Target,
    mut execution: Execution,
    let_go: &CancellationToken,
    stdout: &mut Kept,
    stderr: &mut Kept,
) -> Result<Exited, Failure> {
    let id = execution.id().clone();
    let mut early: Option<Failure> = None;
    // far away, unless the agent could not be told to end it
    let mut limit = pin!(sleep(MAX_WAIT));
    loop {
        let event = tokio::select! {
            event = execution.next() => event.transpose(),
            () = let_go.cancelled(), if early.is_none() => {
                early = Some(Failure::LetGo);
                limit.set(sleep(end(target, &id).await));
                continue;
            }
            () = &mut limit, if early.is_some() => Ok(None),
        };
        match event {
            Ok(Some(Event::Output(output))) => match output.stream {
                OutputStream::Stdout => stdout.add(&output.data),
                OutputStream::Stderr => stderr.add(&output.data),
            },
            Ok(Some(Event::Exited(exited))) => return early.map_or(Ok(exited), Err),
            Ok(Some(Event::Gap(_))) if early.is_none() => {
                early = Some(Failure::of_target(&target.name, TargetError::Gap));
                limit.set(sleep(end(target, &id).await));
            }
            Ok(Some(Event::Started(_) | Event::Gap(_))) => {}
            Ok(Some(Event::Promoted) | None) => {
                let error = "the agent did not say how the command ended".to_owned();
                return Err(early.unwrap_or_else(|| failure(ExecutorError::Internal(error), &target.name)));
            }
            Err(error) => return Err(early.unwrap_or_else(|| failure(error, &target.name))),
        }
    }
}

/// Has it ended, and returns how long its end may take to be told. If the agent cannot be told, it ends with the connection.
async fn end(target: &Target, id: &ExecutionId) -> Duration {
    match timeout(GIVE_UP_AFTER, target.executor.signal(id, Signal::KILL)).await {
        Ok(Ok(_) | Err(ExecutorError::NotFound(_))) => MAX_WAIT,
        Ok(Err(error)) => {
            warn!(%id, error = %crate::chain(&error), "cannot end an action at once");
            GIVE_UP_AFTER
        }
        Err(_) => {
            warn!(%id, "cannot end an action at once: the agent does not answer");
            GIVE_UP_AFTER
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
        error @ (ExecutorError::Denied { .. } | ExecutorError::ApprovalRequired { .. }) => Failure::Denied(error),
        error => Failure::of_target(target, error),
    }
}

/// The beginning of a stream, and how much followed it.
#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    dropped: u64,
    notes: String,
}

impl Kept {
    fn add(&mut self, data: &[u8]) {
        let (kept, dropped) = data.split_at(data.len().min(MAX_OUTPUT_BYTES - self.bytes.len()));
        self.bytes.extend_from_slice(kept);
        self.dropped += dropped.len() as u64;
    }

    /// For those who read the stream, at its end.
    fn note(&mut self, text: &str) {
        self.notes.push_str(&format!("\n[telexec-reapi: {text}]\n"));
    }

    fn finish(mut self) -> Vec<u8> {
        if self.dropped > 0 {
            self.note(&format!("{} more bytes were dropped", self.dropped));
        }
        self.bytes.extend_from_slice(self.notes.as_bytes());
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
