//! The keys that detach from a terminal without ending what runs in it, in docker's notation: `ctrl-p,ctrl-q`.

use std::str::FromStr;

/// A key sequence; empty disables detaching.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DetachKeys(Vec<u8>);

impl FromStr for DetachKeys {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Ok(Self(Vec::new()));
        }
        let keys = text.split(',').map(|key| {
            code(key).ok_or_else(|| {
                format!("{key:?} is not a key: expected one character, or ctrl- and one of a-z @ [ \\ ] ^ _")
            })
        });
        keys.collect::<Result<_, _>>().map(Self)
    }
}

/// The byte that a terminal sends for a key.
fn code(key: &str) -> Option<u8> {
    match (key.strip_prefix("ctrl-").unwrap_or_default().as_bytes(), key.as_bytes()) {
        ([key @ (b'a'..=b'z' | b'@' | b'[' | b'\\' | b']' | b'^' | b'_')], _) => Some(key & 0x1f),
        (_, [key]) => Some(*key),
        (_, b"DEL") => Some(0x7f),
        _ => None,
    }
}

/// Finds the key sequence in typed input, however it is split into chunks.
#[derive(Debug)]
pub(crate) struct DetachFilter {
    keys: Vec<u8>,
    /// A typed prefix of the sequence, withheld so far.
    held: Vec<u8>,
}

impl DetachFilter {
    pub(crate) fn new(keys: &DetachKeys) -> Self {
        Self { keys: keys.0.clone(), held: Vec::new() }
    }

    /// Returns the withheld and typed input that is for the command, and whether the sequence was typed after it.
    pub(crate) fn pass(&mut self, typed: &[u8]) -> (Vec<u8>, bool) {
        let mut passed = Vec::with_capacity(typed.len());
        for byte in typed {
            self.held.push(*byte);
            // the first withheld byte does not begin the sequence; the rest still may
            while !self.keys.starts_with(&self.held) {
                passed.push(self.held.remove(0));
            }
            if !self.keys.is_empty() && self.held == self.keys {
                return (passed, true);
            }
        }
        (passed, false)
    }

    /// Returns the withheld input at the end of input.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_as_docker_reads_them() {
        for (text, codes) in [
            ("ctrl-p,ctrl-q", &b"\x10\x11"[..]),
            ("ctrl-@", b"\0"),
            ("ctrl-a,a,Z,~", b"\x01aZ~"),
            ("ctrl-[,ctrl-\\,ctrl-],ctrl-^,ctrl-_", b"\x1b\x1c\x1d\x1e\x1f"),
            ("DEL", b"\x7f"),
            ("-", b"-"),
            ("", b""),
        ] {
            assert_eq!(text.parse(), Ok(DetachKeys(codes.to_vec())), "{text}");
        }
        for text in [",", "a,", "ctrl-", "ctrl-A", "ctrl-1", "ctrl-pp", "ab", "é", "Ctrl-p", " a"] {
            assert!(text.parse::<DetachKeys>().is_err(), "{text:?}");
        }
    }

    fn typed(keys: &str, pieces: &[&[u8]]) -> (Vec<u8>, bool) {
        let mut filter = DetachFilter::new(&keys.parse().unwrap());
        let mut passed = Vec::new();
        for piece in pieces {
            let (more, detached) = filter.pass(piece);
            passed.extend(more);
            if detached {
                return (passed, true);
            }
        }
        passed.extend(filter.rest());
        (passed, false)
    }

    #[test]
    fn the_sequence_is_found_in_any_pieces() {
        let all = b"ls\r\x10\x11more";
        for at in 0..=all.len() {
            let (first, second) = all.split_at(at);
            assert_eq!(typed("ctrl-p,ctrl-q", &[first, second]), (b"ls\r".to_vec(), true), "{at}");
        }
        let single: Vec<&[u8]> = all.chunks(1).collect();
        assert_eq!(typed("ctrl-p,ctrl-q", &single), (b"ls\r".to_vec(), true));
    }

    #[test]
    fn what_only_begins_like_it_is_passed_on() {
        for (keys, all) in
            [("ctrl-p,ctrl-q", &b"\x10\x10\x10x\x11\x10"[..]), ("a,a,b", b"aacaa"), ("", b"\0\x10\x11"), ("a", b"bcd")]
        {
            let single: Vec<&[u8]> = all.chunks(1).collect();
            assert_eq!(typed(keys, &single), (all.to_vec(), false), "{keys}");
            assert_eq!(typed(keys, &[all]), (all.to_vec(), false), "{keys}");
        }
    }

    #[test]
    fn a_sequence_is_found_after_a_false_start() {
        assert_eq!(typed("ctrl-p,ctrl-q", &[b"\x10", b"\x10", b"\x11"]), (b"\x10".to_vec(), true));
        assert_eq!(typed("a,a,b", &[b"aa", b"ab"]), (b"a".to_vec(), true));
    }

    #[test]
    fn a_beginning_is_kept_back_until_it_is_clear() {
        let mut filter = DetachFilter::new(&"ctrl-p,ctrl-q".parse().unwrap());
        assert_eq!(filter.pass(b"a\x10"), (b"a".to_vec(), false));
        assert_eq!(filter.pass(b"b"), (b"\x10b".to_vec(), false));
        assert_eq!(filter.rest(), b"");
    }
}
