//! Exit codes of `exec`, which scripts can distinguish.

use std::time::Duration;

use telexec_client::ConnectError;
use telexec_executor::{ExecutorError, ExitCause, Exited, Signal, SpawnStage};

/// The command timed out.
pub(crate) const TIMED_OUT: u8 = 124;
/// Refused by the agent; nothing ran.
pub(crate) const REFUSED: u8 = 125;
/// The program or shell cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The program or shell was not found.
pub(crate) const NOT_FOUND: u8 = 127;
/// This plus n: killed by signal n.
pub(crate) const SIGNAL_BASE: u8 = 128;
/// After Ctrl-C: the code of a process killed by SIGINT.
pub(crate) const INTERRUPTED: u8 = SIGNAL_BASE + 2;
/// Standard output was closed: the code of a process killed by SIGPIPE.
pub(crate) const BROKEN_PIPE: u8 = SIGNAL_BASE + 13;
/// The agent is unreachable, or the command could not be followed to its end.
pub(crate) const LOST: u8 = 255;
/// Invalid command line or configuration; the code that clap uses.
pub(crate) const USAGE: u8 = 2;

/// How exactly the agent measures a command's time.
const TIMEOUT_PRECISION: Duration = Duration::from_millis(200);

/// The code for a command that ran.
pub(crate) fn of_exit(exited: &Exited) -> u8 {
    match exited.cause {
        ExitCause::Exited(code) => code,
        ExitCause::Signaled => exited.signal.map_or(LOST, |signal| of_signal(signal.number())),
        // the kernel kills with SIGKILL
        ExitCause::OutOfMemory => of_signal(Signal::KILL.number()),
        ExitCause::TimedOut | ExitCause::DeadlineExceeded => TIMED_OUT,
        ExitCause::Cancelled | ExitCause::Shutdown => LOST,
    }
}

/// The code for this signal.
pub(crate) fn of_signal(number: i32) -> u8 {
    u8::try_from(number).map_or(LOST, |number| SIGNAL_BASE.saturating_add(number))
}

/// Whether the timeout that ended the command was the agent's, not the one that was asked for.
pub(crate) fn is_timeout_of_agent(exited: &Exited, asked: Option<Duration>) -> bool {
    exited.cause == ExitCause::TimedOut && asked.is_none_or(|asked| exited.wall_time + TIMEOUT_PRECISION < asked)
}

