//! What a call came to, for programs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use telexec_executor::{ExecutionId, ExecutionInfo, ExecutionState, Exited, Program};

use super::artifacts::CommandArtifact;
use super::capture::Captured;
use super::diagnostics::{CommandDiagnostics, exit_status};

/// What a call of `exec_command` came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExecCommandResult {
    /// In JSON, its fields are beside those of the result.
    #[serde(flatten)]
    pub outcome: ExecCommandOutcome,
    /// What the exit code does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_diagnostics: Option<CommandDiagnostics>,
    /// All in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary_text: Option<String>,
}

/// The ways that a call of `exec_command` can go; in JSON the field `outcome` says which.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum ExecCommandOutcome {
    /// The command has ended.
    Completed {
        /// Its exit code; `None`: it has none, because a signal ended it, or a limit.
        exit_status: Option<i32>,
        /// What it wrote to standard output, or the beginning and the end of it; `None`: nothing.
        stdout_preview: Option<String>,
        /// The same of standard error.
        stderr_preview: Option<String>,
        /// A preview is not all that was written.
        truncated: bool,
        /// Files with the whole of what was cut, where the command ran.
        artifacts: Vec<CommandArtifact>,
        /// Which of `artifacts`, counted from 0, is standard output.
        stdout_artifact: Option<usize>,
        /// Which of `artifacts`, counted from 0, is standard error.
        stderr_artifact: Option<usize>,
    },
    /// The command runs on in the background.
    PromotedToTask {
        /// Names it.
        task_handle: TaskHandle,
        /// What it wrote so far to both streams, or the beginning and the end of it; `None`: nothing.
        initial_output_preview: Option<String>,
        /// That is not all that it wrote so far.
        initial_output_truncated: bool,
    },
    /// Nothing was started: the same command runs.
    AlreadyRunning {
        /// Names the one that runs.
        task_handle: TaskHandle,
        /// What that one was started as.
        command: Option<TaskCommand>,
        /// How it is.
        summary: Option<String>,
        /// What can be done, for the model.
        instructions: Option<String>,
    },
}

/// Names a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskHandle {
    /// For the tools that work with it; the id of the execution.
    pub task_id: String,
    /// Always `command_task`.
    pub task_kind: String,
    /// How it was just now.
    pub status: TaskStatus,
    /// What it wrote before it became a task, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_output: Option<String>,
}

/// How a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// It runs.
    Running,
    /// It has ended, but processes that it started run on.
    Lingering,
    /// It has ended.
    Exited,
}

/// What a task was started as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskCommand {
    /// Text for the shell, or a program and its arguments.
    pub cmd: Option<String>,
    /// Where it was started.
    pub workdir: Option<String>,
    /// The shell; `None`: the program was started without one.
    pub shell: Option<String>,
    /// The shell is a login shell.
    pub login: bool,
    /// It has a terminal.
    pub tty: bool,
}

const INSTRUCTIONS: &str = "It was not started again. Read its output with task_output, write to it with task_input, end \
                            it with task_stop, or start another one with duplicate_policy \"start_new\".";

impl ExecCommandResult {
    pub(super) fn completed(exited: &Exited, stdout: Captured, stderr: Captured) -> Self {
        let command_diagnostics =
            CommandDiagnostics::new(exited, [stdout.problem, stderr.problem].into_iter().flatten());
        let exit_status = exit_status(exited);
        let mut artifacts = Vec::new();
        let mut listed = |artifact: Option<CommandArtifact>, dropped_bytes| {
            artifacts
                .push(CommandArtifact { complete: artifact.as_ref()?.complete && dropped_bytes == 0, ..artifact? });
            Some(artifacts.len() - 1)
        };
        let stdout_artifact = listed(stdout.artifact, exited.stdout.dropped_bytes);
        let stderr_artifact = listed(stderr.artifact, exited.stderr.dropped_bytes);
        let dropped = exited.stdout.dropped_bytes + exited.stderr.dropped_bytes > 0;
        let outcome = ExecCommandOutcome::Completed {
            exit_status,
            stdout_preview: stdout.text,
            stderr_preview: stderr.text,
            truncated: stdout.cut || stderr.cut || dropped,
            artifacts,
            stdout_artifact,
            stderr_artifact,
        };
        let summary = match exit_status {
            Some(code) => format!("command exited with code {code}"),
            None => format!("command ended: {}", exited.cause.as_str()),
        };
        Self { outcome, command_diagnostics, summary_text: Some(summary) }
    }

    /// `initial_output`: the text, and whether it was cut.
    pub(super) fn promoted(id: &ExecutionId, initial_output: Option<(String, bool)>) -> Self {
        let (preview, truncated) = initial_output.unzip();
        let outcome = ExecCommandOutcome::PromotedToTask {
            task_handle: TaskHandle::new(id, TaskStatus::Running, preview.clone()),
            initial_output_preview: preview,
            initial_output_truncated: truncated.unwrap_or_default(),
        };
        Self { outcome, command_diagnostics: None, summary_text: Some(format!("command runs on as task {id}")) }
    }

