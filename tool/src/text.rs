//! Texts that several tools make in the same way.

/// The error and why: a model sees no more of it than this text.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// At most 60 characters, none of which moves the cursor.
pub(crate) fn shorten(text: &str) -> String {
    let shown = |limit| text.chars().take(limit).map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
    if text.chars().nth(60).is_none() { shown(60) } else { shown(57) + "..." }
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
    fn summaries_have_at_most_60_characters_of_the_command() {
        assert_eq!(shorten("ls -la"), "ls -la");
        assert_eq!(shorten("a\nb\x1b[2J"), "a b [2J");
        for letter in ["x", "é", "語", "🦀"] {
            assert_eq!(shorten(&letter.repeat(60)), letter.repeat(60));
            assert_eq!(shorten(&letter.repeat(61)), letter.repeat(57) + "...");
        }
    }
}