/// Explains an exit that the code and the output alone do not.
pub(crate) fn explanation(exited: &Exited) -> Option<String> {
    let parts: Vec<String> = [end(exited), loss(exited)].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Says how it ended, if not by itself.
fn end(exited: &Exited) -> Option<String> {
    let after = || humantime::format_duration(Duration::from_millis(exited.wall_time.as_millis() as u64));
    match (exited.cause, exited.signal) {
        (ExitCause::Exited(_), _) => None,
        (ExitCause::Signaled, signal) => {
            let signal = signal.map_or_else(|| "a signal".to_owned(), |signal| signal.to_string());
            let core = if exited.core_dumped { " (core dumped)" } else { "" };
            Some(format!("the command was killed by {signal}{core}"))
        }
        (ExitCause::TimedOut, _) => Some(format!("the command timed out after {}", after())),
        (ExitCause::DeadlineExceeded, _) => Some(format!("the command exceeded its deadline after {}", after())),
        (ExitCause::OutOfMemory, _) => Some("the command ran out of memory and was killed".to_owned()),
        (ExitCause::Cancelled, _) => Some("the command was cancelled".to_owned()),
        (ExitCause::Shutdown, _) => Some("the agent shut down and ended the command".to_owned()),
    }
}

/// Says that output is missing, if some is.
pub(crate) fn loss(exited: &Exited) -> Option<String> {
    match exited.stdout.dropped_bytes + exited.stderr.dropped_bytes {
        0 => None,
        1 => Some("1 byte of the output was dropped".to_owned()),
        bytes => Some(format!("{bytes} bytes of the output were dropped")),
    }
}

/// The code for a command that ran, but could not be followed to its end.
pub(crate) fn of_lost(error: &ExecutorError) -> u8 {
    if matches!(error, ExecutorError::DeadlineExceeded) { TIMED_OUT } else { LOST }
}

/// The code for a command that did not run, or whose state is unknown.
pub(crate) fn of_error(error: &ExecutorError) -> u8 {
    match error {
        ExecutorError::Spawn(error) if error.stage != SpawnStage::Exec || error.is_exhausted() => REFUSED,
        ExecutorError::Spawn(error) if error.is_not_found() => NOT_FOUND,
        ExecutorError::Spawn(_) => NOT_EXECUTABLE,
        ExecutorError::DeadlineExceeded => TIMED_OUT,
        ExecutorError::Untrusted { source, .. } if source.is::<ConnectError>() => USAGE,
        ExecutorError::Unreachable { .. } | ExecutorError::Untrusted { .. } | ExecutorError::Lost { .. } => LOST,
        ExecutorError::Invalid(_)
        | ExecutorError::Unsupported { .. }
        | ExecutorError::Unauthenticated { .. }
        | ExecutorError::Denied { .. }
        | ExecutorError::ApprovalRequired { .. }
        | ExecutorError::NoApproval(_)
        | ExecutorError::Exhausted { .. }
        | ExecutorError::NotFound(_)
        | ExecutorError::File(_)
        | ExecutorError::Corrupted { .. }
        | ExecutorError::NoUpload(_)
        | ExecutorError::AlreadyExists(_)
        | ExecutorError::AlreadyRunning(_)
        | ExecutorError::FailedPrecondition { .. }
        | ExecutorError::OutOfRange { .. }
        | ExecutorError::ShuttingDown
        | ExecutorError::Internal(_) => REFUSED,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use telexec_executor::{InvalidCommand, SpawnError, StreamTotals};

    use super::*;

    fn exited(cause: ExitCause, signal: Option<i32>) -> Exited {
        Exited {
            cause,
            signal: signal.and_then(Signal::from_number),
            core_dumped: false,
            wall_time: Duration::ZERO,
            user_time: Duration::ZERO,
            system_time: Duration::ZERO,
            max_rss_bytes: 0,
            usage: telexec_executor::Usage::default(),
            receipt: None,
            stdout: StreamTotals::default(),
            stderr: StreamTotals::default(),
            surviving_processes: 0,
            working_directory: None,
            end_time: SystemTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn every_end_has_its_code() {
        for (cause, signal, code) in [
            (ExitCause::Exited(0), None, 0),
            (ExitCause::Exited(255), None, 255),
            (ExitCause::Signaled, Some(9), 137),
            (ExitCause::Signaled, Some(64), 192),
            (ExitCause::Signaled, None, 255),
            (ExitCause::TimedOut, Some(15), 124),
            (ExitCause::DeadlineExceeded, Some(9), 124),
            (ExitCause::OutOfMemory, Some(9), 137),
            (ExitCause::OutOfMemory, None, 137),
            (ExitCause::Cancelled, Some(15), 255),
            (ExitCause::Shutdown, Some(15), 255),
        ] {
            let exited = exited(cause, signal);
            assert_eq!(of_exit(&exited), code, "{cause:?}");
            assert_eq!(explanation(&exited).is_none(), matches!(cause, ExitCause::Exited(_)));
        }
    }

    #[test]
    fn every_error_has_its_code() {
        let spawn = |stage, errno, missing_interpreter| {
            ExecutorError::Spawn(SpawnError { stage, subject: String::new(), errno, missing_interpreter })
        };
        let endpoint = || "x".to_owned();
        for (error, code) in [
            (spawn(SpawnStage::Exec, 2, false), 127),
            (spawn(SpawnStage::Exec, 20, false), 127),
            (spawn(SpawnStage::Exec, 2, true), 126),
            (spawn(SpawnStage::Exec, 13, false), 126),
            (spawn(SpawnStage::Exec, 8, false), 126),
            (spawn(SpawnStage::Exec, 12, false), 125),
            (spawn(SpawnStage::Chdir, 2, false), 125),
            (spawn(SpawnStage::User, 2, false), 125),
            (spawn(SpawnStage::Setuid, 1, false), 125),
            (spawn(SpawnStage::Clone, 11, false), 125),
            (ExecutorError::Invalid(InvalidCommand::new("x", "y")), 125),
            (ExecutorError::Unsupported { field: "x".into(), reason: String::new() }, 125),
            (ExecutorError::Unauthenticated { reason: String::new() }, 125),
            (ExecutorError::denied(""), 125),
            (ExecutorError::Exhausted { reason: String::new(), retry_after: None }, 125),
            (ExecutorError::ShuttingDown, 125),
            (ExecutorError::Internal(String::new()), 125),
            (ExecutorError::DeadlineExceeded, 124),
            (ExecutorError::Unreachable { endpoint: endpoint(), source: "".into() }, 255),
            (ExecutorError::Untrusted { endpoint: endpoint(), source: "".into() }, 255),
            (ExecutorError::Lost { endpoint: endpoint(), source: "".into() }, 255),
            (ConnectError::TlsRequired { endpoint: endpoint() }.into(), 2),
        ] {
            assert_eq!(of_error(&error), code, "{error:?}");
        }
    }
}
