//! Options before operands, as getopt(3) and the builtins of shells read them, where words need not be known.

use super::expansion::{Expansion, Words};

/// The options of a program that stops at its first operand, in getopt's notation: `a` is a flag, `a:` takes a value,
/// `a::` takes one in the same word or none; `#` is any number alone, as in `-5`. One that is not here makes a call not
/// understood.
pub(super) struct Options {
    pub(super) short: &'static str,
    pub(super) long: &'static [&'static str],
}

/// It is not known which options are given, or where they end.
pub(super) struct Unclear;

pub(super) struct Parsed {
    pub(super) given: Vec<Given>,
    /// What comes after the options.
    pub(super) operands: Words,
    /// They were ended by `--`.
    pub(super) ended: bool,
}

pub(super) struct Given {
    /// As the table has it: a letter, or a long name.
    pub(super) name: &'static str,
    pub(super) value: Option<Expansion>,
}

enum Takes {
    Nothing,
    Value,
    /// In the same word.
    MaybeValue,
}

impl Options {
    pub(super) fn parse(&self, words: Words) -> Result<Parsed, Unclear> {
        let mut words = words.into_iter().peekable();
        let mut given = Vec::new();
        while let Some(word) = words.next_if(Expansion::may_be_option) {
            // whether all of the word is known, or how it begins
            let (text, is_whole) = match &word {
                Expansion::Known(word) => (word, true),
                Expansion::One(start) => (start, false),
                Expansion::Digits | Expansion::Plain(_) | Expansion::Any => return Err(Unclear),
            };
            if is_whole && self.is_number(text) {
                given.push(Given { name: "#", value: Some(known(text)) });
                continue;
            }
            match (text.strip_prefix("--"), text.strip_prefix('-')) {
                (Some(""), _) if is_whole => return Ok(Parsed { given, operands: words.collect(), ended: true }),
                (Some(long), _) => given.push(self.long(long, is_whole, &mut words)?),
                (None, Some(letters)) => self.letters(letters, is_whole, &mut words, &mut given)?,
                (None, None) => return Err(Unclear),
            }
        }
        Ok(Parsed { given, operands: words.collect(), ended: false })
    }

    /// `-5`, `--5` or `-+5`: no other letters may follow.
    fn is_number(&self, text: &str) -> bool {
        let digits = text.strip_prefix('-').map(|number| number.strip_prefix(['-', '+']).unwrap_or(number));
        let is_digits = |digits: &str| !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit());
        self.short.starts_with('#') && digits.is_some_and(is_digits)
    }

    /// `--name`, `--name=value` or `--name value`; the name may be cut short.
    fn long(&self, text: &str, is_whole: bool, words: &mut impl Iterator<Item = Expansion>) -> Result<Given, Unclear> {
        let (written, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(if is_whole { known(value) } else { Expansion::One(value.to_owned()) })),
            None if is_whole => (text, None),
            None => return Err(Unclear),
        };
        let (name, takes) = self.named(written).ok_or(Unclear)?;
        let value = match (takes, value) {
            (Takes::Nothing, Some(_)) => return Err(Unclear),
            (Takes::Value, None) => value_in(words)?,
            (_, value) => value,
        };
        Ok(Given { name, value })
    }

    /// The option of this name, or the only one that begins so.
    fn named(&self, written: &str) -> Option<(&'static str, Takes)> {
        let names = || self.long.iter().map(|option| (option.trim_end_matches(':'), takes(option)));
        let mut begun = names().filter(|(name, _)| !written.is_empty() && name.starts_with(written));
        names().find(|(name, _)| *name == written).or_else(|| begun.next().filter(|_| begun.next().is_none()))
    }

    /// `-a`, `-ab`, `-avalue`, `-a value`
    fn letters(
        &self,
        letters: &str,
        is_whole: bool,
        words: &mut impl Iterator<Item = Expansion>,
        given: &mut Vec<Given>,
    ) -> Result<(), Unclear> {
        for (at, letter) in letters.char_indices() {
            let (name, takes) = self.letter(letter).ok_or(Unclear)?;
            let rest = letters.get(at + letter.len_utf8()..).filter(|rest| !rest.is_empty());
            let attached = rest.map(|rest| if is_whole { known(rest) } else { Expansion::One(rest.to_owned()) });
            let value = match (takes, attached) {
                (Takes::Nothing, _) => {
                    given.push(Given { name, value: None });
                    continue;
                }
                (_, None) if !is_whole => return Err(Unclear),
                (Takes::Value, None) => value_in(words)?,
                (_, attached) => attached,
            };
            given.push(Given { name, value });
            return Ok(());
        }
        // other letters may follow
        if is_whole { Ok(()) } else { Err(Unclear) }
    }

    fn letter(&self, letter: char) -> Option<(&'static str, Takes)> {
        let at = self.short.find(letter).filter(|_| !matches!(letter, ':' | '#'))?;
        let rest = self.short.get(at + 1..)?;
        let colons = rest.len() - rest.trim_start_matches(':').len();
        Some((self.short.get(at..=at)?, takes(self.short.get(at..=at + colons)?)))
    }
}

fn takes(option: &str) -> Takes {
    match option {
        option if option.ends_with("::") => Takes::MaybeValue,
        option if option.ends_with(':') => Takes::Value,
        _ => Takes::Nothing,
    }
}

/// The next word, whatever it looks like. Where there is none, the program reports that and ends.
fn value_in(words: &mut impl Iterator<Item = Expansion>) -> Result<Option<Expansion>, Unclear> {
    let value = words.next();
    if value.as_ref().is_none_or(Expansion::is_one) { Ok(value) } else { Err(Unclear) }
}

fn known(text: &str) -> Expansion {
    Expansion::Known(text.to_owned())
}
