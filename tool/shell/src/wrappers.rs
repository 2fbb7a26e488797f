//! Programs that run the rest of their arguments.

use super::builtins;
use super::expansion::{Expansion, Words};
use super::item::{Item, Mark};
use super::options::{Given, Options, Parsed, Unclear};
use super::programs;
use super::variables::{self, ASSIGNED};

const OPAQUE_WRAPPER: &str = "what a wrapper such as env, sudo, timeout or xargs runs is not known";

/// Of one call of sudo.
const MAX_ASSIGNMENTS: usize = 64;

/// Words that shells read otherwise than as the name of a program: with `sudo -i` a shell reads them.
const SHELL_WORDS: [&str; 51] = [
    "alias",
    "and",
    "autoload",
    "begin",
    "bg",
    "bind",
    "break",
    "compgen",
    "complete",
    "continue",
    "coproc",
    "declare",
    "emulate",
    "enable",
    "end",
    "eval",
    "exit",
    "export",
    "fc",
    "fg",
    "foreach",
    "getopts",
    "hash",
    "history",
    "hup",
    "in",
    "jobs",
    "let",
    "limit",
    "local",
    "logout",
    "mapfile",
    "not",
    "onintr",
    "or",
    "readarray",
    "readonly",
    "repeat",
    "return",
    "sched",
    "set",
    "setenv",
    "shopt",
    "source",
    "switch",
    "trap",
    "typeset",
    "unset",
    "unsetenv",
    "wait",
    "zargs",
];

pub(super) struct Wrapper {
    pub(super) name: &'static str,
    pub(super) options: Options,
    /// What stands between the options and the program.
    before: Before,
    /// Options with which nothing is run.
    describing: &'static [&'static str],
    /// Without a program it runs a shell.
    alone_a_shell: bool,
}

enum Before {
    Nothing,
    Operand,
    /// `-`, then assignments.
    Environment,
    /// Assignments and options, until `--`.
    AssignmentsAndOptions,
    /// The program is one that the wrapper itself contains.
    Applet,
}

const PLAIN: Wrapper = Wrapper {
    name: "",
    options: Options { short: "", long: &[] },
    before: Before::Nothing,
    describing: &[],
    alone_a_shell: false,
};

pub(super) const WRAPPERS: [Wrapper; 20] = [
    Wrapper {
        name: "env",
        options: Options { short: "i0vu:C:", long: &["ignore-environment", "null", "debug", "unset:", "chdir:"] },
        before: Before::Environment,
        ..PLAIN
    },
    Wrapper { name: "nohup", ..PLAIN },
    Wrapper { name: "nice", options: Options { short: "#n:", long: &["adjustment:"] }, ..PLAIN },
    Wrapper { name: "ionice", options: Options { short: "tc:n:", long: &["ignore", "class:", "classdata:"] }, ..PLAIN },
    Wrapper { name: "time", options: Options { short: "apqvf:o:", long: &[] }, ..PLAIN },
    Wrapper {
        name: "timeout",
        options: Options {
            short: "vfpk:s:",
            long: &["foreground", "preserve-status", "verbose", "kill-after:", "signal:"],
        },
        before: Before::Operand,
        ..PLAIN
    },
    Wrapper { name: "stdbuf", options: Options { short: "i:o:e:", long: &["input:", "output:", "error:"] }, ..PLAIN },
    Wrapper { name: "setsid", options: Options { short: "cfw", long: &["ctty", "fork", "wait"] }, ..PLAIN },
    Wrapper { name: "xargs", options: XARGS, ..PLAIN },
    Wrapper {
        name: "sudo",
        options: Options {
            short: "bBEHiklnNPSvVC:D:g:p:r:t:T:u:U:",
            long: &[
                "background",
                "non-interactive",
                "preserve-env",
                "set-home",
                "stdin",
                "chdir:",
                "group:",
                "list",
                "login",
                "prompt:",
                "user:",
            ],
        },
        before: Before::AssignmentsAndOptions,
        describing: &["l", "list", "v", "V"],
        alone_a_shell: true,
    },
    Wrapper { name: "doas", options: Options { short: "nu:", long: &[] }, ..PLAIN },
    // it reads options its own way: none is understood
    Wrapper { name: "pkexec", alone_a_shell: true, ..PLAIN },
    Wrapper {
        name: "run0",
        options: Options { short: "u:g:D:", long: &["user:", "group:", "chdir:"] },
        alone_a_shell: true,
        ..PLAIN
    },
    Wrapper { name: "command", options: Options { short: "pvV", long: &[] }, describing: &["v", "V"], ..PLAIN },
    // of the name that others give a program, some make another program of themselves
    Wrapper { name: "exec", options: Options { short: "c", long: &[] }, ..PLAIN },
    Wrapper { name: "builtin", ..PLAIN },
    Wrapper { name: "busybox", before: Before::Applet, ..PLAIN },
    Wrapper { name: "toybox", before: Before::Applet, ..PLAIN },
    // zsh's, which a text for bash would have to find as programs
    Wrapper { name: "noglob", ..PLAIN },
    Wrapper { name: "nocorrect", ..PLAIN },
];

