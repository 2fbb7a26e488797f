//! Arithmetic expressions. Bash takes the value of a variable in one for an expression in turn, in which subscripts are
//! expanded: with `x='a[$(id)]'`, `$((x))` runs `id`. So each variable must be known to have a number.

use shuck_ast::{ConditionalExpr, Span, Word};

use super::item::{Item, Reader};
use super::walk::{EVALUATED, Walk};
use super::{builtins, variables};

/// What an expression does, besides calculating.
#[derive(Debug, Default, PartialEq, Eq)]
struct Expression<'a> {
    /// The variables in it.
    names: Vec<&'a str>,
    /// It gives some of them values, which are numbers.
    assigns: bool,
}

impl<'a> Expression<'a> {
    /// Reads an expression of numbers, variables and operators; `None`: there is something else in it.
    fn parse(text: &'a str) -> Option<Self> {
        let mut expression = Self::default();
        let (mut rest, mut open, mut before) = (text, 0_usize, None);
        while let Some(first) = rest.chars().next() {
            let is_adjacent = before.is_some_and(|c: char| is_word(c) || matches!(c, '}' | '#' | '?'));
            let length = match first {
                '$' => {
                    let (name, length) = expansion(rest)?;
                    expression.names.extend(name);
                    // ${e}x might be the variable x
                    let after = rest.get(length..)?;
                    (!is_adjacent && !after.starts_with(|c: char| is_word(c) || c == '$')).then_some(length)?
                }
                c if is_word(c) => {
                    let length = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
                    let word = rest.get(..length)?;
                    if !c.is_ascii_digit() {
                        expression.names.push(word);
                    }
                    length
                }
                '(' => {
                    open += 1;
                    1
                }
                ')' => {
                    open = open.checked_sub(1)?;
                    1
                }
                c if " \t\n+-*/%<>=!&|^~?:,".contains(c) => 1,
                _ => return None,
            };
            before = rest.get(..length)?.chars().next_back();
            rest = rest.get(length..)?;
        }
        let compares =
            |text: &str| ["==", "!=", "<=", ">="].iter().fold(text.to_owned(), |text, op| text.replace(op, ""));
        // <<= and >>= assign
        let shifted = text.replace("<<=", "=").replace(">>=", "=");
        expression.assigns = compares(&shifted).contains('=') || text.contains("++") || text.contains("--");
        (open == 0).then_some(expression)
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The variable at the beginning of a text, `$x` or `${x}`, and its length there; or `$#`, `$?` or `${#x}`, which are numbers.
fn expansion(text: &str) -> Option<(Option<&str>, usize)> {
    if text.starts_with("$#") || text.starts_with("$?") {
        return Some((None, 2));
    }
    if let Some((counted, _)) = text.strip_prefix("${#").and_then(|rest| rest.split_once('}')) {
        let name = ["[@]", "[*]"].iter().find_map(|all| counted.strip_suffix(all)).unwrap_or(counted);
        return builtins::is_name(name).then_some((None, counted.len() + 4));
    }
    let (name, length) = match text.strip_prefix("${") {
        Some(rest) => rest.split_once('}').map(|(name, _)| (name, name.len() + 3))?,
        None => {
            let rest = text.strip_prefix('$')?;
            let name = rest.get(..rest.find(|c: char| !is_word(c)).unwrap_or(rest.len()))?;
            (name, name.len() + 1)
        }
    };
    builtins::is_name(name).then_some((Some(name), length))
}

/// Whether it is a number, or nothing, which counts as 0.
pub(super) fn is_number(text: &str) -> bool {
    text != "-" && text.strip_prefix('-').unwrap_or(text).chars().all(|c| c.is_ascii_digit())
}

/// What an expression comes to, in a text for this shell.
pub(super) fn evaluated(reader: Reader, text: &str) -> Vec<Item> {
    let Some(Expression { names, assigns }) = Expression::parse(text) else { return vec![Item::Unknown(EVALUATED)] };
    // dash has none of these
    if reader == Reader::Posix && ["++", "--", "**", ","].iter().any(|operator| text.contains(operator)) {
        return vec![Item::Unknown(EVALUATED)];
    }
    let assigned = names.iter().filter(|_| assigns).flat_map(|name| {
        let number = Item::Number((*name).to_owned());
        variables::set(name).into_iter().chain([number])
    });
    let assigned: Vec<_> = assigned.collect();
    names.into_iter().map(|name| Item::Operand(name.to_owned())).chain(assigned).collect()
}

impl Walk<'_> {
    /// `$((…))`
    pub(super) fn arithmetic(&mut self, span: Span) {
        let written = self.written(span).unwrap_or_default();
        match written.strip_prefix("$((").and_then(|text| text.strip_suffix("))")) {
            Some(inside) => self.evaluate(inside),
            None => self.unknown(EVALUATED),
        }
    }

    /// `((…))`, and what is between these in `for ((…; …; …))`, by the spans of its parentheses.
    pub(super) fn in_parentheses(&mut self, open: Span, close: Span) {
        let is = |span: Span, text: &str| self.source.get(span.start.offset()..span.end.offset()) == Some(text);
        let inside = self.source.get(open.end.offset()..close.start.offset());
        match inside.filter(|_| is(open, "((") && is(close, "))")) {
            Some(inside) => inside.split(';').for_each(|expression| self.evaluate(expression)),
            None => self.unknown(EVALUATED),
        }
    }

    pub(super) fn evaluate(&mut self, expression: &str) {
        self.items.extend(evaluated(self.reader, expression));
    }

    /// An operand of `-eq` and the like in `[[ … ]]`, which is an expression.
    pub(super) fn compared(&mut self, operand: &ConditionalExpr) {
        let written = match operand {
            ConditionalExpr::Word(word) => self.written(word.span).unwrap_or_default(),
            _ => return self.unknown(EVALUATED),
        };
        match written.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
            Some(unquoted) => self.evaluate(unquoted),
            // ~+ is a directory
            None if written.contains('~') => self.unknown(EVALUATED),
            None => self.evaluate(&written),
        }
    }

