//! The tool `exec_command`: a shell command that becomes a task if it runs long, and the tools for such tasks,
//! over any [`Executor`].

mod args;
mod artifacts;
mod capture;
mod diagnostics;
mod outcome;
mod render;
mod seen;
mod settle;
mod task_input;
mod task_list;
mod task_output;
mod task_stop;
mod tasks;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use serde_json::Value;
use telexec_executor::{Command, Event, Execution, InvalidCommand, Output, TerminalSize, TraceContext};
use telexec_executor::{Executor, ExecutorError};
use telexec_shell as shell;
use tokio::sync::mpsc;

pub use self::args::{ExecCommandArgs, ExecCommandDuplicatePolicy};
use self::args::{definition, output_limit, yield_time_ms};
pub use self::artifacts::CommandArtifact;
use self::artifacts::Store;
pub use self::diagnostics::CommandDiagnostics;
pub use self::outcome::{ExecCommandOutcome, ExecCommandResult, TaskCommand, TaskHandle, TaskStatus};
use self::seen::Seen;
pub use self::task_input::{TaskInput, TaskInputArgs, TaskInputTool};
pub use self::task_list::{TaskList, TaskListArgs, TaskListEntry, TaskListTool};
pub use self::task_output::{TaskOutput, TaskOutputArgs, TaskOutputTool};
pub use self::task_stop::{TaskStop, TaskStopArgs, TaskStopTool};
use self::tasks::{LABEL, Tasks};
use crate::commands::{Commands, command_setters};
use crate::failure::{self, Failure, answer};
use crate::parameters::parse;
use crate::summary::shorten;
use crate::{Tool, ToolContext, ToolDefinition, ToolError, ToolResult};

const NAME: &str = "exec_command";
/// So wide that programs seldom wrap or cut a line: a model reads lines, not a screen.
const TERMINAL: (u32, u32) = (200, 50);

/// Runs the shell command that a model asks for and answers with its output. What runs longer than `yield_time_ms` goes
/// on in the background as a task, for the tools of [`ExecCommandTool::with_task_tools`].
///
/// The parameters of a call are [`ExecCommandArgs`]; details of its result are an [`ExecCommandResult`]. A command that
/// ran is a result, whatever its exit code; what a model can act on, such as parameters that do not fit or a rule that
/// says no, is a result that is an error (see [`crate::ToolFailure`]). Cancelling or dropping a call ends its command,
/// unless that is a task already. A terminal has 200 columns and 50 rows.
///
/// What is cut from an answer is whole, up to 64 MiB a stream, in a file where the commands run: an artifact, which the
/// next command can read. A command of the same user writes it, into `telexec-UID` in TMPDIR or `/tmp`; it is removed a
/// week later, when another one is written. Where the executor does not permit that, the result says that there is none.
/// A command that was promoted has none: its output can be read again.
pub struct ExecCommandTool {
    commands: Commands,
    tasks: Arc<Tasks>,
    definition: ToolDefinition,
    artifact_directory: Option<String>,
}

impl ExecCommandTool {
    /// A tool whose commands run on `executor`.
    pub fn new(executor: impl Executor + 'static) -> Self {
        let executor: Arc<dyn Executor> = Arc::new(executor);
        Self {
            tasks: Arc::new(Tasks::new(Arc::clone(&executor))),
            commands: Commands::new(executor),
            definition: definition(),
            artifact_directory: None,
        }
    }

    command_setters!();

    /// Makes artifacts in this directory, an absolute path to one that exists where the commands run; whoever owns it
    /// removes them. Default: see [`ExecCommandTool`].
    #[must_use]
    pub fn artifact_directory(mut self, path: impl Into<String>) -> Self {
        self.artifact_directory = Some(path.into());
        self
    }

    /// Nobody is asked to confirm its commands, whose text is not the model's.
    fn store(&self) -> Store {
        Store {
            executor: Arc::clone(&self.tasks.executor),
            user: self.commands.user.clone(),
            directory: self.artifact_directory.clone(),
        }
    }

    /// The tool that reads a task's output. Those of one `ExecCommandTool` share their position in it.
    pub fn task_output(&self) -> TaskOutputTool {
        TaskOutputTool::new(Arc::clone(&self.tasks))
    }

    /// The tool that writes to a task's standard input.
    pub fn task_input(&self) -> TaskInputTool {
        TaskInputTool::new(Arc::clone(&self.tasks))
    }

