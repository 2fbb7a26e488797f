//! When the answer to some input is complete: once something was written after it, and nothing more for a while.

use std::time::Duration;

use telexec_executor::{ExecutionInfo, Output};
use tokio::time::Instant;

/// Notices the answer to some input in a task's output.
pub(super) struct Settle {
    /// Where the output was when the input was written.
    from: u64,
    /// Lines of the input that the terminal has yet to repeat, which is no answer.
    repeated_lines: usize,
    /// What the terminal begins to repeat with, as long as it has not; without it, it repeats nothing: a password is read.
    repeated_first: Option<u8>,
    is_terminal: bool,
    in_escape: bool,
    has_begun: bool,
    quiet: Duration,
    last: Instant,
}

impl Settle {
    /// For this text, about to be written to the task; the answer is complete after `quiet` without output.
    pub(super) fn new(task: &ExecutionInfo, text: &str, quiet: Duration) -> Self {
        let repeated_lines = if task.terminal { text.matches('\n').count() } else { 0 };
        let first = text.bytes().next().filter(|byte| repeated_lines > 0 && !byte.is_ascii_control());
        Self {
            from: task.position,
            repeated_lines,
            repeated_first: first,
            is_terminal: task.terminal,
            in_escape: false,
            has_begun: false,
            quiet,
            last: Instant::now(),
        }
    }

    /// Sees what came next.
    pub(super) fn push(&mut self, output: &Output) {
        let before = usize::try_from(self.from.saturating_sub(output.position)).unwrap_or(usize::MAX);
        for byte in output.data.iter().skip(before) {
            self.has_begun |= self.is_answer(*byte);
        }
        self.last = Instant::now();
    }

    /// `None`: the answer has not begun.
    pub(super) fn end(&self) -> Option<Instant> {
        self.has_begun.then(|| self.last + self.quiet)
    }

    /// Line editors also move the cursor and set modes of the terminal.
    fn is_answer(&mut self, byte: u8) -> bool {
        if !self.is_terminal {
            return true;
        }
        if self.in_escape {
            self.in_escape = !(byte.is_ascii_alphabetic() || matches!(byte, b'~' | b'\x07'));
            return false;
        }
        self.in_escape = byte == b'\x1b';
        if byte == b'\n' || !byte.is_ascii_control() {
            let is_repeated = self.repeated_first.take().is_none_or(|first| first == byte);
            self.repeated_lines = if is_repeated { self.repeated_lines } else { 0 };
        }
        if byte == b'\n' {
            self.repeated_lines = self.repeated_lines.saturating_sub(1);
        }
        self.repeated_lines == 0 && !byte.is_ascii_control()
    }
}

#[cfg(test)]
mod tests {
    use telexec_executor::{ExecutionState, OutputStream};

    use super::*;
    use crate::fake::info;

    /// Whether this output, of which a task had written `before`, is an answer to that text.
    fn is_answered(terminal: bool, before: usize, text: &str, output: &'static str) -> bool {
        let task = ExecutionInfo { terminal, position: before as u64, ..info("task", ExecutionState::Running) };
        let mut settle = Settle::new(&task, text, Duration::ZERO);
        let mut position = 0;
        for chunk in output.as_bytes().chunks(3) {
            settle.push(&Output { stream: OutputStream::Stdout, data: chunk.into(), position });
            position += chunk.len() as u64;
        }
        settle.end().is_some()
    }

    #[test]
    fn any_new_output_of_a_pipe_is_an_answer() {
        for (before, output, expected) in [(0, "", false), (4, ">>> ", false), (4, ">>> 2", true), (4, ">>> \n", true)]
        {
            assert_eq!(is_answered(false, before, "1+1\n", output), expected, "{output:?}");
        }
    }

    #[test]
    fn what_a_terminal_repeats_is_no_answer() {
        for (text, output, expected) in [
            ("1+1\n", "1+1\r\n", false),
            ("1+1\n", "1+1\r\n\x1b[?2004l\r", false),
            ("1+1\n", "1+1\r\n\x1b[?2004l\r2\r\n", true),
            ("1+1\n", "1+1\r\n\x1b[?2004h>>> ", true),
            ("a\nb\n", "a\r\nb\r\n", false),
            ("a\nb\n", "a\r\nb\r\nc", true),
            // without echo
            ("secret\n", "\r\n", false),
            ("secret\n", "\r\nagain: ", true),
            ("secret\n", "denied\r\n", true),
            ("secret\n", "s", false),
            ("\n", "\r\n", false),
            // a single key
            ("y", "y", true),
        ] {
            assert_eq!(is_answered(true, 0, text, output), expected, "{output:?}");
        }
    }
}
