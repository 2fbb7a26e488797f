//! The tool `bash`, on this machine and behind an agent: what it does, and every word that orchestrators rely on.

use std::sync::Arc;

use serde_json::{Value, json};
use telexec_executor::{Executor, Output, OutputStream};
use telexec_tests::{lines, within};
use telexec_tool::bash::Style;
use telexec_tool::{BashTool, Tool, ToolContext, ToolError, ToolResult};
use tempfile::TempDir;
use tokio::sync::mpsc;

macro_rules! here_and_there {
    ($($case:ident),+ $(,)?) => {
        telexec_tests::at_place!(local: $($case),+);
        telexec_tests::at_place!(unix: $($case),+);
    };
}

mod calls;
mod code_first;
mod description;
mod plain;
mod refusals;
mod sections;

/// Where a case runs its commands.
type Machine = Arc<dyn Executor>;

/// A directory, and in it the file that a command writes if it runs.
struct Trace {
    directory: TempDir,
}

impl Trace {
    const WRITE: &str = "echo ran >> trace";

    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    /// The same path as the shell's.
    fn path(&self) -> String {
        self.directory.path().canonicalize().unwrap().to_str().unwrap().to_owned()
    }

    fn has_run(&self) -> bool {
        !lines(&self.directory.path().join("trace")).is_empty()
    }
}

/// The tool with that preset, in a directory of its own.
fn tool(machine: &Machine, style: Style, trace: &Trace) -> BashTool {
    BashTool::new(Arc::clone(machine)).style(style).cwd(trace.path())
}

async fn call(tool: &BashTool, params: Value) -> Result<ToolResult, ToolError> {
    within(tool.execute(params, ToolContext::default())).await
}

async fn answer(tool: &BashTool, command: &str) -> ToolResult {
    call(tool, json!({ "command": command })).await.unwrap()
}

/// The text of what a preset answers.
async fn text(machine: &Machine, style: Style, command: &str) -> String {
    answer(&BashTool::new(Arc::clone(machine)).style(style), command).await.as_text()
}

#[track_caller]
fn failed(result: Result<ToolResult, ToolError>) -> String {
    match result {
        Err(ToolError::Failed { message, .. }) => message,
        other => panic!("{other:?}"),
    }
}

fn listening() -> (ToolContext, mpsc::Receiver<Output>) {
    let (output, reported) = mpsc::channel(16);
    (ToolContext { output: Some(output), ..ToolContext::default() }, reported)
}

async fn next(reported: &mut mpsc::Receiver<Output>) -> (OutputStream, String) {
    let chunk = within(reported.recv()).await.expect("more output");
    (chunk.stream, String::from_utf8(chunk.data.to_vec()).unwrap())
}

/// For what is the same everywhere.
fn here() -> impl Executor + 'static {
    telexec_engine::LocalExecutor::new(Default::default()).unwrap()
}
