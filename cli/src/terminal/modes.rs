//! Modes of the terminal that a full-screen program has set, and does not reset when it is left.

use std::collections::BTreeMap;
use std::io::Write;

use anstyle_parse::{Params, Parser, Perform, Utf8Parser};

/// DEC private modes (xterm's ctlseqs, "DECSET") that programs set while they run: cursor keys, visible cursor, mouse,
/// focus, alternate screens, bracketed paste, synchronized output.
const MODES: [u16; 17] = [1, 7, 25, 47, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1015, 1016, 1047, 1049, 2004, 2026];
/// Set in a terminal that nobody has touched: autowrap, visible cursor.
const USUALLY_SET: [u16; 2] = [7, 25];

/// Follows the output of a program.
pub(crate) struct ScreenModes {
    parser: Parser<Utf8Parser>,
    state: State,
}

#[derive(Default)]
struct State {
    /// Those that are not as usual.
    changed: BTreeMap<u16, bool>,
    /// DECKPAM.
    keypad: bool,
    styled: bool,
    /// How often kitty's keyboard protocol was pushed.
    kitty: u16,
    /// xterm's modifyOtherKeys.
    modified_keys: bool,
    /// DECSCUSR.
    cursor_shape: bool,
    /// DECSTBM.
    scroll_region: bool,
}

impl ScreenModes {
    pub(crate) fn new() -> Self {
        Self { parser: Parser::<Utf8Parser>::new(), state: State::default() }
    }

    pub(crate) fn follow(&mut self, output: &[u8]) {
        output.iter().for_each(|byte| self.parser.advance(&mut self.state, *byte));
    }

    /// The sequences that restore the terminal; forgets the changes. Empty: there were none.
    pub(crate) fn reset(&mut self) -> Vec<u8> {
        let State { changed, keypad, styled, kitty, modified_keys, cursor_shape, scroll_region } =
            std::mem::take(&mut self.state);
        let mut text = Vec::new();
        if kitty > 0 {
            let _ = write!(text, "\x1b[<{kitty}u");
        }
        if modified_keys {
            text.extend(b"\x1b[>4m");
        }
        if cursor_shape {
            text.extend(b"\x1b[0 q");
        }
        if scroll_region {
            // which moves the cursor
            text.extend(b"\x1b7\x1b[r\x1b8");
        }
        for (mode, is_set) in changed.into_iter().rev() {
            let end = if is_set { 'l' } else { 'h' };
            // a vector takes all
            let _ = write!(text, "\x1b[?{mode}{end}");
        }
        if keypad {
            text.extend(b"\x1b>");
        }
        if styled {
            text.extend(b"\x1b[0m");
        }
        text
    }
}

impl Perform for State {
    fn csi_dispatch(&mut self, params: &Params, intermediates: &[u8], ignore: bool, action: u8) {
        match (intermediates, action) {
            _ if ignore => {}
            (b"?", b'h' | b'l') => {
                for mode in params.iter().filter_map(|param| param.first()).filter(|mode| MODES.contains(mode)) {
                    let is_set = action == b'h';
                    match is_set == USUALLY_SET.contains(mode) {
                        true => drop(self.changed.remove(mode)),
                        false => drop(self.changed.insert(*mode, is_set)),
                    }
                }
            }
            (b">", b'u') => self.kitty = self.kitty.saturating_add(1),
            (b"<", b'u') => {
                let count = params.iter().next().and_then(|param| param.first()).map_or(1, |count| (*count).max(1));
                self.kitty = self.kitty.saturating_sub(count);
            }
            (b">", b'm') => {
                let mut values = params.iter().filter_map(|param| param.first());
                if values.next() == Some(&4) {
                    self.modified_keys = values.next().is_some_and(|value| *value != 0);
                }
            }
            (b" ", b'q') => {
                self.cursor_shape = params.iter().any(|param| param.first().is_some_and(|shape| *shape > 1))
            }
            (b"", b'r') => self.scroll_region = params.iter().any(|param| param.first().is_some_and(|row| *row > 0)),
            (b"", b'm') => self.styled = params.iter().any(|param| param.first().is_some_and(|code| *code != 0)),
            _ => {}
        }
    }

    fn esc_dispatch(&mut self, intermediates: &[u8], _ignore: bool, byte: u8) {
        match (intermediates, byte) {
            (b"", b'=') => self.keypad = true,
            (b"", b'>') => self.keypad = false,
            // RIS
            (b"", b'c') => *self = Self::default(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(output: &[u8]) -> String {
        let mut modes = ScreenModes::new();
        output.chunks(1).for_each(|byte| modes.follow(byte));
        let reset = String::from_utf8(modes.reset()).unwrap();
        assert_eq!(modes.reset(), b"", "it was reset");
        reset
    }

    #[test]
    fn what_was_set_is_reset() {
        assert_eq!(
            after(b"\x1b[?1049h\x1b[?25l\x1b[?1;2004h\x1b=\x1b[1;31mtext"),
            "\x1b[?2004l\x1b[?1049l\x1b[?25h\x1b[?1l\x1b>\x1b[0m"
        );
        assert_eq!(after(b"\x1b[?1000;1006h"), "\x1b[?1006l\x1b[?1000l");
        assert_eq!(after(b"\x1b[>1u\x1b[>5u\x1b[<u\x1b[>4;2m"), "\x1b[<1u\x1b[>4m");
        assert_eq!(after(b"\x1b[2 q\x1b[1;20r"), "\x1b[0 q\x1b7\x1b[r\x1b8");
        assert_eq!(after(b"\x1b[>1u\x1b[<u\x1b[>4;2m\x1b[>4m\x1b[2 q\x1b[0 q\x1b[1;20r\x1b[r"), "");
    }

    #[test]
    fn what_is_as_it_was_is_left_alone() {
        for output in [
            &b"plain text\r\n"[..],
            b"\x1b[?1049h\x1b[?25lvim\x1b[?25h\x1b[?1049l",
            b"\x1b[31mred\x1b[0m\x1b[m",
            b"\x1b[?7777h",
            b"\x1b]0;title ?1049h\x07",
            b"\x1b[?1049h\x1bc",
        ] {
            assert_eq!(after(output), "", "{output:?}");
        }
    }
}
