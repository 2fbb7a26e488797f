//! The tool `task_stop`: ends a task.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use telexec_executor::{ExecutionId, ExecutionInfo, ExecutionState, ExecutorError, Signal};
use tokio::time::{Instant, sleep};

use super::args::{parse_task_id, task_id};
use super::diagnostics::{CommandDiagnostics, exit_status, since};
use super::outcome::TaskStatus;
use super::render::{ended, section, task};
use super::tasks::Tasks;
use crate::failure::{Failure, answer, result};
use crate::parameters::{number, parse};
use crate::{Tool, ToolContext, ToolDefinition, ToolError, ToolResult};

const NAME: &str = "task_stop";
const DEFAULT_GRACE_MS: u64 = 2_000;
/// Longer than a model should wait for a task to be killed.
const MAX_GRACE_MS: u64 = 60_000;
/// For SIGKILL to be done; a process in an uninterruptible sleep takes as long as that.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Ends a task with all its processes: SIGTERM, a grace, SIGKILL.
///
/// The parameters of a call are [`TaskStopArgs`]; details of its result are a [`TaskStop`]. A task that has ended already
/// stays as it is.
pub struct TaskStopTool {
    tasks: Arc<Tasks>,
    definition: ToolDefinition,
}

/// The parameters of `task_stop`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskStopArgs {
    /// The task.
    pub task_id: String,
    /// From SIGTERM to SIGKILL, in milliseconds, at most 60,000. Default: 2,000; 0: SIGKILL at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
}

/// A task that was asked to end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskStop {
    /// The task.
    pub task_id: String,
    /// How it is now: it may take longer to end.
    pub status: TaskStatus,
    /// It had ended before.
    pub had_ended: bool,
    /// Its exit code; `None`: it has none, or has not ended.
    pub exit_status: Option<i32>,
    /// What the exit code does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_diagnostics: Option<CommandDiagnostics>,
}

impl TaskStop {
    fn of(info: &ExecutionInfo, had_ended: bool) -> Self {
        let exited = info.exited.clone().map(|exited| since(exited, info.state));
        Self {
            task_id: info.id.to_string(),
            status: info.state.into(),
            had_ended,
            exit_status: exited.as_ref().and_then(exit_status),
            command_diagnostics: exited.as_ref().and_then(|exited| CommandDiagnostics::new(exited, [])),
        }
    }

    /// The text that a model gets.
    pub fn render(&self) -> String {
        let first = match (self.status, self.had_ended) {
            (TaskStatus::Exited, true) => "Task had ended already",
            (TaskStatus::Exited, false) => "Task stopped",
            (TaskStatus::Running | TaskStatus::Lingering, _) => "Task was killed, but has not ended yet",
        };
        let mut lines = vec![first.to_owned(), task(&self.task_id)];
        if self.status == TaskStatus::Exited {
            lines.push(ended(self.exit_status));
        }
        if let Some(diagnostics) = &self.command_diagnostics {
            section(&mut lines, "Diagnostics:", Some(&diagnostics.remarks.join("\n")));
        }
        lines.join("\n")
    }
}

impl TaskStopTool {
    pub(super) fn new(tasks: Arc<Tasks>) -> Self {
        let about = "Ends a task started by exec_command, with all its processes.";
        let grace = "Time from SIGTERM to SIGKILL, in milliseconds";
        let definition = ToolDefinition::new(NAME, about)
            .parameter("task_id", task_id(), true)
            .parameter("grace_ms", number(grace, DEFAULT_GRACE_MS), false)
            .closed()
            .returns::<TaskStop>();
        Self { tasks, definition }
    }

    async fn call(&self, params: Value) -> Result<ToolResult, Failure> {
        let args: TaskStopArgs = parse(NAME, params)?;
        let id = parse_task_id(NAME, &args.task_id)?;
        let grace = Duration::from_millis(args.grace_ms.unwrap_or(DEFAULT_GRACE_MS).min(MAX_GRACE_MS));
        let stopped = self.stop(&id, grace).await.map_err(|error| Failure::of(NAME, error))?;
        result(stopped.render(), &stopped)
    }

