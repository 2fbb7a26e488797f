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

/// The text on one line, with control and invisible characters escaped.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_unprintable(c) { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// Control characters, and invisible ones, which break lines, reorder text or join characters.
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{a0}' | '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{2000}'..='\u{200f}'
            | '\u{2028}'..='\u{202f}' | '\u{205f}'..='\u{206f}' | '\u{2800}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
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
        ] {
            assert_eq!(printable(text), shown);
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
