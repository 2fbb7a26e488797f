//! The beginning and the end of an output, in bounded memory.

use std::collections::VecDeque;

use telexec_executor::text::without_cut_character;

/// Kept beyond what a limit needs, so that no character at a cut is in pieces.
const SPARE_BYTES: usize = 4;

/// What a limit on text counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unit {
    Characters,
    Bytes,
}

/// What an answer keeps of an output: its beginning and its end, as much of each.
pub(crate) struct Preview {
    unit: Unit,
    limit: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
    newlines: u64,
}

impl Preview {
    /// Nothing yet; enough is kept for a text of `limit` units.
    pub(crate) fn new(limit: usize, unit: Unit) -> Self {
        Self { unit, limit, head: Vec::new(), tail: VecDeque::new(), total: 0, newlines: 0 }
    }

    /// Adds what came next.
    pub(crate) fn push(&mut self, chunk: &[u8]) {
        self.total += chunk.len() as u64;
        self.newlines += newlines(chunk);
        let limit = self.kept_limit();
        let (first, rest) = chunk.split_at(limit.saturating_sub(self.head.len()).min(chunk.len()));
        self.head.extend_from_slice(first);
        let last = rest.get(rest.len().saturating_sub(limit)..).unwrap_or_default();
        self.tail.extend(last);
        self.tail.drain(..self.tail.len().saturating_sub(limit));
    }

    /// The output was cut off after what came: a character that is not whole is left out.
    pub(crate) fn end_between_characters(&mut self) {
        let kept = self.kept().concat();
        for _ in without_cut_character(&kept).len()..kept.len() {
            self.total -= 1;
            if self.tail.pop_back().is_none() {
                self.head.pop();
            }
        }
    }

    /// So many more bytes would certainly fit into the text.
    pub(crate) fn has_room_for(&self, more: usize) -> bool {
        self.total.saturating_add(more as u64) <= self.limit as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// What is kept, in order; everything, as long as there was room.
    pub(crate) fn kept(&self) -> [&[u8]; 3] {
        let (front, back) = self.tail.as_slices();
        [&self.head, front, back]
    }

    /// How long the kept bytes are as text, in units.
    pub(crate) fn text_len(&self) -> usize {
        self.unit.length(&self.kept().concat())
    }

    /// The text, and whether it was cut: then it is the beginning and the end, together at most `limit` units, with a
    /// line between them that says what is missing. No character is cut, and no line if they are short; bytes that are
    /// not UTF-8 are replaced.
    pub(crate) fn text(&self, limit: usize) -> (String, bool) {
        let kept = self.kept().concat();
        if self.total != kept.len() as u64 {
            let (head, tail) = kept.split_at(self.head.len());
            return (self.cut(head, tail, limit), true);
        }
        match self.unit.length(&kept) <= limit {
            true => (String::from_utf8_lossy(&kept).into_owned(), false),
            false => (self.cut(&kept, &kept, limit), true),
        }
    }

    fn cut(&self, first: &[u8], last: &[u8], limit: usize) -> String {
        let (head_limit, tail_limit) = halves(limit);
        let head = without_cut_line(first.get(..self.unit.fitting(first, head_limit)).unwrap_or_default());
        let (before, tail) = last.split_at(self.unit.excess(last, tail_limit));
        let begin = line_start(tail);
        let ends_a_line = begin > 0 || before.ends_with(b"\n");
        let tail = tail.get(begin..).unwrap_or_default();

        let left_out = self.total - (head.len() + tail.len()) as u64;
        let from = newlines(head) + 1;
        let to = self.newlines - newlines(tail) + u64::from(!ends_a_line);
        let lines = if from == to { format!("line {from}") } else { format!("lines {from}-{to}") };
        let remark = format!("... (output truncated: {left_out} bytes left out, {lines}) ...");
        let head = String::from_utf8_lossy(head.strip_suffix(b"\n").unwrap_or(head));
        let newline = if head.is_empty() { "" } else { "\n" };
        format!("{head}{newline}{remark}\n{}", String::from_utf8_lossy(tail))
    }

    /// Of the beginning and of the end, in bytes.
    fn kept_limit(&self) -> usize {
        let half = self.limit.div_ceil(2);
        let bytes = match self.unit {
            Unit::Characters => half.saturating_mul(char::MAX.len_utf8()),
            Unit::Bytes => half,
        };
        bytes.saturating_add(SPARE_BYTES)
    }
}

impl Unit {
    fn of(self, c: char) -> usize {
        match self {
            Self::Characters => 1,
            Self::Bytes => c.len_utf8(),
        }
    }

