//! Events and outcomes of hosts, sent from the workers to the printer.

use serde::Serialize;
use telexec_client::{AgentInfo, Ping};
use telexec_executor::{ExecutionInfo, ExecutorError, ExitCause, Exited, Output, Started};

use crate::connect::hint;
use crate::output::{exit, json, with_causes};

/// An event of a host.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// First: the connection is being opened.
    Connecting,
    Started(Started),
    Output(Output),
    /// Output before this position is no longer available.
    Gap(u64),
    /// Last, exactly once per host.
    Finished(Box<Outcome>),
}

/// The kind of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Ok,
    Failed,
    TimedOut,
    Refused,
    /// The agent does not know the execution, or does not show it to this identity.
    NotFound,
    Unreachable,
    Lost,
    Cancelled,
    NotRun,
}

impl Kind {
    pub(crate) const ALL: [Self; 9] = [
        Self::Ok,
        Self::Failed,
        Self::TimedOut,
        Self::Refused,
        Self::NotFound,
        Self::Unreachable,
        Self::Lost,
        Self::Cancelled,
        Self::NotRun,
    ];

    /// For humans.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::TimedOut => "timed out",
            Self::Refused => "refused",
            Self::NotFound => "not found",
            Self::Unreachable => "unreachable",
            Self::Lost => "lost",
            Self::Cancelled => "cancelled",
            Self::NotRun => "not run",
        }
    }

    /// For programs.
    pub(crate) fn key(self) -> String {
        self.label().replace(' ', "_")
    }
}

/// How a host finished.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) kind: Kind,
    /// The exit code that `telexec exec` would have.
    pub(crate) code: u8,
    /// Details beyond the kind.
    pub(crate) reason: Option<String>,
    /// What to do about it.
    pub(crate) hint: Option<String>,
    pub(crate) exited: Option<Exited>,
    /// What the agent answered, if it was asked something.
    pub(crate) answer: Option<Answer>,
}

/// The answer of an agent.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Agent(Box<AgentInfo>),
    Execution(Box<ExecutionInfo>),
    Executions(Vec<ExecutionInfo>),
    Ping(Ping),
}

impl Outcome {
    pub(crate) fn ok() -> Self {
        Self { kind: Kind::Ok, code: 0, reason: None, hint: None, exited: None, answer: None }
    }

    pub(crate) fn answered(answer: Answer) -> Self {
        Self { answer: Some(answer), ..Self::ok() }
    }

    pub(crate) fn new(kind: Kind, code: u8, reason: impl Into<String>) -> Self {
        Self { kind, code, reason: Some(reason.into()), ..Self::ok() }
    }

    pub(crate) fn not_run() -> Self {
        Self { kind: Kind::NotRun, code: exit::REFUSED, ..Self::ok() }
    }

    pub(crate) fn exited(exited: Exited) -> Self {
        let code = exit::of_exit(&exited);
        let (kind, reason) = match exited.cause {
            ExitCause::Exited(0) => (Kind::Ok, None),
            ExitCause::Exited(code) => (Kind::Failed, Some(format!("exit code {code}"))),
            ExitCause::Signaled => (Kind::Failed, exited.signal.map(|signal| signal.to_string())),
            ExitCause::OutOfMemory => (Kind::Failed, Some("out of memory".to_owned())),
            ExitCause::TimedOut | ExitCause::DeadlineExceeded => (Kind::TimedOut, None),
            ExitCause::Cancelled => (Kind::Cancelled, None),
            ExitCause::Shutdown => (Kind::Lost, exit::explanation(&exited)),
        };
        Self { kind, code, reason, exited: Some(exited), ..Self::ok() }
    }

    /// The same with its output, of which part is missing if `incomplete`.
    pub(crate) fn followed(exited: Exited, incomplete: bool) -> Self {
        let outcome = Self::exited(exited);
        let incomplete = incomplete || outcome.exited.as_ref().and_then(exit::loss).is_some();
        match outcome.is_ok() && incomplete {
            true => Self {
                exited: outcome.exited,
                ..Self::new(Kind::Lost, exit::LOST, "it exited with 0, but part of its output is missing")
            },
            false => outcome,
        }
    }

