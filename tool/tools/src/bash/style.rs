//! The presets: how an answer is laid out, and what becomes of a timeout or a command that does not start.
//!
//! A preset reads as a table; the functions under it are its entries.

use std::time::Duration;

use serde_json::{Value, json};
use telexec_executor::SpawnError;

use crate::{ToolError, ToolResult};

/// For a timer, as good as never.
const MAX_TIMEOUT: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// How a [`BashTool`](super::BashTool) answers. Each preset exists in orchestrators, which are used to its exact words.
#[derive(Clone, Debug)]
pub struct Style {
    pub(super) default_timeout: Duration,
    pub(super) refuses_sudo: bool,
    pub(super) ended: fn(Ended) -> ToolResult,
    /// The output of a command that was ended before it had finished; empty, if there is none.
    pub(super) unfinished: fn(&Ended) -> String,
    /// What comes of that output and a timeout.
    pub(super) timed_out: fn(String, Duration) -> Result<ToolResult, ToolError>,
    pub(super) not_started: fn(SpawnError) -> Result<ToolResult, ToolError>,
}

/// A command that ended by itself or by a signal.
pub(super) struct Ended {
    /// -1: a signal.
    pub(super) exit_code: i32,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Style {
    /// Standard output as it is; standard error and an exit code only if there is something to say. The default.
    ///
    /// - A timeout (120 s unless asked for) and a command that does not start are results marked as errors. A timeout
    ///   comes after what was written until then.
    /// - Details: `exit_code`, `success`; null if there is no exit code because of a timeout or no start.
    pub const fn plain() -> Self {
        Self {
            default_timeout: Duration::from_secs(120),
            refuses_sudo: false,
            ended: |ended| ToolResult::text(plain(&ended)).with_details(code_details(ended.exit_code)),
            unfinished: |ended| plain_output(ended).join("\n"),
            timed_out: |output, after| {
                Ok(ToolResult::error(then(output, &format!("command timed out after {}s", seconds(after)))))
            },
            not_started: |error| Ok(ToolResult::error(format!("failed to run command: {error}"))),
        }
    }

    /// The exit code first, then standard output; both streams under headings if there is standard error.
    ///
    /// - A timeout (120 s unless asked for) and a command that does not start are [`ToolError::Failed`]. A timeout comes
    ///   after what was written until then.
    /// - Details: `exit_code`, `success`.
    pub const fn code_first() -> Self {
        Self {
            default_timeout: Duration::from_secs(120),
            refuses_sudo: false,
            ended: |ended| ToolResult::text(code_first(&ended)).with_details(code_details(ended.exit_code)),
            unfinished: code_first_output,
            timed_out: |output, after| {
                Err(ToolError::failed(then(output, &format!("Command timed out after {}s", seconds(after)))))
            },
            not_started: |error| {
                Err(ToolError::Failed { message: format!("Failed to execute: {error}"), source: Some(Box::new(error)) })
            },
        }
    }

    /// A section for each stream that has output, then always the exit code.
    ///
    /// - A timeout (5 s unless asked for) comes after what was written until then. A command that does not start has the
    ///   reason as its standard error.
    /// - `sudo` is [`ToolError::Failed`].
    /// - Details: `exitCode`, `stdout`, `stderr`; of a timeout -1 and no output, by which programs know it.
    pub const fn sections() -> Self {
        Self {
            default_timeout: Duration::from_secs(5),
            refuses_sudo: true,
            ended: |ended| ToolResult::text(sections(&ended)).with_details(stream_details(ended)),
            unfinished: sections_output,
            timed_out: |output, after| {
                let text = then(output, &format!("Command timed out after {} seconds", seconds(after)));
                Ok(ToolResult::text(text).with_details(stream_details(Ended::without_code(String::new()))))
            },
            not_started: |error| {
                let ended = Ended::without_code(error.to_string());
                Ok(ToolResult::text(sections(&ended)).with_details(stream_details(ended)))
            },
        }
    }
}

impl Default for Style {
    fn default() -> Self {
        Self::plain()
    }
}

impl Ended {
    fn without_code(stderr: String) -> Self {
        Self { exit_code: -1, stdout: String::new(), stderr }
    }

