//! What a program runs by its arguments: wrappers, shells, and builtins that change what runs.

use super::SimpleCommand;
use super::builtins;
use super::expansion::{Expansion, Words};
use super::item::{Item, Mark, Reader};
use super::options::Options;
use super::wrappers::WRAPPERS;

const OPAQUE_SHELL: &str = "a shell runs a script, its input or a text that is not known";
pub(super) const ONLY_BASH: &str = "it has a command or assignment that not every shell has";
const OPAQUE_FIND: &str = "the arguments of find are not known: quote them, as in \"$x\"";

/// Each is listed with all that comes after it.
const MAX_WRAPPERS: usize = 16;

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
    BUILTINS.contains(&name) || is_looked_through(name)
}

/// Whether a program of this name runs others, as far as is known here.
pub(super) fn is_looked_through(name: &str) -> bool {
    WRAPPERS.iter().any(|wrapper| wrapper.name == name) || is_shell(name) || name == "find"
}

/// Adds a command, and what it runs by its arguments.
pub(super) fn run(reader: Reader, words: Words, items: &mut Vec<Item>) {
    run_behind(0, reader, words, items);
}

/// The same, behind so many wrappers.
fn run_behind(wrappers: usize, reader: Reader, words: Words, items: &mut Vec<Item>) {
    let mut next = words;
    for behind in wrappers..MAX_WRAPPERS {
        if next.is_empty() {
            return;
        }
        let mut words = std::mem::take(&mut next);
        let Expansion::Known(program) = words.remove(0) else {
            return items.push(Item::Unknown("a program's name is not known"));
        };
        if RESERVED.contains(&program.as_str()) || program.starts_with('-') {
            items.push(Item::Unknown("a program has the name of a keyword or an option"));
        }
        items.push(Item::Command(SimpleCommand::new(&program, &words)));
        next = looked_through(base(&program), reader, words, behind + 1, items);
    }
    items.push(Item::Unknown("too many wrappers stand before a program"));
}

/// What is called by a call, if anything; what else it comes to is added, behind so many wrappers.
fn looked_through(name: &str, reader: Reader, words: Words, wrappers: usize, items: &mut Vec<Item>) -> Words {
    if reader == Reader::Posix && name == "exec" && words.first().is_some_and(Expansion::may_be_option) {
        // elsewhere it is the name of a program
        items.push(Item::Unknown(ONLY_BASH));
    }
    if let Some(wrapper) = WRAPPERS.iter().find(|wrapper| wrapper.name == name) {
        return wrapper.wrapped(words, items).unwrap_or_else(|reason| {
            items.push(Item::Unknown(reason));
            Words::new()
        });
    }
    match name {
        "find" => find(words, reader, wrappers, items),
        "bash" => items.extend(shell_text(Reader::Bash, words)),
        "sh" | "dash" | "ash" => items.extend(shell_text(Reader::Posix, words)),
        // the user's own shell reads the text
        "su" => items.push(Item::Unknown(OPAQUE_SHELL)),
        name if is_shell(name) => items.push(Item::Unknown(OPAQUE_SHELL)),
        "eval" => {
            let known: Option<Vec<_>> = words.iter().map(Expansion::known).collect();
            items.extend(known.map(|words| Item::Text(reader, words.join(" "))));
            items.push(Item::Unknown("eval runs its arguments as shell text"));
        }
        "trap" => items.extend(trap(reader, words).into_iter().chain([Item::Mark(Mark::Trap)])),
        _ => items.extend(builtins::called(name, &words)),
    }
    Words::new()
}

/// What has `find` run a program.
const ACTIONS: [&str; 4] = ["-exec", "-execdir", "-ok", "-okdir"];

/// What takes one value.
const TESTS: [&str; 28] = [
    "-amin",
    "-atime",
    "-cmin",
    "-ctime",
    "-fstype",
    "-gid",
    "-group",
    "-iname",
    "-inum",
    "-ipath",
    "-iregex",
    "-links",
    "-lname",
    "-maxdepth",
    "-mindepth",
    "-mmin",
    "-mtime",
    "-name",
    "-newer",
    "-path",
    "-perm",
    "-regex",
    "-samefile",
    "-size",
    "-type",
    "-uid",
    "-user",
    "-wholename",
];
/// What takes none.
const FLAGS: [&str; 23] = [
    "!",
    "(",
    ")",
    "-H",
    "-L",
    "-P",
    "-a",
    "-and",
    "-daystart",
    "-delete",
    "-depth",
    "-empty",
    "-executable",
    "-ls",
    "-mount",
    "-not",
    "-o",
    "-or",
    "-print",
    "-print0",
    "-prune",
    "-readable",
    "-xdev",
];

/// Whether a word that is not known may have `find` run a program. It may be a path, with no word after it that ends a
/// command, or the value of a test, with all else known.
fn hides_action(words: &Words) -> bool {
    let is_end = |word: &Expansion| word.is(";") || word.is("+");
    let words = words.get(plain_paths(words)..).unwrap_or_default();
    let unknown: Vec<_> = words.iter().filter(|word| word.known().is_none() && !word.is_path()).collect();
    if unknown.iter().any(|word| !word.is_one()) {
        return true;
    }
    let is_only = unknown.len() == 1 && !words.iter().any(is_end);
    !unknown.is_empty() && !is_only && !are_values(words)
}

