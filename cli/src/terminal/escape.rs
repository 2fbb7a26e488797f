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

    /// Returns the withheld and typed input that is for the command, up to the sequence, and the input after the sequence if
    /// it was typed.
    pub(crate) fn pass<'t>(&mut self, typed: &'t [u8]) -> (Vec<u8>, Option<&'t [u8]>) {
        let mut passed = Vec::with_capacity(typed.len() + 1);
        for (at, byte) in typed.iter().enumerate() {
            if std::mem::take(&mut self.held) {
                if *byte == b'.' {
                    self.after_newline = false;
                    return (passed, typed.get(at + 1..));
                }
                passed.push(b'~');
            } else if self.after_newline && *byte == b'~' {
                self.held = true;
                continue;
            }
            self.after_newline = matches!(byte, b'\r' | b'\n');
            passed.push(*byte);
        }
        (passed, None)
    }

    /// Returns the withheld input at the end of input.
    pub(crate) fn rest(&mut self) -> &'static [u8] {
        if std::mem::take(&mut self.held) { b"~" } else { b"" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(pieces: &[&[u8]]) -> (Vec<u8>, Option<Vec<u8>>) {
        let mut filter = EscapeFilter::new();
        let mut passed = Vec::new();
        for piece in pieces {
            let (more, rest) = filter.pass(piece);
            passed.extend(more);
            if let Some(rest) = rest {
                return (passed, Some(rest.to_vec()));
            }
        }
        passed.extend(filter.rest());
        (passed, None)
    }

    #[test]
    fn it_is_found_after_a_newline_in_any_pieces() {
        for newline in [b'\r', b'\n'] {
            let all = [b'l', b's', newline, b'~', b'.', b'x'];
            for at in 0..=all.len() {
                let (first, second) = all.split_at(at);
                let rest = if at == 5 { &b""[..] } else { b"x" };
                assert_eq!(typed(&[first, second]), (all[..3].to_vec(), Some(rest.to_vec())), "{at}");
            }
        }
        assert_eq!(typed(&[b"~."]), (Vec::new(), Some(Vec::new())), "at the beginning");
    }

    #[test]
    fn all_else_is_for_the_command() {
        for all in [&b"a~."[..], b"\r~a", b"\r ~.", b"\r~~.", b".", b"\r~"] {
            assert_eq!(typed(&[all]), (all.to_vec(), None), "{all:?}");
        }
    }
}
