//! The tool `exec_command` and those for its tasks, on this machine and behind an agent.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use telexec_executor::{Executor, Output};
use telexec_tests::{until, within};
use telexec_tool::exec_command::{
    ExecCommandOutcome, ExecCommandResult, TaskHandle, TaskInputTool, TaskListTool, TaskOutput, TaskOutputTool,
    TaskStop, TaskStopTool,
};
use telexec_tool::{ExecCommandTool, Tool, ToolContext, ToolResult};
use tokio::sync::mpsc;

macro_rules! here_and_there {
    ($($case:ident),+ $(,)?) => {
        telexec_tests::at_place!(local: $($case),+);
        telexec_tests::at_place!(unix: $($case),+);
    };
}

mod commands;
mod tasks;

/// Where a case runs its commands.
type Machine = Arc<dyn Executor>;

/// The tools of one model.
struct Tools {
    command: ExecCommandTool,
    output: TaskOutputTool,
    input: TaskInputTool,
    stop: TaskStopTool,
    list: TaskListTool,
}

impl Tools {
    fn of(command: ExecCommandTool) -> Self {
        let (output, input, stop, list) =
            (command.task_output(), command.task_input(), command.task_stop(), command.task_list());
        Self { command, output, input, stop, list }
    }

    fn on(machine: Machine) -> Self {
        Self::of(ExecCommandTool::new(machine))
    }

    async fn run(&self, params: Value) -> ExecCommandResult {
        let result = call(&self.command, plain(params)).await;
        assert!(!result.is_error, "{result:?}");
        serde_json::from_value(result.details).unwrap()
    }

    /// Starts what becomes a task.
    async fn task(&self, params: Value) -> TaskHandle {
        match self.run(params).await.outcome {
            ExecCommandOutcome::PromotedToTask { task_handle, .. } => task_handle,
            other => panic!("{other:?}"),
        }
    }

    async fn read(&self, task: &TaskHandle, yield_time_ms: u64) -> TaskOutput {
        let params = json!({ "task_id": task.task_id, "yield_time_ms": yield_time_ms });
        serde_json::from_value(call(&self.output, params).await.details).unwrap()
    }

    /// Reads on until the task has written this to standard output since.
    async fn read_until(&self, task: &TaskHandle, end: &str) -> String {
        let mut all = String::new();
        until("the task writes what it should", async || {
            all += self.read(task, 0).await.stdout.as_deref().unwrap_or_default();
            all.ends_with(end)
        })
        .await;
        all
    }

    async fn write(&self, task: &TaskHandle, text: &str, close: bool) -> ToolResult {
        call(&self.input, json!({ "task_id": task.task_id, "text": text, "close": close })).await
    }

    async fn stop(&self, task: &TaskHandle, grace_ms: u64) -> TaskStop {
        let params = json!({ "task_id": task.task_id, "grace_ms": grace_ms });
        serde_json::from_value(call(&self.stop, params).await.details).unwrap()
    }
}

/// A login shell may have more to say than a test expects.
fn plain(mut params: Value) -> Value {
    params.as_object_mut().unwrap().entry("login").or_insert(json!(false));
    params
}

async fn call(tool: &dyn Tool, params: Value) -> ToolResult {
    within(tool.execute(params, ToolContext::default())).await.unwrap()
}

async fn answer(machine: Machine, params: Value) -> ToolResult {
    call(&ExecCommandTool::new(machine), plain(params)).await
}

fn listening() -> (ToolContext, mpsc::Receiver<Output>) {
    let (output, reported) = mpsc::channel(16);
    (ToolContext { output: Some(output), ..ToolContext::default() }, reported)
}

fn files(directory: &Path) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

/// Writes `go` into a directory that is the command's, for a command that waits for it.
fn go(directory: &Path) {
    std::fs::write(directory.join("go"), "").unwrap();
}

const WAIT: &str = "until [ -e go ]; do sleep 0.01; done";