    /// The tool that ends a task.
    pub fn task_stop(&self) -> TaskStopTool {
        TaskStopTool::new(Arc::clone(&self.tasks))
    }

    /// The tool that lists tasks.
    pub fn task_list(&self) -> TaskListTool {
        TaskListTool::new(Arc::clone(&self.tasks))
    }

    /// This tool and those for its tasks: `exec_command`, `task_output`, `task_input`, `task_stop` and
    /// `task_list`.
    pub fn with_task_tools(self) -> Vec<Box<dyn Tool>> {
        let (output, input, stop, list) = (self.task_output(), self.task_input(), self.task_stop(), self.task_list());
        vec![Box::new(self), Box::new(output), Box::new(input), Box::new(stop), Box::new(list)]
    }

    async fn call(
        &self,
        params: Value,
        listener: Option<mpsc::Sender<Output>>,
        trace: Option<TraceContext>,
    ) -> Result<ToolResult, Failure> {
        let args: ExecCommandArgs = parse(NAME, params)?;
        let limit = output_limit(args.max_output_tokens);
        let command = self.command(args).map_err(|error| Failure::of(NAME, error.into()))?.with_trace(trace);
        let result = match self.commands.execute(command).await {
            Ok(execution) => self.follow(execution, limit, listener).await,
            Err(ExecutorError::AlreadyRunning(info)) => Ok(ExecCommandResult::already_running(&info)),
            Err(error) => Err(error),
        };
        let result = result.map_err(|error| Failure::of(NAME, error))?;
        failure::result(result.render(), &result)
    }

    /// The command of a call.
    fn command(&self, args: ExecCommandArgs) -> Result<Command, InvalidCommand> {
        let tty = args.tty.unwrap_or(false);
        let mut command = self
            .commands
            .command(&args.cmd, args.shell, args.workdir)
            .login(args.login.unwrap_or(true))
            .accepts_input(args.accepts_input.unwrap_or(tty))
            .yield_after(Duration::from_millis(yield_time_ms(args.yield_time_ms)))
            .duplicate_policy(args.duplicate_policy.into())
            .labels([(LABEL.0.to_owned(), LABEL.1.to_owned())]);
        if tty {
            command = command.terminal(TerminalSize::new(TERMINAL.0, TERMINAL.1)?);
        }
        command.build()
    }

    /// Follows a command until it ends or becomes a task. Dropping this ends it.
    async fn follow(
        &self,
        mut execution: Execution,
        limit: usize,
        listener: Option<mpsc::Sender<Output>>,
    ) -> Result<ExecCommandResult, ExecutorError> {
        let mut seen = Seen::new(limit);
        while let Some(event) = execution.next().await {
            match event? {
                Event::Started(_) => {}
                // what was kept for it cannot be read, or was lost with a connection
                Event::Gap(_) => seen.has_gap = true,
                Event::Output(output) => {
                    seen.push(&output).await;
                    if let Some(listener) = &listener {
                        // an error: it no longer listens
                        let _ = listener.send(output).await;
                    }
                }
                Event::Exited(exited) => return Ok(seen.completed(&exited, &self.store()).await),
                Event::Promoted => {
                    self.tasks.remember(execution.id(), seen.position);
                    return Ok(ExecCommandResult::promoted(execution.id(), seen.initial_output()));
                }
            }
            // so that a cancel is seen however fast events come
            tokio::task::coop::consume_budget().await;
        }
        Err(ExecutorError::Internal("the executor did not report how the command ended".to_owned()))
    }
}

#[async_trait]
impl Tool for ExecCommandTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    async fn execute(&self, params: Value, context: ToolContext) -> Result<ToolResult, ToolError> {
        let call = context.cancel.run_until_cancelled(self.call(params, context.output, context.trace));
        answer("Command failed", call.await)
    }

    fn is_destructive(&self) -> bool {
        true
    }

    fn is_open_world(&self) -> bool {
        true
    }

    /// The command in brackets, on one line and cut to 60 characters.
    fn summary(&self, params: &Value) -> String {
        command_text(params).map_or_else(|| format!("[{NAME}]"), |text| format!("[{NAME}: {}]", shorten(text)))
    }

    fn activity_description(&self, _params: &Value) -> Option<String> {
        Some("Running command...".to_owned())
    }

    /// The program with any arguments, such as `ls **`, for [`shell::covers`]. None if the text runs several programs, or
    /// is not understood.
    fn permission_pattern(&self, params: &Value) -> Option<String> {
        command_text(params).map(shell::analyze).as_ref().and_then(shell::permission_pattern)
    }
}

