//! What a command of `bash` came to, for programs, whatever the style of the text.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use telexec_executor::{ExitCause, Exited};

use super::capture::Captured;

/// What a call of `bash` came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BashOutput {
    /// The exit code of the command; `None`: it has none, because a signal ended it, or a limit, or it did not start.
    pub exit_code: Option<i32>,
    /// Why it ended, as [`ExitCause::as_str`] says it, or `not_started`.
    pub cause: String,
    /// The signal that ended it, such as `SIGKILL`.
    pub signal: Option<String>,
    /// What it wrote to standard output, or the beginning and the end of it.
    pub stdout: String,
    /// The same of standard error.
    pub stderr: String,
    /// `stdout` is not all.
    pub stdout_truncated: bool,
    /// `stderr` is not all.
    pub stderr_truncated: bool,
    /// Why it did not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl BashOutput {
    pub(super) fn of(exited: &Exited, stdout: &Captured, stderr: &Captured) -> Self {
        let exit_code = match exited.cause {
            ExitCause::Exited(code) => Some(code.into()),
            _ => None,
        };
        Self {
            exit_code,
            cause: exited.cause.as_str().to_owned(),
            signal: exited.signal.map(|signal| signal.to_string()),
            stdout: stdout.text.clone(),
            stderr: stderr.text.clone(),
            stdout_truncated: stdout.truncated,
            stderr_truncated: stderr.truncated,
            error: None,
        }
    }

    pub(super) fn not_started(error: String) -> Self {
        Self { cause: "not_started".to_owned(), error: Some(error), ..Self::default() }
    }
}
