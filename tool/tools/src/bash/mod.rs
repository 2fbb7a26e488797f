//! The tool `bash`: shell text for a model, over any [`Executor`].
//!
//! What it answers in words is a preset of its own, a [`Style`].

mod capture;
mod output;
mod style;
mod sudo;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use serde_json::{Value, json};
use telexec_executor::text::error_chain;
use telexec_executor::{Command, Event, ExitCause, Exited, InvalidCommand, Output, SpawnStage};
use telexec_executor::{Executor, ExecutorError};
use telexec_shell as shell;
use tokio::sync::mpsc;

use self::capture::Capture;
pub use self::output::BashOutput;
pub use self::style::Style;
use self::style::{Ended, clamp, then};
use crate::commands::{Commands, command_setters};
use crate::failure::APPROVED;
use crate::summary::shorten;
use crate::{Tool, ToolContext, ToolDefinition, ToolError, ToolResult};

const NAME: &str = "bash";
/// What models are used to.
const DEFAULT_MAX_OUTPUT_CHARACTERS: usize = 30_000;
/// Less has no room for the words around the output.
const MIN_OUTPUT_CHARACTERS: usize = 1_000;
/// Of an answer: for headings, exit code or timeout, and remarks on what was left out.
const WORDS_CHARACTERS: usize = 500;

/// Runs the shell text that a model asks for and answers with its output.
///
/// The parameters of a call are `command` and `timeout` (seconds); its structured result is a [`BashOutput`]. A command
/// that ran is a result, whatever its exit code. A command that changes its directory takes the next one along, as in a
/// terminal; nothing else of the shell lasts. If that directory is gone by then, the next call fails, because the command was not meant for another place,
/// and the one after it starts in the configured directory again.
pub struct BashTool {
    commands: Commands,
    style: Style,
    definition: ToolDefinition,
    default_timeout: Option<Duration>,
    max_output_characters: usize,
    keeps_directory: bool,
    moved_to: Mutex<Option<String>>,
}

impl BashTool {
    /// A tool whose commands run on `executor`, with [`Style::plain`].
    pub fn new(executor: impl Executor + 'static) -> Self {
        let style = Style::default();
        Self {
            commands: Commands::new(Arc::new(executor)),
            definition: definition(&style, style.default_timeout, true),
            style,
            default_timeout: None,
            max_output_characters: DEFAULT_MAX_OUTPUT_CHARACTERS,
            keeps_directory: true,
            moved_to: Mutex::new(None),
        }
    }

    /// How it answers. Default: [`Style::plain`].
    #[must_use]
    pub fn style(mut self, style: Style) -> Self {
        self.style = style;
        self.describe()
    }