    /// The same, of a command that was to have a receipt: a success without it is none.
    pub(crate) fn with_receipt(self) -> Self {
        let is_missing = self.exited.as_ref().is_some_and(|exited| exited.receipt.is_none());
        match self.is_ok() && is_missing {
            true => Self {
                exited: self.exited,
                ..Self::new(Kind::Lost, exit::LOST, "it exited with 0, but the agent has sent no receipt")
            },
            false => self,
        }
    }

    /// The command did not run, or its state is unknown.
    pub(crate) fn error(error: &ExecutorError) -> Self {
        let kind = match error {
            ExecutorError::Unreachable { .. } | ExecutorError::Untrusted { .. } => Kind::Unreachable,
            ExecutorError::Lost { .. } => Kind::Lost,
            ExecutorError::DeadlineExceeded => Kind::TimedOut,
            ExecutorError::Spawn(_) | ExecutorError::File(_) | ExecutorError::Corrupted { .. } => Kind::Failed,
            // nothing to add: its id has the host's name, which would keep equal outcomes apart
            ExecutorError::NotFound(_) => {
                return Self { kind: Kind::NotFound, code: exit::of_error(error), ..Self::ok() };
            }
            ExecutorError::Invalid(_)
            | ExecutorError::Unsupported { .. }
            | ExecutorError::Unauthenticated { .. }
            | ExecutorError::Denied { .. }
            | ExecutorError::ApprovalRequired { .. }
            | ExecutorError::NoApproval(_)
            | ExecutorError::Exhausted { .. }
            | ExecutorError::NoUpload(_)
            | ExecutorError::AlreadyExists(_)
            | ExecutorError::AlreadyRunning(_)
            | ExecutorError::FailedPrecondition { .. }
            | ExecutorError::OutOfRange { .. }
            | ExecutorError::ShuttingDown
            | ExecutorError::Internal(_) => Kind::Refused,
        };
        Self { hint: hint(error), ..Self::new(kind, exit::of_error(error), cause(error)) }
    }

    /// The command ran, but could not be followed to its end.
    pub(crate) fn lost(error: &ExecutorError) -> Self {
        let kind = if matches!(error, ExecutorError::DeadlineExceeded) { Kind::TimedOut } else { Kind::Lost };
        Self { hint: hint(error), ..Self::new(kind, exit::of_lost(error), cause(error)) }
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.kind == Kind::Ok
    }

    /// Neither a success, nor what was stopped from here.
    pub(crate) fn is_failure(&self) -> bool {
        !matches!(self.kind, Kind::Ok | Kind::Cancelled | Kind::NotRun)
    }

    /// As one line of JSON.
    pub(crate) fn json_line(&self, host: &str) -> Result<String, serde_json::Error> {
        let line = OutcomeLine {
            event: "outcome",
            outcome: self.kind.key(),
            exit_code: self.code,
            message: self.reason.as_deref(),
            exited: self.exited.as_ref().map(json::Exited::from),
        };
        json::on_host(host, &line)
    }

    /// The kind and the reason.
    pub(crate) fn description(&self) -> String {
        let kind = self.kind.label();
        match &self.reason {
            Some(reason) => format!("{kind}: {reason}"),
            None => kind.to_owned(),
        }
    }
}

#[derive(Serialize)]
struct OutcomeLine<'a> {
    event: &'static str,
    outcome: String,
    exit_code: u8,
    message: Option<&'a str>,
    exited: Option<json::Exited<'a>>,
}

/// Without the address, so that equal causes have equal texts on all hosts.
fn cause(error: &ExecutorError) -> String {
    let text = match error {
        ExecutorError::Unreachable { source, .. } | ExecutorError::Lost { source, .. } => with_causes(&**source),
        ExecutorError::Untrusted { endpoint, source } => with_causes(&**source).replace(&format!("{endpoint} "), "it "),
        error => with_causes(error),
    };
    // text from an agent must not contain escape sequences
    text.replace(char::is_control, " ")
}
