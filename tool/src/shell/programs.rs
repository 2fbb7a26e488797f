//! What a program runs by its arguments: wrappers, shells, and builtins that change what runs.

use super::SimpleCommand;
use super::walk::Item;

type Words = Vec<Option<String>>;

const OPAQUE_WRAPPER: &str = "what a wrapper runs is not known";
const OPAQUE_SHELL: &str = "a shell runs a script or its input";
/// Why nothing is known where a variable is set that [`decides`].
pub const ASSIGNED: &str = "a variable that decides what runs is set";

/// Each is listed with all that comes after it.
const MOST_WRAPPERS: usize = 32;

/// The options of a program that runs the rest of its arguments. One that is not here makes the call not understood.
struct Wrapper {
    name: &'static str,
    /// Short options without a value.
    flags: &'static str,
    /// Short options with one.
    valued: &'static str,
    /// Short options with one in the same word, or none.
    optional: &'static str,
    long_flags: &'static [&'static str],
    long_valued: &'static [&'static str],
    /// Arguments before the program.
    operands: usize,
}

const PLAIN: Wrapper =
    Wrapper { name: "", flags: "", valued: "", optional: "", long_flags: &[], long_valued: &[], operands: 0 };

const WRAPPERS: [Wrapper; 20] = [
    Wrapper {
        name: "env",
        flags: "i0v",
        valued: "uC",
        long_flags: &["ignore-environment", "null", "debug"],
        long_valued: &["unset", "chdir"],
        ..PLAIN
    },
    Wrapper { name: "nohup", ..PLAIN },
    Wrapper { name: "nice", flags: "0123456789", valued: "n", long_valued: &["adjustment"], ..PLAIN },
    Wrapper { name: "ionice", flags: "t", valued: "cn", ..PLAIN },
    Wrapper { name: "time", flags: "apv", valued: "fo", ..PLAIN },
    Wrapper {
        name: "timeout",
        flags: "vfp",
        valued: "ks",
        long_flags: &["foreground", "preserve-status", "verbose"],
        long_valued: &["kill-after", "signal"],
        operands: 1,
        ..PLAIN
    },
    Wrapper { name: "stdbuf", valued: "ioe", long_valued: &["input", "output", "error"], ..PLAIN },
    Wrapper { name: "setsid", flags: "cfw", long_flags: &["ctty", "fork", "wait"], ..PLAIN },
    Wrapper {
        name: "xargs",
        flags: "0rtpxo",
        valued: "aEILnPsd",
        optional: "eil",
        long_flags: &["null", "no-run-if-empty", "verbose", "interactive", "exit", "open-tty"],
        long_valued: &["arg-file", "delimiter", "max-args", "max-chars", "max-procs"],
        ..PLAIN
    },
    Wrapper {
        name: "sudo",
        flags: "AbBEHknNPS",
        valued: "CDghpRrtTuU",
        long_flags: &["askpass", "background", "non-interactive", "preserve-env", "set-home", "stdin"],
        long_valued: &["chdir", "group", "prompt", "user"],
        ..PLAIN
    },
    Wrapper { name: "doas", flags: "n", valued: "u", ..PLAIN },
    Wrapper { name: "pkexec", long_flags: &["keep-cwd"], long_valued: &["user"], ..PLAIN },
    Wrapper { name: "run0", valued: "ugD", long_valued: &["user", "group", "chdir"], ..PLAIN },
    Wrapper { name: "command", flags: "pvV", ..PLAIN },
    Wrapper { name: "exec", flags: "cl", valued: "a", ..PLAIN },
    Wrapper { name: "builtin", ..PLAIN },
    Wrapper { name: "busybox", ..PLAIN },
    Wrapper { name: "toybox", ..PLAIN },
    // zsh's, which a text for bash would have to find as programs
    Wrapper { name: "noglob", ..PLAIN },
    Wrapper { name: "nocorrect", ..PLAIN },
];

/// Builtins whose meaning a function of the same name would take away.
const BUILTINS: [&str; 20] = [
    ":", ".", "[", "alias", "cd", "declare", "echo", "eval", "export", "hash", "printf", "read", "set", "source",
    "test", "trap", "true", "false", "unalias", "unset",
];

/// Whether it is one of those that run commands with another user's rights.
pub(super) fn raises_rights(program: &str) -> bool {
    matches!(base(program), "sudo" | "sudoedit" | "doas" | "su" | "pkexec" | "run0")
}

/// Whether a function of this name would hide something that is looked through.
pub(super) fn is_special(name: &str) -> bool {
    BUILTINS.contains(&name) || WRAPPERS.iter().any(|wrapper| wrapper.name == name) || is_shell(name) || name == "find"
}