    /// For calls that give none: more than zero, at most 100 years; what is outside is moved inside. Default: the
    /// style's.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.default_timeout = Some(clamp(timeout));
        self.describe()
    }

    /// The most that an answer has, in characters, but at least 1,000. Of longer output it has the beginning and the end,
    /// and between them a line that says what was left out. Streamed output has no such limit. Default: 30,000.
    #[must_use]
    pub fn max_output_characters(mut self, characters: usize) -> Self {
        self.max_output_characters = characters.max(MIN_OUTPUT_CHARACTERS);
        self
    }

    /// A command that changes its directory takes the next one along. Default: yes.
    #[must_use]
    pub fn keep_directory(mut self, keep: bool) -> Self {
        self.keeps_directory = keep;
        self.describe()
    }

    fn describe(mut self) -> Self {
        self.definition = definition(&self.style, self.default_timeout(), self.keeps_directory);
        self
    }

    command_setters!();

    /// Where the next command starts; `None`: in the executor's default directory.
    pub fn working_directory(&self) -> Option<String> {
        self.moved_to().clone().or_else(|| self.commands.directory.clone())
    }

    fn moved_to(&self) -> MutexGuard<'_, Option<String>> {
        self.moved_to.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn default_timeout(&self) -> Duration {
        self.default_timeout.unwrap_or(self.style.default_timeout)
    }

    /// The command of a call.
    fn command(&self, call: &Call<'_>, context: &ToolContext) -> Result<Command, ToolError> {
        self.commands
            .command(call.command, None, self.moved_to().clone())
            .timeout(call.timeout)
            .report_working_directory(self.keeps_directory)
            .trace(context.trace.clone())
            .build()
            .map_err(malformed)
    }

    /// Runs a command to its end. Dropping this ends it.
    pub(crate) async fn run(
        &self,
        command: Command,
        listener: Option<mpsc::Sender<Output>>,
    ) -> Result<Ran, ExecutorError> {
        let mut execution = self.commands.execute(command).await?;
        let mut capture = Capture::new(self.max_output_characters.saturating_sub(WORDS_CHARACTERS));
        while let Some(event) = execution.next().await {
            match event? {
                Event::Started(_) => {}
                // after a lost connection
                Event::Gap(position) => capture.skip(position),
                // cannot be: it does not yield
                Event::Promoted => break,
                Event::Output(output) => {
                    capture.push(&output);
                    if let Some(listener) = &listener {
                        // an error: it no longer listens
                        let _ = listener.send(output).await;
                    }
                }
                Event::Exited(exited) => return Ok(Ran { exited, capture }),
            }
            // so that a cancel is seen however fast events come
            tokio::task::coop::consume_budget().await;
        }
        Err(ExecutorError::Internal("the executor did not report how the command ended".to_owned()))
    }

    /// What a command that ran comes to.
    pub(crate) fn result(&self, ran: Ran, timeout: Duration) -> Result<ToolResult, ToolError> {
        let (stdout, stderr) = ran.capture.into_texts(&ran.exited);
        let exit_code = ran.exited.exit_code();
        let output = BashOutput::of(&ran.exited, &stdout, &stderr);
        if let Some(path) = ran.exited.working_directory {
            *self.moved_to() = Some(path);
        }
        let ended = Ended { exit_code, stdout: stdout.text, stderr: stderr.text };
        let unfinished = || (self.style.unfinished)(&ended);
        let result = match ran.exited.cause {
            ExitCause::Exited(_) | ExitCause::Signaled => Ok((self.style.ended)(ended)),
            // the code alone does not say why
            ExitCause::OutOfMemory => {
                Ok((self.style.ended)(ended.with_remark("Command was killed: it ran out of memory.")))
            }
            ExitCause::TimedOut => (self.style.timed_out)(unfinished(), timeout),
            ExitCause::Cancelled => Err(ToolError::Cancelled),
            ExitCause::DeadlineExceeded => {
                Err(ToolError::failed(then(unfinished(), "Command was ended: the call's deadline ran out.")))
            }
            ExitCause::Shutdown => {
                Err(ToolError::failed(then(unfinished(), "Command was ended: its machine's agent shut down.")))
            }
        };
        Ok(result?.with_structured(json!(output)))
    }

    /// What a command that did not run, or was lost, comes to.
    pub(crate) fn failure(&self, error: ExecutorError) -> Result<ToolResult, ToolError> {
        match error {
            ExecutorError::Spawn(error) => {
                if error.stage == SpawnStage::Chdir {
                    *self.moved_to() = None;
                }
                let output = BashOutput::not_started(error.to_string());
                Ok((self.style.not_started)(error)?.with_structured(json!(output)))
            }
            // by this side
            ExecutorError::Denied { reason, rule: None, .. } => Err(ToolError::failed(reason)),
            ExecutorError::ApprovalRequired { ref reason, .. } => {
                let message = format!("{reason}; {APPROVED}");
                Err(ToolError::Failed { message, source: Some(Box::new(error)) })
            }
            ExecutorError::Denied { ref reason, .. } | ExecutorError::Unauthenticated { ref reason } => {
                Err(ToolError::Failed { message: reason.clone(), source: Some(Box::new(error)) })
            }
            ExecutorError::Invalid(error) => Err(malformed(error)),
            error => Err(ToolError::Failed { message: error_chain(&error), source: Some(Box::new(error)) }),
        }
    }
}

/// A command that ran: how it ended, and what it wrote.
pub(crate) struct Ran {
    exited: Exited,
    capture: Capture,
}

impl Ran {
    /// From its start to its end.
    pub(crate) fn wall_time(&self) -> Duration {
        self.exited.wall_time
    }
}

/// What a model asks for.
#[derive(Debug)]
struct Call<'a> {
    command: &'a str,
    timeout: Duration,
}

impl<'a> Call<'a> {
    /// Reads the parameters of a call.
    fn parse(params: &'a Value, default_timeout: Duration) -> Result<Self, ToolError> {
        let invalid = |text: &str| Err(ToolError::InvalidArgs(text.to_owned()));
        let Some(params) = params.as_object() else { return invalid("expected an object with the parameter command") };
        if let Some(name) = params.keys().find(|name| !matches!(name.as_str(), "command" | "timeout")) {
            return invalid(&format!("{name}: unknown parameter; {NAME} has command and timeout"));
        }
        let Some(command) = params.get("command").and_then(Value::as_str) else {
            return invalid("command: is missing, or is not a string");
        };
        let timeout = match params.get("timeout") {
            None => Some(default_timeout),
            Some(seconds) => seconds.as_f64().and_then(style::timeout),
        };
        match timeout {
            Some(timeout) => Ok(Self { command, timeout }),
            None => invalid("timeout: is not a positive number of seconds"),
        }
    }
}

