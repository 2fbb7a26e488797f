//! Plain values: text that comes to the same kind of words however it is split. Where a variable has no other ones, its words are
//! no options, no operators and no patterns.

use std::collections::{BTreeSet, HashMap};

use shuck_ast::{Word, WordPart, WordPartNode};

use super::walk::Walk;
use super::{arithmetic, builtins};

/// Whether a text is plain: by no [separators](builtins::are_separators) does a `-` or `+` come to begin a word.
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

/// What a text gives the variables.
#[derive(Default)]
pub(super) struct Values {
    variables: HashMap<String, Given>,
    has_positional: bool,
}

/// How often a variable is given values.
#[derive(Default)]
struct Given {
    all: usize,
    numbers: usize,
    plain: usize,
    /// The variables that make up some of its plain values.
    of: BTreeSet<String>,
    /// The value of `IFS`.
    separators: usize,
}

impl Values {
    pub(super) fn give_positional(&mut self) {
        self.has_positional = true;
    }

    fn of(&mut self, variable: String) -> &mut Given {
        self.variables.entry(variable).or_default()
    }

    pub(super) fn any(&mut self, variable: &str) {
        self.of(variable.to_owned()).all += 1;
    }

    pub(super) fn number(&mut self, variable: String) {
        let given = self.of(variable);
        given.numbers += 1;
        given.plain += 1;
    }

    pub(super) fn plain(&mut self, variable: String, of: Vec<String>) {
        let given = self.of(variable);
        given.plain += 1;
        given.of.extend(of);
    }

    pub(super) fn separators(&mut self, variable: String) {
        self.of(variable).separators += 1;
    }

    /// Whether a variable has numbers alone.
    pub(super) fn is_number(&self, variable: &str) -> bool {
        arithmetic::is_kept_number(variable) && !self.variables.contains_key(variable)
            || arithmetic::is_own(variable) && self.variables.get(variable).is_none_or(|given| given.all <= given.numbers)
            // one of the environment may have the name
            || arithmetic::is_free(variable) && self.variables.get(variable).is_some_and(|given| given.all <= given.numbers)
    }

    /// Whether a variable has separators that the shell or the text began with.
    pub(super) fn is_separators(&self, variable: &str) -> bool {
        (arithmetic::is_own(variable) || arithmetic::is_free(variable))
            && self.variables.get(variable).is_some_and(|given| given.all == given.separators)
    }

    /// The variables that must be plain for these to be, and all of them are; `None`: one is not.
    pub(super) fn plain_with(&self, variables: &BTreeSet<String>) -> Option<BTreeSet<String>> {
        let mut found = BTreeSet::new();
        let mut waiting: Vec<&String> = variables.iter().collect();
        while let Some(variable) = waiting.pop() {
            if !found.insert(variable.clone()) {
                continue;
            }
            if is_positional(variable) && !self.has_positional {
                continue;
            }
            let given = self.variables.get(variable);
            if given.is_none() && arithmetic::is_kept_number(variable) {
                continue;
            }
            let is_own = arithmetic::is_own(variable) || arithmetic::is_free(variable) && given.is_some();
            if !is_own || given.is_some_and(|given| given.all > given.plain) {
                return None;
            }
            waiting.extend(given.iter().flat_map(|given| &given.of));
        }
        Some(found)
    }
}
