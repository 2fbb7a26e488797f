//! `NAME=VALUE`.

/// Splits at the first `=`.
pub(crate) fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) => Err("the name is empty".to_owned()),
        None => Err("expected NAME=VALUE".to_owned()),
    }
}
