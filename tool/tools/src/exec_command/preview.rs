//! The beginning and the end of an output, in bounded memory.

use std::collections::VecDeque;

use telexec_executor::text::without_cut_character;

/// What an answer keeps of an output: its first and its last bytes, as many of each.
pub(super) struct Preview {
    limit: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl Preview {
    /// Nothing yet; at most `limit` bytes are kept.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, head: Vec::new(), tail: VecDeque::new(), total: 0 }
    }

    /// Adds what came next.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.total += chunk.len() as u64;
        let (head_limit, tail_limit) = halves(self.limit);
        let room = head_limit.saturating_sub(self.head.len()).min(chunk.len());
        let (first, rest) = chunk.split_at(room);
        self.head.extend_from_slice(first);
        let last = rest.get(rest.len().saturating_sub(tail_limit)..).unwrap_or_default();
        self.tail.extend(last);
        self.tail.drain(..self.tail.len().saturating_sub(tail_limit));
    }

    /// So many more bytes would be kept with nothing left out.
    pub(super) fn has_room_for(&self, more: usize) -> bool {
        self.total.saturating_add(more as u64) <= self.limit as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// What is kept, in order; everything, as long as there was room.
    pub(super) fn kept(&self) -> [&[u8]; 3] {
        let (front, back) = self.tail.as_slices();
        [&self.head, front, back]
    }

    /// How long it is as text, with nothing left out that is kept.
    pub(super) fn text_len(&self) -> usize {
        String::from_utf8_lossy(&self.kept().concat()).len()
    }

    /// The text, and whether it was cut: then it is the beginning and the end, together at most `limit` bytes, with a
    /// remark between them. No character is cut; bytes that are not UTF-8 are replaced.
    pub(super) fn text(&self, limit: usize) -> (String, bool) {
        if self.has_room_for(0) {
            let whole = String::from_utf8_lossy(&self.kept().concat()).into_owned();
            return match whole.len() <= limit {
                true => (whole, false),
                false => (self.cut(&whole, &whole, limit), true),
            };
        }
        let head = String::from_utf8_lossy(without_cut_character(&self.head));
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        let tail = String::from_utf8_lossy(without_cut_start(&tail));
        (self.cut(&head, &tail, limit), true)
    }

    fn cut(&self, head: &str, tail: &str, limit: usize) -> String {
        let (head_limit, tail_limit) = halves(limit);
        let head = head.get(..head.floor_char_boundary(head_limit)).unwrap_or_default();
        let tail = tail.get(tail.ceil_char_boundary(tail.len().saturating_sub(tail_limit))..).unwrap_or_default();
        format!("{head}\n... (output cut: {} bytes in all) ...\n{tail}", self.total)
    }
}

/// How two texts share a limit: each has its half, and what the other leaves of its own.
pub(super) fn shares(limit: usize, first: usize, second: usize) -> (usize, usize) {
    let (half, other_half) = halves(limit);
    (limit - second.min(half), limit - first.min(other_half))
}

fn halves(limit: usize) -> (usize, usize) {
    (limit / 2, limit - limit / 2)
}

/// Leaves out the end of a character whose beginning is not there.
fn without_cut_start(bytes: &[u8]) -> &[u8] {
    let cut = bytes.iter().take(3).take_while(|byte| **byte & 0b1100_0000 == 0b1000_0000).count();
    bytes.get(cut..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preview(limit: usize, bytes: &[u8], chunk: usize) -> Preview {
        let mut preview = Preview::new(limit);
        for chunk in bytes.chunks(chunk) {
            preview.push(chunk);
            assert!(preview.kept().concat().len() <= limit);
        }
        preview
    }

    fn text(limit: usize, bytes: &[u8]) -> (String, bool) {
        preview(limit, bytes, 3).text(limit)
    }

    #[test]
    fn what_fits_is_whole() {
        for limit in 10..13 {
            assert_eq!(text(limit, b"0123456789"), ("0123456789".to_owned(), false));
        }
        assert_eq!(text(0, b""), (String::new(), false));
    }

    #[test]
    fn beginning_and_end_are_kept() {
        assert_eq!(text(4, b"0123456789"), ("01\n... (output cut: 10 bytes in all) ...\n89".to_owned(), true));
        assert_eq!(text(5, b"0123456789"), ("01\n... (output cut: 10 bytes in all) ...\n789".to_owned(), true));
        assert_eq!(text(0, b"0123456789"), ("\n... (output cut: 10 bytes in all) ...\n".to_owned(), true));
    }

    #[test]
    fn the_text_can_be_shorter_than_what_is_kept() {
        let preview = preview(100, b"0123456789", 4);
        assert_eq!(preview.text(4), ("01\n... (output cut: 10 bytes in all) ...\n89".to_owned(), true));
    }

    #[test]
    fn every_limit_cuts_between_characters() {
        let whole = "aé語🦀z語\n🦀🦀é and more";
        for limit in 0..whole.len() {
            for chunk in 1..=5 {
                let (text, cut) = preview(limit, whole.as_bytes(), chunk).text(limit);
                let remark = format!("\n... (output cut: {} bytes in all) ...\n", whole.len());
                let (head, tail) = text.split_once(&remark).unwrap();
                assert!(cut && whole.starts_with(head) && whole.ends_with(tail), "{limit}: {text}");
                assert!(head.len() + tail.len() <= limit && limit - head.len() - tail.len() < 8, "{limit}: {text}");
            }
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_are_replaced_and_count_as_replaced() {
        assert_eq!(text(9, b"\xffa\xff"), ("\u{fffd}a\u{fffd}".to_owned(), false));
        for limit in 0..60 {
            let (text, cut) = text(limit, &[0xff; 20]);
            let kept = text.chars().filter(|c| *c == '\u{fffd}').count();
            assert!(kept * 3 <= limit.max(4) && cut == (kept < 20), "{limit}: {kept}");
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