    /// Says more on a line of its own, after its standard error.
    pub(super) fn with_remark(mut self, remark: &str) -> Self {
        if !self.stderr.is_empty() && !self.stderr.ends_with('\n') {
            self.stderr.push('\n');
        }
        self.stderr.push_str(remark);
        self
    }
}

/// The timeout of so many seconds, if that is a positive number.
pub(super) fn timeout(seconds: f64) -> Option<Duration> {
    (seconds > 0.0).then(|| clamp(Duration::try_from_secs_f64(seconds).unwrap_or(MAX_TIMEOUT)))
}

/// The nearest timeout that a command can have.
pub(super) fn clamp(timeout: Duration) -> Duration {
    timeout.clamp(Duration::from_nanos(1), MAX_TIMEOUT)
}

/// The output of a command that was ended, and why on a line of its own.
pub(super) fn then(mut output: String, why: &str) -> String {
    if !output.is_empty() && !output.ends_with('\n') {
        output.push('\n');
    }
    output + why
}

fn plain(ended: &Ended) -> String {
    let mut parts = plain_output(ended);
    if ended.exit_code != 0 {
        parts.push(format!("exit code: {}", ended.exit_code));
    }
    if parts.is_empty() { "(no output)".to_owned() } else { parts.join("\n") }
}

fn plain_output(Ended { stdout, stderr, .. }: &Ended) -> Vec<String> {
    let mut parts = Vec::new();
    if !stdout.is_empty() {
        parts.push(stdout.clone());
    }
    if !stderr.is_empty() {
        parts.push(format!("stderr: {stderr}"));
    }
    parts
}

fn code_first(ended: &Ended) -> String {
    format!("Exit code: {}\n{}", ended.exit_code, code_first_output(ended))
}

fn code_first_output(Ended { stdout, stderr, .. }: &Ended) -> String {
    match stderr.as_str() {
        "" => stdout.clone(),
        _ => format!("STDOUT:\n{stdout}\nSTDERR:\n{stderr}"),
    }
}

fn sections(ended: &Ended) -> String {
    sections_output(ended) + &format!("exit code: {}", ended.exit_code)
}

fn sections_output(Ended { stdout, stderr, .. }: &Ended) -> String {
    let mut text = String::new();
    for (name, output) in [("stdout", stdout), ("stderr", stderr)] {
        if !output.is_empty() {
            // the newline that ends a stream is the one between the parts
            text += &format!("{name}:\n{}\n", output.strip_suffix('\n').unwrap_or(output));
        }
    }
    text
}

fn code_details(exit_code: i32) -> Value {
    json!({ "exit_code": exit_code, "success": exit_code == 0 })
}

fn stream_details(Ended { exit_code, stdout, stderr }: Ended) -> Value {
    json!({ "exitCode": exit_code, "stdout": stdout, "stderr": stderr })
}

/// As people write it: `120`, `0.5`. From whole numbers, because a float may come out as `0.30000000000000004`.
fn seconds(duration: Duration) -> String {
    let exact = format!("{}.{:09}", duration.as_secs(), duration.subsec_nanos());
    exact.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(exit_code: i32, stdout: &str, stderr: &str) -> Ended {
        Ended { exit_code, stdout: stdout.to_owned(), stderr: stderr.to_owned() }
    }

    #[test]
    fn plain_says_only_what_there_is() {
        for (ended, text) in [
            (ended(0, "", ""), "(no output)"),
            (ended(0, "out\n", ""), "out\n"),
            (ended(0, "", "err\n"), "stderr: err\n"),
            (ended(0, "out", "err"), "out\nstderr: err"),
            (ended(42, "", ""), "exit code: 42"),
            (ended(-1, "out\n", "err\n"), "out\n\nstderr: err\n\nexit code: -1"),
        ] {
            assert_eq!(plain(&ended), text);
        }
    }

    #[test]
    fn a_remark_has_a_line_of_its_own() {
        for (stderr, text) in [("", "killed"), ("err", "err\nkilled"), ("err\n", "err\nkilled")] {
            assert_eq!(ended(-1, "", stderr).with_remark("killed").stderr, text);
        }
    }

    #[test]
    fn code_first_has_headings_only_with_standard_error() {
        assert_eq!(code_first(&ended(0, "", "")), "Exit code: 0\n");
        assert_eq!(code_first(&ended(3, "out\n", "")), "Exit code: 3\nout\n");
        assert_eq!(code_first(&ended(1, "out\n", "err\n")), "Exit code: 1\nSTDOUT:\nout\n\nSTDERR:\nerr\n");
        assert_eq!(code_first(&ended(1, "", "err")), "Exit code: 1\nSTDOUT:\n\nSTDERR:\nerr");
    }

    #[test]
    fn sections_are_one_newline_apart() {
        for newline in ["", "\n"] {
            let (out, err) = (format!("out{newline}"), format!("err{newline}"));
            assert_eq!(sections(&ended(0, &out, "")), "stdout:\nout\nexit code: 0");
            assert_eq!(sections(&ended(1, "", &err)), "stderr:\nerr\nexit code: 1");
            assert_eq!(sections(&ended(2, &out, &err)), "stdout:\nout\nstderr:\nerr\nexit code: 2");
        }
        assert_eq!(sections(&ended(0, "", "")), "exit code: 0");
    }

    #[test]
    fn each_preset_has_its_own_timeout_answer() {
        let after = Duration::from_secs(2);
        let nothing = String::new;
        let plain = (Style::plain().timed_out)(nothing(), after).unwrap();
        assert_eq!((plain.as_text().as_str(), plain.is_error), ("command timed out after 2s", true));
        let failed = (Style::code_first().timed_out)(nothing(), after).unwrap_err();
        assert_eq!(failed.to_string(), "Command timed out after 2s");
        let sections = (Style::sections().timed_out)(nothing(), after).unwrap();
        assert_eq!((sections.as_text().as_str(), sections.is_error), ("Command timed out after 2 seconds", false));
        assert_eq!(sections.details, json!({ "exitCode": -1, "stdout": "", "stderr": "" }));
    }

    #[test]
    fn what_was_written_comes_before_the_timeout() {
        let after = Duration::from_secs(2);
        for (style, stdout, stderr, expected) in [
            (Style::plain(), "out", "", "out\ncommand timed out after 2s"),
            (Style::plain(), "out\n", "err\n", "out\n\nstderr: err\ncommand timed out after 2s"),
            (Style::code_first(), "out\n", "", "out\nCommand timed out after 2s"),
            (Style::code_first(), "out", "err", "STDOUT:\nout\nSTDERR:\nerr\nCommand timed out after 2s"),
            (Style::sections(), "out\n", "err", "stdout:\nout\nstderr:\nerr\nCommand timed out after 2 seconds"),
        ] {
            let output = (style.unfinished)(&ended(-1, stdout, stderr));
            let text = match (style.timed_out)(output, after) {
                Ok(result) => result.as_text(),
                Err(error) => error.to_string(),
            };
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn timeouts_are_positive_and_bounded() {
        for odd in [0.0, -0.0, -1.0, -0.5, f64::NAN, f64::NEG_INFINITY] {
            assert_eq!(timeout(odd), None, "{odd}");
        }
        assert_eq!(timeout(0.5), Some(Duration::from_millis(500)));
        assert_eq!(timeout(3.0), Some(Duration::from_secs(3)));
        assert_eq!(timeout(1e-300), Some(Duration::from_nanos(1)));
        for huge in [1e10, u64::MAX as f64, 1e300, f64::MAX, f64::INFINITY] {
            assert_eq!(timeout(huge), Some(MAX_TIMEOUT), "{huge}");
        }
    }

    #[test]
    fn seconds_are_written_without_needless_digits() {
        for (value, text) in
            [(120.0, "120"), (0.5, "0.5"), (0.3, "0.3"), (1.25, "1.25"), (100.0, "100"), (0.001, "0.001")]
        {
            assert_eq!(seconds(Duration::from_secs_f64(value)), text);
        }
    }
}