/// Whether setting this variable can change which programs run, in bash or by the dynamic linker.
#[must_use]
pub fn decides(variable: &str) -> bool {
    matches!(variable, "PATH" | "BASH_ENV" | "ENV" | "SHELLOPTS" | "BASHOPTS" | "PROMPT_COMMAND" | "PS4" | "IFS")
        || ["LD_", "DYLD_", "BASH_FUNC", "BASH_ALIASES", "BASH_CMDS", "GLIBC_TUNABLES"]
            .iter()
            .any(|prefix| variable.starts_with(prefix))
}

/// Adds a command, and what it runs by its arguments.
pub(super) fn run(words: Words, items: &mut Vec<Item>) {
    run_behind(0, words, items);
}

/// The same, behind so many wrappers.
fn run_behind(wrappers: usize, words: Words, items: &mut Vec<Item>) {
    let mut next = words;
    for behind in wrappers..MOST_WRAPPERS {
        if next.is_empty() {
            return;
        }
        let mut words = std::mem::take(&mut next);
        let Some(program) = words.remove(0) else { return items.push(Item::Unknown("a program's name is not known")) };
        items.push(Item::Command(SimpleCommand { program: program.clone(), arguments: words.clone() }));
        next = looked_through(base(&program), words, behind + 1, items);
    }
    items.push(Item::Unknown("too many wrappers stand before a program"));
}

/// What is called by a call, if anything; what else it comes to is added, behind so many wrappers.
fn looked_through(name: &str, words: Words, wrappers: usize, items: &mut Vec<Item>) -> Words {
    if let Some(wrapper) = WRAPPERS.iter().find(|wrapper| wrapper.name == name) {
        return wrapper.wrapped(words).unwrap_or_else(|reason| {
            items.push(Item::Unknown(reason));
            Words::new()
        });
    }
    match name {
        "find" => find(words, wrappers, items),
        "sh" | "bash" | "dash" | "ash" | "su" => items.push(shell_text(words)),
        name if is_shell(name) => items.push(Item::Unknown(OPAQUE_SHELL)),
        "eval" => {
            items.extend(words.into_iter().collect::<Option<Vec<_>>>().map(|words| Item::Text(words.join(" "))));
            items.push(Item::Unknown("eval makes a text of its arguments"));
        }
        "trap" => items.extend(trap(words)),
        _ => items.extend(changed_by(name, &words).map(Item::Unknown)),
    }
    Words::new()
}

impl Wrapper {
    /// The program and its arguments; empty: none is run.
    fn wrapped(&self, words: Words) -> Result<Words, &'static str> {
        let mut words = words.into_iter();
        let mut operands = self.operands;
        let mut replaced = None;
        let mut options = true;
        while let Some(word) = words.next() {
            let word = word.ok_or(OPAQUE_WRAPPER)?;
            if options && word == "--" {
                options = false;
            } else if options && word.len() > 1 && word.starts_with('-') {
                let option = self.option(&word)?;
                match (self.name, option.name) {
                    ("command", 'v' | 'V') => return Ok(Vec::new()),
                    ("xargs", 'I') => {
                        replaced = Some(option.value.or_else(|| words.next().flatten()).ok_or(OPAQUE_WRAPPER)?);
                    }
                    ("xargs", 'i') => replaced = Some(option.value.unwrap_or_else(|| "{}".to_owned())),
                    _ if option.wants_value && option.value.is_none() => drop(words.next()),
                    _ => {}
                }
            } else if self.name == "env" && word == "-" {
                continue;
            } else if matches!(self.name, "env" | "sudo") && word.contains('=') {
                let assigned = word.split('=').next().unwrap_or_default();
                if decides(assigned) {
                    return Err(ASSIGNED);
                }
                options &= self.name != "env";
            } else if operands > 0 {
                operands -= 1;
                options = false;
            } else {
                return Ok(self.completed([Some(word)].into_iter().chain(words).collect(), replaced));
            }
        }
        Ok(Vec::new())
    }

    /// `xargs` puts its input into the arguments, or after them.
    fn completed(&self, mut words: Words, replaced: Option<String>) -> Words {
        if self.name != "xargs" {
            return words;
        }
        match replaced {
            Some(mark) => unknown_with(&mut words, &mark),
            None => words.push(None),
        }
        words
    }

    fn option(&self, word: &str) -> Result<Opt, &'static str> {
        if let Some(long) = word.strip_prefix("--") {
            let (name, value) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (long, None),
            };
            let wants_value = self.long_valued.contains(&name);
            let known = wants_value || self.long_flags.contains(&name);
            return known.then_some(Opt { name: '-', value, wants_value }).ok_or(OPAQUE_WRAPPER);
        }
        let mut letters = word.chars();
        let mut last = '-';
        letters.next();
        while let Some(letter) = letters.next() {
            last = letter;
            if self.valued.contains(letter) || self.optional.contains(letter) {
                let value = Some(letters.as_str().to_owned()).filter(|rest| !rest.is_empty());
                return Ok(Opt { name: letter, value, wants_value: self.valued.contains(letter) });
            }
            if !self.flags.contains(letter) {
                return Err(OPAQUE_WRAPPER);
            }
        }
        Ok(Opt { name: last, value: None, wants_value: false })
    }
}