/// Options that do not change what is run, but for `-I` and `-i`.
const XARGS: Options = Options {
    short: "0rtpxoa:E:I:L:n:P:s:d:e::i::l::",
    long: &[
        "null",
        "no-run-if-empty",
        "verbose",
        "interactive",
        "exit",
        "open-tty",
        "arg-file:",
        "delimiter:",
        "max-args:",
        "max-chars:",
        "max-procs:",
        "eof::",
        "max-lines::",
        "replace::",
        "show-limits",
    ],
};

impl From<Unclear> for &str {
    fn from(_: Unclear) -> Self {
        OPAQUE_WRAPPER
    }
}

impl Wrapper {
    /// The program and its arguments; empty: none is run.
    pub(super) fn wrapped(&self, words: Words, items: &mut Vec<Item>) -> Result<Words, &'static str> {
        // whatever comes after such an option does not undo it
        let known = words.iter().take_while(|word| word.known().is_some()).cloned().collect();
        let given = self.options.parse(known)?.given;
        if given.iter().any(|option| self.describing.contains(&option.name)) {
            return Ok(Words::new());
        }
        let mut parsed = self.options.parse(words)?;
        let mut place = self.place(&parsed.given, items)?;
        match self.before {
            Before::Nothing => {}
            Before::Operand => {
                let operand = parsed.operands.drain(..parsed.operands.len().min(1)).next();
                if operand.is_some_and(|operand| !operand.is_one()) {
                    return Err(OPAQUE_WRAPPER);
                }
            }
            Before::Environment => {
                let dash = usize::from(parsed.operands.first().is_some_and(|word| word.is("-")));
                place.is_without_path |= dash > 0;
                parsed.operands.drain(..dash);
                let mut count = 0;
                while assigned(parsed.operands.get(count), items)? {
                    count += 1;
                }
                parsed.operands.drain(..count);
            }
            Before::AssignmentsAndOptions => {
                let mut count = 0;
                while assigned(parsed.operands.first(), items)? {
                    count += 1;
                    if count > MAX_ASSIGNMENTS || parsed.ended || parsed.given.iter().any(may_look_ended) {
                        return Err(OPAQUE_WRAPPER);
                    }
                    parsed.operands.remove(0);
                    parsed = self.options.parse(parsed.operands)?;
                    let again = self.place(&parsed.given, items)?;
                    place.is_elsewhere |= again.is_elsewhere;
                    place.is_by_shell |= again.is_by_shell;
                }
            }
            Before::Applet => self.applet(&parsed.operands)?,
        }
        if self.alone_a_shell && parsed.operands.is_empty() {
            return Err(OPAQUE_WRAPPER);
        }
        if self.name == "sudo" && place.is_by_shell {
            parsed.operands = parsed.operands.into_iter().map(read_by_shell).collect();
            let program = parsed.operands.first().and_then(Expansion::known);
            if program.is_some_and(|program| programs::is_special(program) || SHELL_WORDS.contains(&program)) {
                return Err(OPAQUE_WRAPPER);
            }
        }
        place.leads_to(&parsed.operands)?;
        if self.name == "xargs" { with_input(parsed) } else { Ok(parsed.operands) }
    }

    /// Where these options have the program looked for.
    fn place(&self, given: &[Given], items: &mut Vec<Item>) -> Result<Place, &'static str> {
        let mut place = Place::default();
        for option in given {
            match (self.name, option.name) {
                ("env", "u" | "unset") => taken_away(option, items)?,
                ("env", "i" | "ignore-environment") => place.is_without_path = true,
                ("sudo", "i" | "login") => (place.is_by_shell, place.is_elsewhere) = (true, true),
                ("exec", "c") => place.is_without_environment = true,
                ("env", "C" | "chdir") | ("sudo" | "run0", "D" | "chdir") => place.is_elsewhere = true,
                // busybox takes the second for the program
                ("nice", _) if given.len() > 1 => return Err(OPAQUE_WRAPPER),
                _ => {}
            }
        }
        Ok(place)
    }

    /// Applets read other options than the programs of their names, and not as those do.
    fn applet(&self, words: &Words) -> Result<(), &'static str> {
        let Some((Expansion::Known(applet), arguments)) = words.split_first() else { return Ok(()) };
        let is_read_alike = match programs::base(applet) {
            "busybox" | "toybox" | "find" => true,
            "sh" | "ash" => self.name == "busybox",
            name if programs::is_looked_through(name) => {
                !programs::is_shell(name) && !arguments.first().is_some_and(Expansion::may_be_option)
            }
            _ => true,
        };
        if is_read_alike { Ok(()) } else { Err(OPAQUE_WRAPPER) }
    }
}

