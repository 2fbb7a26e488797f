//! What a program runs by its arguments: wrappers, shells, and builtins that change what runs.

use super::SimpleCommand;
use super::builtins::{self, Words};
use super::walk::{Item, Reader};
use super::wrappers::{WRAPPERS, unknown_with};

pub use super::builtins::{decides, decides_reading};

const OPAQUE_SHELL: &str = "a shell runs a script or its input";
/// Why nothing is known where a variable is set that [`decides`].
pub const ASSIGNED: &str = "a variable that decides what runs is set";

/// Each is listed with all that comes after it.
const MOST_WRAPPERS: usize = 32;

/// Builtins whose meaning a function of the same name would take away.
const BUILTINS: [&str; 20] = [
    ":", ".", "[", "alias", "cd", "declare", "echo", "eval", "export", "hash", "printf", "read", "set", "source",
    "test", "trap", "true", "false", "unalias", "unset",
];

/// Unquoted they are syntax, and the parser has taken some for names.
const RESERVED: [&str; 19] = [
    "!", "{", "}", "[[", "]]", "if", "then", "else", "elif", "fi", "do", "done", "while", "until", "for", "case",
    "esac", "select", "function",
];

/// Whether it is one of those that run commands with another user's rights.
pub(super) fn raises_rights(program: &str) -> bool {
    matches!(base(program), "sudo" | "sudoedit" | "doas" | "su" | "pkexec" | "run0")
}

/// Whether a function of this name would hide something that is looked through.
pub(super) fn is_special(name: &str) -> bool {
    BUILTINS.contains(&name) || WRAPPERS.iter().any(|wrapper| wrapper.name == name) || is_shell(name) || name == "find"
}

/// Adds a command, and what it runs by its arguments.
pub(super) fn run(reader: Reader, words: Words, items: &mut Vec<Item>) {
    run_behind(0, reader, words, items);
}

/// The same, behind so many wrappers.
fn run_behind(wrappers: usize, reader: Reader, words: Words, items: &mut Vec<Item>) {
    let mut next = words;
    for behind in wrappers..MOST_WRAPPERS {
        if next.is_empty() {
            return;
        }
        let mut words = std::mem::take(&mut next);
        let Some(program) = words.remove(0) else { return items.push(Item::Unknown("a program's name is not known")) };
        if RESERVED.contains(&program.as_str()) || program.starts_with('-') {
            items.push(Item::Unknown("a program's name is syntax elsewhere"));
        }
        items.push(Item::Command(SimpleCommand { program: program.clone(), arguments: words.clone() }));
        next = looked_through(base(&program), reader, words, behind + 1, items);
    }
    items.push(Item::Unknown("too many wrappers stand before a program"));
}

/// What is called by a call, if anything; what else it comes to is added, behind so many wrappers.
fn looked_through(name: &str, reader: Reader, words: Words, wrappers: usize, items: &mut Vec<Item>) -> Words {
    if let Some(wrapper) = WRAPPERS.iter().find(|wrapper| wrapper.name == name) {
        return wrapper.wrapped(words, items).unwrap_or_else(|reason| {
            items.push(Item::Unknown(reason));
            Words::new()
        });
    }
    match name {
        "find" => find(words, reader, wrappers, items),
        "bash" => items.push(shell_text(Reader::Bash, words)),
        "sh" | "dash" | "ash" => items.push(shell_text(Reader::Posix, words)),
        // the user's own shell reads the text
        "su" => items.push(Item::Unknown(OPAQUE_SHELL)),
        name if is_shell(name) => items.push(Item::Unknown(OPAQUE_SHELL)),
        "eval" => {
            items
                .extend(words.into_iter().collect::<Option<Vec<_>>>().map(|words| Item::Text(reader, words.join(" "))));
            items.push(Item::Unknown("eval makes a text of its arguments"));
        }
        "trap" => items.extend(trap(reader, words)),
        _ => items.extend(builtins::called(name, &words)),
    }
    Words::new()
}

/// Adds what `find` runs for the files that it finds.
fn find(words: Words, reader: Reader, wrappers: usize, items: &mut Vec<Item>) {
    if words.contains(&None) {
        items.push(Item::Unknown("the arguments of find are not known"));
    }
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        if !matches!(word.as_deref(), Some("-exec" | "-execdir" | "-ok" | "-okdir")) {
            continue;
        }
        let mut command = Words::new();
        while let Some(word) = words.next_if(|word| word.as_deref() != Some(";")) {
            if word.as_deref() == Some("+") && command.last().is_some_and(|last| last.as_deref() == Some("{}")) {
                break;
            }
            command.push(word);
        }
        unknown_with(&mut command, "{}");
        run_behind(wrappers, reader, command, items);
    }
}

/// The text of `sh -c`. Options that are not here make it not understood.
fn shell_text(reader: Reader, words: Words) -> Item {
    let mut words = words.into_iter();
    let mut wanted = false;
    while let Some(Some(word)) = words.next() {
        let long = matches!(word.as_str(), "--login" | "--noprofile" | "--norc") && reader == Reader::Bash;
        if long {
            continue;
        }
        if matches!(word.as_str(), "-" | "--") || !word.starts_with(['-', '+']) {
            let text = if word.starts_with('-') { words.next().flatten() } else { Some(word) };
            return text.filter(|_| wanted).map_or(Item::Unknown(OPAQUE_SHELL), |text| Item::Text(reader, text));
        }
        let letters = word.strip_prefix('-').unwrap_or("+");
        let options = letters.matches('o').count();
        if !letters.chars().all(|c| "ceuxflo".contains(c))
            || options > 1
            || (options == 1 && !builtins::names_option(words.next().as_ref()))
        {
            return Item::Unknown(OPAQUE_SHELL);
        }
        wanted |= letters.contains('c');
    }
    Item::Unknown(OPAQUE_SHELL)
}

/// What `trap` has the shell run later.
fn trap(reader: Reader, words: Words) -> Option<Item> {
    let mut words = words.into_iter().skip_while(|word| word.as_deref() == Some("--"));
    let text = words.next()?;
    match (text, words.next()) {
        (Some(text), _) if matches!(text.as_str(), "" | "-" | "-l" | "-p" | "-P") => None,
        // a signal whose trap is reset
        (Some(_), None) => None,
        (Some(text), Some(_)) => Some(Item::Text(reader, text)),
        (None, _) => Some(Item::Unknown("the text of a trap is not known")),
    }
}

fn is_shell(name: &str) -> bool {
    matches!(
        name,
        "sh" | "bash" | "dash" | "ash" | "rbash" | "zsh" | "ksh" | "mksh" | "fish" | "csh" | "tcsh" | "pwsh" | "yash"
    )
}

fn base(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}
