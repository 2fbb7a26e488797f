//! Standard output and standard error, written in order, and the progress bar below them.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use anstream::{AutoStream, ColorChoice};
use anstyle::Style;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use telexec_executor::OutputStream;

use crate::output::{unbuffered, write_all};

/// Bytes collected before they are written.
const BUFFER_BYTES: usize = 64 * 1024;

pub(crate) struct Screen {
    stdout: File,
    stderr: File,
    /// The stream to write to next, and the bytes for it.
    pending: (OutputStream, Vec<u8>),
    colors: [bool; 2],
    progress: Option<ProgressBar>,
}

impl Screen {
    /// `progress` is the number of hosts; the bar is shown if standard error is a terminal.
    pub(crate) fn new(progress: Option<usize>) -> io::Result<Self> {
        let colors = [colored(&io::stdout()), colored(&io::stderr())];
        Ok(Self {
            stdout: unbuffered(io::stdout().as_fd())?,
            stderr: unbuffered(io::stderr().as_fd())?,
            pending: (OutputStream::Stdout, Vec::new()),
            colors,
            progress: progress.filter(|_| io::stderr().is_terminal()).map(bar),
        })
    }

    /// The buffer for what is written to this stream next.
    pub(crate) fn buffer(&mut self, stream: OutputStream) -> io::Result<&mut Vec<u8>> {
        if self.pending.0 != stream || self.pending.1.len() > BUFFER_BYTES {
            self.flush()?;
            self.pending.0 = stream;
        }
        Ok(&mut self.pending.1)
    }

    /// Prints a message of telexec itself.
    pub(crate) fn message(&mut self, line: &str) -> io::Result<()> {
        let buffer = self.buffer(OutputStream::Stderr)?;
        buffer.extend_from_slice(format!("telexec: {line}\n").as_bytes());
        Ok(())
    }

    /// The text in this style, if the stream has colors.
    pub(crate) fn styled(&self, stream: OutputStream, style: Style, text: &str) -> String {
        let [stdout, stderr] = self.colors;
        match if stream == OutputStream::Stdout { stdout } else { stderr } {
            true => format!("{style}{text}{style:#}"),
            false => text.to_owned(),
        }
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let (stream, text) = &mut self.pending;
        if text.is_empty() {
            return Ok(());
        }
        let file = if *stream == OutputStream::Stdout { &mut self.stdout } else { &mut self.stderr };
        let written = match &self.progress {
            Some(bar) => bar.suspend(|| write_all(file, text)),
            None => write_all(file, text),
        };
        text.clear();
        written
    }

    pub(crate) fn progress(&self, done: usize, message: impl FnOnce() -> String) {
        if let Some(bar) = &self.progress {
            bar.set_position(done as u64);
            bar.set_message(message());
        }
    }

    pub(crate) fn end_progress(&mut self) {
        if let Some(bar) = self.progress.take() {
            bar.finish_and_clear();
        }
    }
}

fn bar(hosts: usize) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(hosts as u64), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("[{bar:24}] {pos}/{len} {wide_msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
    bar
}

/// A terminal, subject to NO_COLOR, CLICOLOR, TERM and CLICOLOR_FORCE.
fn colored(stream: &impl anstream::stream::RawStream) -> bool {
    AutoStream::choice(stream) != ColorChoice::Never
}
