//! Why a subcommand failed: the messages to print, and the exit code.

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;

use telexec_config::ConfigError;

use super::exit;
use super::words::in_words;

/// A failure with its messages and exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// The connection was lost, and what became of the command is not known.
    pub(crate) is_lost: bool,
    lines: Vec<String>,
}

impl Failure {
    /// An error with all its causes.
    pub(crate) fn new(code: u8, error: &(dyn Error + 'static)) -> Self {
        Self::message(code, with_causes(error))
    }

    pub(crate) fn message(code: u8, text: impl Into<String>) -> Self {
        Self { code, is_lost: false, lines: vec![text.into()] }
    }

    /// Only an exit code.
    pub(crate) fn silent(code: u8) -> Self {
        Self { code, is_lost: false, lines: Vec::new() }
    }

    /// Prefixes the error with what failed, or where.
    pub(crate) fn context(mut self, what: impl std::fmt::Display) -> Self {
        if let Some(line) = self.lines.first_mut() {
            *line = format!("{what}: {line}");
        }
        self
    }

    pub(crate) fn lost(mut self, is_lost: bool) -> Self {
        self.is_lost = is_lost;
        self
    }

    /// Appends a suggestion.
    pub(crate) fn hint(mut self, hint: Option<impl Into<String>>) -> Self {
        self.lines.extend(hint.map(Into::into));
        self
    }

    /// Prints all messages to standard error.
    pub(crate) fn print(&self) {
        self.lines.iter().for_each(|line| print_message(line));
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::message(exit::USAGE, error.message).hint(error.hint)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

/// Where messages go instead of standard error; `None`: nowhere.
static MESSAGES: OnceLock<Option<File>> = OnceLock::new();

/// Sends all messages from now on to this file, or nowhere. Only the first call has an effect.
pub(crate) fn send_messages_to(file: Option<File>) {
    MESSAGES.get_or_init(|| file);
}

/// Prints a line to standard error, ignoring errors.
pub(crate) fn print_message(line: &str) {
    let line = format!("telexec: {line}\n");
    let _ = match MESSAGES.get() {
        None => std::io::stderr().lock().write_all(line.as_bytes()),
        Some(Some(file)) => (&mut &*file).write_all(line.as_bytes()),
        Some(None) => Ok(()),
    };
}

/// The same without blocking the runtime when standard error is not read, so that open connections stay alive.
pub(crate) async fn print_message_async(line: String) {
    // fails only when the runtime shuts down
    let _ = tokio::task::spawn_blocking(move || print_message(&line)).await;
}

/// The messages of an error and its causes, without repetitions.
pub(crate) fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = in_words(error);
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = in_words(error);
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use telexec_executor::ExecutorError;

    use super::*;

    #[test]
    fn every_cause_is_said_once() {
        let inner = ExecutorError::Unreachable { endpoint: "a".into(), source: "a is unreachable".into() };
        let outer = ExecutorError::Lost { endpoint: "b".into(), source: Box::new(inner) };
        assert_eq!(with_causes(&outer), "the connection to b was lost: a is unreachable");
    }
}
