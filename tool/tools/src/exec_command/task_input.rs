//! The tool `task_input`: writes to a task's standard input.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use telexec_executor::Input;

use super::args::{flag, number, parse, parse_task_id, task_id, text, yield_time_ms};
use super::failure::{Failure, answer};
use super::render::task;
use super::tasks::{Tasks, details};
use crate::{Tool, ToolContext, ToolDefinition, ToolError, ToolFailure, ToolResult};

const NAME: &str = "task_input";

/// Writes to the standard input of a task that accepts input.
///
/// The parameters of a call are [`TaskInputArgs`]; details of its result are a [`TaskInput`].
pub struct TaskInputTool {
    tasks: Arc<Tasks>,
    definition: ToolDefinition,
}

/// The parameters of `task_input`: text, or the end of input, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskInputArgs {
    /// The task.
    pub task_id: String,
    /// What to write, as it is: a newline only if there is one. Default: nothing.
    #[serde(default)]
    pub text: String,
    /// Nothing follows: the task sees the end of its input. Default: no.
    #[serde(default)]
    pub close: bool,
    /// How long to wait until the task has room for it, in milliseconds. Default: 10,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub yield_time_ms: Option<u64>,
}

/// Input that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskInput {
    /// The task.
    pub task_id: String,
    /// Bytes of input that it has got from all writers.
    pub committed_offset: u64,
    /// Its input is closed now.
    pub closed: bool,
}

impl TaskInputTool {
    pub(super) fn new(tasks: Arc<Tasks>) -> Self {
        let about = "Writes to the standard input of a task started by exec_command with `accepts_input` or `tty`. Read \
                     its response with task_output.";
        let definition = ToolDefinition::new(NAME, about)
            .parameter("task_id", task_id(), true)
            .parameter("text", text("Text to write; add a newline where one is needed"), false)
            .parameter("close", flag("Close standard input afterwards", false.into()), false)
            .parameter(
                "yield_time_ms",
                number("Time to wait until the task accepts it, in milliseconds", yield_time_ms(None)),
                false,
            )
            .closed();
        Self { tasks, definition }
    }

    async fn call(&self, params: Value) -> Result<ToolResult, Failure> {
        let args: TaskInputArgs = parse(NAME, params)?;
        let id = parse_task_id(NAME, &args.task_id)?;
        if args.text.is_empty() && !args.close {
            return Err(Failure::invalid_input(NAME, "text: is empty, and close is not set"));
        }
        let input = Input { data: args.text.into(), offset: None, close: args.close };
        let timeout = Duration::from_millis(yield_time_ms(args.yield_time_ms));
        let written = tokio::time::timeout(timeout, self.tasks.executor.write_input(&id, input)).await;
        let committed_offset = written.map_err(|_| not_taken())?.map_err(|error| Failure::of(NAME, error))?;
        let input = TaskInput { task_id: args.task_id, committed_offset, closed: args.close };
        let first = if input.closed { "Input written and closed" } else { "Input written" };
        let text = [first, &task(&input.task_id)].join("\n");
        Ok(ToolResult::text(text).with_details(details(&input)?))
    }
}

fn not_taken() -> Failure {
    let failure = ToolFailure::new("input_not_taken", "the task did not read all of the input in time");
    failure.with_hint("a part of it may be written: read the task's output before you write again").into()
}

#[async_trait]
impl Tool for TaskInputTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    async fn execute(&self, params: Value, context: ToolContext) -> Result<ToolResult, ToolError> {
        answer("Task input failed", context.cancel.run_until_cancelled(self.call(params)).await)
    }

    /// To a shell, input is a command.
    fn is_destructive(&self) -> bool {
        true
    }

    fn is_open_world(&self) -> bool {
        true
    }

    fn summary(&self, params: &Value) -> String {
        super::tasks::summary(NAME, params)
    }

    fn activity_description(&self, _params: &Value) -> Option<String> {
        Some("Writing input...".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::ExecCommandTool;
    use super::super::fake::{Fake, ID, State};
    use super::*;

    #[tokio::test]
    async fn text_and_end_are_written() {
        let fake = Fake::new(State::default());
        let tool = ExecCommandTool::new(Arc::clone(&fake)).task_input();
        let call = async |params| tool.execute(params, ToolContext::default()).await.unwrap();
        let written = call(json!({ "task_id": ID, "text": "é\n" })).await;
        assert_eq!(written.as_text(), "Input written\nTask: task_123");
        assert_eq!(written.details, json!({ "task_id": ID, "committed_offset": 3, "closed": false }));
        let closed = call(json!({ "task_id": ID, "close": true })).await;
        assert_eq!(closed.as_text(), "Input written and closed\nTask: task_123");
        let inputs = [
            Input { data: "é\n".into(), offset: None, close: false },
            Input { data: "".into(), offset: None, close: true },
        ];
        assert_eq!(fake.state().inputs, inputs);
    }

    #[tokio::test]
    async fn nothing_to_write_is_refused() {
        let tool = ExecCommandTool::new(Fake::new(State::default())).task_input();
        let result = tool.execute(json!({ "task_id": ID }), ToolContext::default()).await.unwrap();
        assert!(result.is_error && result.as_text().starts_with("Task input failed\n"), "{result:?}");
        assert_eq!(result.details["error"]["kind"], "invalid_tool_input");
    }
}
