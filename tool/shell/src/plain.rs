//! Plain values: however they are split, at blanks or other [separators](variables::are_separators), no part of them is an option, a
//! subscript or a pattern.

use std::collections::{BTreeSet, HashMap};

use shuck_ast::{Word, WordPart, WordPartNode};

use super::arithmetic::is_number;
use super::expansion::Expansion;
use super::item::Item;
use super::walk::Walk;
use super::{builtins, variables, written};

pub(super) const NOT_PLAIN: &str = "an expansion without quotes may come to options: quote it, as in \"$x\"";

/// Whether a text is plain. A `-` or `+` stands within words only.
pub(super) fn is_plain(text: &str) -> bool {
    let mut before = ' ';
    text.chars().all(|c| {
        let is_inside = before.is_ascii_alphanumeric() || matches!(before, '_' | '-' | '+');
        before = c;
        c.is_ascii_alphanumeric() || " \t\n_./:=,@%".contains(c) || matches!(c, '-' | '+') && is_inside
    })
}

impl Walk<'_> {
    /// The variables by which alone a word comes to other words, all of them plain if their values are; `None`: by something else.
    pub(super) fn plain_by(&self, word: &Word) -> Option<Vec<String>> {
        let mut variables = Vec::new();
        self.add_plain(&word.parts, &mut variables).then_some(variables)
    }

    /// The same of several words.
    pub(super) fn all_plain_by(&self, words: &[Word]) -> Option<Vec<String>> {
        let mut variables = Vec::new();
        words.iter().all(|word| self.add_plain(&word.parts, &mut variables)).then_some(variables)
    }

    /// A variable gets this value. If that is a number, or plain, it is noted.
    pub(super) fn note_value(&mut self, name: &str, word: &Word, value: &Expansion) {
        if value.known().map_or_else(|| self.is_calculated(&word.parts), is_number) {
            self.items.push(Item::Number(name.to_owned()));
        } else if let Some(of) = self.plain_by(word) {
            self.items.push(Item::Plain(name.to_owned(), of));
        }
        if self.written(word.span).is_some_and(|text| matches!(text.as_str(), "$IFS" | "\"$IFS\"")) {
            self.items.push(Item::Separators(name.to_owned()));
        }
    }

    /// A number is calculated, or counted by the shell.
    fn is_calculated(&self, parts: &[WordPartNode]) -> bool {
        match parts {
            [part] => match &part.kind {
                WordPart::ArithmeticExpansion { .. } | WordPart::Length(_) => true,
                WordPart::Parameter(_) => self.slice(part.span).is_some_and(written::is_length),
                WordPart::Variable(name) => matches!(name.as_str(), "#" | "?" | "!" | "$"),
                WordPart::DoubleQuoted { parts, .. } => self.is_calculated(parts),
                _ => false,
            },
            _ => false,
        }
    }

    /// The array whose keys these words are: `"${!x[@]}"`
    pub(super) fn keys_of(&self, words: &[Word]) -> Option<String> {
        let [word] = words else { return None };
        let written = self.slice(word.span)?;
        let unquoted = written.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(written);
        let inside = unquoted.strip_prefix("${!")?.strip_suffix('}')?;
        let name = inside.strip_suffix("[@]").or_else(|| inside.strip_suffix("[*]"))?;
        builtins::is_name(name).then(|| name.to_owned())
    }

    fn add_plain(&self, parts: &[WordPartNode], variables: &mut Vec<String>) -> bool {
        parts.iter().all(|part| {
            let written = self.slice(part.span).unwrap_or("$");
            match &part.kind {
                WordPart::Literal(_) => is_plain(written),
                WordPart::SingleQuoted { dollar: false, .. } => {
                    let inside = written.strip_prefix('\'').and_then(|text| text.strip_suffix('\''));
                    inside.is_some_and(is_plain)
                }
                WordPart::DoubleQuoted { parts, dollar: false, .. } => self.add_plain(parts, variables),
                WordPart::Variable(_) | WordPart::Parameter(_) => match variable(written) {
                    Some(name) => {
                        variables.push(name.to_owned());
                        true
                    }
                    None => false,
                },
                _ => false,
            }
        })
    }
}

