//! What an answer keeps of a command's output: bounded while it grows, beginning and end of each stream.

use telexec_executor::{Exited, Output, OutputStream, StreamTotals};

use crate::preview::{Preview, Unit, shares};

/// The output of a command so far.
pub(super) struct Capture {
    limit: usize,
    stdout: Preview,
    stderr: Preview,
    /// After what came last, in bytes of both streams.
    position: u64,
    lost_bytes: u64,
}

/// The text of a stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Captured {
    pub(super) text: String,
    /// That is not all.
    pub(super) truncated: bool,
}

impl Capture {
    /// Nothing yet; the texts of both streams will have at most `limit` characters, and remarks.
    pub(super) fn new(limit: usize) -> Self {
        let preview = || Preview::new(limit, Unit::Characters);
        Self { limit, stdout: preview(), stderr: preview(), position: 0, lost_bytes: 0 }
    }

    /// Adds what came next.
    pub(super) fn push(&mut self, output: &Output) {
        self.position = output.position + output.data.len() as u64;
        match output.stream {
            OutputStream::Stdout => self.stdout.push(&output.data),
            OutputStream::Stderr => self.stderr.push(&output.data),
        }
    }

    /// What came before this position was lost; which stream's it was is not known.
    pub(super) fn skip(&mut self, position: u64) {
        self.lost_bytes += position.saturating_sub(self.position);
        self.position = position;
    }

    /// The texts of standard output and standard error, once the command has ended like this.
    pub(super) fn into_texts(self, exited: &Exited) -> (Captured, Captured) {
        let (first, second) = shares(self.limit, self.stdout.text_len(), self.stderr.text_len());
        let mut stdout = text(self.stdout, first, exited.stdout);
        let mut stderr = text(self.stderr, second, exited.stderr);
        if self.lost_bytes > 0 {
            stdout.remark(&format!("{} bytes of both streams were lost with a connection", self.lost_bytes));
            stderr.truncated = true;
        }
        (stdout, stderr)
    }
}

fn text(mut preview: Preview, limit: usize, totals: StreamTotals) -> Captured {
    if totals.dropped_bytes > 0 {
        preview.end_between_characters();
    }
    let (text, truncated) = preview.text(limit);
    let mut captured = Captured { text, truncated };
    if totals.dropped_bytes > 0 {
        captured.remark(&format!("{} more bytes were dropped: there was more than may be kept", totals.dropped_bytes));
    }
    captured
}

impl Captured {
    fn remark(&mut self, remark: &str) {
        self.truncated = true;
        let newline = if self.text.is_empty() || self.text.ends_with('\n') { "" } else { "\n" };
        self.text += &format!("{newline}... (output truncated: {remark})");
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use telexec_executor::ExitCause;

    use super::*;
    use crate::fake::exited;

    const DROPPED: &str = "more bytes were dropped: there was more than may be kept)";

    fn capture(limit: usize, stdout: &'static [u8], stderr: &'static [u8]) -> Capture {
        let mut capture = Capture::new(limit);
        let (out, err) = (Bytes::from_static(stdout), Bytes::from_static(stderr));
        let position = stdout.len() as u64;
        capture.push(&Output { stream: OutputStream::Stdout, data: out, position: 0 });
        capture.push(&Output { stream: OutputStream::Stderr, data: err, position });
        capture
    }

    fn ended(dropped_bytes: u64) -> Exited {
        let stdout = StreamTotals { dropped_bytes, ..StreamTotals::default() };
        Exited { stdout, ..exited(ExitCause::Exited(0)) }
    }

    fn whole(text: &str) -> Captured {
        Captured { text: text.to_owned(), truncated: false }
    }

    fn truncated(text: &str) -> Captured {
        Captured { text: text.to_owned(), truncated: true }
    }

    #[test]
    fn the_streams_share_the_limit() {
        let texts = capture(6, "aé語".as_bytes(), b"xyz").into_texts(&ended(0));
        assert_eq!(texts, (whole("aé語"), whole("xyz")));
        let (stdout, stderr) = capture(6, b"abcdef", b"xyz").into_texts(&ended(0));
        assert_eq!(stdout, truncated("a\n... (output truncated: 3 bytes left out, line 1) ...\nef"));
        assert_eq!(stderr, whole("xyz"));
    }

    #[test]
    fn what_the_executor_dropped_is_reported() {
        for (kept, text) in [(&b"abc"[..], "abc"), (b"abc\xe8\xaa", "abc"), (b"a\xff", "a\u{fffd}"), (b"a\n", "a")] {
            let (stdout, stderr) = capture(100, kept, b"").into_texts(&ended(7));
            assert_eq!(stdout, truncated(&format!("{text}\n... (output truncated: 7 {DROPPED}")));
            assert_eq!(stderr, whole(""));
        }
    }

    #[test]
    fn a_gap_is_reported() {
        let mut capture = capture(100, b"abc", b"");
        capture.skip(10);
        capture.push(&Output { stream: OutputStream::Stdout, data: Bytes::from_static(b"def"), position: 10 });
        let (stdout, stderr) = capture.into_texts(&ended(0));
        let lost = "abcdef\n... (output truncated: 7 bytes of both streams were lost with a connection)";
        assert_eq!((stdout, stderr), (truncated(lost), truncated("")));
    }
}
