//! The tool `bash`: shell text for a model, over any [`Executor`].
//!
//! What it answers in words is a preset of its own, a [`Style`].

mod capture;
mod style;
mod sudo;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use serde_json::{Value, json};
use telexec_executor::text::error_chain;
use telexec_executor::{Command, Event, ExitCause, Exited, InvalidCommand, Output, OutputStream, SpawnStage};
use telexec_executor::{Executor, ExecutorError};
use telexec_shell as shell;
use tokio::sync::mpsc;

use self::capture::{Capture, SPARE_BYTES};
pub use self::style::Style;
use self::style::{Ended, clamp};
use crate::commands::{Commands, command_setters};
use crate::summary::shorten;
use crate::{Tool, ToolContext, ToolDefinition, ToolError, ToolResult};

const DEFAULT_MAX_OUTPUT_BYTES: usize = 256 * 1024;

/// Runs the shell text that a model asks for and answers with its output.
///
/// The parameters of a call are `command` and `timeout` (seconds). A command that ran is a result, whatever its exit
/// code. A command that changes its directory takes the next one along, as in a terminal; nothing else of the shell
/// lasts. If that directory is gone by then, the next call fails, because the command was not meant for another place,
/// and the one after it starts in the configured directory again.
pub struct BashTool {
    commands: Commands,
    style: Style,
    definition: ToolDefinition,
    default_timeout: Option<Duration>,
    max_output_bytes: usize,
    moved_to: Mutex<Option<String>>,
}

impl BashTool {
    /// A tool whose commands run on `executor`, with [`Style::plain`].
    pub fn new(executor: impl Executor + 'static) -> Self {
        let style = Style::default();
        Self {
            commands: Commands::new(Arc::new(executor)),
            definition: definition(&style, style.default_timeout),
            style,
            default_timeout: None,
            max_output_bytes: DEFAULT_MAX_OUTPUT_BYTES,
            moved_to: Mutex::new(None),
        }
    }

    /// How it answers. Default: [`Style::plain`].
    #[must_use]
    pub fn style(mut self, style: Style) -> Self {
        self.style = style;
        self.definition = definition(&self.style, self.default_timeout());
        self
    }

    /// For calls that give none: more than zero, at most 100 years; what is outside is moved inside. Default: the
    /// style's.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.default_timeout = Some(clamp(timeout));
        self.definition = definition(&self.style, self.default_timeout());
        self
    }

    /// The most that an answer has of each stream, in bytes of UTF-8; the rest is left out, which the answer marks.
    /// Streamed output has no such limit. Default: 256 KiB.
    #[must_use]
    pub fn max_output_bytes(mut self, bytes: usize) -> Self {
        self.max_output_bytes = bytes;
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

    /// The command of a call. Without a listener, output beyond the limit need not even travel.
    fn command(&self, text: &str, timeout: Duration, context: &ToolContext) -> Result<Command, ToolError> {
        let mut command = self
            .commands
            .command(text, None, self.moved_to().clone())
            .timeout(timeout)
            .report_working_directory(true)
            .trace(context.trace.clone());
        if context.output.is_none() {
            command = command.max_output_bytes(self.max_output_bytes.saturating_add(SPARE_BYTES) as u64);
        }
        command.build().map_err(malformed)
    }

    /// Runs a command to its end. Dropping this ends it.
    async fn run(&self, command: Command, listener: Option<mpsc::Sender<Output>>) -> Result<Ran, ExecutorError> {
        let mut execution = self.commands.execute(command).await?;
        let mut stdout = Capture::new(self.max_output_bytes);
        let mut stderr = Capture::new(self.max_output_bytes);
        while let Some(event) = execution.next().await {
            match event? {
                Event::Started(_) => {}
                // after a lost connection; its stream is not known
                Event::Gap(_) => {
                    stdout.note_gap();
                    stderr.note_gap();
                }
                // cannot be: it does not yield
                Event::Promoted => break,
                Event::Output(output) => {
                    match output.stream {
                        OutputStream::Stdout => stdout.push(&output.data),
                        OutputStream::Stderr => stderr.push(&output.data),
                    }
                    if let Some(listener) = &listener {
                        // an error: it no longer listens
                        let _ = listener.send(output).await;
                    }
                }
                Event::Exited(exited) => return Ok(Ran { exited, stdout, stderr }),
            }
            // so that a cancel is seen however fast events come
            tokio::task::coop::consume_budget().await;
        }
        Err(ExecutorError::Internal("the executor did not report how the command ended".to_owned()))
    }

    /// What a command that ran comes to.
    fn result(&self, ran: Ran, timeout: Duration) -> Result<ToolResult, ToolError> {
        let Ran { exited, stdout, stderr } = ran;
        let exit_code = exited.exit_code();
        if let Some(path) = exited.working_directory {
            *self.moved_to() = Some(path);
        }
        let ended =
            || Ended { exit_code, stdout: stdout.into_text(exited.stdout), stderr: stderr.into_text(exited.stderr) };
        match exited.cause {
            ExitCause::Exited(_) | ExitCause::Signaled => Ok((self.style.ended)(ended())),
            // the code alone does not say why
            ExitCause::OutOfMemory => {
                Ok((self.style.ended)(ended().with_remark("Command was killed: it ran out of memory.")))
            }
            ExitCause::TimedOut => (self.style.timed_out)(timeout),
            ExitCause::Cancelled => Err(ToolError::Cancelled),
            ExitCause::DeadlineExceeded => Err(ToolError::failed("Command was ended: the call's deadline ran out.")),
            ExitCause::Shutdown => Err(ToolError::failed("Command was ended: its machine's agent shut down.")),
        }
    }

    /// What a command that did not run, or was lost, comes to.
    fn failure(&self, error: ExecutorError) -> Result<ToolResult, ToolError> {
        match error {
            ExecutorError::Spawn(error) => {
                if error.stage == SpawnStage::Chdir {
                    *self.moved_to() = None;
                }
                (self.style.not_started)(error)
            }
            ExecutorError::Denied { reason, .. } | ExecutorError::Unauthenticated { reason } => {
                Err(ToolError::failed(reason))
            }
            ExecutorError::Invalid(error) => Err(malformed(error)),
            error => Err(ToolError::Failed { message: error_chain(&error), source: Some(Box::new(error)) }),
        }
    }
}