    async fn stop(&self, id: &ExecutionId, grace: Duration) -> Result<TaskStop, ExecutorError> {
        let before = self.tasks.executor.get(id).await?;
        if before.state == ExecutionState::Exited {
            return Ok(TaskStop::of(&before, true));
        }
        if !grace.is_zero() {
            let info = self.signal(id, Signal::TERM, grace).await?;
            if info.state == ExecutionState::Exited {
                return Ok(TaskStop::of(&info, false));
            }
        }
        let info = self.signal(id, Signal::KILL, KILL_TIMEOUT).await?;
        Ok(TaskStop::of(&info, false))
    }

    /// The task after the signal, once it has no process left or the time is over. It is looked at again and again, because
    /// following it ends with its main process.
    async fn signal(&self, id: &ExecutionId, signal: Signal, limit: Duration) -> Result<ExecutionInfo, ExecutorError> {
        let begin = Instant::now();
        let mut info = self.tasks.executor.signal(id, signal).await?;
        while info.state != ExecutionState::Exited && begin.elapsed() < limit {
            sleep(POLL_INTERVAL).await;
            info = self.tasks.executor.get(id).await?;
        }
        Ok(info)
    }
}

#[async_trait]
impl Tool for TaskStopTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    async fn execute(&self, params: Value, context: ToolContext) -> Result<ToolResult, ToolError> {
        answer("Task stop failed", context.cancel.run_until_cancelled(self.call(params)).await)
    }

    fn is_destructive(&self) -> bool {
        true
    }

    fn is_concurrent_safe(&self) -> bool {
        true
    }

    fn is_idempotent(&self) -> bool {
        true
    }

    fn summary(&self, params: &Value) -> String {
        super::tasks::summary(NAME, params)
    }

    fn activity_description(&self, _params: &Value) -> Option<String> {
        Some("Stopping task...".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::ExecCommandTool;
    use super::*;
    use crate::fake::{Fake, ID, State, exited};
    use telexec_executor::ExitCause;

    /// The answer, and the signals that were sent.
    async fn stop(state: State, grace_ms: u64) -> (ToolResult, Vec<Signal>) {
        let fake = Fake::new(state);
        let tool = ExecCommandTool::new(Arc::clone(&fake)).task_stop();
        let params = json!({ "task_id": ID, "grace_ms": grace_ms });
        let result = tool.execute(params, ToolContext::default()).await.unwrap();
        let signals = fake.state().signals.clone();
        (result, signals)
    }

    fn ends_by(signal: Signal) -> State {
        State { ends_by: Some(signal), ..State::default() }
    }

    #[tokio::test]
    async fn a_task_that_takes_the_hint_is_not_killed() {
        let (result, signals) = stop(ends_by(Signal::TERM), 60_000).await;
        assert_eq!(signals, [Signal::TERM]);
        let text = "Task stopped\nTask: task_123\nProcess exited\n\nDiagnostics:\nIt was ended by SIGTERM.";
        assert_eq!(result.as_text(), text);
        assert_eq!(result.details["command_diagnostics"]["signal"], "SIGTERM");
    }

    #[tokio::test]
    async fn a_task_that_does_not_is_killed_after_the_grace() {
        let (result, signals) = stop(ends_by(Signal::KILL), 1).await;
        assert_eq!(signals, [Signal::TERM, Signal::KILL]);
        assert!(result.as_text().contains("It was ended by SIGKILL."), "{result:?}");
        assert_eq!(stop(ends_by(Signal::KILL), 0).await.1, [Signal::KILL]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_does_not_end_says_so() {
        let (result, _) = stop(State::default(), 1).await;
        assert_eq!(result.as_text(), "Task was killed, but has not ended yet\nTask: task_123");
        assert_eq!(result.details["status"], "running");
    }

    #[tokio::test]
    async fn a_task_that_had_ended_stays_as_it_is() {
        let (result, signals) = stop(State { exited: Some(exited(ExitCause::Exited(3))), ..State::default() }, 1).await;
        assert_eq!(signals, []);
        assert_eq!(result.as_text(), "Task had ended already\nTask: task_123\nProcess exited with code 3");
    }
}