    pub(super) fn already_running(info: &ExecutionInfo) -> Self {
        let summary = format!("processes: {}, bytes of output so far: {}", info.processes, info.position);
        let outcome = ExecCommandOutcome::AlreadyRunning {
            task_handle: TaskHandle::new(&info.id, info.state.into(), None),
            command: Some(TaskCommand::of(info)),
            summary: Some(summary),
            instructions: Some(INSTRUCTIONS.to_owned()),
        };
        Self {
            outcome,
            command_diagnostics: None,
            summary_text: Some(format!("command runs already as task {}", info.id)),
        }
    }
}

impl TaskHandle {
    fn new(id: &ExecutionId, status: TaskStatus, initial_output: Option<String>) -> Self {
        Self { task_id: id.to_string(), task_kind: "command_task".to_owned(), status, initial_output }
    }
}

impl TaskCommand {
    pub(super) fn of(info: &ExecutionInfo) -> Self {
        let (cmd, shell, login) = match &info.program {
            Program::Shell { text, shell, login } => (text.clone(), shell.clone(), *login),
            Program::Argv(argv) => (argv.join(" "), None, false),
        };
        let workdir = Some(info.working_directory.clone()).filter(|path| !path.is_empty());
        Self { cmd: Some(cmd), workdir, shell, login, tty: info.terminal }
    }
}

impl From<ExecutionState> for TaskStatus {
    fn from(state: ExecutionState) -> Self {
        match state {
            ExecutionState::Running => Self::Running,
            ExecutionState::Lingering => Self::Lingering,
            ExecutionState::Exited => Self::Exited,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fake::{exited, info};
    use telexec_executor::{ExitCause, StreamTotals};

    fn captured(text: Option<&str>, artifact: Option<&str>) -> Captured {
        let artifact = artifact.map(|path| CommandArtifact { path: path.into(), bytes: 9, complete: true });
        Captured { text: text.map(Into::into), cut: artifact.is_some(), artifact, problem: None }
    }

    #[test]
    fn a_completed_command_in_json() {
        let result = ExecCommandResult::completed(
            &exited(ExitCause::Exited(3)),
            captured(Some("out"), None),
            captured(None, None),
        );
        let value = json!({
            "outcome": "completed", "exit_status": 3, "stdout_preview": "out", "stderr_preview": null,
            "truncated": false, "artifacts": [], "stdout_artifact": null, "stderr_artifact": null,
            "summary_text": "command exited with code 3",
        });
        assert_eq!(json!(result), value);
        assert_eq!(serde_json::from_value::<ExecCommandResult>(value).unwrap(), result);
    }

    #[test]
    fn artifacts_are_found_by_their_stream() {
        let stdout = StreamTotals { dropped_bytes: 1, ..StreamTotals::default() };
        let exited = Exited { stdout, ..exited(ExitCause::Exited(0)) };
        let both =
            ExecCommandResult::completed(&exited, captured(Some("a"), Some("/o")), captured(Some("b"), Some("/e")));
        let value = json!(both);
        assert_eq!((&value["stdout_artifact"], &value["stderr_artifact"]), (&json!(0), &json!(1)));
        assert_eq!(value["artifacts"][0], json!({ "path": "/o", "bytes": 9, "complete": false }));
        assert_eq!((&value["artifacts"][1]["complete"], &value["truncated"]), (&json!(true), &json!(true)));
        let one = ExecCommandResult::completed(&exited, captured(None, None), captured(Some("b"), Some("/e")));
        let value = json!(one);
        assert_eq!((&value["stdout_artifact"], &value["stderr_artifact"]), (&json!(null), &json!(0)));
    }

    #[test]
    fn an_end_without_a_code_has_diagnostics() {
        let result =
            ExecCommandResult::completed(&exited(ExitCause::OutOfMemory), captured(None, None), captured(None, None));
        let value = json!(result);
        assert_eq!(
            (&value["exit_status"], &value["summary_text"]),
            (&json!(null), &json!("command ended: out_of_memory"))
        );
        assert_eq!(value["command_diagnostics"]["cause"], "out_of_memory");
    }

    #[test]
    fn a_task_in_json() {
        let id = "task_123".parse().unwrap();
        let result = ExecCommandResult::promoted(&id, Some(("booting".to_owned(), true)));
        let value = json!({
            "outcome": "promoted_to_task",
            "task_handle": {
                "task_id": "task_123", "task_kind": "command_task", "status": "running", "initial_output": "booting",
            },
            "initial_output_preview": "booting", "initial_output_truncated": true,
            "summary_text": "command runs on as task task_123",
        });
        assert_eq!(json!(result), value);
        assert_eq!(serde_json::from_value::<ExecCommandResult>(value).unwrap(), result);
    }

    #[test]
    fn a_duplicate_in_json() {
        let result = ExecCommandResult::already_running(&info("task_123", ExecutionState::Running));
        let value = json!(result);
        assert_eq!(value["outcome"], "already_running");
        assert_eq!(
            value["task_handle"],
            json!({ "task_id": "task_123", "task_kind": "command_task", "status": "running" })
        );
        let command = json!({ "cmd": "make", "workdir": "/src", "shell": "bash", "login": true, "tty": false });
        assert_eq!(value["command"], command);
        assert_eq!(serde_json::from_value::<ExecCommandResult>(value).unwrap(), result);
    }
}
