//! The tool `task_list`: lists the tasks.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use telexec_executor::{ExecutionInfo, ExecutorError, ListQuery};

use super::diagnostics::exit_status;
use super::outcome::{TaskCommand, TaskStatus};
use super::tasks::{LABEL, Tasks};
use crate::failure::{Failure, answer, result};
use crate::parameters::{flag, parse};
use crate::summary::shorten;
use crate::{Tool, ToolContext, ToolDefinition, ToolError, ToolResult};

const NAME: &str = "task_list";
const MAX_TASKS: usize = 100;

/// Lists the commands that `exec_command` started and that run, also for other callers who are the same to the executor.
///
/// The parameters of a call are [`TaskListArgs`]; details of its result are a [`TaskList`].
pub struct TaskListTool {
    tasks: Arc<Tasks>,
    definition: ToolDefinition,
}

/// The parameters of `task_list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskListArgs {
    /// Include those that have ended and are still remembered. Default: no.
    #[serde(default)]
    pub include_exited: bool,
}

/// Tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskList {
    /// The newest 100, oldest first.
    pub tasks: Vec<TaskListEntry>,
    /// How many older ones there are.
    pub left_out: usize,
}

/// One task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskListEntry {
    /// Names it.
    pub task_id: String,
    /// How it is.
    pub status: TaskStatus,
    /// What it was started as.
    pub command: TaskCommand,
    /// Bytes of output so far.
    pub position: u64,
    /// Its exit code; `None`: it has none, or has not ended.
    pub exit_status: Option<i32>,
}

impl TaskList {
    /// The text that a model gets: a line for each.
    pub fn render(&self) -> String {
        if self.tasks.is_empty() {
            return "(no tasks)".to_owned();
        }
        let older = (self.left_out > 0).then(|| format!("(older tasks left out: {})", self.left_out));
        older.into_iter().chain(self.tasks.iter().map(TaskListEntry::line)).collect::<Vec<_>>().join("\n")
    }
}

impl TaskListEntry {
    fn of(info: &ExecutionInfo) -> Self {
        Self {
            task_id: info.id.to_string(),
            status: info.state.into(),
            command: TaskCommand::of(info),
            position: info.position,
            exit_status: info.exited.as_ref().and_then(exit_status),
        }
    }

    fn line(&self) -> String {
        let code = self.exit_status.map(|code| format!(" with code {code}")).unwrap_or_default();
        let command = shorten(self.command.cmd.as_deref().unwrap_or_default());
        format!("{}  {:?}{code}  {command}", self.task_id, self.status)
    }
}

impl TaskListTool {
    pub(super) fn new(tasks: Arc<Tasks>) -> Self {
        let definition = ToolDefinition::new(NAME, "Lists the running tasks started by exec_command.")
            .parameter("include_exited", flag("Include tasks that have ended", false.into()), false)
            .closed()
            .returns::<TaskList>();
        Self { tasks, definition }
    }

    async fn call(&self, params: Value) -> Result<ToolResult, Failure> {
        let args: TaskListArgs = parse(NAME, params)?;
        let list = self.list(args.include_exited).await.map_err(|error| Failure::of(NAME, error))?;
        result(list.render(), &list)
    }

    async fn list(&self, include_exited: bool) -> Result<TaskList, ExecutorError> {
        let labels = [(LABEL.0.to_owned(), LABEL.1.to_owned())].into();
        let mut query = ListQuery { include_exited, labels, ..ListQuery::default() };
        let (mut newest, mut left_out) = (VecDeque::new(), 0);
        loop {
            let page = self.tasks.executor.list(query.clone()).await?;
            newest.extend(page.executions.iter().map(TaskListEntry::of));
            let excess = newest.len().saturating_sub(MAX_TASKS);
            newest.drain(..excess);
            left_out += excess;
            if page.next_page_token.is_empty() {
                return Ok(TaskList { tasks: newest.into(), left_out });
            }
            query.page_token = page.next_page_token;
        }
    }
}

#[async_trait]
impl Tool for TaskListTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    async fn execute(&self, params: Value, context: ToolContext) -> Result<ToolResult, ToolError> {
        answer("Task list failed", context.cancel.run_until_cancelled(self.call(params)).await)
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn is_concurrent_safe(&self) -> bool {
        true
    }

    fn activity_description(&self, _params: &Value) -> Option<String> {
        Some("Listing tasks...".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::ExecCommandTool;
    use super::*;
    use crate::fake::{Fake, State, exited};
    use telexec_executor::ExitCause;

    #[tokio::test]
    async fn a_task_is_a_line() {
        let fake = Fake::new(State::default());
        let tool = ExecCommandTool::new(Arc::clone(&fake)).task_list();
        let result = tool.execute(json!({}), ToolContext::default()).await.unwrap();
        assert_eq!(result.as_text(), "task_123  Running  make");
        assert_eq!(result.details["tasks"][0]["command"]["workdir"], "/src");
        fake.state().exited = Some(exited(ExitCause::Exited(3)));
        let result = tool.execute(json!({ "include_exited": true }), ToolContext::default()).await.unwrap();
        assert_eq!(result.as_text(), "task_123  Exited with code 3  make");
        let state = fake.state();
        let asked: Vec<_> = state.queries.iter().map(|query| query.include_exited).collect();
        assert_eq!((asked, &state.queries[0].labels[LABEL.0]), (vec![false, true], &LABEL.1.to_owned()));
    }

    #[test]
    fn none_and_too_many_are_reported() {
        assert_eq!(TaskList::default().render(), "(no tasks)");
        let entry = TaskListEntry::of(&crate::fake::info("a", telexec_executor::ExecutionState::Lingering));
        let list = TaskList { tasks: vec![entry], left_out: 7 };
        assert_eq!(list.render(), "(older tasks left out: 7)\na  Lingering  make");
    }
}
