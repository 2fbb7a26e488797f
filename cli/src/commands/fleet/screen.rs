//! Standard output and standard error, written in order, and the live line below them.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use anstream::{AutoStream, ColorChoice};
use anstyle::Style;
use telexec_executor::OutputStream;

use super::live_line::LiveLine;
use crate::output::{unbuffered, write_all};

/// Bytes collected before they are written.
const BUFFER_BYTES: usize = 64 * 1024;

pub(crate) struct Screen {
    stdout: File,
    stderr: File,
    /// The stream to write to next, and the bytes for it.
    pending: (OutputStream, Vec<u8>),
    colors: [bool; 2],
    terminals: [bool; 2],
    live: Option<LiveLine>,
}

impl Screen {
    /// `live`: with a live line, if standard error is a terminal.
    pub(crate) fn new(live: bool) -> io::Result<Self> {
        let (stdout, stderr) = (unbuffered(io::stdout().as_fd())?, unbuffered(io::stderr().as_fd())?);
        let live = if live { LiveLine::new(&stdout, &stderr) } else { None };
        let colors = [colored(&io::stdout()), colored(&io::stderr())];
        let terminals = [stdout.is_terminal(), stderr.is_terminal()];
        Ok(Self { stdout, stderr, pending: (OutputStream::Stdout, Vec::new()), colors, terminals, live })
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

    /// Whether the stream is a terminal, which obeys what is written to it.
    pub(crate) fn is_terminal(&self, stream: OutputStream) -> bool {
        let [stdout, stderr] = self.terminals;
        if stream == OutputStream::Stdout { stdout } else { stderr }
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let (stream, text) = &mut self.pending;
        if text.is_empty() {
            return Ok(());
        }
        let is_stdout = *stream == OutputStream::Stdout;
        if let Some(live) = &mut self.live {
            live.above(text, is_stdout);
        }
        let written = write_all(if is_stdout { &mut self.stdout } else { &mut self.stderr }, text);
        text.clear();
        written
    }

    /// Sets the text of the live line, and flushes.
    pub(crate) fn update(&mut self, live_text: impl FnOnce() -> String) -> io::Result<()> {
        if let Some(live) = &mut self.live {
            live.set(live_text());
        }
        self.flush()?;
        match self.live.as_mut().and_then(LiveLine::redraw) {
            Some(drawing) => write_all(&mut self.stderr, &drawing),
            None => Ok(()),
        }
    }

    /// Erases the live line for good.
    pub(crate) fn end_live_line(&mut self) -> io::Result<()> {
        self.flush()?;
        match self.live.take() {
            Some(live) => write_all(&mut self.stderr, live.erase()),
            None => Ok(()),
        }
    }
}

/// A terminal, subject to NO_COLOR, CLICOLOR, TERM and CLICOLOR_FORCE.
fn colored(stream: &impl anstream::stream::RawStream) -> bool {
    AutoStream::choice(stream) != ColorChoice::Never
}
