//! Programs that run the rest of their arguments.

use super::builtins;
use super::expansion::{Expansion, Words};
use super::options::{Options, Unclear};
use super::programs::ASSIGNED;
use super::walk::{Item, Mark};

const OPAQUE_WRAPPER: &str = "what a wrapper runs is not known";

pub(super) struct Wrapper {
    pub(super) name: &'static str,
    pub(super) options: Options,
    /// What stands between the options and the program.
    before: Before,
    /// Options with which nothing is run.
    describing: &'static str,
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
}

const PLAIN: Wrapper = Wrapper {
    name: "",
    options: Options { short: "", long: &[] },
    before: Before::Nothing,
    describing: "",
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
    Wrapper { name: "nice", options: Options { short: "0123456789n:", long: &["adjustment:"] }, ..PLAIN },
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
            short: "AbBEHknNPSC:D:g:p:R:r:t:T:u:",
            long: &[
                "askpass",
                "background",
                "non-interactive",
                "preserve-env",
                "set-home",
                "stdin",
                "chdir:",
                "group:",
                "prompt:",
                "user:",
            ],
        },
        before: Before::AssignmentsAndOptions,
        ..PLAIN
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
    Wrapper { name: "command", options: Options { short: "pvV", long: &[] }, describing: "vV", ..PLAIN },
    Wrapper { name: "exec", options: Options { short: "cla:", long: &[] }, ..PLAIN },
    Wrapper { name: "builtin", ..PLAIN },
    Wrapper { name: "busybox", ..PLAIN },
    Wrapper { name: "toybox", ..PLAIN },
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
        if given.iter().any(|option| self.describing.contains(option.name)) {
            return Ok(Words::new());
        }
        let mut parsed = self.options.parse(words)?;
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
                parsed.operands.drain(..dash);
                while assigned(&parsed.operands, items)? {
                    parsed.operands.remove(0);
                }
            }
            Before::AssignmentsAndOptions => {
                while assigned(&parsed.operands, items)? {
                    if parsed.ended {
                        return Err(OPAQUE_WRAPPER);
                    }
                    parsed.operands.remove(0);
                    parsed = self.options.parse(parsed.operands)?;
                }
            }
        }
        if self.alone_a_shell && parsed.operands.is_empty() {
            return Err(OPAQUE_WRAPPER);
        }
        if self.name != "xargs" || parsed.operands.is_empty() {
            return Ok(parsed.operands);
        }
        // its input comes to stand where a mark is, and after all: which of both, later options decide
        for option in parsed.given.iter().filter(|option| matches!(option.name, "I" | "i" | "replace")) {
            let mark = match &option.value {
                Some(value) => value.known().ok_or(OPAQUE_WRAPPER)?,
                None => "{}",
            };
            parsed.operands = parsed.operands.into_iter().map(|word| word.with_replaced(mark)).collect();
        }
        parsed.operands.push(Expansion::Any);
        Ok(parsed.operands)
    }
}

/// Whether the first of the words is an assignment.
fn assigned(words: &Words, items: &mut Vec<Item>) -> Result<bool, &'static str> {
    let Some(variable) = words.first().and_then(Expansion::assigned) else { return Ok(false) };
    if !builtins::is_name(variable) {
        return Err(OPAQUE_WRAPPER);
    }
    if builtins::decides(variable) {
        return Err(ASSIGNED);
    }
    items.push(Item::Exported(variable.to_owned()));
    items.extend(builtins::is_locale(variable).then_some(Item::Mark(Mark::Locale)));
    Ok(true)
}