/// A command that ran: how it ended, and what it wrote.
struct Ran {
    exited: Exited,
    stdout: Capture,
    stderr: Capture,
}

#[async_trait]
impl Tool for BashTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    async fn execute(&self, params: Value, context: ToolContext) -> Result<ToolResult, ToolError> {
        let text = command_text(&params)
            .ok_or_else(|| ToolError::InvalidArgs("command: is missing, or is not a string".to_owned()))?;
        let timeout = self.style.timeout(params.get("timeout"), self.default_timeout())?;
        if self.style.refuses_sudo && sudo::calls_sudo(text) {
            return Err(ToolError::failed("Command blocked by safety policy: sudo is not permitted"));
        }
        let command = self.command(text, timeout, &context)?;
        match context.cancel.run_until_cancelled(self.run(command, context.output)).await {
            Some(Ok(ran)) => self.result(ran, timeout),
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

fn definition(style: &Style, default_timeout: Duration) -> ToolDefinition {
    let sudo = if style.refuses_sudo { " sudo is not permitted." } else { "" };
    let about = "Runs a bash command and returns its output. The working directory carries over to the next call.";
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
    ToolDefinition::new("bash", about).parameter("command", command, true).parameter("timeout", timeout, false)
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
    fn only_a_string_is_a_command() {
        assert_eq!(command_text(&json!({ "command": "ls" })), Some("ls"));
        for params in [json!({}), json!({ "command": 1 }), json!({ "command": null }), json!("ls"), Value::Null] {
            assert_eq!(command_text(&params), None, "{params}");
        }
    }

    #[test]
    fn the_definition_names_the_default_timeout() {
        for (style, timeout, seconds) in [
            (Style::plain(), Duration::from_secs(120), json!(120)),
            (Style::sections(), Duration::from_secs(5), json!(5)),
            (Style::plain(), Duration::from_millis(500), json!(0.5)),
        ] {
            let definition = definition(&style, timeout);
            assert_eq!(definition.name, "bash");
            assert!(definition.description.contains("bash"));
            assert_eq!(definition.input_schema["required"], json!(["command"]));
            assert_eq!(definition.input_schema["properties"]["timeout"]["default"], seconds);
        }
    }
}
