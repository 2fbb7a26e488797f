//! What is played, on the terminal of the auditor: text and its place and look, and nothing that the terminal would answer,
//! or that would change its settings, its clipboard or its title.

use std::fmt::Write as _;
use std::io::{self, Write};

use anstyle_parse::{Params, Parser, Perform, Utf8Parser};

/// Final bytes of control sequences without a prefix that move the cursor, edit the screen, or set how text looks: see ECMA-48.
const ALLOWED: &[u8] = b"@ABCDEFGHIKLMPSXZ`adefgmrsu";
/// How often a character may be repeated by one sequence.
const MAX_REPEATS: u16 = 1000;
/// Private modes that may be set: origin mode, autowrap, a blinking cursor, a visible one, and the alternate screen.
const MODES: [u16; 7] = [6, 7, 12, 25, 47, 1047, 1049];
/// Sets back the look of text, the character set, and the cursor.
const RESTORE_TEXT: &str = "\x1b[0m\x1b(B\x1b)B\x0f\x1b[?7h\x1b[?25h\r\n";
/// And the origin mode, the scrolling region and the screen; which moves the cursor, so it goes to the last line.
const RESTORE_SCREEN: &str = "\x1b[?6l\x1b[r\x1b[?1049l\x1b[9999;1H";

/// Writes what is allowed.
pub(super) struct Screen<'a, W> {
    out: &'a mut W,
    parser: Parser<Utf8Parser>,
    filter: Filter,
}

impl<'a, W: Write> Screen<'a, W> {
    /// A terminal, or text alone.
    pub(super) fn new(out: &'a mut W, is_terminal: bool) -> Self {
        Self { out, parser: Parser::<Utf8Parser>::new(), filter: Filter { is_terminal, ..Filter::default() } }
    }

    pub(super) fn is_terminal(&self) -> bool {
        self.filter.is_terminal
    }

    /// # Errors
    /// It cannot be written.
    pub(super) fn show(&mut self, text: &str) -> io::Result<()> {
        for byte in text.bytes() {
            self.parser.advance(&mut self.filter, byte);
        }
        self.write()
    }

    /// Shows what is not output, so that it looks like none.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn mark(&mut self, text: &str) -> io::Result<()> {
        let text = text.escape_debug();
        // the characters are those of any terminal
        let _ = match self.filter.is_terminal {
            // whatever the output has set
            true => write!(self.filter.shown, "\x1b[0;7m\x1b(B\x0f<{text}>\x1b[0m"),
            false => write!(self.filter.shown, "<{text}>"),
        };
        self.write()
    }

    /// The terminal as it was before.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn restore(&mut self) -> io::Result<()> {
        if self.filter.is_terminal {
            // first, since it brings back how text looked before
            self.filter.shown.push_str(if self.filter.sets_screen { RESTORE_SCREEN } else { "" });
            self.filter.shown.push_str(RESTORE_TEXT);
        }
        self.write()
    }

    fn write(&mut self) -> io::Result<()> {
        let shown = std::mem::take(&mut self.filter.shown);
        self.out.write_all(shown.as_bytes())?;
        self.out.flush()
    }
}

#[derive(Default)]
struct Filter {
    is_terminal: bool,
    /// The screen, its scrolling region or the origin mode was set.
    sets_screen: bool,
    shown: String,
}

impl Perform for Filter {
    fn print(&mut self, c: char) {
        if !c.is_control() {
            self.shown.push(c);
        }
    }

    fn execute(&mut self, byte: u8) {
        match byte {
            b'\n' | b'\t' => self.shown.push(char::from(byte)),
            // carriage return, backspace, vertical tab, form feed, and two character sets
            b'\r' | 0x08 | 0x0b | 0x0c | 0x0e | 0x0f if self.is_terminal => self.shown.push(char::from(byte)),
            _ => {}
        }
    }

