//! Builtins that change what runs, or that have bash evaluate text, and the variables by which that happens.

use super::arithmetic::{evaluated, is_number};
use super::expansion::{Expansion, Words};
use super::options::Options;
use super::programs::ASSIGNED;
use super::walk::{Item, Mark, Reader};

const CHANGED: &str = "a builtin changes what runs";
pub(super) const EVALUATED: &str = "bash evaluates an argument";

/// Options that change neither how a text is read nor what is run.
const HARMLESS_OPTIONS: [&str; 8] =
    ["errexit", "nounset", "pipefail", "noglob", "xtrace", "errtrace", "noclobber", "notify"];
const HARMLESS_LETTERS: &str = "eufxECb";
const HARMLESS_SHOPT: [&str; 7] =
    ["nullglob", "dotglob", "globstar", "failglob", "nocaseglob", "nocasematch", "inherit_errexit"];

/// Whether setting this variable can change which programs run: in bash, by the dynamic linker or the C library, by a
/// wrapper, or as the directory that startup files are in. See [`decides_reading`] too.
#[must_use]
pub fn decides(variable: &str) -> bool {
    matches!(
        variable,
        "PATH"
            | "ENV"
            | "SHELLOPTS"
            | "PROMPT_COMMAND"
            | "IFS"
            | "HOME"
            | "CDPATH"
            | "EXECIGNORE"
            | "GLOBIGNORE"
            | "INPUTRC"
            | "LOCPATH"
            | "GCONV_PATH"
            | "GETCONF_DIR"
            | "NLSPATH"
            | "POSIXLY_CORRECT"
            | "TEXTDOMAIN"
            | "TEXTDOMAINDIR"
            | "GLIBC_TUNABLES"
    ) || ["LD_", "DYLD_", "BASH", "PS0", "PS1", "PS2", "PS3", "PS4", "SUDO_"]
        .iter()
        .any(|prefix| variable.starts_with(prefix))
}

/// Whether setting this variable can change how a shell reads this text: the locale, in some of which a byte of a
/// character is a backslash or a quote. A text in ASCII is read alike in all.
#[must_use]
pub fn decides_reading(variable: &str, text: &str) -> bool {
    !text.is_ascii() && is_locale(variable)
}

pub(super) fn is_locale(variable: &str) -> bool {
    variable.starts_with("LC_") || matches!(variable, "LANG" | "LANGUAGE")
}

/// Bash evaluates what is assigned to it as arithmetic, or holds an array in it.
fn is_evaluated(variable: &str) -> bool {
    matches!(
        variable,
        "RANDOM"
            | "SRANDOM"
            | "HISTCMD"
            | "OPTIND"
            | "SECONDS"
            | "LINENO"
            | "EPOCHSECONDS"
            | "UID"
            | "EUID"
            | "PPID"
            | "DIRSTACK"
            | "FUNCNAME"
            | "GROUPS"
            | "PIPESTATUS"
            | "MAPFILE"
            | "COPROC"
            | "COMPREPLY"
    ) || variable.starts_with("COMP_")
}

/// What it comes to that a variable of this name gets a value, whatever that is.
pub(super) fn set(variable: &str) -> Vec<Item> {
    let mut items = vec![Item::Assigned(variable.to_owned())];
    if decides(variable) || is_evaluated(variable) {
        items.push(Item::Unknown(ASSIGNED));
    }
    items.extend(is_locale(variable).then_some(Item::Mark(Mark::Locale)));
    items
}

/// Where the programs of a system are.
const SYSTEM_PATH: [&str; 8] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/games", "/usr/games"];

/// What it comes to that a variable of this name is assigned this value, which is written so.
pub(super) fn given(variable: &str, value: &Expansion, written: &str) -> Vec<Item> {
    let assigned = Item::Assigned(variable.to_owned());
    let unquoted = written.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(written);
    match variable {
        "IFS" if value.known().is_some_and(are_separators) => vec![assigned],
        "IFS" => match unquoted.strip_prefix('$').filter(|name| is_name(name)) {
            Some(name) => vec![assigned, Item::Restored(name.to_owned())],
            None => set(variable),
        },
        "PATH" if unquoted.split(':').all(is_system_directory) => vec![assigned],
        "HOME" if value.starts_with('/') => vec![assigned, Item::Mark(Mark::Home)],
        _ if is_evaluated(variable) && value.known().is_some_and(is_number) => vec![assigned],
        _ => set(variable),
    }
}

/// Programs are looked for in a directory of the system, or where they were before.
fn is_system_directory(written: &str) -> bool {
    SYSTEM_PATH.contains(&written) || matches!(written, "$PATH" | "${PATH}")
}

/// What it comes to that a variable of this name is assigned a list.
pub(super) fn listed(variable: &str) -> Vec<Item> {
    match variable {
        "COMPREPLY" => vec![Item::Assigned(variable.to_owned())],
        _ => set(variable),
    }
}

/// No word that is split by these gets a part that is no word of digits, or an option.
pub(super) fn are_separators(value: &str) -> bool {
    value.chars().all(|c| " \t\n:;,|".contains(c))
}

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
    let lists = parsed.given.into_iter().filter(|option| option.name == "W").filter_map(|option| option.value);
    lists
        .map(|list| match list {
            // expanded like the arguments of a command
            Expansion::Known(list) if !list.contains(['#', '<', '>', '\\', '\n']) => {
                Item::Text(Reader::Bash, format!("compgen -- {list}"))
            }
            _ => Item::Unknown(EVALUATED),
        })
        .collect()
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