/// How a program is found is not as before.
#[derive(Default)]
struct Place {
    /// The wrapper itself looks for it where there is no PATH.
    is_without_path: bool,
    /// What it is started with has no PATH.
    is_without_environment: bool,
    /// In another directory.
    is_elsewhere: bool,
    /// By the user's login shell.
    is_by_shell: bool,
}

impl Place {
    /// What the program runs in turn is found in the same way. Without PATH that can be in the working directory.
    fn leads_to(&self, words: &Words) -> Result<(), &'static str> {
        let Some(program) = words.first().and_then(Expansion::known) else { return Ok(()) };
        let is_looked_through = programs::is_looked_through(programs::base(program));
        let is_without = self.is_without_path || self.is_without_environment;
        if is_without && is_looked_through || self.is_without_path && !program.contains('/') {
            return Err(ASSIGNED);
        }
        let is_relative = program.contains('/') && !program.starts_with('/');
        if self.is_elsewhere && (is_looked_through || is_relative) {
            return Err(OPAQUE_WRAPPER);
        }
        Ok(())
    }
}

/// A word of `sudo -i`, which puts a backslash before all that is special to shells, but not before `$`.
fn read_by_shell(word: Expansion) -> Expansion {
    match word {
        // an empty one is none
        Expansion::Known(word) if !word.is_empty() && !word.contains(['$', '\n']) => Expansion::Known(word),
        _ => Expansion::Any,
    }
}

/// `env -u`
fn taken_away(option: &Given, items: &mut Vec<Item>) -> Result<(), &'static str> {
    let variable = option.value.as_ref().and_then(Expansion::known).filter(|variable| !variables::decides(variable));
    let is_locale = variable.map(variables::is_locale).ok_or(ASSIGNED)?;
    items.extend(is_locale.then_some(Item::Mark(Mark::Locale)));
    Ok(())
}

/// sudo takes a value that is `--` for the end of its options.
fn may_look_ended(option: &Given) -> bool {
    option.value.as_ref().is_some_and(|value| value.known().is_none_or(|value| value == "--"))
}

/// What `xargs` runs: its input comes to stand where a mark is, and after all. Which of both, later options decide.
fn with_input(mut parsed: Parsed) -> Result<Words, &'static str> {
    if parsed.operands.is_empty() {
        parsed.operands.push(Expansion::Known("echo".to_owned()));
    }
    let mut marks = parsed.given.iter().filter(|option| matches!(option.name, "I" | "i" | "replace"));
    let option = marks.next();
    if marks.next().is_some() {
        return Err(OPAQUE_WRAPPER);
    }
    if let Some(option) = option {
        let mark = match &option.value {
            Some(value) => value.known().ok_or(OPAQUE_WRAPPER)?,
            None => "{}",
        };
        parsed.operands = parsed.operands.into_iter().map(|word| word.with_replaced(mark)).collect();
    }
    parsed.operands.push(Expansion::Any);
    Ok(parsed.operands)
}

/// Whether a word is an assignment.
fn assigned(word: Option<&Expansion>, items: &mut Vec<Item>) -> Result<bool, &'static str> {
    let Some(variable) = word.and_then(Expansion::assigned) else { return Ok(false) };
    if !builtins::is_name(variable) {
        return Err(OPAQUE_WRAPPER);
    }
    if variables::decides(variable) {
        return Err(ASSIGNED);
    }
    items.push(Item::Exported(variable.to_owned()));
    items.extend(variables::is_locale(variable).then_some(Item::Mark(Mark::Locale)));
    Ok(true)
}
