//! Why a subcommand did not do what was asked: what to say, and the exit code.

use std::error::Error;
use std::fmt;
use std::io::Write;

/// A failure, ready to be told.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    lines: Vec<String>,
}

impl Failure {
    /// An error with all its causes.
    pub(crate) fn new(code: u8, error: &(dyn Error + 'static)) -> Self {
        Self::text(code, with_causes(error))
    }

    pub(crate) fn text(code: u8, text: impl Into<String>) -> Self {
        Self { code, lines: vec![text.into()] }
    }

    /// Nothing is to be said.
    pub(crate) fn silent(code: u8) -> Self {
        Self { code, lines: Vec::new() }
    }

    /// Says before the error what could not be done, or where.
    pub(crate) fn during(mut self, what: impl std::fmt::Display) -> Self {
        if let Some(line) = self.lines.first_mut() {
            *line = format!("{what}: {line}");
        }
        self
    }

    /// Says what to try.
    pub(crate) fn advice(mut self, advice: Option<impl Into<String>>) -> Self {
        self.lines.extend(advice.map(Into::into));
        self
    }

    /// Says it all on standard error.
    pub(crate) fn print(&self) {
        self.lines.iter().for_each(|line| say(line));
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

/// One line on standard error. If that is closed, there is no one to tell.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "telexec: {line}");
}

/// The same while a connection is open, which must not wait for whoever reads standard error.
pub(crate) async fn say_meanwhile(line: String) {
    // an error would say that the program is about to end
    let _ = tokio::task::spawn_blocking(move || say(&line)).await;
}

/// The texts of an error and its causes, each that adds something.
pub(crate) fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
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
