//! The tool `task_input`: writes to a task's standard input, and answers with what the task writes next.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use telexec_executor::Input;

use super::args::{max_output_tokens, output_limit, parse_task_id, task_id, yield_time_ms};
use super::outcome::TaskStatus;
use super::render::{ended, task};
use super::settle::Settle;
use super::task_output::{TaskOutput, read};
use super::tasks::Tasks;
use crate::failure::{Failure, answer, result};
use crate::parameters::{flag, number, parse, text};
use crate::{Tool, ToolContext, ToolDefinition, ToolError, ToolFailure, ToolResult};

const NAME: &str = "task_input";
/// For the task to read what is written.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longer than programs pause between two lines of an answer, mostly.
const DEFAULT_SETTLE_MS: u64 = 500;

/// Writes to the standard input of a task that accepts input, and answers with what the task writes then: a step of an
/// interactive program is one call. Where it was left, [`super::TaskOutputTool`] goes on.
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
    /// How long to wait for the output that follows, in milliseconds. Default: 10,000; 0: take what is available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub yield_time_ms: Option<u64>,
    /// The output is complete once nothing has followed it for so long, in milliseconds. What a terminal repeats of the
    /// input is no output. Default: 500.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settle_ms: Option<u64>,
    /// The most that the answer has of the output; see [`super::ExecCommandArgs::max_output_tokens`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
}

/// Input that was written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskInput {
    /// The task.
    pub task_id: String,
    /// Bytes of input that it has got from all writers.
    pub committed_offset: u64,
    /// Its input is closed now.
    pub closed: bool,
    /// What it wrote since its output was read last; `None`: that cannot be read.
    pub output: Option<TaskOutput>,
}

impl TaskInput {
    /// The text that a model gets.
    pub fn render(&self) -> String {
        let written = if self.closed { "Input written and closed" } else { "Input written" };
        let mut lines = vec![written.to_owned(), task(&self.task_id)];
        let Some(output) = &self.output else {
            lines.push("Its output cannot be read".to_owned());
            return lines.join("\n");
        };
        if output.status != TaskStatus::Running {
            lines.push(ended(output.exit_status));
        }
        output.render_after(lines)
    }
}

impl TaskInputTool {
    pub(super) fn new(tasks: Arc<Tasks>) -> Self {
        let about = "Writes to the standard input of a task started by exec_command with `accepts_input` or `tty`, and \
                     returns what the task prints next: one step of an interactive program such as python or psql.";
        let wait = "Maximum time to wait for output, in milliseconds";
        let settle = "Time without further output after which the output is complete, in milliseconds";
        let definition = ToolDefinition::new(NAME, about)
            .parameter("task_id", task_id(), true)
            .parameter("text", text("Text to write; add a newline where one is needed"), false)
            .parameter("close", flag("Close standard input afterwards", false.into()), false)
            .parameter("yield_time_ms", number(wait, yield_time_ms(None)), false)
            .parameter("settle_ms", number(settle, DEFAULT_SETTLE_MS), false)
            .parameter("max_output_tokens", max_output_tokens(), false)
            .closed()
            .returns::<TaskInput>();
        Self { tasks, definition }
    }

