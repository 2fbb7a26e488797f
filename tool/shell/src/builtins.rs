//! Builtins that change what runs, or that have bash evaluate text, and the variables by which that happens.

use super::arithmetic::evaluated;
use super::expansion::{Expansion, Words};
use super::item::{Item, Mark, Reader};
use super::options::Options;
use super::plain::NOT_PLAIN;
use super::variables::{ASSIGNED, set};

const CHANGED: &str = "a builtin changes what runs";
const EVALUATED: &str = "bash evaluates an argument";

/// Options that change neither how a text is read nor what is run.
const HARMLESS_OPTIONS: [&str; 8] =
    ["errexit", "nounset", "pipefail", "noglob", "xtrace", "errtrace", "noclobber", "notify"];
const HARMLESS_LETTERS: &str = "eufxECb";
const HARMLESS_SHOPT: [&str; 7] =
    ["nullglob", "dotglob", "globstar", "failglob", "nocaseglob", "nocasematch", "inherit_errexit"];

/// A builtin that gives values to variables, and its options.
pub(super) struct Setter {
    pub(super) name: &'static str,
    pub(super) short: &'static str,
    /// The options whose value names a variable.
    naming: &'static str,
    /// Operands before those that name variables.
    operands: usize,
    /// The operands that name variables, at most.
    names: usize,
    /// It makes an array of the variable that an option names, or of all.
    array: Option<&'static str>,
}

/// With options by which no value is evaluated, and no callback is run.
pub(super) const SETTERS: [Setter; 6] = [
    Setter { name: "read", short: "ersa:d:i:n:N:p:t:u:", naming: "a", operands: 0, names: ALL, array: Some("a") },
    Setter { name: "mapfile", ..MAPFILE },
    Setter { name: "readarray", ..MAPFILE },
    Setter { name: "printf", short: "v:", naming: "v", operands: 0, names: ALL, array: None },
    Setter { name: "unset", short: "fv", naming: "", operands: 0, names: ALL, array: None },
    Setter { name: "getopts", short: "", naming: "", operands: 1, names: 1, array: None },
];
const MAPFILE: Setter = Setter { name: "", short: "td:n:O:s:u:", naming: "", operands: 0, names: ALL, array: Some("") };
const ALL: usize = usize::MAX;

impl Setter {
    fn called(&self, words: &Words) -> Vec<Item> {
        let Ok(parsed) = (Options { short: self.short, long: &[] }).parse(words.clone()) else {
            return vec![Item::Unknown(CHANGED)];
        };
        let (before, operands) = parsed.operands.split_at(self.operands.min(parsed.operands.len()));
        if !before.iter().all(Expansion::is_one) {
            return vec![Item::Unknown(EVALUATED)];
        }
        let by_options = parsed.given.iter().filter(|option| self.naming.contains(option.name));
        let written = if self.name == "printf" { counted(operands) } else { operands };
        let names = by_options.filter_map(|option| option.value.as_ref()).chain(written.iter().take(self.names));
        let takes = self.name == "unset";
        let mut items: Vec<_> = names.flat_map(|word| if takes { taken(word) } else { named(word) }).collect();
        let is_array = |option: &str| option.is_empty() || parsed.given.iter().any(|given| given.name == option);
        if self.array.is_some_and(is_array) {
            let arrays = items.iter().filter_map(|item| match item {
                Item::Assigned(variable) => Some(Item::Array(variable.clone())),
                _ => None,
            });
            items.extend(arrays.collect::<Vec<_>>());
        }
        items
    }
}

