//! How deep the expressions of a policy may be nested. What reads them is recursive, in Cedar too: a stack that overflows
//! would end the agent.

use super::fault::Source;

/// Nested and chained operators of one rule: more than a hundred conditions.
const MAX_OPERATORS: usize = 500;

/// How many operators the rule with the most has.
///
/// # Errors
/// Rules with more than there may be.
pub(super) fn most_operators(source: &Source<'_>, text: &str) -> Result<usize, Vec<String>> {
    let fault = format!(
        "the rule has more than {MAX_OPERATORS} operators and brackets: compare with a set, or write several rules"
    );
    let rules = rules(text.as_bytes());
    let most = rules.iter().map(|rule| rule.operators).max().unwrap_or_default();
    let too_deep = rules.iter().filter(|rule| rule.operators > MAX_OPERATORS);
    let faults: Vec<_> = too_deep.map(|rule| source.at(rule.line, &fault)).collect();
    if faults.is_empty() { Ok(most) } else { Err(faults) }
}

/// A rule, as far as it matters here.
struct Rule {
    /// Where the one before it ends.
    line: usize,
    operators: usize,
}

/// The rules of a text, and what follows the last semicolon.
fn rules(text: &[u8]) -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut rule = Rule { line: 1, operators: 0 };
    let (mut line, mut rest) = (1, text);
    while let [first, after @ ..] = rest {
        let length = match (*first, after) {
            (b'/', [b'/', ..]) => rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()),
            (b'"', _) => 1 + string_length(after),
            (b'&' | b'|', [next, ..]) if next == first => 2,
            (b'i', [b'f', ..]) => 2,
            _ => 1,
        };
        let (token, after) = rest.split_at(length);
        rest = after;
        line += token.iter().filter(|byte| **byte == b'\n').count();
        match token {
            b"&&" | b"||" | b"if" | b"(" | b"[" | b"{" | b"!" | b"." | b"+" | b"-" | b"*" => rule.operators += 1,
            b";" => rules.push(std::mem::replace(&mut rule, Rule { line, operators: 0 })),
            _ => {}
        }
    }
    rules.push(rule);
    rules
}

/// With the quotation mark at its end, after the one at its beginning.
fn string_length(text: &[u8]) -> usize {
    let mut escaped = false;
    let is_end = |byte: &u8| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    };
    text.iter().position(is_end).map_or(text.len(), |end| end + 1)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn rules_are_counted_one_by_one() {
        let most = |text: &str| most_operators(&Source::new(Path::new("p"), text), text);
        let faults = |text: &str| most(text).err().unwrap_or_default();
        let of = |count: usize| format!("permit(principal, action, resource) when {{ {}true }};\n", "!".repeat(count));
        assert_eq!(most(&of(MAX_OPERATORS - 2).repeat(3)), Ok(MAX_OPERATORS));
        let third = format!("{}{}", of(1).repeat(2), of(MAX_OPERATORS));
        assert!(matches!(&faults(&third)[..], [one] if one.starts_with("p:2: the rule has more than 500 ")));
        let unended = of(MAX_OPERATORS).replace(';', "");
        assert_eq!(faults(&unended).len(), 1);
        let texts = format!("@id(\"{}\\\"{0}\") // {0}\n{}", "!(".repeat(MAX_OPERATORS), of(1));
        assert_eq!(most(&texts), Ok(4));
    }
}
