//! Texts that are refused as they are written, before they are parsed.

use std::borrow::Cow;

use super::scan::Scanned;

const CONTINUED: &str = "a line is continued inside of a word, in a here-document or before a comment";

/// Why this text is not looked at further.
pub(super) fn outright(text: &str) -> Option<&'static str> {
    // what other shells and other locales take for space is part of a word here, or the other way around
    if text.contains(|c: char| (c.is_control() || c.is_whitespace()) && !matches!(c, ' ' | '\t' | '\n')) {
        return Some("it has control characters or unusual space");
    }
    // in some places the parser takes the second for the end of the quote
    if text.contains("$'") && text.contains("\\'") {
        return Some("it has an escaped quote in $'…'");
    }
    None
}

/// The text as the parser reads it like shells: lines that continue others are joined to them.
pub(super) fn joined(text: &str, scanned: Option<Scanned>) -> Result<Cow<'_, str>, &'static str> {
    // shells drop a backslash at the very end
    if text.ends_with('\\') {
        return Err(CONTINUED);
    }
    if !text.contains("\\\n") {
        return Ok(Cow::Borrowed(text));
    }
    match scanned.and_then(|scanned| scanned.joined) {
        Some(joined) => Ok(Cow::Owned(joined)),
        None if text.match_indices("\\\n").all(|(at, _)| may_continue(text, at)) => Ok(Cow::Borrowed(text)),
        None => Err(CONTINUED),
    }
}

/// A line may continue between words. Shell and parser disagree on what they make of it elsewhere.
fn may_continue(text: &str, at: usize) -> bool {
    let (before, after) = (text.get(..at).unwrap_or_default(), text.get(at + 2..).unwrap_or_default());
    (before.is_empty() || before.ends_with([' ', '\t', '\n']))
        && !after.trim_start_matches([' ', '\t']).starts_with(['#', '\\'])
        && !text.contains("<<")
}

/// A regular expression after `=~` in one word without quotes, where bash and the parser agree on its end.
pub(super) fn is_plain_regex(text: &str) -> bool {
    let is_count = |brace: &str| {
        let digits = brace.trim_start_matches(|c: char| c.is_ascii_digit() || c == ',');
        brace.starts_with(|c: char| c.is_ascii_digit()) && digits.starts_with('}')
    };
    text.chars().all(|c| c.is_ascii_alphanumeric() || "_^$.*+?()|[]:-/=,%@{}".contains(c))
        && text.split('{').skip(1).all(is_count)
        && text.matches('{').count() == text.matches('}').count()
        && text.matches('(').count() == text.matches(')').count()
        && !["$(", "$["].iter().any(|mark| text.contains(mark))
        && (!text.contains("]]") || text.contains("[[:"))
}

/// The end of a here-document is a plain word, quoted as a whole or not at all, and no more than plain words come after
/// it in its line: bash would find the here-document elsewhere.
pub(super) fn is_plain_heredoc(delimiter: &str, rest_of_line: &str) -> bool {
    let quoted = ['\'', '"'].iter().find_map(|quote| delimiter.strip_prefix(*quote)?.strip_suffix(*quote));
    let name = quoted.or_else(|| delimiter.strip_prefix('\\')).unwrap_or(delimiter);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    !name.is_empty()
        && !name.starts_with('-')
        && name.chars().all(is_plain)
        && !rest_of_line.contains(['(', ')', '`', '\\', '\'', '{', '}', '#'])
        && !rest_of_line.contains("<<")
        && rest_of_line.matches('"').count().is_multiple_of(2)
}