/// What a call of a builtin comes to, other than the command.
pub(super) fn called(name: &str, words: &Words) -> Vec<Item> {
    if let Some(setter) = SETTERS.iter().find(|setter| setter.name == name) {
        return setter.called(words);
    }
    let unknown = |known: bool, reason| if known { Vec::new() } else { vec![Item::Unknown(reason)] };
    match name {
        "source" | "." => unknown(false, "a script is read into the shell"),
        "alias" => unknown(words.is_empty(), "an alias is made"),
        "fc" => unknown(false, CHANGED),
        "enable" | "bind" | "history" => unknown(words.is_empty(), CHANGED),
        "compgen" => completed(words),
        "hash" => unknown(words.iter().all(|word| is_operand(word) || is_flags(word.known(), "rdtl")), CHANGED),
        "jobs" => unknown(words.iter().all(|word| is_operand(word) || is_flags(word.known(), "lprs")), CHANGED),
        "set" if sets_harmless(words) => vec![Item::Mark(Mark::Positional)],
        "set" => unknown(false, CHANGED),
        "shopt" => unknown(shopts_harmless(words), CHANGED),
        "let" => words.iter().flat_map(calculated).collect(),
        "test" | "[" if tests_plainly(words) => relied(words),
        "wait" if waits_plainly(words) => relied(words),
        "test" | "[" | "wait" if words.contains(&Expansion::Any) => unknown(false, NOT_PLAIN),
        "test" | "[" | "wait" => unknown(false, EVALUATED),
        "export" | "declare" | "typeset" | "local" | "readonly" => declared(name == "export", words),
        _ => Vec::new(),
    }
}

fn is_operand(word: &Expansion) -> bool {
    word.known().is_some_and(|word| !word.starts_with(['-', '+']))
}

/// An expression of `let`.
fn calculated(word: &Expansion) -> Vec<Item> {
    word.known().map_or_else(|| vec![Item::Unknown(EVALUATED)], |text| evaluated(Reader::Bash, text))
}

/// What `compgen` expands, or runs. What `complete` and `compopt` register, no shell without a terminal uses.
fn completed(words: &Words) -> Vec<Item> {
    let options = Options { short: "abcdefgjksuvo:A:P:S:X:W:", long: &[] };
    let Ok(parsed) = options.parse(words.clone()) else { return vec![Item::Unknown(CHANGED)] };
    let mut lists = parsed.given.iter().filter(|option| option.name == "W").map(|option| option.value.as_ref());
    match (lists.next(), lists.next()) {
        (None, _) => Vec::new(),
        // expanded like the arguments of a command
        (Some(Some(Expansion::Known(list))), None) if !list.contains(['#', '<', '>', '\\', '\n']) => {
            vec![Item::Text(Reader::Bash, format!("compgen -- {list}"))]
        }
        _ => vec![Item::Unknown(EVALUATED)],
    }
}

/// The operands of `printf` that can name variables: with `%n`, those after the format.
fn counted(operands: &[Expansion]) -> &[Expansion] {
    match operands.split_first() {
        // maybe several words
        Some((format, _)) if !format.is_one() => operands,
        Some((format, values)) if format.known().is_none_or(counts) => values,
        _ => &[],
    }
}

/// This format has a conversion `%n`, maybe with flags, a width and modifiers: bash stores how much was written.
fn counts(format: &str) -> bool {
    let mut rest = format;
    while let Some((_, conversion)) = rest.split_once('%') {
        let letter = conversion.trim_start_matches(|c: char| c.is_ascii_digit() || "#'-+ .*hjlLqtz".contains(c));
        if letter.starts_with('n') {
            return true;
        }
        rest = conversion.strip_prefix('%').unwrap_or(conversion);
    }
    false
}

/// The variable of this name gets a value.
fn named(word: &Expansion) -> Vec<Item> {
    match word.known() {
        Some(name) if is_name(name) => set(name),
        _ => vec![Item::Unknown(EVALUATED)],
    }
}

/// The variable of this name loses its value.
fn taken(word: &Expansion) -> Vec<Item> {
    match word.known() {
        // words are separated as at first
        Some("IFS") => vec![Item::Assigned("IFS".to_owned())],
        Some(name) if is_name(name) => set(name).into_iter().chain([Item::Number(name.to_owned())]).collect(),
        _ => named(word),
    }
}

