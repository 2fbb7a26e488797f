//! What the exit code does not say about how a command ended.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use telexec_executor::{ExecutionState, ExitCause, Exited};

/// What the exit code does not say about how a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CommandDiagnostics {
    /// Why it ended, as [`ExitCause::as_str`] says it; of exit codes that shells give a meaning to,
    /// `command_not_executable` (126) and `command_not_found` (127).
    pub cause: String,
    /// The signal that ended it, such as `SIGKILL`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// Processes of it that run on.
    pub surviving_processes: u32,
    /// Output that was lost where it ran, in bytes: a limit was reached.
    pub dropped_output_bytes: u64,
    /// A process of it that runs on may write more, which is not followed.
    pub incomplete_output: bool,
    /// Sentences for the model.
    pub remarks: Vec<String>,
}

impl CommandDiagnostics {
    /// `None`: there is nothing to add to the exit code and these remarks, of which there are none.
    pub(super) fn new(exited: &Exited, remarks: impl IntoIterator<Item = String>) -> Option<Self> {
        let signal = exited.signal.map(|signal| signal.to_string());
        let dropped_output_bytes = exited.stdout.dropped_bytes + exited.stderr.dropped_bytes;
        let incomplete_output = exited.stdout.incomplete || exited.stderr.incomplete;
        let mut all: Vec<String> = end(exited.cause, signal.as_deref()).into_iter().collect();
        match exited.surviving_processes {
            0 => {}
            1 => all.push("1 process that it started still runs.".to_owned()),
            n => all.push(format!("{n} processes that it started still run.")),
        }
        if incomplete_output {
            all.push("What they write from now on is not shown.".to_owned());
        }
        if dropped_output_bytes > 0 {
            all.push(format!("{dropped_output_bytes} bytes of output were dropped: there was more than may be kept."));
        }
        all.extend(remarks);
        let cause = cause(exited.cause);
        (cause != "exited" || !all.is_empty()).then(|| Self {
            cause: cause.to_owned(),
            signal,
            surviving_processes: exited.surviving_processes,
            dropped_output_bytes,
            incomplete_output,
            remarks: all,
        })
    }
}

fn cause(cause: ExitCause) -> &'static str {
    match cause {
        ExitCause::Exited(126) => "command_not_executable",
        ExitCause::Exited(127) => "command_not_found",
        cause => cause.as_str(),
    }
}

/// How it ended, if there is no exit code.
fn end(cause: ExitCause, signal: Option<&str>) -> Option<String> {
    let text = match cause {
        ExitCause::Exited(_) => return None,
        ExitCause::Signaled => return Some(format!("It was ended by {}.", signal.unwrap_or("a signal"))),
        ExitCause::TimedOut => "It was ended: its timeout ran out.",
        ExitCause::Cancelled => "It was ended: it was cancelled.",
        ExitCause::DeadlineExceeded => "It was ended: the deadline of its call ran out.",
        ExitCause::OutOfMemory => "It was killed: it ran out of memory.",
        ExitCause::Shutdown => "It was ended: its machine's agent shut down.",
    };
    Some(text.to_owned())
}

/// The end of an execution that is in this state now: the survivors that it reports may be gone since.
pub(super) fn since(exited: Exited, state: ExecutionState) -> Exited {
    match state {
        ExecutionState::Exited => Exited { surviving_processes: 0, ..exited },
        ExecutionState::Running | ExecutionState::Lingering => exited,
    }
}

/// The exit code, where there is one.
pub(super) fn exit_status(exited: &Exited) -> Option<i32> {
    match exited.cause {
        ExitCause::Exited(code) => Some(code.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::exited;
    use telexec_executor::{Signal, StreamTotals};

    fn of(exited: &Exited) -> Option<CommandDiagnostics> {
        CommandDiagnostics::new(exited, [])
    }

    #[test]
    fn an_exit_code_needs_no_words() {
        assert_eq!(of(&exited(ExitCause::Exited(0))), None);
        assert_eq!(of(&exited(ExitCause::Exited(1))), None);
    }

    #[test]
    fn what_shells_mean_by_a_code_is_for_programs() {
        for (code, cause) in [(126, "command_not_executable"), (127, "command_not_found")] {
            let diagnostics = of(&exited(ExitCause::Exited(code))).unwrap();
            assert_eq!((diagnostics.cause.as_str(), diagnostics.remarks), (cause, vec![]));
        }
    }

    #[test]
    fn an_end_without_a_code_says_why() {
        for (cause, word, remark) in [
            (ExitCause::TimedOut, "timed_out", "timeout"),
            (ExitCause::OutOfMemory, "out_of_memory", "memory"),
            (ExitCause::Shutdown, "agent_shutdown", "shut down"),
            (ExitCause::DeadlineExceeded, "deadline_exceeded", "deadline"),
            (ExitCause::Cancelled, "cancelled", "cancelled"),
        ] {
            let diagnostics = of(&exited(cause)).unwrap();
            assert_eq!((diagnostics.cause.as_str(), exit_status(&exited(cause))), (word, None));
            assert!(diagnostics.remarks[0].contains(remark), "{diagnostics:?}");
        }
        let diagnostics = of(&Exited { signal: Some(Signal::KILL), ..exited(ExitCause::Signaled) }).unwrap();
        assert_eq!(diagnostics.signal.as_deref(), Some("SIGKILL"));
        assert_eq!(diagnostics.remarks, ["It was ended by SIGKILL."]);
    }

    #[test]
    fn survivors_may_be_gone_since() {
        let survived = Exited { surviving_processes: 2, ..exited(ExitCause::Exited(0)) };
        assert_eq!(since(survived.clone(), ExecutionState::Lingering).surviving_processes, 2);
        assert_eq!(since(survived, ExecutionState::Exited).surviving_processes, 0);
    }

    #[test]
    fn survivors_and_lost_output_are_reported() {
        let stdout = StreamTotals { bytes: 9, dropped_bytes: 4, incomplete: true };
        let odd = Exited { surviving_processes: 2, stdout, ..exited(ExitCause::Exited(0)) };
        let diagnostics = CommandDiagnostics::new(&odd, ["More.".to_owned()]).unwrap();
        assert_eq!(diagnostics.cause, "exited");
        assert_eq!((diagnostics.surviving_processes, diagnostics.dropped_output_bytes), (2, 4));
        assert_eq!(diagnostics.remarks.len(), 4);
    }
}
