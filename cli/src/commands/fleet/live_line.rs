//! The line below the output, on a terminal only: how far the run is. It is written together with the output above it, in
//! one piece, so that it does not flicker.

use std::fs::File;
use std::io::IsTerminal;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::{Duration, Instant};

use crate::terminal;

/// To the beginning of the line, and erases it.
const ERASE: &[u8] = b"\r\x1b[K";
/// Between changes that come without output.
const INTERVAL: Duration = Duration::from_millis(50);

pub(crate) struct LiveLine {
    /// Whether standard output is the same terminal.
    with_stdout: bool,
    /// The text, and the one that is seen.
    text: String,
    shown: String,
    last: Option<Instant>,
}

impl LiveLine {
    /// `None` if standard error is no terminal that can erase a line. Also if standard output is a pipe: its reader, such
    /// as `tee`, may write to the same terminal.
    pub(crate) fn new(stdout: &File, stderr: &File) -> Option<Self> {
        let can_erase = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
        let is_pipe = stdout.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo());
        if !can_erase || is_pipe || !stderr.is_terminal() {
            return None;
        }
        let device = |file: &File| file.metadata().map(|metadata| metadata.rdev());
        let same = || matches!((device(stdout), device(stderr)), (Ok(one), Ok(other)) if one == other);
        let with_stdout = stdout.is_terminal() && same();
        Some(Self { with_stdout, text: String::new(), shown: String::new(), last: None })
    }

    /// Replaces the text. It is seen with the next output, or after [`LiveLine::redraw`].
    pub(crate) fn set(&mut self, text: String) {
        self.text = text;
    }

    /// What to write instead of this output, so that it comes above the line.
    pub(crate) fn above(&mut self, output: &mut Vec<u8>, is_stdout: bool) {
        if is_stdout && !self.with_stdout {
            return;
        }
        if !self.shown.is_empty() {
            output.splice(0..0, ERASE.iter().copied());
        }
        self.shown = fitting(&self.text);
        self.last = Some(Instant::now());
        output.extend_from_slice(self.shown.as_bytes());
    }

    /// What to write to show the text, if that is another than what is seen.
    pub(crate) fn redraw(&mut self) -> Option<Vec<u8>> {
        let fitting = fitting(&self.text);
        if fitting == self.shown || self.last.is_some_and(|last| last.elapsed() < INTERVAL) {
            return None;
        }
        self.last = Some(Instant::now());
        self.shown = fitting;
        Some([ERASE, self.shown.as_bytes()].concat())
    }

    /// What to write to remove it.
    pub(crate) fn erase(&self) -> &'static [u8] {
        if self.shown.is_empty() { b"" } else { ERASE }
    }
}

/// As much of the text as fits into one line. The last column stays free: after it, terminals differ.
fn fitting(text: &str) -> String {
    let width = terminal::stderr_width().unwrap_or(80).saturating_sub(1);
    match text.chars().count() > width {
        true => text.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
        false => text.to_owned(),
    }
}
