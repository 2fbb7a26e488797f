//! What happens on a host, and what came of it: what the workers tell the printer.

use serde::Serialize;
use telexec_executor::{ExecutionInfo, ExecutorError, ExitCause, Exited, Output, Started};

use crate::output::{exit, json, with_causes};

/// Something happened on a host.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// Work on it begins: it is connected to.
    Begun,
    Started(Started),
    Output(Output),
    /// Output up to this position is no longer kept.
    Gap(u64),
    /// Last, and once for each host.
    Ended(Box<Outcome>),
}

/// How it ended on a host, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Ok,
    Failed,
    TimedOut,
    Refused,
    Unreachable,
    Lost,
    Cancelled,
    NotRun,
}

impl Kind {
    pub(crate) const ALL: [Self; 8] = [
        Self::Ok,
        Self::Failed,
        Self::TimedOut,
        Self::Refused,
        Self::Unreachable,
        Self::Lost,
        Self::Cancelled,
        Self::NotRun,
    ];

    /// For people.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::TimedOut => "timed out",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::Lost => "lost",
            Self::Cancelled => "cancelled",
            Self::NotRun => "not run",
        }
    }

    /// For programs.
    pub(crate) fn key(self) -> String {
        self.words().replace(' ', "_")
    }
}

/// How it ended on a host.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) kind: Kind,
    /// As `telexec exec` would exit.
    pub(crate) code: u8,
    /// What the kind does not tell.
    pub(crate) reason: Option<String>,
    pub(crate) exited: Option<Exited>,
    /// What was asked for.
    pub(crate) info: Option<ExecutionInfo>,
}

impl Outcome {
    pub(crate) fn ok() -> Self {
        Self { kind: Kind::Ok, code: 0, reason: None, exited: None, info: None }
    }

    pub(crate) fn of(kind: Kind, code: u8, reason: impl Into<String>) -> Self {
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
            ExitCause::Shutdown => (Kind::Lost, Some("the agent shut down and ended the command".to_owned())),
        };
        Self { kind, code, reason, exited: Some(exited), info: None }
    }

    /// It did not run, or nothing is known of it.
    pub(crate) fn error(error: &ExecutorError) -> Self {
        let kind = match error {
            ExecutorError::Unreachable { .. } | ExecutorError::Untrusted { .. } => Kind::Unreachable,
            ExecutorError::Lost { .. } => Kind::Lost,
            ExecutorError::DeadlineExceeded => Kind::TimedOut,
            ExecutorError::Spawn(_) => Kind::Failed,
            _ => Kind::Refused,
        };
        Self::of(kind, exit::of_error(error), cause(error))
    }

    /// It ran, but could not be followed to its end.
    pub(crate) fn lost(error: &ExecutorError) -> Self {
        let kind = if matches!(error, ExecutorError::DeadlineExceeded) { Kind::TimedOut } else { Kind::Lost };
        Self::of(kind, exit::of_lost(error), cause(error))
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.kind == Kind::Ok
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

    /// The kind, and why.
    pub(crate) fn words(&self) -> String {
        let kind = self.kind.words();
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

/// Without the address, which the host's name stands for: so that the same cause reads the same everywhere.
fn cause(error: &ExecutorError) -> String {
    let text = match error {
        ExecutorError::Unreachable { source, .. } | ExecutorError::Lost { source, .. } => with_causes(&**source),
        ExecutorError::Untrusted { endpoint, source } => with_causes(&**source).replace(&format!("{endpoint} "), ""),
        error => with_causes(error),
    };
    // an agent's words must not move the cursor
    text.replace(char::is_control, " ")
}
