//! Text for people and models.

/// A number of things, such as `1 record` or `2 records`; `thing` is the singular.
pub fn counted(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// The error and its causes, as in `no such machine: connection refused`.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// The text on one line, without anything that moves a terminal's cursor.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// Leaves out the beginning of a character that is not all there.
pub fn without_cut_character(bytes: &[u8]) -> &[u8] {
    let end = bytes.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    match str::from_utf8(end) {
        Err(error) if error.error_len().is_none() => bytes.strip_suffix(end).unwrap_or(bytes),
        _ => bytes,
    }
}