    fn csi_dispatch(&mut self, params: &Params, intermediates: &[u8], ignore: bool, action: u8) {
        let is_allowed = match intermediates {
            [] => match action {
                // with 3, the lines that have left the screen are erased too
                b'J' => params.iter().flatten().all(|what| *what < 3),
                // with more, xterm reports the mouse
                b'T' => params.len() < 2,
                b'b' => params.iter().flatten().all(|times| *times <= MAX_REPEATS),
                _ => ALLOWED.contains(&action),
            },
            [b'?'] => matches!(action, b'h' | b'l') && params.iter().flatten().all(|mode| MODES.contains(mode)),
            _ => false,
        };
        if !self.is_terminal || ignore || !is_allowed {
            return;
        }
        let sets_screen = |mode: &u16| !matches!(mode, 7 | 12 | 25);
        self.sets_screen |= action == b'r' || !intermediates.is_empty() && params.iter().flatten().any(sets_screen);
        let joined = |parts: &[u16]| parts.iter().map(u16::to_string).collect::<Vec<_>>().join(":");
        // which is the default of each
        let params = match &params.iter().map(joined).collect::<Vec<_>>()[..] {
            [only] if only == "0" => String::new(),
            all => all.join(";"),
        };
        let prefix = if intermediates.is_empty() { "" } else { "?" };
        let _ = write!(self.shown, "\x1b[{prefix}{params}{}", char::from(action));
    }

    fn esc_dispatch(&mut self, intermediates: &[u8], ignore: bool, byte: u8) {
        let is_allowed = match intermediates {
            // the cursor is saved and restored, lines are scrolled
            [] => matches!(byte, b'7' | b'8' | b'D' | b'E' | b'M'),
            // character sets: US-ASCII, British, line drawing
            [b'(' | b')'] => matches!(byte, b'B' | b'A' | b'0'),
            _ => false,
        };
        if self.is_terminal && !ignore && is_allowed {
            let set = intermediates.iter().copied().map(char::from).collect::<String>();
            let _ = write!(self.shown, "\x1b{set}{}", char::from(byte));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(is_terminal: bool, text: &str) -> String {
        let mut out = Vec::new();
        Screen::new(&mut out, is_terminal).show(text).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn text_its_place_and_look_are_shown() {
        for text in [
            "plain \u{e9}\r\n\tnext",
            "\x1b[1;31mred\x1b[m\x1b[38:2:1:2:3mx\x1b[K\x1b[2J\x1b[5;10H\x1b[2;20r",
            "\x1b[?1049h\x1b[?25l\x1b7\x1b8\x1bM\x1b(0\x0eq\x0f\x1b(B\x1b[?1049l",
        ] {
            assert_eq!(shown(true, text), text);
        }
    }

    #[test]
    fn what_a_terminal_would_answer_or_keep_is_not() {
        for text in [
            "\x1b[c",
            "\x1b[>c",
            "\x1b[6n",
            "\x1b[?6n",
            "\x1b[21t",
            "\x1b[>4;2m",
            "\x1b[?2004h",
            "\x1b[?1000;1006h",
            "\x1b[4h",
            "\x1b[5i",
            "\x1bc",
            "\x1bZ",
            "\x1b=",
            "\x07",
            "\x05",
            "\x1b]0;title\x07",
            "\x1b]52;c;Zm9v\x1b\\",
            "\x1bP$qm\x1b\\",
            "\x1b_G\x1b\\",
            "\x1b^x\x1b\\",
            "\x1bXx\x1b\\",
            "\u{9b}6n",
            "\u{9d}0;t\u{9c}",
            "\x1b[1$p",
            "\x1b[3J",
            "\x1b[1;1;1;1;1T",
            "\x1b[65535b",
        ] {
            let all = shown(true, text);
            assert!(
                !all.contains(['\x1b', '\x07', '\x05']) && !all.contains(|c: char| ('\u{80}'..='\u{9f}').contains(&c)),
                "{text:?}: {all:?}"
            );
        }
    }

    #[test]
    fn without_a_terminal_it_is_text() {
        assert_eq!(shown(false, "\x1b[1ma\x1b[0m\r\nb\x08\tc\x1b]0;t\x07"), "a\nb\tc");
        let mut out = Vec::new();
        Screen::new(&mut out, false).mark("ls\r\x1b[c").unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "<ls\\r\\u{1b}[c>");
    }
}
