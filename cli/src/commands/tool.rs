//! `telexec tool`: calls or lists the tools that AI orchestrators use.

use std::io::Read;
use std::sync::Arc;

use serde_json::{Value, json};
use telexec_client::Agent;
use telexec_executor::TraceContext;
use telexec_executor::{Executor, ExecutorError, Files};
use telexec_tool::bash::Style;
use telexec_tool::files::FileTools;
use telexec_tool::{BashTool, ExecCommandTool};
use telexec_tool::{Tool, ToolContext, ToolError, ToolResult};
use tokio::sync::mpsc;

use crate::args::{ToolArgs, ToolOptions, ToolStyle};
use crate::config::Config;
use crate::connect::{call_failure, with_agent};
use crate::output::{self, Failure, OutputWriter, exit};

/// The tool returned an error.
const FAILED: u8 = 1;
/// Chunks of streamed output between the tool and the terminal.
const QUEUE: usize = 16;

pub(crate) async fn run(mut args: ToolArgs) -> Result<u8, Failure> {
    args.connect.queue = args.queue.queue;
    let params = match &args.name {
        Some(_) => params(&args.params)?,
        None => Value::Null,
    };
    let user = Config::load()?.resolve(&args.agent.target, &args.connect)?.user;
    with_agent(&args.agent.target, &args.connect, async |agent| work(&args, params, user, agent).await).await
}

async fn work(args: &ToolArgs, params: Value, user: Option<String>, agent: &Agent) -> Result<u8, Failure> {
    let tools = tools(&args.options, user, agent);
    let Some(name) = &args.name else {
        // fail if the agent is unreachable
        agent.ping().await.map_err(|error| call_failure(exit::LOST, &args.agent.target, &error))?;
        return list(&tools, args.json).map(|()| 0);
    };
    let tool = tools.iter().find(|tool| tool.definition().name == *name).ok_or_else(|| {
        Failure::message(exit::USAGE, format!("no such tool: {name:?}"))
            .hint(Some(format!("`telexec tool {}` lists the tools", args.agent.target)))
    })?;
    let result = call(tool.as_ref(), params, args.stream).await;
    show(result.map_err(|error| failure(args, &error))?, args.json)
}

/// All tools of a target. `user` is the configured one.
fn tools(options: &ToolOptions, user: Option<String>, agent: &Agent) -> Vec<Box<dyn Tool>> {
    let user = options.user.clone().or(user);
    let mut tools: Vec<Box<dyn Tool>> = vec![Box::new(bash(options, user.as_deref(), agent.executor()))];
    tools.extend(exec_command(options, user.as_deref(), agent.executor()).with_task_tools());
    tools.extend(file_tools(options, user.as_deref(), Arc::new(agent.files())).into_tools());
    tools
}

/// How tools that run commands answer.
pub(crate) fn style(options: &ToolOptions) -> Style {
    match options.style {
        ToolStyle::Plain => Style::plain(),
        ToolStyle::CodeFirst => Style::code_first(),
        ToolStyle::Sections => Style::sections(),
    }
}

pub(crate) fn bash(options: &ToolOptions, user: Option<&str>, executor: impl Executor + 'static) -> BashTool {
    let limit = options.max_output as usize;
    let bash = BashTool::new(executor).style(style(options)).max_output_characters(limit).deny(&options.deny);
    match user {
        Some(user) => bash.user(user),
        None => bash,
    }
}

pub(crate) fn exec_command(
    options: &ToolOptions,
    user: Option<&str>,
    executor: impl Executor + 'static,
) -> ExecCommandTool {
    let exec_command = ExecCommandTool::new(executor).deny(&options.deny);
    match user {
        Some(user) => exec_command.user(user),
        None => exec_command,
    }
}

pub(crate) fn file_tools(options: &ToolOptions, user: Option<&str>, files: Arc<dyn Files>) -> FileTools {
    let tools = FileTools::new(files).max_output_characters(options.max_output as usize);
    match user {
        Some(user) => tools.user(user),
        None => tools,
    }
}

/// Calls the tool; if requested, streams its output to standard error.
async fn call(tool: &dyn Tool, params: Value, stream: bool) -> Result<ToolResult, ToolError> {
    let context = ToolContext { trace: TraceContext::from_environment(), ..ToolContext::default() };
    if !stream {
        return tool.execute(params, context).await;
    }
    let (output, mut chunks) = mpsc::channel::<telexec_executor::Output>(QUEUE);
    let context = ToolContext { output: Some(output), ..context };
    let shown = async {
        let Ok(mut writer) = OutputWriter::start() else { return };
        while let Some(chunk) = chunks.recv().await {
            if writer.write(telexec_executor::OutputStream::Stderr, chunk.data).await.is_err() {
                return;
            }
        }
        let _ = writer.finish().await;
    };
    tokio::join!(tool.execute(params, context), shown).0
}

fn list(tools: &[Box<dyn Tool>], as_json: bool) -> Result<(), Failure> {
    let definitions: Vec<_> = tools.iter().map(|tool| tool.definition()).collect();
    let text = match as_json {
        true => format!("{}\n", json!(definitions)),
        false => definitions.iter().map(|tool| format!("{}  {}\n", tool.name, tool.description)).collect(),
    };
    output::print(text.as_bytes())
}

fn show(result: ToolResult, as_json: bool) -> Result<u8, Failure> {
    let text = result.as_text();
    let code = match result.is_error {
        true if is_refused(&result) => exit::REFUSED,
        true => FAILED,
        false => 0,
    };
    let shown = match as_json {
        true => format!("{}\n", json!({ "text": text, "details": result.details, "is_error": result.is_error })),
        false if text.ends_with('\n') => text,
        false => text + "\n",
    };
    output::print(shown.as_bytes()).map(|()| code)
}

/// By the agent's policy: what this side denies has no rule.
fn is_refused(result: &ToolResult) -> bool {
    result.details.pointer("/error/details/rule").is_some_and(Value::is_string)
}

fn failure(args: &ToolArgs, error: &ToolError) -> Failure {
    let ToolError::Failed { source: Some(source), .. } = error else {
        return Failure::new(FAILED, error).context(&args.agent.target);
    };
    match source.downcast_ref::<ExecutorError>() {
        Some(
            error @ (ExecutorError::Denied { .. }
            | ExecutorError::ApprovalRequired { .. }
            | ExecutorError::Unauthenticated { .. }),
        ) => call_failure(exit::REFUSED, &args.agent.target, error),
        Some(error) if exit::of_error(error) == exit::LOST => call_failure(exit::LOST, &args.agent.target, error),
        _ => Failure::new(FAILED, error).context(&args.agent.target),
    }
}

const EXAMPLE: &str = "for example: telexec tool web1 bash '{\"command\": \"ls\"}'";

fn params(text: &str) -> Result<Value, Failure> {
    let mut input = String::new();
    let text = match text {
        "-" => {
            let read = std::io::stdin().lock().read_to_string(&mut input);
            read.map_err(|error| Failure::new(exit::USAGE, &error).context("cannot read standard input"))?;
            &input
        }
        text => text,
    };
    let params: Value = serde_json::from_str(text).map_err(|error| {
        Failure::new(exit::USAGE, &error).context("the parameters are not JSON").hint(Some(EXAMPLE))
    })?;
    match params.is_object() {
        true => Ok(params),
        false => Err(Failure::message(exit::USAGE, "the parameters are not a JSON object").hint(Some(EXAMPLE))),
    }
}
