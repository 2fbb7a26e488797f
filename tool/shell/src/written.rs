//! Looks at words and their parts as they are written.

use super::builtins;

/// The parser counts braces in an expansion, and shells take the first `}` for its end.
pub(super) fn has_bare_brace(inside: &str) -> bool {
    inside.match_indices('{').any(|(at, _)| !inside.get(..at).is_some_and(|before| before.ends_with('$')))
}

/// What all shells read alike between `${` and `}`.
pub(super) fn is_plain_operation(inside: &str) -> bool {
    let word = inside.strip_prefix('#').unwrap_or(inside);
    let operation = word.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
    let is_plain = operation.is_empty() || operation.starts_with([':', '-', '=', '?', '+', '#', '%']);
    let is_name = |rest: &str| rest.split_once('}').is_some_and(|(name, _)| builtins::is_name(name));
    let is_nested = |(at, _): (usize, &str)| {
        operation.get(..at).is_some_and(|before| before.ends_with('$')) && operation.get(at + 1..).is_some_and(is_name)
    };
    // ${y} alone may stand in it
    let braces = inside.matches('{').count();
    is_plain
        && operation.len() < word.len()
        && !inside.contains(['\'', '"', '\\'])
        && operation.match_indices('{').all(is_nested)
        && braces == inside.matches('}').count()
}

/// Text without quotes, where a character behind a backslash is nothing special.
pub(super) fn without_escaped(text: &str) -> String {
    let mut chars = text.chars();
    std::iter::from_fn(|| match chars.next()? {
        '\\' => Some(chars.next().map_or('\\', |_| 'x')),
        c => Some(c),
    })
    .collect()
}

/// It stands for the names of files, or for several words.
pub(super) fn is_pattern(unquoted: &str) -> bool {
    unquoted.contains(['*', '?'])
        || has_pair(unquoted, '[', "]")
        || has_pair(unquoted, '{', ",")
        || has_pair(unquoted, '{', "..")
}

/// In `$'…'`, what is not the same in all versions and locales.
pub(super) fn has_odd_escapes(text: &str) -> bool {
    text.replace("\\\\", "").split('\\').skip(1).any(|rest| !rest.starts_with(['n', 't', '\'', '"']))
}

fn has_pair(text: &str, open: char, then: &str) -> bool {
    text.split_once(open).is_some_and(|(_, rest)| rest.contains(then))
}

/// `$x`, `$?`, `${x}`, `${#x}`, `${x[…]}`
pub(super) fn is_plain_expansion(text: &str) -> bool {
    let is_special = |text: &str| matches!(text, "@" | "*" | "#" | "?" | "-" | "$" | "!");
    let is_number = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    let is_parameter = |text: &str| match text.split_once('[') {
        None => builtins::is_name(text) || is_number(text) || is_special(text),
        Some((name, rest)) => {
            builtins::is_name(name) && rest.strip_suffix(']').is_some_and(|inside| !inside.contains(['[', ']']))
        }
    };
    match (text.strip_prefix("${"), text.strip_prefix('$')) {
        (Some(rest), _) => rest
            .strip_suffix('}')
            .is_some_and(|inside| is_parameter(inside) || inside.strip_prefix('#').is_some_and(is_parameter)),
        (None, Some(name)) => builtins::is_name(name) || name.len() == 1 && is_parameter(name),
        (None, None) => false,
    }
}

pub(super) fn may_substitute(text: &str) -> bool {
    ["`", "$(", "<(", ">("].iter().any(|mark| text.contains(mark))
}

/// What a shell makes of the text between backticks.
pub(super) fn unescaped(text: &str) -> String {
    let mut value = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let escaped = (c == '\\').then(|| chars.next_if(|next| matches!(next, '$' | '`' | '\\'))).flatten();
        value.push(escaped.unwrap_or(c));
    }
    value
}

/// The keys of an array, `${!x[@]}`, or the names of variables, `${!x@}`; the values of none are looked at.
pub(super) fn lists_names(text: &str) -> bool {
    let inside = text.strip_prefix("${!").and_then(|rest| rest.strip_suffix('}'));
    let name = inside.and_then(|inside| ["[@]", "[*]", "@", "*"].iter().find_map(|all| inside.strip_suffix(all)));
    name.is_some_and(builtins::is_name)
}

/// There is a `;` somewhere behind a here-document.
pub(super) fn separates_after_heredoc(text: &str) -> bool {
    let begins = |at: usize| text.get(at + 2..).is_some_and(|rest| !rest.starts_with('<'));
    let mut found = text.match_indices("<<").map(|(at, _)| at).filter(|at| begins(*at));
    found.next().is_some_and(|at| text.get(at..).is_some_and(|rest| rest.contains(';')))
}

/// `${#x}`: a number.
pub(super) fn is_length(text: &str) -> bool {
    text.starts_with("${#") && is_plain_expansion(text)
}