/// One word of options: the last one in it.
struct Opt {
    /// `-` for a long one.
    name: char,
    value: Option<String>,
    wants_value: bool,
}

/// Adds what `find` runs for the files that it finds.
fn find(words: Words, wrappers: usize, items: &mut Vec<Item>) {
    if words.contains(&None) {
        items.push(Item::Unknown("the arguments of find are not known"));
    }
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        if !matches!(word.as_deref(), Some("-exec" | "-execdir" | "-ok" | "-okdir")) {
            continue;
        }
        let mut command: Words = words.by_ref().take_while(|word| word.as_deref() != Some(";")).collect();
        // what comes after a `+` is more of find's own, and is looked at as if it were the command's
        unknown_with(&mut command, "{}");
        run_behind(wrappers, command, items);
    }
}

/// Words with the mark in them become what is not known here.
fn unknown_with(words: &mut Words, mark: &str) {
    for word in words {
        if word.as_deref().is_some_and(|word| word.contains(mark)) {
            *word = None;
        }
    }
}

/// The text of `sh -c` or `su -c`.
fn shell_text(words: Words) -> Item {
    let mut words = words.into_iter();
    let mut wanted = false;
    while let Some(Some(word)) = words.next() {
        if matches!(word.as_str(), "--login" | "--noprofile" | "--norc" | "--posix" | "--command") {
            wanted |= word == "--command";
        } else if matches!(word.as_str(), "-" | "--") || !word.starts_with(['-', '+']) {
            return if wanted { text_or_user(word, words) } else { Item::Unknown(OPAQUE_SHELL) };
        } else if word.starts_with("--") || word.contains(['s', 'i']) {
            return Item::Unknown(OPAQUE_SHELL);
        } else {
            wanted |= word.starts_with('-') && word.contains('c');
            if word.contains(['o', 'O']) {
                drop(words.next());
            }
        }
    }
    Item::Unknown(OPAQUE_SHELL)
}

/// After `-c`, `-` and `--` end the options, and the text is next.
fn text_or_user(word: String, mut words: impl Iterator<Item = Option<String>>) -> Item {
    let text = if matches!(word.as_str(), "-" | "--") { words.next().flatten() } else { Some(word) };
    text.map_or(Item::Unknown(OPAQUE_SHELL), Item::Text)
}

/// What `trap` has the shell run later.
fn trap(words: Words) -> Option<Item> {
    let mut words = words.into_iter().skip_while(|word| word.as_deref() == Some("--"));
    let text = words.next()?;
    match (text, words.next()) {
        (Some(text), _) if matches!(text.as_str(), "" | "-" | "-l" | "-p" | "-P") => None,
        // a signal whose trap is reset
        (Some(_), None) => None,
        (Some(text), Some(_)) => Some(Item::Text(text)),
        (None, _) => Some(Item::Unknown("the text of a trap is not known")),
    }
}

/// Why a call of a builtin leaves open what runs.
fn changed_by(name: &str, words: &Words) -> Option<&'static str> {
    let any = |test: fn(&str) -> bool| words.iter().flatten().any(|word| test(word));
    let names_one = |word: &str| decides(word.split(['=', '+', '[']).next().unwrap_or_default());
    match name {
        "source" | "." => Some("a script is read into the shell"),
        "alias" if !words.is_empty() => Some("an alias is made"),
        "hash" | "enable" | "bind" | "complete" | "compgen" if any(|word| word.starts_with('-')) => {
            Some("a builtin changes what runs")
        }
        "mapfile" | "readarray" if any(|word| word.starts_with("-C")) => Some("a builtin changes what runs"),
        "printf" if !any(|word| word.starts_with("-v")) => None,
        "printf" | "read" | "unset" | "mapfile" | "readarray" | "let" | "getopts" | "export" | "declare"
        | "typeset" | "local" | "readonly"
            if words.iter().any(|word| word.as_deref().is_none_or(names_one)) =>
        {
            Some(ASSIGNED)
        }
        _ => None,
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
