//! Splits chunks into lines. Long lines are split into pieces, to limit memory.

/// Maximum length of a piece.
pub(crate) const MAX_LINE_BYTES: usize = 16 * 1024;

/// The beginning of an incomplete line.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    begun: Vec<u8>,
}

impl Lines {
    /// Emits every complete line, without its newline.
    pub(crate) fn push(&mut self, data: &[u8], mut give: impl FnMut(&[u8])) {
        for part in data.split_inclusive(|byte| *byte == b'\n') {
            match part.strip_suffix(b"\n") {
                Some(line) if self.begun.is_empty() && line.len() <= MAX_LINE_BYTES => give(line),
                Some(line) => {
                    self.add(line, &mut give);
                    give(&self.begun);
                    self.begun.clear();
                }
                None => self.add(part, &mut give),
            }
        }
    }

    fn add(&mut self, data: &[u8], give: &mut impl FnMut(&[u8])) {
        let mut rest = data;
        while self.begun.len() + rest.len() > MAX_LINE_BYTES {
            let (now, later) = rest.split_at(MAX_LINE_BYTES - self.begun.len());
            self.begun.extend_from_slice(now);
            give(&self.begun);
            self.begun.clear();
            rest = later;
        }
        self.begun.extend_from_slice(rest);
    }

    /// Emits an incomplete last line.
    pub(crate) fn end(&mut self, give: impl FnOnce(&[u8])) {
        if !self.begun.is_empty() {
            give(&self.begun);
        }
        self.begun = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<Vec<u8>> {
        let (mut lines, mut given) = (Lines::default(), Vec::new());
        for chunk in chunks {
            lines.push(chunk, |line| given.push(line.to_vec()));
        }
        lines.end(|line| given.push(line.to_vec()));
        given
    }

    #[test]
    fn a_line_without_an_end_is_given_in_pieces() {
        let long = vec![b'x'; MAX_LINE_BYTES * 2 + 5];
        let given = lines(&[b"a", &long, b"\n", b"b"]);
        assert_eq!(given.iter().map(Vec::len).collect::<Vec<_>>(), [MAX_LINE_BYTES, MAX_LINE_BYTES, 6, 1]);
        let given = lines(&[&[long.as_slice(), b"\n"].concat()]);
        assert_eq!(given.iter().map(Vec::len).collect::<Vec<_>>(), [MAX_LINE_BYTES, MAX_LINE_BYTES, 5]);
    }

    proptest! {
        #[test]
        fn lines_are_the_same_in_any_chunks(text in "[ab\n]{0,60}", cuts in prop::collection::vec(0..60_usize, 0..5)) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|cut| &text.as_bytes()[cut[0]..cut[1]]).collect();
            let whole: Vec<Vec<u8>> = text.lines().map(|line| line.as_bytes().to_vec()).collect();
            prop_assert_eq!(lines(&chunks), whole);
        }
    }
}
