//! Builtins that change what runs, or that have bash evaluate text, and the variables by which that happens.

use super::programs::ASSIGNED;
use super::walk::{Item, Mark};

pub(super) type Words = Vec<Option<String>>;

const CHANGED: &str = "a builtin changes what runs";
const EVALUATED: &str = "bash evaluates an argument";

/// Options that change neither how a text is read nor what is run.
const HARMLESS_OPTIONS: [&str; 8] =
    ["errexit", "nounset", "pipefail", "noglob", "xtrace", "errtrace", "noclobber", "allexport"];
const HARMLESS_LETTERS: &str = "eufxECa";
const HARMLESS_SHOPT: [&str; 6] = ["nullglob", "dotglob", "globstar", "failglob", "nocaseglob", "inherit_errexit"];

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
pub(super) fn set(variable: &str) -> Option<Item> {
    if decides(variable) || is_evaluated(variable) {
        return Some(Item::Unknown(ASSIGNED));
    }
    is_locale(variable).then_some(Item::Mark(Mark::Locale))
}

/// What a call of a builtin comes to, other than the command.
pub(super) fn called(name: &str, words: &Words) -> Vec<Item> {
    let unknown = |known: bool, reason| if known { Vec::new() } else { vec![Item::Unknown(reason)] };
    match name {
        "source" | "." => unknown(false, "a script is read into the shell"),
        "alias" => unknown(words.is_empty(), "an alias is made"),
        "enable" | "bind" | "complete" | "compgen" | "compopt" | "fc" | "history" => unknown(words.is_empty(), CHANGED),
        "hash" => unknown(words.iter().all(|word| word.as_deref() == Some("-r")), CHANGED),
        "jobs" => unknown(words.iter().all(|word| is_flags(word.as_deref(), "lprs")), CHANGED),
        "set" => unknown(sets_harmless(words), CHANGED),
        "shopt" => unknown(shopts_harmless(words), CHANGED),
        "let" => unknown(false, EVALUATED),
        "test" | "[" => unknown(tests_plainly(words), EVALUATED),
        "wait" => unknown(words.iter().flatten().all(|word| word == "-n" || !word.starts_with('-')), EVALUATED),
        "printf" => printf(words),
        "unset" => named(&words.iter().filter(|word| !is_flags(word.as_deref(), "fv")).collect::<Vec<_>>()),
        "getopts" => named(&words.iter().skip(1).take(1).collect::<Vec<_>>()),
        "read" => read(words, "ers", "adinNptu"),
        "mapfile" | "readarray" => {
            let mut items = read(words, "t", "dnOsu");
            items.push(Item::Mark(Mark::Array));
            items
        }
        "export" | "declare" | "typeset" | "local" | "readonly" => declared(words),
        _ => Vec::new(),
    }
}

/// The variables of these names get values.
fn named(words: &[&Option<String>]) -> Vec<Item> {
    let name = |word: &&Option<String>| match word.as_deref() {
        Some(name) if is_name(name) => set(name),
        _ => Some(Item::Unknown(EVALUATED)),
    };
    words.iter().filter_map(name).collect()
}

/// Of those that are not read as syntax: behind `command`, a backslash and the like.
fn declared(words: &Words) -> Vec<Item> {
    let item = |word: &Option<String>| match word.as_deref() {
        Some(word) if is_flags(Some(word), DECLARED) => None,
        Some(word) => match word.split_once('=') {
            None if is_name(word) => set(word),
            Some((name, value)) if is_name(name) && !value.starts_with('(') => set(name),
            _ => Some(Item::Unknown(EVALUATED)),
        },
        None => Some(Item::Unknown(ASSIGNED)),
    };
    words.iter().filter_map(item).collect()
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

fn printf(words: &Words) -> Vec<Item> {
    match words.first().and_then(Option::as_deref) {
        Some("-v") => named(&words.iter().skip(1).take(1).collect::<Vec<_>>()),
        Some(word) if word.starts_with("-v") => named(&[&word.get(2..).map(str::to_owned)]),
        _ => Vec::new(),
    }
}

/// Builtins that read into variables. Each option with a value has it in the same word or the next.
fn read(words: &Words, flags: &str, valued: &str) -> Vec<Item> {
    let mut items = Vec::new();
    let mut words = words.iter().peekable();
    while let Some(Some(word)) = words.next_if(|word| word.as_ref().is_some_and(|word| word.starts_with('-'))) {
        let letters = word.get(1..).unwrap_or_default();
        let plain = letters.trim_start_matches(|c| flags.contains(c));
        let Some(option) = plain.chars().next() else { continue };
        if !valued.contains(option) {
            return vec![Item::Unknown(CHANGED)];
        }
        let joined = plain.get(1..).filter(|value| !value.is_empty()).map(str::to_owned);
        let value = joined.or_else(|| words.next().cloned().flatten());
        if option == 'a' {
            items.extend(named(&[&value]));
            items.push(Item::Mark(Mark::Array));
        }
    }
    items.extend(named(&words.collect::<Vec<_>>()));
    items
}

fn sets_harmless(words: &Words) -> bool {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(word) = word.as_deref() else { return false };
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
pub(super) fn names_option(word: Option<&Option<String>>) -> bool {
    word.is_none_or(|word| word.as_deref().is_some_and(|word| HARMLESS_OPTIONS.contains(&word)))
}

fn shopts_harmless(words: &Words) -> bool {
    words
        .iter()
        .all(|word| word.as_deref().is_some_and(|word| is_flags(Some(word), "supq") || HARMLESS_SHOPT.contains(&word)))
}

/// `-v` and `-R` evaluate a subscript. What is not known may be one of them where an operand can follow it.
fn tests_plainly(words: &Words) -> bool {
    let mut before_unknown = false;
    words.iter().all(|word| {
        let Some(word) = word.as_deref() else { return !std::mem::replace(&mut before_unknown, true) };
        let unknown_before = std::mem::take(&mut before_unknown);
        let is_binary = matches!(word, "=" | "==" | "!=" | "<" | ">" | "]" | ")")
            || matches!(word, "-eq" | "-ne" | "-lt" | "-le" | "-gt" | "-ge" | "-nt" | "-ot" | "-ef" | "-a" | "-o");
        !matches!(word, "-v" | "-R") && (!unknown_before || is_binary)
    })
}
