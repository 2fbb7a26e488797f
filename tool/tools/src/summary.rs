//! One line about a call of a tool.

/// At most 60 characters, none of which moves the cursor.
pub(crate) fn shorten(text: &str) -> String {
    let shown = |limit| text.chars().take(limit).map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
    if text.chars().nth(60).is_none() { shown(60) } else { shown(57) + "..." }
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