fn command_text(params: &Value) -> Option<&str> {
    params.get("cmd")?.as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fake::{Fake, ID, State, exited};
    use telexec_executor::{DuplicatePolicy, ExitCause, OutputStream, Program};

    async fn call(tool: &ExecCommandTool, params: Value) -> ToolResult {
        tool.execute(params, ToolContext::default()).await.unwrap()
    }

    /// The command that these parameters make.
    async fn command(params: Value) -> Command {
        let fake = Fake::new(State { promoted: true, ..State::default() });
        let tool = ExecCommandTool::new(Arc::clone(&fake)).cwd("/home").shell("zsh").env("A", "b");
        call(&tool, params).await;
        fake.state().commands.remove(0)
    }

    #[tokio::test]
    async fn a_command_alone_gets_the_defaults() {
        let command = command(json!({ "cmd": "make" })).await;
        let program = Program::Shell { text: "make".into(), shell: Some("zsh".into()), login: true };
        assert_eq!((command.program(), command.working_directory()), (&program, Some("/home")));
        assert_eq!((command.terminal(), command.accepts_input()), (None, false));
        assert_eq!(command.yield_after(), Some(Duration::from_secs(10)));
        assert_eq!(command.duplicate_policy(), DuplicatePolicy::ReuseRunning);
        assert_eq!(command.environment()["A"], "b");
        assert_eq!(command.labels()[LABEL.0], LABEL.1);
    }

    #[tokio::test]
    async fn every_parameter_reaches_the_command() {
        let command = command(json!({
            "cmd": "make", "workdir": "/src", "shell": "sh", "login": false, "tty": true,
            "duplicate_policy": "start_new", "yield_time_ms": 5,
        }))
        .await;
        let program = Program::Shell { text: "make".into(), shell: Some("sh".into()), login: false };
        assert_eq!((command.program(), command.working_directory()), (&program, Some("/src")));
        assert_eq!((command.terminal(), command.accepts_input()), (TerminalSize::new(200, 50).ok(), true));
        assert_eq!(command.yield_after(), Some(Duration::from_millis(5)));
        assert_eq!(command.duplicate_policy(), DuplicatePolicy::StartNew);
    }

    #[tokio::test]
    async fn input_is_apart_from_the_terminal() {
        assert!(command(json!({ "cmd": "cat", "accepts_input": true })).await.accepts_input());
        let closed = command(json!({ "cmd": "cat", "tty": true, "accepts_input": false })).await;
        assert!(closed.terminal().is_some() && !closed.accepts_input());
    }

    #[tokio::test]
    async fn a_command_that_ends_is_completed() {
        let output = vec![(OutputStream::Stdout, "out\n"), (OutputStream::Stderr, "err\n")];
        let fake = Fake::new(State { output, exited: Some(exited(ExitCause::Exited(3))), ..State::default() });
        let result = call(&ExecCommandTool::new(fake), json!({ "cmd": "make" })).await;
        assert_eq!(result.as_text(), "Process exited with code 3\n\nstdout:\nout\n\n\nstderr:\nerr\n");
        assert_eq!((&result.details["outcome"], result.is_error), (&json!("completed"), false));
        assert_eq!(result.details["stderr_preview"], "err\n");
    }

    #[tokio::test]
    async fn a_command_that_runs_on_becomes_a_task() {
        let output =
            vec![(OutputStream::Stdout, "one\n"), (OutputStream::Stderr, "two\n"), (OutputStream::Stdout, "three")];
        let fake = Fake::new(State { output, promoted: true, ..State::default() });
        let tool = ExecCommandTool::new(fake);
        let result = call(&tool, json!({ "cmd": "make" })).await;
        let text = "Command promoted to background task\nTask: task_123\n\nInitial output:\none\ntwo\nthree";
        assert_eq!(result.as_text(), text);
        assert_eq!(result.details["task_handle"]["task_id"], ID);
        assert_eq!(tool.tasks.position(&ID.parse().unwrap()), 13);
    }

    #[tokio::test]
    async fn a_command_whose_output_has_a_gap_says_that_its_initial_output_is_not_all() {
        let output = vec![(OutputStream::Stdout, "lost"), (OutputStream::Stdout, "shown")];
        let fake = Fake::new(State { output, kept_from: 4, promoted: true, ..State::default() });
        let result = call(&ExecCommandTool::new(fake), json!({ "cmd": "make" })).await;
        assert_eq!(result.details["initial_output_preview"], "shown");
        assert_eq!(result.details["initial_output_truncated"], true);
    }

    #[tokio::test]
    async fn a_task_that_was_promoted_in_silence_says_so() {
        let fake = Fake::new(State { promoted: true, ..State::default() });
        let result = call(&ExecCommandTool::new(fake), json!({ "cmd": "make" })).await;
        assert!(result.as_text().ends_with("\n\nInitial output:\n(none captured before promotion)"), "{result:?}");
        assert_eq!(result.details["initial_output_preview"], json!(null));
    }

    #[tokio::test]
    async fn a_duplicate_is_named() {
        let tool = ExecCommandTool::new(Fake::new(State { duplicate: true, ..State::default() }));
        let result = call(&tool, json!({ "cmd": "make" })).await;
        let text = result.as_text();
        assert!(
            text.starts_with("Command is already running\nTask: task_123\nStatus: Running\nTask summary: "),
            "{text}"
        );
        assert!(text.contains("\nCommand: make\nworkdir=/src\nshell=bash\n\nIt was not started again."), "{text}");
        assert!(!result.is_error);
    }

    #[tokio::test]
    async fn odd_parameters_are_reported_and_nothing_runs() {
        let fake = Fake::new(State::default());
        let tool = ExecCommandTool::new(Arc::clone(&fake));
        for (params, named) in [
            (json!({ "cmd": "make", "status": "running" }), "status"),
            (json!({ "cmd": "" }), "cmd: "),
            (json!({ "cmd": "make", "workdir": "src" }), "workdir: "),
            (json!({ "cmd": "make", "shell": "" }), "shell: "),
        ] {
            let result = call(&tool, params).await;
            let text = result.as_text();
            assert!(result.is_error && text.starts_with("Command failed\n") && text.ends_with('\n'), "{text}");
            assert_eq!(result.details["error"]["kind"], "invalid_tool_input");
            assert!(result.details["error"]["details"]["parse_error"].as_str().unwrap().contains(named), "{text}");
        }
        assert!(fake.state().commands.is_empty());
    }

    #[tokio::test]
    async fn a_rule_that_denies_is_reported() {
        let fake = Fake::new(State::default());
        let tool = ExecCommandTool::new(Arc::clone(&fake)).confirm(async |_| panic!("asked")).deny(["rm -rf"]);
        let result = call(&tool, json!({ "cmd": "rm -rf /" })).await;
        assert_eq!(result.details["error"]["kind"], "denied");
        assert!(fake.state().commands.is_empty());
    }

    #[test]
    fn people_see_the_command() {
        let tool = ExecCommandTool::new(Fake::new(State::default()));
        assert_eq!(tool.summary(&json!({ "cmd": "ls -la" })), "[exec_command: ls -la]");
        assert_eq!(tool.summary(&json!({})), "[exec_command]");
        assert_eq!(tool.activity_description(&json!({})).as_deref(), Some("Running command..."));
        assert_eq!(tool.permission_pattern(&json!({ "cmd": "ls -la" })).as_deref(), Some("ls **"));
    }

    #[test]
    fn tools_say_what_they_may_do() {
        let tools = ExecCommandTool::new(Fake::new(State::default())).with_task_tools();
        let flags: Vec<_> = tools
            .iter()
            .map(|tool| {
                let flags = (tool.is_destructive(), tool.is_read_only(), tool.is_concurrent_safe());
                (tool.definition().name.as_str(), flags, (tool.is_idempotent(), tool.is_open_world()))
            })
            .collect();
        assert_eq!(
            flags,
            [
                ("exec_command", (true, false, false), (false, true)),
                ("task_output", (false, true, true), (true, false)),
                ("task_input", (true, false, false), (false, true)),
                ("task_stop", (true, false, true), (true, false)),
                ("task_list", (false, true, true), (true, false)),
            ]
        );
        for tool in tools {
            assert_eq!(tool.definition().input_schema["additionalProperties"], false);
        }
    }
}
