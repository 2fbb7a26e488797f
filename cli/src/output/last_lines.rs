//! Where the last lines of an output begin.

use std::collections::VecDeque;

use telexec_executor::Output;

/// Finds the last lines in output of which a part from the end is read. Both streams together make the lines, as on a
/// terminal.
#[derive(Debug)]
pub(crate) struct LastLines {
    count: usize,
    /// Where lines begin: the last `count` of them.
    starts: VecDeque<u64>,
    /// The next byte begins a line.
    is_new: bool,
    /// There is nothing before what was read.
    is_all: bool,
}

impl LastLines {
    /// For `count` lines, greater than 0, in output from `position` on.
    pub(crate) fn new(count: usize, position: u64) -> Self {
        let is_all = position == 0;
        Self { count, starts: VecDeque::new(), is_new: is_all, is_all }
    }

    pub(crate) fn push(&mut self, chunk: &Output) {
        let mut position = chunk.position;
        for line in chunk.data.split_inclusive(|byte| *byte == b'\n') {
            if self.is_new {
                self.starts.push_back(position);
            }
            position += line.len() as u64;
            self.is_new = line.ends_with(b"\n");
        }
        let excess = self.starts.len().saturating_sub(self.count);
        self.starts.drain(..excess);
    }

    /// What is before this position is not kept any more.
    pub(crate) fn gap(&mut self, position: u64) {
        self.starts.clear();
        self.starts.push_back(position);
        (self.is_new, self.is_all) = (false, true);
    }

    /// Where the lines begin; `None`: before what was read.
    pub(crate) fn start(&self) -> Option<u64> {
        match self.starts.front() {
            Some(first) if self.is_all || self.starts.len() == self.count => Some(*first),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use telexec_executor::OutputStream;

    use super::*;

    /// In pieces of every length, from this position on.
    fn start(text: &str, from: usize, count: usize) -> Option<u64> {
        let found = |length: usize| {
            let mut lines = LastLines::new(count, from as u64);
            let mut position = from;
            for piece in text.as_bytes()[from..].chunks(length) {
                let data = bytes::Bytes::copy_from_slice(piece);
                lines.push(&Output { stream: OutputStream::Stdout, data, position: position as u64 });
                position += piece.len();
            }
            lines.start()
        };
        let first = found(1);
        assert!((2..=text.len().max(2)).all(|length| found(length) == first));
        first
    }

    #[test]
    fn the_last_lines_are_found() {
        for (text, from, count, expected) in [
            ("a\nb\nc\n", 0, 1, Some(4)),
            ("a\nb\nc\n", 0, 2, Some(2)),
            ("a\nb\nc\n", 0, 9, Some(0)),
            ("a\nb\nc", 0, 1, Some(4)),
            ("\n\n\n", 0, 2, Some(1)),
            ("a", 0, 1, Some(0)),
            // the first line that is read may have begun before
            ("a\nb\nc\n", 2, 1, Some(4)),
            ("a\nb\nc\n", 1, 2, Some(2)),
            ("a\nb\nc\n", 2, 2, None),
            ("aaaa", 2, 1, None),
        ] {
            assert_eq!(start(text, from, count), expected, "{text:?} {from} {count}");
        }
    }

    #[test]
    fn what_is_kept_after_a_gap_is_all() {
        let mut lines = LastLines::new(5, 10);
        lines.gap(20);
        let data = bytes::Bytes::from_static(b"x\ny\n");
        lines.push(&Output { stream: OutputStream::Stderr, data, position: 20 });
        assert_eq!(lines.start(), Some(20));
    }
}
