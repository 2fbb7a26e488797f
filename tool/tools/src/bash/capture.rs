//! What an answer keeps of an output stream: bounded while it grows, whole characters at its end.

use telexec_executor::StreamTotals;
use telexec_executor::text::without_cut_character;

use super::style::TRUNCATED;

/// Kept beyond the limit, so that a character which begins before it is whole.
pub(super) const SPARE_BYTES: usize = 4;

/// The beginning of a stream.
pub(super) struct Capture {
    limit: usize,
    bytes: Vec<u8>,
    dropped: bool,
}

impl Capture {
    /// Nothing yet; its text will have at most `limit` bytes and, if that is not all, a remark.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, bytes: Vec::new(), dropped: false }
    }

    /// Adds what came next, as far as it is wanted.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        let room = self.limit.saturating_add(SPARE_BYTES).saturating_sub(self.bytes.len());
        let wanted = chunk.get(..room).unwrap_or(chunk);
        self.dropped |= wanted.len() < chunk.len();
        self.bytes.extend_from_slice(wanted);
    }

    /// Some of it was lost.
    pub(super) fn note_gap(&mut self) {
        self.dropped = true;
    }

    /// The text, once the stream has ended with these totals: the executor may have dropped something too.
    pub(super) fn into_text(self, totals: StreamTotals) -> String {
        let dropped = self.dropped || totals.dropped_bytes > 0;
        let bytes = if dropped { without_cut_character(&self.bytes) } else { &self.bytes };
        let mut text = String::from_utf8_lossy(bytes).into_owned();
        if dropped || text.len() > self.limit {
            text.truncate(text.floor_char_boundary(self.limit));
            text.push_str(TRUNCATED);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capture(limit: usize, bytes: &[u8], chunk: usize, dropped_bytes: u64) -> String {
        let mut capture = Capture::new(limit);
        bytes.chunks(chunk).for_each(|chunk| capture.push(chunk));
        assert!(capture.bytes.len() <= limit.saturating_add(SPARE_BYTES));
        capture.into_text(StreamTotals { dropped_bytes, ..StreamTotals::default() })
    }

    #[test]
    fn every_limit_cuts_between_characters() {
        for text in ["", "a", "plain", "é", "aé語🦀z", "🦀🦀🦀", "語\n語\n", "a🦀é語a🦀é語 and more"]
        {
            for limit in 0..text.len() + 8 {
                for chunk in 1..=5 {
                    let kept = capture(limit, text.as_bytes(), chunk, 0);
                    if text.len() <= limit {
                        assert_eq!(kept, text);
                    } else {
                        assert_eq!(kept, text[..text.floor_char_boundary(limit)].to_owned() + TRUNCATED);
                    }
                }
            }
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_are_replaced_and_count_as_replaced() {
        assert_eq!(capture(100, b"a\xff\xf0\x9f\xa6", 1, 0), "a\u{fffd}\u{fffd}");
        assert_eq!(capture(3, b"\xff\xff", 1, 0), format!("\u{fffd}{TRUNCATED}"));
        for limit in 0..20 {
            let kept = capture(limit, b"\xff\xf0\x9f\x80a\xc3\xff", 2, 0);
            assert!(kept.strip_suffix(TRUNCATED).unwrap_or(&kept).len() <= limit);
        }
    }

    #[test]
    fn what_the_executor_dropped_is_reported() {
        assert_eq!(capture(100, b"abc", 3, 1), format!("abc{TRUNCATED}"));
        assert_eq!(capture(100, "a語".as_bytes().split_at(3).0, 3, 1), format!("a{TRUNCATED}"));
        assert_eq!(capture(100, b"a\xff", 3, 1), format!("a\u{fffd}{TRUNCATED}"));
    }

    #[test]
    fn a_gap_is_reported() {
        let mut capture = Capture::new(100);
        capture.push(b"abc");
        capture.note_gap();
        capture.push(b"def");
        assert_eq!(capture.into_text(StreamTotals::default()), format!("abcdef{TRUNCATED}"));
    }

    #[test]
    fn the_largest_limit_is_no_limit() {
        assert_eq!(capture(usize::MAX, b"abc", 2, 0), "abc");
    }
}