/// The name in `$x` or `${x}`.
fn variable(written: &str) -> Option<&str> {
    let name = written.strip_prefix('$')?;
    let name = name.strip_prefix('{').map_or(Some(name), |name| name.strip_suffix('}'))?;
    (builtins::is_name(name) || is_positional(name)).then_some(name)
}

/// `1` and so on: a text has none of these but those that it gives, to `set`, a function or another shell.
fn is_positional(name: &str) -> bool {
    !name.is_empty() && name.starts_with(|c: char| c != '0') && name.chars().all(|c| c.is_ascii_digit())
}

/// The values that a text gives variables.
#[derive(Default)]
pub(super) struct Values {
    variables: HashMap<String, Counts>,
    /// Positional parameters are given.
    pub(super) has_positional: bool,
    /// Arrays whose keys may be anything.
    pub(super) associative: BTreeSet<String>,
}

/// How many values of each kind a variable is given.
#[derive(Default)]
struct Counts {
    all: usize,
    numbers: usize,
    /// Numbers too.
    plain: usize,
    /// The variables that make up some of the plain ones.
    of: BTreeSet<String>,
    /// The arrays whose keys some of the numbers are.
    keys_of: BTreeSet<String>,
    /// Those of `IFS`.
    separators: usize,
}

impl Values {
    fn of(&mut self, variable: String) -> &mut Counts {
        self.variables.entry(variable).or_default()
    }

    pub(super) fn any(&mut self, variable: String) {
        self.of(variable).all += 1;
    }

    pub(super) fn number(&mut self, variable: String) {
        let counts = self.of(variable);
        counts.numbers += 1;
        counts.plain += 1;
    }

    /// A number, if the array has no others.
    pub(super) fn key(&mut self, variable: String, array: String) {
        self.number(variable.clone());
        self.of(variable).keys_of.insert(array);
    }

    pub(super) fn plain(&mut self, variable: String, of: Vec<String>) {
        let counts = self.of(variable);
        counts.plain += 1;
        counts.of.extend(of);
    }

    pub(super) fn separators(&mut self, variable: String) {
        self.of(variable).separators += 1;
    }

    /// Whether a variable has values of one kind alone. One in upper case may be of the environment, unless it is given some.
    fn has_only(&self, variable: &str, kind: fn(&Counts) -> usize) -> bool {
        match self.variables.get(variable) {
            None => variables::is_own(variable) || variables::is_kept_number(variable),
            Some(counts) => {
                (variables::is_own(variable) || variables::is_free(variable))
                    && counts.all <= kind(counts)
                    && counts.keys_of.is_disjoint(&self.associative)
            }
        }
    }

    /// Whether a variable has numbers alone.
    pub(super) fn is_number(&self, variable: &str) -> bool {
        self.has_only(variable, |counts| counts.numbers)
    }

    /// Whether a variable has only ever been given the value of `IFS`.
    pub(super) fn is_separators(&self, variable: &str) -> bool {
        self.variables.contains_key(variable) && self.has_only(variable, |counts| counts.separators)
    }

    /// These variables, and those that make up their values, if all of them are plain.
    pub(super) fn plain_with(&self, variables: &BTreeSet<String>) -> Option<BTreeSet<String>> {
        let mut found = BTreeSet::new();
        let mut waiting: Vec<&String> = variables.iter().collect();
        while let Some(variable) = waiting.pop() {
            let is_absent = is_positional(variable) && !self.has_positional;
            if !is_absent && !self.has_only(variable, |counts| counts.plain) {
                return None;
            }
            if found.insert(variable.clone()) {
                waiting.extend(self.variables.get(variable).iter().flat_map(|counts| &counts.of));
            }
        }
        Some(found)
    }
}