#[async_trait]
impl Tool for BashTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    async fn execute(&self, params: Value, context: ToolContext) -> Result<ToolResult, ToolError> {
        let call = Call::parse(&params, self.default_timeout())?;
        if self.style.refuses_sudo && sudo::calls_sudo(call.command) {
            return Err(ToolError::failed("Command blocked by safety policy: sudo is not permitted"));
        }
        let command = self.command(&call, &context)?;
        match context.cancel.run_until_cancelled(self.run(command, context.output)).await {
            Some(Ok(ran)) => self.result(ran, call.timeout),
            Some(Err(error)) => self.failure(error),
            None => Err(ToolError::Cancelled),
        }
    }

    fn is_destructive(&self) -> bool {
        true
    }

    fn is_open_world(&self) -> bool {
        true
    }

    /// The command in brackets, on one line and cut to 60 characters.
    fn summary(&self, params: &Value) -> String {
        command_text(params).map_or_else(|| "[bash]".to_owned(), |text| format!("[bash: {}]", shorten(text)))
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

fn definition(style: &Style, default_timeout: Duration, keeps_directory: bool) -> ToolDefinition {
    let sudo = if style.refuses_sudo { " sudo is not permitted." } else { "" };
    let directory = match keeps_directory {
        true => "The working directory carries over to the next call.",
        false => "The working directory does not carry over to the next call.",
    };
    let about = format!("Runs a bash command and returns its output. {directory}");
    let seconds = match default_timeout.subsec_nanos() {
        0 => json!(default_timeout.as_secs()),
        _ => json!(default_timeout.as_secs_f64()),
    };
    let command = json!({ "type": "string", "description": format!("Bash command to run.{sudo}") });
    let timeout = json!({
        "type": "number",
        "description": format!("Timeout in seconds (default: {seconds})"),
        "exclusiveMinimum": 0,
        "default": seconds,
    });
    ToolDefinition::new(NAME, about)
        .parameter("command", command, true)
        .parameter("timeout", timeout, false)
        .closed()
        .returns::<BashOutput>()
}

fn command_text(params: &Value) -> Option<&str> {
    params.get("command")?.as_str()
}

/// Only the text can be the model's fault; the rest was configured.
fn malformed(error: InvalidCommand) -> ToolError {
    match error.field.as_ref() {
        "command" => ToolError::InvalidArgs(error.to_string()),
        _ => ToolError::Failed { message: error.to_string(), source: Some(Box::new(error)) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_that_do_not_fit_are_refused_by_name() {
        let default = Duration::from_secs(7);
        for (params, named) in [
            (json!({}), "command: "),
            (json!({ "command": 1 }), "command: "),
            (json!({ "command": null }), "command: "),
            (json!({ "cmd": "ls" }), "cmd: unknown parameter"),
            (json!({ "command": "ls", "workdir": "/" }), "workdir: unknown parameter"),
            (json!("ls"), "expected an object"),
            (Value::Null, "expected an object"),
        ] {
            let refused = Call::parse(&params, default).unwrap_err();
            assert!(matches!(&refused, ToolError::InvalidArgs(text) if text.starts_with(named)), "{refused:?}");
        }
        for odd in [json!(0), json!(-1), json!(-0.5), json!("5"), json!(null), json!([]), json!({}), json!(true)] {
            let refused = Call::parse(&json!({ "command": "ls", "timeout": odd }), default).unwrap_err();
            assert!(matches!(&refused, ToolError::InvalidArgs(text) if text.starts_with("timeout: ")), "{odd}");
        }
    }

    #[test]
    fn a_command_alone_has_the_default_timeout() {
        let default = Duration::from_secs(7);
        for (params, timeout) in [
            (json!({ "command": "ls" }), default),
            (json!({ "command": "ls", "timeout": 3 }), Duration::from_secs(3)),
            (json!({ "command": "ls", "timeout": 0.5 }), Duration::from_millis(500)),
        ] {
            let call = Call::parse(&params, default).unwrap();
            assert_eq!((call.command, call.timeout), ("ls", timeout));
        }
    }

    #[test]
    fn the_definition_names_the_default_timeout() {
        for (style, timeout, seconds) in [
            (Style::plain(), Duration::from_secs(120), json!(120)),
            (Style::sections(), Duration::from_secs(5), json!(5)),
            (Style::plain(), Duration::from_millis(500), json!(0.5)),
        ] {
            let definition = definition(&style, timeout, true);
            assert_eq!(definition.name, "bash");
            assert!(definition.description.contains("bash"));
            assert_eq!(definition.input_schema["required"], json!(["command"]));
            assert_eq!(definition.input_schema["properties"]["timeout"]["default"], seconds);
        }
    }
}
