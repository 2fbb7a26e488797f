//! The lines of asciicast v2: a header, then events `[seconds, code, data]`. In printable ASCII, as the audit log is.
//!
//! See <https://docs.asciinema.org/manual/asciicast/v2/>.

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use telexec_executor::text::printable;
use telexec_executor::{OutputStream, TerminalSize};
use time::OffsetDateTime;

use crate::audit::json;
use crate::timestamp::rfc3339;

/// What a byte takes at most in a line: `\ufffd`.
const MAX_BYTES_OF_BYTE: usize = 6;
/// What else a line has: the time, the code, and the beginning of a character that came before.
const MAX_LINE_OVERHEAD: usize = 96;
/// The size of the terminal on which the output of commands without one is played.
const NO_TERMINAL: (u16, u16) = (80, 24);

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::audit) struct Header {
    version: u8,
    width: u16,
    height: u16,
    /// Of the start, in seconds since 1970.
    timestamp: u64,
    title: String,
    pub(super) telexec: About,
}

/// What is recorded: our own part of the header.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::audit) struct About {
    pub(in crate::audit) identity: String,
    pub(in crate::audit) execution_id: String,
    pub(in crate::audit) agent: String,
    /// It has a terminal; otherwise its output is that of both streams.
    pub(in crate::audit) terminal: bool,
}

impl Header {
    pub(super) fn new(about: About, size: Option<TerminalSize>, timestamp: u64) -> Self {
        let (width, height) = size.map_or(NO_TERMINAL, |size| (size.columns(), size.rows()));
        let About { identity, execution_id, agent, .. } = &about;
        let title = format!("{identity} on {agent}: {execution_id}");
        Self { version: 2, width, height, timestamp, title, telexec: about }
    }

    /// For who plays it.
    pub(in crate::audit) fn summary(&self) -> String {
        let start = OffsetDateTime::from_unix_timestamp(i64::try_from(self.timestamp).unwrap_or_default());
        let start = start.map(|start| rfc3339(start).replace(".000000", "")).unwrap_or_default();
        let size = match self.telexec.terminal {
            true => format!("a terminal of {}x{}", self.width, self.height),
            false => "no terminal".to_owned(),
        };
        format!("{}, started {start}, {size}", printable(&self.title))
    }

    /// # Errors
    /// There is none.
    pub(super) fn to_line(&self) -> io::Result<Vec<u8>> {
        let mut line = json::to_line(self)?;
        line.push(b'\n');
        Ok(line)
    }
}

/// What happened.
#[derive(Debug)]
pub(super) enum Event {
    Output(OutputStream, Vec<u8>),
    Input {
        data: Vec<u8>,
        is_hidden: bool,
    },
    Resized(TerminalSize),
    /// For who plays it.
    Marker(String),
}

impl Event {
    /// The beginning of it, whose line has at most so many bytes.
    pub(super) fn cut_to_line(&self, room: usize) -> Self {
        let beginning = |data: &[u8]| {
            let most = room.saturating_sub(MAX_LINE_OVERHEAD) / MAX_BYTES_OF_BYTE;
            data.get(..most.min(data.len())).unwrap_or_default().to_owned()
        };
        match self {
            Self::Output(stream, data) => Self::Output(*stream, beginning(data)),
            Self::Input { data, is_hidden } => Self::Input { data: beginning(data), is_hidden: *is_hidden },
            Self::Resized(_) | Self::Marker(_) => Self::Marker(String::new()),
        }
    }
}

/// Makes the lines of one recording.
#[derive(Clone, Debug)]
pub(super) struct Encoder {
    /// What is not yet a whole character of each output stream, and of the input.
    stdout: Decoder,
    stderr: Decoder,
    input: Decoder,
    has_terminal: bool,
    shows_hidden_input: bool,
}

impl Encoder {
    pub(super) fn new(has_terminal: bool, shows_hidden_input: bool) -> Self {
        let [stdout, stderr, input] = [(); 3].map(|()| Decoder::default());
        Self { stdout, stderr, input, has_terminal, shows_hidden_input }
    }

