//! What a call came to. A failure is reported to the model if it can act on it, and is an error otherwise.

use serde::Serialize;
use serde_json::json;
use telexec_executor::text::error_chain;
use telexec_executor::{ExecutorError, FileError, FileErrorKind, InvalidCommand, SpawnError};

use crate::{ToolError, ToolFailure, ToolResult};

/// Why a call came to nothing.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The model can act on it.
    Reported(Box<ToolFailure>),
    /// It cannot.
    Call(ToolError),
}

/// What to do about a call that somebody has to approve.
pub(crate) const APPROVED: &str = "once it is approved, make the same call again";

impl Failure {
    pub(crate) fn invalid_input(tool: &str, parse_error: impl Into<String>) -> Self {
        ToolFailure::invalid_input(tool, parse_error).into()
    }

    /// What an executor answered to this tool.
    pub(crate) fn of(tool: &str, error: ExecutorError) -> Self {
        let text = error_chain(&error);
        match error {
            ExecutorError::Invalid(error) => malformed(tool, error),
            ExecutorError::Spawn(error) => not_started(&error).into(),
            ExecutorError::ApprovalRequired { approval_id, rule, .. } => ToolFailure::new("denied", text)
                .with_hint(APPROVED)
                .with_details(json!({ "rule": rule, "approval_id": approval_id }))
                .into(),
            ExecutorError::Denied { rule: Some(rule), .. } => {
                ToolFailure::new("denied", text).with_details(json!({ "rule": rule })).into()
            }
            ExecutorError::Denied { rule: None, .. } | ExecutorError::Unauthenticated { .. } => {
                ToolFailure::new("denied", text).into()
            }
            ExecutorError::Unsupported { field, .. } => {
                ToolFailure::new("unsupported", text).with_details(json!({ "field": field })).into()
            }
            ExecutorError::Exhausted { retry_after, .. } => {
                let retry_after_ms = retry_after.map(|after| after.as_millis());
                let details = json!({ "retry_after_ms": retry_after_ms });
                ToolFailure::new("exhausted", text).with_hint("try again later").with_details(details).into()
            }
            ExecutorError::NotFound(id) => ToolFailure::new("task_not_found", format!("unknown task id \"{id}\""))
                .with_hint("task_list lists the tasks")
                .into(),
            ExecutorError::File(error) => file_failure(&error).into(),
            ExecutorError::FailedPrecondition { .. } => ToolFailure::new("failed_precondition", text).into(),
            ExecutorError::OutOfRange { end, .. } => {
                ToolFailure::new("out_of_range", text).with_details(json!({ "end": end })).into()
            }
            error @ (ExecutorError::AlreadyExists(_)
            | ExecutorError::Corrupted { .. }
            | ExecutorError::NoUpload(_)
            | ExecutorError::NoApproval(_)
            | ExecutorError::AlreadyRunning(_)
            | ExecutorError::DeadlineExceeded
            | ExecutorError::ShuttingDown
            | ExecutorError::Unreachable { .. }
            | ExecutorError::Untrusted { .. }
            | ExecutorError::Lost { .. }
            | ExecutorError::Internal(_)) => {
                Self::Call(ToolError::Failed { message: text, source: Some(Box::new(error)) })
            }
        }
    }
}

impl From<ToolFailure> for Failure {
    fn from(failure: ToolFailure) -> Self {
        Self::Reported(Box::new(failure))
    }
}

impl From<ToolError> for Failure {
    fn from(error: ToolError) -> Self {
        Self::Call(error)
    }
}

/// What a call came to: the text for the model, and the value for programs.
pub(crate) fn result(text: String, value: &impl Serialize) -> Result<ToolResult, Failure> {
    let value = serde_json::to_value(value)
        .map_err(|error| ToolError::Failed { message: error.to_string(), source: Some(Box::new(error)) })?;
    Ok(ToolResult::text(text).with_structured(value.clone()).with_details(value))
}

/// The answer of a call that ran until it was cancelled (`None`) or came to something.
pub(crate) fn answer(heading: &str, called: Option<Result<ToolResult, Failure>>) -> Result<ToolResult, ToolError> {
    match called {
        Some(Ok(result)) => Ok(result),
        Some(Err(Failure::Reported(failure))) => Ok(ToolResult::failure(heading, &failure)),
        Some(Err(Failure::Call(error))) => Err(error),
        None => Err(ToolError::Cancelled),
    }
}

/// What a model can set in a call is reported by its name there; the rest was configured.
fn malformed(tool: &str, error: InvalidCommand) -> Failure {
    let parameter = match error.field.as_ref() {
        "command" => "cmd",
        "working_directory" => "workdir",
        "shell" => "shell",
        _ => return Failure::Call(ToolError::Failed { message: error.to_string(), source: Some(Box::new(error)) }),
    };
    Failure::invalid_input(tool, format!("{parameter}: {}", error.reason))
}

fn not_started(error: &SpawnError) -> ToolFailure {
    let details = json!({ "stage": error.stage.as_str(), "errno": error.errno_name(), "subject": error.subject });
    ToolFailure::new("command_not_started", error.to_string()).with_details(details)
}

fn file_failure(error: &FileError) -> ToolFailure {
    let kind = match error.kind() {
        FileErrorKind::NotFound => "file_not_found",
        FileErrorKind::AlreadyExists => "file_exists",
        FileErrorKind::AccessDenied => "access_denied",
        FileErrorKind::Full => "disk_full",
        FileErrorKind::WrongState => "wrong_file_state",
    };
    let details = json!({ "path": error.path.to_string(), "errno": error.errno_name() });
    let failure = ToolFailure::new(kind, error.to_string()).with_details(details);
    match error.errno_name().as_ref() {
        "EISDIR" => failure.with_hint("list_directory lists directories"),
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telexec_executor::SpawnStage;

    fn reported(error: ExecutorError) -> ToolFailure {
        match Failure::of("exec_command", error) {
            Failure::Reported(failure) => *failure,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn malformed_commands_name_the_parameter() {
        for (field, parse_error) in
            [("command", "cmd: is odd"), ("working_directory", "workdir: is odd"), ("shell", "shell: is odd")]
        {
            let failure = reported(InvalidCommand::new(field, "is odd").into());
            assert_eq!((failure.kind, &failure.details["parse_error"]), ("invalid_tool_input", &json!(parse_error)));
        }
        let configured = Failure::of("exec_command", InvalidCommand::new("environment", "is odd").into());
        assert!(matches!(configured, Failure::Call(ToolError::Failed { .. })), "{configured:?}");
    }

    #[test]
    fn what_did_not_start_reports_the_step() {
        let error =
            SpawnError { stage: SpawnStage::Chdir, subject: "/no/such".into(), errno: 2, missing_interpreter: false };
        let failure = reported(error.into());
        assert_eq!(failure.kind, "command_not_started");
        assert_eq!(failure.details, json!({ "stage": "chdir", "errno": "ENOENT", "subject": "/no/such" }));
        assert!(failure.message.contains("/no/such"), "{failure}");
    }

    #[test]
    fn a_lost_machine_is_no_answer_for_the_model() {
        let lost = ExecutorError::Lost { endpoint: "there".into(), source: "broken".into() };
        match Failure::of("exec_command", lost) {
            Failure::Call(ToolError::Failed { message, source: Some(source) }) => {
                assert_eq!(message, "the connection to there was lost: broken");
                assert!(source.downcast_ref::<ExecutorError>().is_some());
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_cancelled_call_has_no_answer() {
        assert!(matches!(answer("Command failed", None), Err(ToolError::Cancelled)));
    }
}