    async fn call(&self, params: Value) -> Result<ToolResult, Failure> {
        let args: TaskInputArgs = parse(NAME, params)?;
        let id = parse_task_id(NAME, &args.task_id)?;
        if args.text.is_empty() && !args.close {
            return Err(Failure::invalid_input(NAME, "text: is empty, and close is not set"));
        }
        // a caller who may not read may still write
        let before = self.tasks.executor.get(&id).await.ok();
        let quiet = Duration::from_millis(yield_time_ms(args.settle_ms.or(Some(DEFAULT_SETTLE_MS))));
        let settle = before.map(|before| Settle::new(&before, &args.text, quiet));
        let input = Input { data: args.text.into(), offset: None, close: args.close };
        let written = tokio::time::timeout(ACCEPT_TIMEOUT, self.tasks.executor.write_input(&id, input)).await;
        let committed_offset = written.map_err(|_| not_taken())?.map_err(|error| Failure::of(NAME, error))?;
        let output = match settle {
            Some(settle) => {
                let wait = Duration::from_millis(yield_time_ms(args.yield_time_ms));
                let limit = output_limit(args.max_output_tokens);
                read(&self.tasks, &id, None, limit, wait, Some(settle)).await.ok()
            }
            None => None,
        };
        let input = TaskInput { task_id: args.task_id, committed_offset, closed: args.close, output };
        result(input.render(), &input)
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
    use telexec_executor::{ExitCause, OutputStream};
    use tokio::time::Instant;

    use super::super::ExecCommandTool;
    use super::*;
    use crate::fake::{Fake, ID, State, exited};

    async fn input(fake: &Arc<Fake>, params: Value) -> TaskInput {
        let tool = ExecCommandTool::new(Arc::clone(fake)).task_input();
        let result = tool.execute(params, ToolContext::default()).await.unwrap();
        assert!(!result.is_error, "{result:?}");
        serde_json::from_value(result.details).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn text_and_end_are_written() {
        let fake = Fake::new(State::default());
        let written = input(&fake, json!({ "task_id": ID, "text": "é\n" })).await;
        assert_eq!((written.committed_offset, written.closed), (3, false));
        let text = "Input written\nTask: task_123\nNext position: 0\n\nstdout:\n(no new output)";
        assert_eq!(written.render(), text);
        let closed = input(&fake, json!({ "task_id": ID, "close": true })).await;
        assert!(closed.render().starts_with("Input written and closed\nTask: task_123\n"), "{closed:?}");
        let inputs = [
            Input { data: "é\n".into(), offset: None, close: false },
            Input { data: "".into(), offset: None, close: true },
        ];
        assert_eq!(fake.state().inputs, inputs);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_task_writes_next_is_answered_and_its_end() {
        let state = State { replies: vec![(OutputStream::Stdout, "2\n>>> ")], ..State::default() };
        let fake = Fake::new(state);
        let step = input(&fake, json!({ "task_id": ID, "text": "1+1\n" })).await;
        let text = "Input written\nTask: task_123\nNext position: 6\n\nstdout:\n2\n>>> ";
        assert_eq!(step.render(), text);
        fake.state().exited = Some(exited(ExitCause::Exited(3)));
        let end = input(&fake, json!({ "task_id": ID, "text": "exit(3)\n", "yield_time_ms": 60_000 })).await;
        let text = "Input written\nTask: task_123\nProcess exited with code 3\nNext position: 6\n";
        assert!(end.render().starts_with(text), "{}", end.render());
    }

    #[tokio::test(start_paused = true)]
    async fn output_settles_once_it_is_more_than_was_there_and_repeated() {
        let begin = Instant::now();
        for (output, terminal, reply, waited) in [
            // silence
            (vec![], false, vec![], 10_000),
            // only what was there before
            (vec![(OutputStream::Stdout, ">>> ")], false, vec![], 10_000),
            (vec![(OutputStream::Stdout, ">>> ")], false, vec![(OutputStream::Stdout, "2\n")], 500),
            // only what the terminal repeats
            (vec![], true, vec![(OutputStream::Stdout, "1+1\r\n")], 10_000),
            (vec![], true, vec![(OutputStream::Stdout, "1+1\r\n2\r\n")], 500),
        ] {
            let fake = Fake::new(State { output, terminal, replies: reply, ..State::default() });
            let before = begin.elapsed();
            input(&fake, json!({ "task_id": ID, "text": "1+1\n" })).await;
            assert_eq!((begin.elapsed() - before).as_millis(), waited);
        }
    }

    #[tokio::test]
    async fn a_wait_can_be_given_up() {
        let fake = Fake::new(State { output: vec![(OutputStream::Stdout, "abc")], ..State::default() });
        let step = input(&fake, json!({ "task_id": ID, "text": "a", "yield_time_ms": 0 })).await;
        assert_eq!(step.output.unwrap().stdout.as_deref(), Some("abc"));
    }

    #[tokio::test]
    async fn nothing_to_write_is_refused() {
        let tool = ExecCommandTool::new(Fake::new(State::default())).task_input();
        let result = tool.execute(json!({ "task_id": ID }), ToolContext::default()).await.unwrap();
        assert!(result.is_error && result.as_text().starts_with("Task input failed\n"), "{result:?}");
        assert_eq!(result.details["error"]["kind"], "invalid_tool_input");
    }
}