    /// `${x:1:2}`
    pub(super) fn slice_of(&mut self, span: Span) {
        let written = self.written(span).unwrap_or_default();
        let inside = written.strip_prefix("${").and_then(|text| text.strip_suffix('}'));
        let Some((name, range)) = inside.and_then(|inside| inside.split_once(':')) else {
            return self.unknown(EVALUATED);
        };
        // a `:` of its own would be one of the slice
        if !(builtins::is_name(name) || matches!(name, "@" | "*"))
            || range.contains('?')
            || self.reader == Reader::Posix
        {
            return self.unknown(EVALUATED);
        }
        range.split(':').for_each(|expression| self.evaluate(expression));
    }

    /// The words of `for` are numbers, or ranges of them: `1 2 3`, `{1..5}`.
    pub(super) fn are_numbers(&self, words: &[Word]) -> bool {
        let is_range = |text: &str| {
            let inside = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
            inside.is_some_and(|inside| {
                inside.contains("..") && inside.split("..").all(|end| !end.is_empty() && is_number(end))
            })
        };
        let written = words.iter().map(|word| self.written(word.span).unwrap_or_default());
        !words.is_empty() && written.into_iter().all(|text| (!text.is_empty() && is_number(&text)) || is_range(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_of_numbers_and_variables_are_read() {
        for (text, names, assigns) in [
            ("1 + 2", &[][..], false),
            ("i+1", &["i"], false),
            ("$i + ${j} * 0x1f", &["i", "j"], false),
            ("i < n && (j >= 2 || !k)", &["i", "n", "j", "k"], false),
            ("i++", &["i"], true),
            ("i <<= 2", &["i"], true),
            ("a = b == c ? 1 : 2, d", &["a", "b", "c", "d"], true),
            ("$# % 2", &[], false),
            ("${#x} - ${#a[@]} == i", &["i"], false),
            ("", &[], false),
        ] {
            assert_eq!(Expression::parse(text), Some(Expression { names: names.to_vec(), assigns }), "{text}");
        }
    }

    #[test]
    fn anything_else_is_not() {
        for text in [
            "a[1]", "$(id)", "`id`", "${x:-1}", "${!x}", "${#x:-1}", "${#a[i]}", "${#}", "${#x}y", "$1", "$@", "'a'",
            "\"a\"", "\\", "(1", "1)", ")(", "${e}x", "x$e", "$e$f", "1$e", "${x", "$", "${}", "10#x", "a;b", "é",
            "${e}_", "$#x", "$?x", "{a,b}", "$[1]",
        ] {
            assert_eq!(Expression::parse(text), None, "{text}");
        }
    }
}
