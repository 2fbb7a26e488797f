//! Text for people and models.

/// A number of things, such as `1 record` or `2 records`; `thing` is the singular.
pub fn counted(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// The error and its causes, as in `no such machine: connection refused`. What only wraps its cause says the same, once.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut texts = vec![error.to_string()];
    texts.extend(std::iter::successors(error.source(), |error| error.source()).map(ToString::to_string));
    texts.dedup();
    texts.join(": ")
}

/// The last of an error's causes, or the error itself: for errors of libraries that say the same at greater length around it.
pub fn root_cause<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    std::iter::successors(Some(error), |&error| error.source()).last().unwrap_or(error)
}

/// The text on one line, with control and invisible characters escaped.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_unprintable(c) { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// Control characters, what is invisible or looks like a space, and what breaks lines, reorders text or joins characters.
fn is_unprintable(c: char) -> bool {
    // marks that only take effect on others, or on nothing
    let is_invisible = matches!(c,
        '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{2800}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{e0100}'..='\u{e01ef}');
    is_invisible || !(c == ' ' || c.is_ascii_graphic() || is_left_by_escape_debug(c))
}

/// Whether the standard library takes it for printable: not of the categories C (others) and Z (separators) of Unicode.
fn is_left_by_escape_debug(c: char) -> bool {
    let mut buffer = *b"a\0\0\0\0";
    let Some((_, rest)) = buffer.split_first_mut() else { return false };
    let length = 1 + c.encode_utf8(rest).len();
    // after another character, of which a mark may be part
    let text = buffer.get(..length).and_then(|bytes| str::from_utf8(bytes).ok()).unwrap_or_default();
    text.escape_debug().skip(1).eq([c])
}

/// Leaves out the beginning of a character that is not all there.
pub fn without_cut_character(bytes: &[u8]) -> &[u8] {
    let end = bytes.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    match str::from_utf8(end) {
        Err(error) if error.error_len().is_none() => bytes.strip_suffix(end).unwrap_or(bytes),
        _ => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_printed() {
        for (text, shown) in [
            ("echo 'a\\b' \"é\"", "echo 'a\\b' \"é\""),
            ("a\nb\tc", "a\\nb\\tc"),
            ("\x1b[2J\x07\x7f", "\\u{1b}[2J\\u{7}\\u{7f}"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("a\u{202e}b\u{2028}", "a\\u{202e}b\\u{2028}"),
            ("e\u{301} \u{4e2d} \u{1f980}", "e\u{301} \u{4e2d} \u{1f980}"),
        ] {
            assert_eq!(printable(text), shown);
        }
        for hidden in [
            '\u{a0}',
            '\u{ad}',
            '\u{34f}',
            '\u{600}',
            '\u{70f}',
            '\u{1680}',
            '\u{17b4}',
            '\u{180b}',
            '\u{2003}',
            '\u{3000}',
            '\u{e000}',
            '\u{fe0f}',
            '\u{1d173}',
            '\u{e0001}',
            '\u{e0100}',
            '\u{10ffff}',
        ] {
            assert_eq!(printable(&format!("a{hidden}")), format!("a{}", hidden.escape_unicode()));
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Outer(&'static str, #[source] Box<dyn std::error::Error>);

    #[test]
    fn a_wrapper_does_not_repeat_its_cause() {
        let cause = || Box::new(std::io::Error::other("refused"));
        assert_eq!(error_chain(&Outer("unreachable", cause())), "unreachable: refused");
        let wrapped = Outer("unreachable", Box::new(Outer("refused", cause())));
        assert_eq!(error_chain(&wrapped), "unreachable: refused");
    }
}