    /// The line of an event; nothing if it completes no character.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn encode(&mut self, at: Duration, event: &Event) -> io::Result<Vec<u8>> {
        let (code, text) = match event {
            Event::Output(stream, data) => ("o", self.output(*stream, data)),
            Event::Input { data, is_hidden: true } if !self.shows_hidden_input => ("i", masked(data)),
            Event::Input { data, .. } => ("i", self.input.decode(data)),
            Event::Resized(size) => ("r", format!("{}x{}", size.columns(), size.rows())),
            Event::Marker(text) => ("m", text.clone()),
        };
        if text.is_empty() { Ok(Vec::new()) } else { line(at, code, &text) }
    }

    fn output(&mut self, stream: OutputStream, data: &[u8]) -> String {
        let text = match stream {
            OutputStream::Stdout => self.stdout.decode(data),
            OutputStream::Stderr => self.stderr.decode(data),
        };
        match self.has_terminal {
            true => text,
            // a terminal would have done that
            false => text.replace("\r\n", "\n").replace('\n', "\r\n"),
        }
    }

    /// The lines of what remains incomplete.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn finish(&mut self, at: Duration) -> io::Result<Vec<u8>> {
        let output = self.stdout.rest() + &self.stderr.rest();
        let rests = [("o", output), ("i", self.input.rest())];
        let lines = rests.iter().filter(|(_, text)| !text.is_empty()).map(|(code, text)| line(at, code, text));
        lines.collect::<io::Result<Vec<_>>>().map(|lines| lines.concat())
    }
}

fn line(at: Duration, code: &str, text: &str) -> io::Result<Vec<u8>> {
    let mut line = format!("[{}.{:06}, \"{code}\", ", at.as_secs(), at.subsec_micros()).into_bytes();
    line.extend(json::to_line(&text)?);
    line.extend_from_slice(b"]\n");
    Ok(line)
}

/// As many asterisks as there are characters; the ends of lines stay.
fn masked(data: &[u8]) -> String {
    let is_start = |byte: &&u8| **byte & 0xc0 != 0x80;
    let shown = data.iter().filter(is_start).map(|byte| match byte {
        b'\r' | b'\n' => char::from(*byte),
        _ => '*',
    });
    shown.collect()
}

/// What is not UTF-8 becomes U+FFFD. A character may come in pieces.
#[derive(Clone, Debug, Default)]
struct Decoder(Vec<u8>);

impl Decoder {
    fn decode(&mut self, data: &[u8]) -> String {
        let mut bytes = std::mem::take(&mut self.0);
        bytes.extend_from_slice(data);
        let whole = bytes.len() - incomplete(&bytes);
        self.0 = bytes.split_off(whole);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn rest(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.0)).into_owned()
    }
}

/// The bytes at the end that begin a character, and may be completed.
fn incomplete(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    while let Err(error) = str::from_utf8(rest) {
        let valid = error.valid_up_to();
        match error.error_len() {
            None => return rest.len() - valid,
            Some(length) => rest = rest.get(valid + length..).unwrap_or_default(),
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(encoder: &mut Encoder, event: &Event) -> String {
        String::from_utf8(encoder.encode(Duration::from_micros(1_500_007), event).unwrap()).unwrap()
    }

    fn out(data: &[u8]) -> Event {
        Event::Output(OutputStream::Stdout, data.to_vec())
    }

    #[test]
    fn characters_that_come_in_pieces_are_whole() {
        let mut encoder = Encoder::new(true, false);
        assert_eq!(encoded(&mut encoder, &out(b"a\xc3")), "[1.500007, \"o\", \"a\"]\n");
        assert_eq!(encoded(&mut encoder, &out(b"\xa9")), "[1.500007, \"o\", \"\\u00e9\"]\n");
        assert_eq!(encoded(&mut encoder, &out(b"\xe2\x82")), "");
        let other = Event::Output(OutputStream::Stderr, b"x\n".to_vec());
        assert_eq!(encoded(&mut encoder, &other), "[1.500007, \"o\", \"x\\n\"]\n");
        let rest = String::from_utf8(encoder.finish(Duration::ZERO).unwrap()).unwrap();
        assert_eq!(rest, "[0.000000, \"o\", \"\\ufffd\"]\n");
        assert_eq!(encoded(&mut encoder, &out(b"\xff\xfea")), "[1.500007, \"o\", \"\\ufffd\\ufffda\"]\n");
    }

    #[test]
    fn lines_without_a_terminal_end_as_on_one() {
        let mut encoder = Encoder::new(false, false);
        assert_eq!(encoded(&mut encoder, &out(b"a\nb\r\n")), "[1.500007, \"o\", \"a\\r\\nb\\r\\n\"]\n");
    }

    #[test]
    fn hidden_input_is_masked() {
        let hidden = Event::Input { data: "gehe\u{ef}m\r".into(), is_hidden: true };
        let mut encoder = Encoder::new(true, false);
        assert_eq!(encoded(&mut encoder, &hidden), "[1.500007, \"i\", \"******\\r\"]\n");
        let mut encoder = Encoder::new(true, true);
        assert_eq!(encoded(&mut encoder, &hidden), "[1.500007, \"i\", \"gehe\\u00efm\\r\"]\n");
    }
}