    /// How long these bytes are as text.
    pub(crate) fn length(self, bytes: &[u8]) -> usize {
        characters(bytes).map(|(c, _)| self.of(c)).sum()
    }

    /// How many of these bytes, from the first on, are a text of at most `limit`.
    fn fitting(self, bytes: &[u8], limit: usize) -> usize {
        let mut room = limit;
        let fits = |(c, length): (char, usize)| {
            room = room.checked_sub(self.of(c))?;
            Some(length)
        };
        characters(bytes).map_while(fits).sum()
    }

    /// How many of these bytes are too many for a text of at most `limit`, from the first on.
    fn excess(self, bytes: &[u8], limit: usize) -> usize {
        let mut excess = self.length(bytes).saturating_sub(limit);
        let beyond = |(c, length): (char, usize)| {
            let is_beyond = excess > 0;
            excess = excess.saturating_sub(self.of(c));
            is_beyond.then_some(length)
        };
        characters(bytes).map_while(beyond).sum()
    }
}

/// How two texts share a limit: each has its half, and what the other leaves of its own.
pub(crate) fn shares(limit: usize, first: usize, second: usize) -> (usize, usize) {
    let (half, other_half) = halves(limit);
    (limit - second.min(half), limit - first.min(other_half))
}

fn halves(limit: usize) -> (usize, usize) {
    (limit / 2, limit - limit / 2)
}

/// The characters, each with the bytes that it stands for; bytes that are not UTF-8 are replaced.
fn characters(bytes: &[u8]) -> impl Iterator<Item = (char, usize)> {
    bytes.utf8_chunks().flat_map(|chunk| {
        let replaced = Some((char::REPLACEMENT_CHARACTER, chunk.invalid().len())).filter(|(_, length)| *length > 0);
        chunk.valid().chars().map(|c| (c, c.len_utf8())).chain(replaced)
    })
}

fn newlines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Leaves out the beginning of a line, unless it is more than half of it all.
fn without_cut_line(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    if end > bytes.len() / 2 { bytes.get(..end).unwrap_or(bytes) } else { bytes }
}

/// Where the first whole line begins, unless that is beyond the half; otherwise 0.
fn line_start(bytes: &[u8]) -> usize {
    let begin = bytes.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    if begin <= bytes.len() / 2 { begin } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preview(unit: Unit, limit: usize, bytes: &[u8], chunk: usize) -> Preview {
        let mut preview = Preview::new(limit, unit);
        for chunk in bytes.chunks(chunk) {
            preview.push(chunk);
            assert!(preview.kept().concat().len() <= 4 * limit + 16);
        }
        preview
    }

    fn text(limit: usize, bytes: &[u8]) -> (String, bool) {
        preview(Unit::Bytes, limit, bytes, 3).text(limit)
    }

    fn remark(bytes: usize, lines: &str) -> String {
        format!("... (output truncated: {bytes} bytes left out, {lines}) ...\n")
    }

    #[test]
    fn what_fits_is_whole() {
        for limit in 10..13 {
            assert_eq!(text(limit, b"0123456789"), ("0123456789".to_owned(), false));
        }
        assert_eq!(text(0, b""), (String::new(), false));
        let whole = "é語🦀".repeat(10);
        assert_eq!(preview(Unit::Characters, 30, whole.as_bytes(), 3).text(30), (whole, false));
    }

    #[test]
    fn beginning_and_end_are_kept() {
        assert_eq!(text(4, b"0123456789"), (format!("01\n{}89", remark(6, "line 1")), true));
        assert_eq!(text(5, b"0123456789"), (format!("01\n{}789", remark(5, "line 1")), true));
        assert_eq!(text(0, b"0123456789"), (remark(10, "line 1"), true));
    }

    #[test]
    fn the_text_can_be_shorter_than_what_is_kept() {
        let preview = preview(Unit::Bytes, 100, b"0123456789", 4);
        assert_eq!(preview.text(4), (format!("01\n{}89", remark(6, "line 1")), true));
    }

    #[test]
    fn lines_are_whole_and_those_left_out_are_named() {
        let numbers: String = (1..=100_000).map(|n| format!("{n}\n")).collect();
        for unit in [Unit::Bytes, Unit::Characters] {
            let (text, cut) = preview(unit, 100, numbers.as_bytes(), 1000).text(100);
            let (head, rest) = text.split_once("... ").unwrap();
            let (remark, tail) = rest.split_once(" ...\n").unwrap();
            let (first, last) = (head.lines().count() + 1, 100_000 - tail.lines().count());
            let left_out = numbers.len() - head.len() - tail.len();
            assert_eq!(remark, format!("(output truncated: {left_out} bytes left out, lines {first}-{last})"));
            assert!(cut && numbers.starts_with(head) && numbers.ends_with(&format!("\n{tail}")), "{text}");
        }
    }

    #[test]
    fn lines_are_counted_where_they_are_long() {
        let long = format!("{}\n{}\n{}", "a".repeat(100), "b".repeat(100), "c".repeat(100));
        let (text, _) = preview(Unit::Bytes, 20, long.as_bytes(), 7).text(20);
        assert_eq!(text, format!("aaaaaaaaaa\n{}cccccccccc", remark(282, "lines 1-3")));
        // the last byte that is left out is the end of line 1
        let (text, _) = preview(Unit::Bytes, 20, b"aaaaaaaaaaaaaaaaaaaaaaaa\ncccccccccc", 7).text(20);
        assert_eq!(text, format!("aaaaaaaaaa\n{}cccccccccc", remark(15, "line 1")));
    }

    #[test]
    fn every_limit_cuts_between_characters() {
        let whole = "aé語🦀z語🦀🦀é and more";
        for limit in 0..whole.len() {
            for chunk in 1..=5 {
                let (text, cut) = preview(Unit::Bytes, limit, whole.as_bytes(), chunk).text(limit);
                let (head, rest) = text.split_once("... (").unwrap();
                let (head, tail) = (head.trim_end_matches('\n'), rest.split_once(" ...\n").unwrap().1);
                assert!(cut && whole.starts_with(head) && whole.ends_with(tail), "{limit}: {text}");
                assert!(head.len() + tail.len() <= limit && limit - head.len() - tail.len() < 8, "{limit}: {text}");
                let left_out = whole.len() - head.len() - tail.len();
                assert!(rest.starts_with(&format!("output truncated: {left_out} bytes")), "{limit}: {text}");
            }
        }
    }

    #[test]
    fn characters_can_be_counted() {
        for letter in ["x", "é", "語", "🦀"] {
            let (text, _) = preview(Unit::Characters, 5, letter.repeat(100).as_bytes(), 3).text(5);
            let (head, tail) = (letter.repeat(2), letter.repeat(3));
            assert_eq!(text, format!("{head}\n{}{tail}", remark(95 * letter.len(), "line 1")));
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_are_replaced_and_count_as_replaced() {
        assert_eq!(text(9, b"\xffa\xff"), ("\u{fffd}a\u{fffd}".to_owned(), false));
        for limit in 0..60 {
            let (text, cut) = text(limit, &[0xff; 20]);
            let kept = text.chars().filter(|c| *c == '\u{fffd}').count();
            assert!(kept * 3 <= limit && cut == (kept < 20), "{limit}: {kept}");
        }
    }

    #[test]
    fn an_output_that_was_cut_off_ends_between_characters() {
        for (bytes, expected) in [(&b"a\xe8\xaa"[..], "a"), (b"a\xff", "a\u{fffd}"), (b"\xf0\x9f\xa6", ""), (b"a", "a")]
        {
            let mut preview = preview(Unit::Characters, 100, bytes, 2);
            preview.end_between_characters();
            assert_eq!(preview.text(100), (expected.to_owned(), false));
        }
    }

    #[test]
    fn the_largest_limit_is_no_limit() {
        for unit in [Unit::Bytes, Unit::Characters] {
            assert_eq!(preview(unit, usize::MAX / 8, b"abc", 2).text(usize::MAX), ("abc".to_owned(), false));
            let mut preview = Preview::new(usize::MAX, unit);
            preview.push(b"abc");
            assert_eq!(preview.text(usize::MAX), ("abc".to_owned(), false));
        }
    }

    #[test]
    fn a_limit_is_shared_by_need() {
        for (limit, first, second, expected) in [
            (10, 100, 100, (5, 5)),
            (11, 100, 100, (6, 5)),
            (10, 100, 0, (10, 5)),
            (10, 100, 2, (8, 5)),
            (10, 0, 100, (5, 10)),
            (10, 3, 100, (5, 7)),
            (0, 5, 5, (0, 0)),
        ] {
            assert_eq!(shares(limit, first, second), expected);
        }
    }
}
