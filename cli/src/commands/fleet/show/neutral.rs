//! Lines of hosts on a terminal: what would move the cursor, or set the title, could pass for lines of other hosts.

/// Ends the colors of a line.
const RESET: &[u8] = b"\x1b[0m";

/// Adds a line, or a piece of one. On a terminal, control characters except tabs and colors are escaped, and colors end
/// with the line.
pub(super) fn push(buffer: &mut Vec<u8>, line: &[u8], is_terminal: bool) {
    if !is_terminal {
        return buffer.extend_from_slice(line);
    }
    // before a newline it has no effect
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut colored = false;
    for chunk in line.utf8_chunks() {
        colored |= push_text(buffer, chunk.valid());
        buffer.extend(chunk.invalid().escape_ascii());
    }
    if colored {
        buffer.extend_from_slice(RESET);
    }
}

/// Whether it had colors.
fn push_text(buffer: &mut Vec<u8>, text: &str) -> bool {
    let mut colored = false;
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_control() && c != '\t') {
        let (before, control) = rest.split_at(at);
        buffer.extend_from_slice(before.as_bytes());
        if let Some((color, after)) = color(control) {
            buffer.extend_from_slice(color.as_bytes());
            (colored, rest) = (true, after);
            continue;
        }
        let mut chars = control.chars();
        let escaped = chars.next().into_iter().flat_map(char::escape_default);
        buffer.extend_from_slice(escaped.collect::<String>().as_bytes());
        rest = chars.as_str();
    }
    buffer.extend_from_slice(rest.as_bytes());
    colored
}

/// The sequence that sets colors (SGR) at the beginning of the text, and what follows it.
fn color(text: &str) -> Option<(&str, &str)> {
    let parameters = text.strip_prefix("\x1b[")?;
    let length = parameters.find(|c: char| !c.is_ascii_digit() && c != ';' && c != ':')?;
    parameters.get(length..)?.starts_with('m').then(|| text.split_at("\x1b[".len() + length + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &[u8], is_terminal: bool) -> Vec<u8> {
        let mut buffer = Vec::new();
        push(&mut buffer, line, is_terminal);
        buffer
    }

    #[test]
    fn a_terminal_gets_no_control_characters_but_tabs_and_colors() {
        for (line, expected) in [
            (&b"plain\t\xc3\xa9"[..], &b"plain\t\xc3\xa9"[..]),
            (b"x\rweb02: all ok\x1b[K", b"x\\rweb02: all ok\\u{1b}[K"),
            (b"\x1b]0;pwn\x07\x1b[2Aup", b"\\u{1b}]0;pwn\\u{7}\\u{1b}[2Aup"),
            (b"\x1b[1;38:5:9mred", b"\x1b[1;38:5:9mred\x1b[0m"),
            (b"\x1b[mplain\x1b[?25l", b"\x1b[mplain\\u{1b}[?25l\x1b[0m"),
            (b"\x1b[>4;1m\x1b[31", b"\\u{1b}[>4;1m\\u{1b}[31"),
            (b"\xc2\x9b2A\x9b2A\x08\x7f", b"\\u{9b}2A\\x9b2A\\u{8}\\u{7f}"),
            (b"ends as on Windows\r", b"ends as on Windows"),
        ] {
            assert_eq!(shown(line, true), expected, "{}", line.escape_ascii());
            assert_eq!(shown(line, false), line);
        }
    }
}