/// Of those that are not read as syntax: behind `command`, a backslash and the like.
fn declared(always_exported: bool, words: &Words) -> Vec<Item> {
    let flags = |word: &str| is_flags(Some(word), DECLARED);
    let exported =
        always_exported || words.iter().filter_map(Expansion::known).any(|word| flags(word) && word.contains('x'));
    let set = |name: &str| {
        let export = exported.then(|| Item::Exported(name.to_owned()));
        export.into_iter().chain(set(name)).collect()
    };
    let items = |word: &Expansion| match word.known() {
        Some(word) if flags(word) => Vec::new(),
        Some(word) => match word.split_once('=') {
            None if is_name(word) => set(word),
            Some((name, value)) if is_name(name) && !value.starts_with('(') => set(name),
            _ => vec![Item::Unknown(EVALUATED)],
        },
        None => vec![Item::Unknown(ASSIGNED)],
    };
    words.iter().flat_map(items).collect()
}

/// The options of declarations by which no value is evaluated. `a` and `A` are for arrays.
pub(super) const DECLARED: &str = "xrgfFplu";

pub(super) fn is_flags(word: Option<&str>, flags: &str) -> bool {
    word.is_some_and(|word| {
        word.strip_prefix(['-', '+']).is_some_and(|letters| letters.chars().all(|c| flags.contains(c)))
    })
}

pub(super) fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The variables that these words rely on to be plain.
pub(super) fn relied<'w>(words: impl IntoIterator<Item = &'w Expansion>) -> Vec<Item> {
    let plain = words.into_iter().filter_map(|word| match word {
        Expansion::Plain(variables) => Some(variables),
        _ => None,
    });
    plain.flatten().map(|variable| Item::Relied(variable.clone())).collect()
}

/// `-p` evaluates a subscript.
fn waits_plainly(words: &Words) -> bool {
    let is_number = |word: &Expansion| matches!(word, Expansion::Digits | Expansion::Plain(_));
    let words = words.iter().filter(|word| !is_number(word)).cloned().collect();
    Options { short: "fn", long: &[] }.parse(words).is_ok()
}

fn sets_harmless(words: &Words) -> bool {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(word) = word.known() else { return false };
        let Some(letters) = word.strip_prefix(['-', '+']).filter(|_| !matches!(word, "-" | "--")) else { return true };
        if letters.contains('o') && !names_option(words.next()) {
            return false;
        }
        if letters.matches('o').count() > 1 || !letters.chars().all(|c| c == 'o' || HARMLESS_LETTERS.contains(c)) {
            return false;
        }
    }
    true
}

/// The word after `-o`.
pub(super) fn names_option(word: Option<&Expansion>) -> bool {
    word.is_none_or(|word| word.known().is_some_and(|word| HARMLESS_OPTIONS.contains(&word)))
}

fn shopts_harmless(words: &Words) -> bool {
    words
        .iter()
        .all(|word| word.known().is_some_and(|word| is_flags(Some(word), "supq") || HARMLESS_SHOPT.contains(&word)))
}

/// `-v` and `-R` evaluate a subscript. What is not known may be one of them where an operand can follow it.
fn tests_plainly(words: &Words) -> bool {
    let mut before_unknown = false;
    words.iter().all(|word| {
        // or nothing
        if matches!(word, Expansion::Plain(_)) {
            return true;
        }
        let Some(word) = word.known() else {
            return *word != Expansion::Any && !std::mem::replace(&mut before_unknown, true);
        };
        let unknown_before = std::mem::take(&mut before_unknown);
        let is_binary = matches!(word, "=" | "==" | "!=" | "<" | ">" | "]" | ")")
            || matches!(word, "-eq" | "-ne" | "-lt" | "-le" | "-gt" | "-ge" | "-nt" | "-ot" | "-ef" | "-a" | "-o");
        !matches!(word, "-v" | "-R") && (!unknown_before || is_binary)
    })
}
