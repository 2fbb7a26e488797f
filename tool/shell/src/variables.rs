//! Variables that mean something to shells, and what it comes to that they get values.

use super::arithmetic::is_number;
use super::builtins::is_name;
use super::expansion::Expansion;
use super::item::{Item, Mark};

/// Why nothing is known where a variable is set that [`decides`].
pub const ASSIGNED: &str = "a variable that decides what runs, such as PATH, is set or unset";

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
            | "POSIX_PEDANTIC"
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
pub(super) fn set_to(variable: &str, value: &Expansion, written: &str) -> Vec<Item> {
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

/// What it comes to that a variable of this name is assigned a list, or a word of one.
pub(super) fn set_in_list(variable: &str) -> Vec<Item> {
    match variable {
        "COMPREPLY" => vec![Item::Assigned(variable.to_owned())],
        _ => set(variable),
    }
}

/// Words that are split at these have no other parts: numbers stay whole, and no part of a [plain](super::plain) value is an option.
pub(super) fn are_separators(value: &str) -> bool {
    value.chars().all(|c| " \t\n:;,|".contains(c))
}

/// Whether what a variable of this name holds depends on the text and the environment alone: bash sets others by itself, such
/// as `_`, `REPLY` and `BASH_REMATCH`.
pub(super) fn is_own(name: &str) -> bool {
    let is_lower = name.starts_with(|c: char| c.is_ascii_lowercase());
    let is_letter = name.len() == 1 && name.starts_with(|c: char| c.is_ascii_uppercase());
    (is_lower || is_letter) && !matches!(name, "auto_resume" | "histchars")
}

/// Whether this is a name in upper case that neither the shell nor, usually, the environment sets.
pub(super) fn is_free(name: &str) -> bool {
    const SET: [&str; 23] = [
        "REPLY",
        "HOSTNAME",
        "HOSTTYPE",
        "MACHTYPE",
        "OSTYPE",
        "OLDPWD",
        "PWD",
        "OPTARG",
        "SHELL",
        "USER",
        "LOGNAME",
        "TERM",
        "TZ",
        "TMPDIR",
        "EDITOR",
        "PAGER",
        "DISPLAY",
        "MAPFILE",
        "FUNCNAME",
        "GROUPS",
        "PIPESTATUS",
        "DIRSTACK",
        "COMPREPLY",
    ];
    const PREFIXES: [&str; 13] = [
        "BASH",
        "HIST",
        "READLINE_",
        "COMP_",
        "COPROC",
        "EPOCH",
        "MAIL",
        "SSH_",
        "SUDO_",
        "XDG_",
        "DBUS_",
        "SYSTEMD_",
        "TELEXEC",
    ];
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && !SET.contains(&name)
        && !PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        && !decides(name)
        && !is_locale(name)
}

/// Whether a variable of this name has a number where the text gives it no value: bash's, or that of an environment with which the text is
/// understood.
pub(super) fn is_kept_number(name: &str) -> bool {
    matches!(
        name,
        "RANDOM"
            | "SRANDOM"
            | "SECONDS"
            | "LINENO"
            | "OPTIND"
            | "UID"
            | "EUID"
            | "PPID"
            | "BASHPID"
            | "EPOCHSECONDS"
            | "SHLVL"
            | "COMP_CWORD"
            | "COMP_POINT"
            | "COLUMNS"
            | "LINES"
    )
}
