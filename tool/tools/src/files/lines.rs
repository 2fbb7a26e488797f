//! Lines of a file, in bounded memory.

use std::collections::VecDeque;

/// Of a line; the rest is left out.
const MAX_LINE_CHARACTERS: usize = 2_000;
const MAX_LINE_BYTES: usize = MAX_LINE_CHARACTERS * char::MAX.len_utf8();
/// Before this, a NUL byte says that it is no text.
const TEXT_BYTES: u64 = 8 * 1024;

/// Which lines are wanted.
#[derive(Clone, Copy)]
pub(super) enum Part {
    /// From this line on, so many. The first line is 1.
    From(u64, usize),
    /// The last ones.
    Last(usize),
}

/// Takes the lines of a part out of a file as it comes.
pub(super) struct Lines {
    part: Part,
    /// The most of all lines, in characters.
    room: usize,
    /// Characters of the lines that are kept, with their numbers.
    used: usize,
    kept: VecDeque<(u64, String)>,
    /// Of the line that is not complete yet.
    begun: Vec<u8>,
    /// Bytes of it, also those that are left out.
    begun_bytes: u64,
    /// Bytes that came.
    pub(super) total: u64,
    /// Lines that are complete.
    pub(super) complete: u64,
    pub(super) is_binary: bool,
    /// Bytes that are not UTF-8 were replaced.
    pub(super) is_replaced: bool,
    /// Lines that end with CR LF.
    pub(super) crlf: u64,
    /// There was no room for all that was wanted.
    pub(super) is_cut: bool,
}

impl Lines {
    pub(super) fn new(part: Part, room: usize) -> Self {
        Self {
            part,
            room,
            used: 0,
            kept: VecDeque::new(),
            begun: Vec::new(),
            begun_bytes: 0,
            total: 0,
            complete: 0,
            is_binary: false,
            is_replaced: false,
            crlf: 0,
            is_cut: false,
        }
    }

    pub(super) fn push(&mut self, data: &[u8]) {
        let first = usize::try_from(TEXT_BYTES.saturating_sub(self.total)).unwrap_or(usize::MAX);
        self.is_binary |= data.iter().take(first).any(|byte| *byte == 0);
        self.total += data.len() as u64;
        for piece in data.split_inclusive(|byte| *byte == b'\n') {
            let line = piece.strip_suffix(b"\n");
            let text = line.unwrap_or(piece);
            self.begun.extend(text.iter().take(MAX_LINE_BYTES.saturating_sub(self.begun.len())));
            self.begun_bytes += text.len() as u64;
            if line.is_some() {
                self.end_line();
            }
        }
    }

    /// The file is over. Its last line need not end with a newline.
    pub(super) fn finish(&mut self) {
        if self.begun_bytes > 0 {
            self.end_line();
        }
    }

    /// Nothing more will be kept.
    pub(super) fn is_full(&self) -> bool {
        matches!(self.part, Part::From(_, count) if self.is_cut || self.kept.len() >= count)
    }

    pub(super) fn kept(&self) -> impl ExactSizeIterator<Item = &(u64, String)> {
        self.kept.iter()
    }

    fn end_line(&mut self) {
        let mut line = std::mem::take(&mut self.begun);
        let bytes = std::mem::take(&mut self.begun_bytes);
        self.complete += 1;
        let is_whole = bytes == line.len() as u64;
        if is_whole && line.last() == Some(&b'\r') {
            line.pop();
            self.crlf += 1;
        }
        let is_wanted = match self.part {
            Part::From(first, _) => self.complete >= first && !self.is_full(),
            Part::Last(count) => count > 0,
        };
        if is_wanted {
            self.keep(&line, bytes);
        }
    }

    fn keep(&mut self, line: &[u8], bytes: u64) {
        let text = String::from_utf8_lossy(line);
        self.is_replaced |= matches!(text, std::borrow::Cow::Owned(_));
        let end = text.char_indices().nth(MAX_LINE_CHARACTERS).map(|(at, _)| at);
        let mut text = text.get(..end.unwrap_or(text.len())).unwrap_or_default().to_owned();
        if end.is_some() || bytes > line.len() as u64 + 1 {
            text.push_str(&format!("... (line of {bytes} bytes cut)"));
        }
        self.used += length(&text);
        self.kept.push_back((self.complete, text));
        match self.part {
            Part::From(..) if self.used > self.room && self.kept.len() > 1 => {
                self.is_cut = true;
                self.kept.pop_back();
            }
            Part::From(..) => {}
            Part::Last(count) => self.drop_first(count),
        }
    }

    fn drop_first(&mut self, count: usize) {
        while self.kept.len() > count || (self.used > self.room && self.kept.len() > 1) {
            self.is_cut |= self.kept.len() <= count;
            let dropped = self.kept.pop_front();
            self.used -= dropped.map_or(0, |(_, text)| length(&text));
        }
    }
}

/// As a numbered line.
fn length(text: &str) -> usize {
    text.chars().count() + 8
}

/// A line with its number, as models know it from `cat -n`.
pub(super) fn numbered(number: u64, text: &str) -> String {
    format!("{number:>6}\t{text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(part: Part, room: usize, pieces: &[&str]) -> (Vec<(u64, String)>, Lines) {
        let mut lines = Lines::new(part, room);
        pieces.iter().for_each(|piece| lines.push(piece.as_bytes()));
        lines.finish();
        (lines.kept().cloned().collect(), lines)
    }

    fn of(lines: &[(u64, &str)]) -> Vec<(u64, String)> {
        lines.iter().map(|(number, text)| (*number, (*text).to_owned())).collect()
    }

    #[test]
    fn a_part_is_found_however_the_pieces_are_cut() {
        for pieces in [&["one\ntwo\nthree\nfour"][..], &["o", "ne\ntw", "o\n", "three", "\nfour"]] {
            assert_eq!(kept(Part::From(2, 2), 1_000, pieces).0, of(&[(2, "two"), (3, "three")]));
            assert_eq!(kept(Part::Last(2), 1_000, pieces).0, of(&[(3, "three"), (4, "four")]));
            let (all, lines) = kept(Part::From(1, 9), 1_000, pieces);
            assert_eq!((all.len(), lines.complete, lines.is_cut), (4, 4, false));
        }
    }

    #[test]
    fn what_has_no_room_is_left_out() {
        let text = "1234567890\n".repeat(10);
        let (first, lines) = kept(Part::From(1, 10), 50, &[&text]);
        assert_eq!((first.len(), lines.is_cut, lines.complete), (2, true, 10));
        let (last, lines) = kept(Part::Last(10), 50, &[&text]);
        assert_eq!((last.iter().map(|(number, _)| *number).collect::<Vec<_>>(), lines.is_cut), (vec![9, 10], true));
        let (long, _) = kept(Part::From(1, 1), 10, &[&"é".repeat(5_000)]);
        assert!(long[0].1.ends_with("é... (line of 10000 bytes cut)"), "{long:?}");
    }

    #[test]
    fn what_is_no_text_is_noticed() {
        assert!(kept(Part::Last(1), 100, &["a\0b"]).1.is_binary);
        let (lines, state) = kept(Part::From(1, 9), 100, &["a\r\nb\r\n"]);
        assert_eq!((lines, state.crlf, state.is_replaced), (of(&[(1, "a"), (2, "b")]), 2, false));
        let mut state = Lines::new(Part::From(1, 9), 100);
        state.push(b"\xff\n");
        assert!(state.is_replaced && !state.is_binary);
    }
}
