//! Programs that run the rest of their arguments.

use super::builtins::{self, Words};
use super::programs::ASSIGNED;
use super::walk::{Item, Mark};

const OPAQUE_WRAPPER: &str = "what a wrapper runs is not known";

/// The options of a program that runs the rest of its arguments. One that is not here makes the call not understood.
pub(super) struct Wrapper {
    pub(super) name: &'static str,
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

pub(super) const WRAPPERS: [Wrapper; 20] = [
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

impl Wrapper {
    /// The program and its arguments; empty: none is run.
    pub(super) fn wrapped(&self, words: Words, items: &mut Vec<Item>) -> Result<Words, &'static str> {
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
                if builtins::decides(assigned) {
                    return Err(ASSIGNED);
                }
                items.extend(builtins::is_locale(assigned).then_some(Item::Mark(Mark::Locale)));
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

/// Words with the mark in them become what is not known here.
pub(super) fn unknown_with(words: &mut Words, mark: &str) {
    for word in words {
        if word.as_deref().is_some_and(|word| word.contains(mark)) {
            *word = None;
        }
    }
}
