//! `~.` after a newline: leaves a session whose connection is lost, as with ssh(1). No other key has an effect then.

/// Finds the sequence in typed input, however it is split into chunks.
#[derive(Debug)]
pub(crate) struct EscapeFilter {
    after_newline: bool,
    /// A tilde after a newline, withheld.
    held: bool,
}

impl EscapeFilter {
    pub(crate) fn new() -> Self {
        Self { after_newline: true, held: false }
    }

    /// Returns the withheld and typed input that is for the command, and whether the sequence was typed after it. It counts
    /// only while the connection is lost.
    pub(crate) fn pass(&mut self, typed: &[u8], is_lost: bool) -> (Vec<u8>, bool) {
        let mut passed = Vec::with_capacity(typed.len() + 1);
        for byte in typed {
            if std::mem::take(&mut self.held) {
                if is_lost && *byte == b'.' {
                    return (passed, true);
                }
                passed.push(b'~');
            } else if is_lost && self.after_newline && *byte == b'~' {
                self.held = true;
                continue;
            }
            self.after_newline = matches!(byte, b'\r' | b'\n');
            passed.push(*byte);
        }
        (passed, false)
    }

    /// Returns the withheld input at the end of input.
    pub(crate) fn rest(&mut self) -> &'static [u8] {
        if std::mem::take(&mut self.held) { b"~" } else { b"" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(pieces: &[&[u8]], is_lost: bool) -> (Vec<u8>, bool) {
        let mut filter = EscapeFilter::new();
        let mut passed = Vec::new();
        for piece in pieces {
            let (more, left) = filter.pass(piece, is_lost);
            passed.extend(more);
            if left {
                return (passed, true);
            }
        }
        (passed, false)
    }

    #[test]
    fn it_is_found_after_a_newline_in_any_pieces() {
        for newline in [b'\r', b'\n'] {
            let all = [b'l', b's', newline, b'~', b'.', b'x'];
            for at in 0..=all.len() {
                let (first, second) = all.split_at(at);
                assert_eq!(typed(&[first, second], true), (all[..3].to_vec(), true), "{at}");
            }
        }
        assert_eq!(typed(&[b"~."], true), (Vec::new(), true), "at the beginning");
    }

    #[test]
    fn all_else_is_for_the_command() {
        for all in [&b"a~."[..], b"\r~a", b"\r ~.", b"\r~~.", b"."] {
            assert_eq!(typed(&[all], true), (all.to_vec(), false), "{all:?}");
        }
        assert_eq!(typed(&[b"\r~."], false), (b"\r~.".to_vec(), false), "while there is a connection");
    }
}