/// How many words there are up to the last one that is plain and among the paths at the beginning of a call of `find`.
fn plain_paths(words: &[Expansion]) -> usize {
    let is_path = |word: &Expansion| match word {
        Expansion::Known(word) => {
            !word.starts_with(['-', '(', ')', '!', ',']) || ["-H", "-L", "-P"].contains(&word.as_str())
        }
        Expansion::One(_) => word.is_path(),
        Expansion::Plain(_) => true,
        Expansion::Digits | Expansion::Any => false,
    };
    let paths = words.iter().take_while(|word| is_path(word));
    paths.enumerate().filter(|(_, word)| matches!(word, Expansion::Plain(_))).last().map_or(0, |(at, _)| at + 1)
}

/// Whether all words of a call of `find` that are not known are values of tests, or paths by their beginning.
fn are_values(words: &[Expansion]) -> bool {
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        match word.known() {
            Some(test) if TESTS.contains(&test) => drop(rest.next()),
            Some(action) if ACTIONS.contains(&action) => {
                let ends = |word: &&Expansion| word.is(";") || word.is("+");
                if !rest.by_ref().take_while(|word| !ends(word)).all(|word| word.known().is_some()) {
                    return false;
                }
            }
            Some(word) if FLAGS.contains(&word) || !word.starts_with(['-', '(', ')', '!', ',']) => {}
            Some(_) => return false,
            None if word.is_path() => {}
            None => return false,
        }
    }
    true
}

/// Adds what `find` runs for the files that it finds.
fn find(words: Words, reader: Reader, wrappers: usize, items: &mut Vec<Item>) {
    if hides_action(&words) {
        items.push(Item::Unknown(OPAQUE_FIND));
    }
    items.extend(builtins::relied(words.iter().take(plain_paths(&words))));
    let mut rest = words.as_slice();
    while let Some((word, after)) = rest.split_first() {
        rest = after;
        let Some(action) = word.known().filter(|word| ACTIONS.contains(word)) else { continue };
        let takes_many = matches!(action, "-exec" | "-execdir");
        let is_plus = |pair: &[Expansion]| matches!(pair, [files, plus] if files.is("{}") && plus.is("+"));
        let semicolon = rest.iter().position(|word| word.is(";"));
        let plus = rest.windows(2).position(is_plus).map(|at| at + 1).filter(|_| takes_many);
        let plus = plus.filter(|at| semicolon.is_none_or(|semicolon| *at < semicolon));
        let end = plus.or(semicolon);
        let (command, after) = rest.split_at(end.unwrap_or(rest.len()));
        rest = after.get(1..).unwrap_or_default();
        // the first was the value of another option, or this one is an argument; for busybox any `+` is an end
        let is_other = |word: &Expansion| word.known().is_some_and(|word| ACTIONS.contains(&word) || word == "+");
        if end.is_none() || command.iter().any(is_other) {
            items.push(Item::Unknown(OPAQUE_FIND));
        }
        let mut command: Words = command.iter().map(|word| word.clone().with_replaced("{}")).collect();
        if plus.is_some() {
            command.pop();
            command.push(Expansion::Any);
        }
        run_behind(wrappers, reader, command, items);
    }
}

/// The text of `sh -c`. Options that are not here make it not understood.
fn shell_text(reader: Reader, words: Words) -> Vec<Item> {
    const UNKNOWN: Item = Item::Unknown(OPAQUE_SHELL);
    let mut words = words.into_iter();
    let mut wanted = false;
    while let Some(Expansion::Known(word)) = words.next() {
        let long = matches!(word.as_str(), "--login" | "--noprofile" | "--norc") && reader == Reader::Bash;
        if long {
            continue;
        }
        if matches!(word.as_str(), "-" | "--") || !word.starts_with(['-', '+']) {
            let text = if word.starts_with('-') { words.next() } else { Some(Expansion::Known(word)) };
            let Some(Expansion::Known(text)) = text.filter(|_| wanted) else { return vec![UNKNOWN] };
            let positional = words.next().map(|_| Item::Mark(Mark::Positional));
            return [Item::Mark(Mark::Shell)].into_iter().chain(positional).chain([Item::Text(reader, text)]).collect();
        }
        let letters = word.strip_prefix('-').unwrap_or("+");
        let options = letters.matches('o').count();
        if !letters.chars().all(|c| "ceuxflo".contains(c))
            || options > 1
            || (options == 1 && !builtins::names_option(words.next().as_ref()))
        {
            return vec![UNKNOWN];
        }
        wanted |= letters.contains('c');
    }
    vec![UNKNOWN]
}

/// What `trap` has the shell run later.
fn trap(reader: Reader, words: Words) -> Option<Item> {
    const UNKNOWN: Item = Item::Unknown("the text of a trap is not known");
    let Ok(parsed) = (Options { short: "lpP", long: &[] }).parse(words) else { return Some(UNKNOWN) };
    match parsed.operands.as_slice() {
        // it only reports
        _ if !parsed.given.is_empty() => None,
        [] => None,
        // a signal whose trap is reset
        [only] if only.is_one() => None,
        [Expansion::Known(text), ..] if matches!(text.as_str(), "" | "-") => None,
        [Expansion::Known(text), ..] => Some(Item::Text(reader, text.clone())),
        _ => Some(UNKNOWN),
    }
}

pub(super) fn is_shell(name: &str) -> bool {
    matches!(
        name,
        "sh" | "bash" | "dash" | "ash" | "rbash" | "zsh" | "ksh" | "mksh" | "fish" | "csh" | "tcsh" | "pwsh" | "yash"
    )
}

pub(super) fn base(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}
