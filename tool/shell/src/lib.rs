//! What would a shell text run?
//!
//! [`analyze`] parses the text as bash would and lists every program that it names: in pipes, lists, subshells, loops,
//! conditions, functions, substitutions and here-documents, behind wrappers such as `env`, `sudo`, `xargs` and
//! `find -exec`, and in the texts of `sh -c` and `trap`. Quoting is understood: `echo 'rm -rf /'` runs `echo`. For
//! shells that may not be bash there is [`analyze_posix`], which also reads the texts of `sh -c` and `dash -c`.
//!
//! It is for rules and for people who confirm commands, and is **never a sandbox**. What it does not understand it says,
//! and it rather refuses too much. Not understood is:
//! - text with a syntax error, over a bound, or with control characters or space other than blanks, tabs and newlines;
//! - what is decided only when it runs: `$x` as a program, `eval`, `source`, `su`, a shell that reads a script or its
//!   input, aliases, and options of wrappers, shells and builtins that are not known here, or of applets of busybox;
//! - what finds a program elsewhere or under another name: `env -u PATH`, `env -i` but before `/bin/x`, `exec -c` before
//!   a wrapper or a shell, `env -C` before one or `./x`, `sudo -R`, `exec -a`; and `sudo` alone or with `-A`;
//! - any number of words where one is expected, such as the value of an option: `nice -n $x`, `env -u "$@"`, `{a,b}`,
//!   `*` and `{} +` of `find`; and `"$x"` where it could be an option;
//! - `$x` without quotes for `[`, `find` and `wait`, which could come to an option and its value, where the text gives `x` anything
//!   but plain words (letters, digits, `_./:=,@%`, and `-` and `+` within words), such as what a program prints;
//! - what bash evaluates as arithmetic or a subscript, where values can name commands in turn: `$((x))`, `((…))`, `$[…]`,
//!   `for ((…))`, `let`, `a[x]`, `${x:1}`, where the text gives `x` anything but numbers; and `${!x}`, `${x@P}`, `declare -i`,
//!   `[ -v x ]`, `exec {x}>y`, `compgen -W "$x"`. Nor are names for `read`, `unset`, `printf -v` and `printf %n` that are not
//!   plain, and an array `x` together with `declare x=$y`;
//! - what the parser and shells read differently: `${x~y}`, `${ x; }`, a backslash at the end of a line within a word, `((` that
//!   is no arithmetic, `>&x`, `! !`, `time --`, escaped operators in arrays, braces and quotes in `[[ … ]]` expressions, `$"…"`,
//!   most escapes in `$'…'`, coprocesses, and here-documents with more than plain words after them or around their
//!   delimiter;
//! - assignments to variables that [decide](decides) what runs or that bash evaluates (`RANDOM`), other than directories of the
//!   system for `PATH`, blanks, `:`, `;`, `,` and `|` for `IFS`, and a path for `HOME` where no shell runs; to the locale in text
//!   that is not ASCII; and options of `set` and `shopt` but a few harmless ones;
//! - for [`analyze_posix`], what not all shells have: `[[`, `$'…'`, `<(…)`, `<<<`, `&>`, `|&`, arrays, `function`, `select`,
//!   most quotes and braces within `${…}`, descriptors over 9, `export x=$y` without quotes.
//!
//! What it cannot know, and does not report:
//! - what a program does, and runs in turn: `make`, `python3 -c`, `ssh`, `./script.sh`, `git` with its hooks and pager,
//!   `awk`, `tar`; a wrapper that is not named above is such a program;
//! - which file stands behind a name: that is for the environment, the directory, startup files (also those of the login shell of
//!   `sudo -i`), and functions and aliases that come from there; callers ask [`decides`] and [`decides_reading`] about variables that they set;
//! - which files programs open; those of redirections are reported as they are written;
//! - other shells than bash and POSIX ones, and locales in which a character can hold the byte of a backslash or quote,
//!   where the agent itself runs in one: they may read the same text otherwise.

mod arithmetic;
mod builtins;
mod checks;
mod collected;
mod declarations;
#[cfg(test)]
mod differential;
#[cfg(test)]
mod differential_calls;
#[cfg(test)]
#[rustfmt::skip]
mod differential_nested;
#[cfg(test)]
#[rustfmt::skip]
mod differential_texts;
mod expansion;
mod item;
mod options;
mod permission;
mod plain;
mod programs;
mod refused;
mod scan;
#[cfg(test)]
mod tests;
mod variables;
mod walk;
mod words;
mod wrappers;
mod written;

use std::collections::BTreeSet;
use std::panic::{UnwindSafe, catch_unwind};

use self::expansion::Expansion;
use self::item::{Item, Reader};

pub use self::permission::{covers, permission_pattern};
pub use self::variables::{ASSIGNED, decides, decides_reading};

/// More than this is not looked at.
const MAX_TEXT_BYTES: usize = 64 * 1024;
/// How deep texts may stand in texts, such as `$($(…))` or `sh -c "sh -c '…'"`.
const MAX_TEXT_DEPTH: usize = 16;
/// More commands than this are not listed, nor more redirections.
const MAX_COMMANDS: usize = 4096;

/// Several times what the deepest text within the bounds needs; only what is used of it takes memory.
const STACK_BYTES: usize = 64 << 20;
/// The longest plain text.
const MAX_PLAIN_BYTES: usize = 1024;
/// How many blanks and operators it may have: each keyword between them may stand in another one.
const MAX_PLAIN_SEPARATORS: usize = 16;
/// More than a plain text needs, also without optimisation.
const PLAIN_STACK_BYTES: usize = 5 << 18;

const PANICKED: &str = "it could not be analysed";

/// What a text runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Analysis {
    /// Each program and builtin, wrappers too, as it is called, in the order of the text, without duplicates. If the
    /// text is not understood: those that were found nevertheless.
    pub programs: Vec<String>,
    /// Each command whose program is known; what a wrapper runs is one more.
    pub commands: Vec<SimpleCommand>,
    /// The files that its redirections open, those of functions too. What programs open by their arguments is not among them.
    pub redirections: Vec<Redirection>,
    /// The variables that it puts into the environment of programs: `A=b program`, `export A`, `env A=b program`. If the
    /// text is not understood: those that were found nevertheless.
    pub exported: BTreeSet<String>,
    /// The variables that it gives values: one of these that the shell was started with is in that environment too.
    pub assigned: BTreeSet<String>,
    /// Variables whose values decide what runs, such as those in arithmetic, whose values bash evaluates. The text gives them only values
    /// that are harmless there; where the shell is started with one of these in its environment, nothing is known.
    pub evaluated: BTreeSet<String>,
    /// One of the programs is `sudo`, `sudoedit`, `doas`, `su`, `pkexec` or `run0`, by any path.
    pub uses_sudo: bool,
    /// The programs are all that the text names. False: see `reason`.
    pub understood: bool,
    /// Why it is not understood: the first reason that was met.
    pub reason: Option<&'static str>,
}

/// A program and what it is called with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimpleCommand {
    /// As it is called: a name or a path, without quoting.
    pub program: String,
    /// Without quoting; `None` is one whose value is known only when it runs, and may come to several or none.
    pub arguments: Vec<Option<String>>,
}

/// A file that the shell opens for a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirection {
    /// As it is written, without quoting; relative to where the command runs. `None`: known only when it runs.
    pub path: Option<String>,
    /// What for.
    pub access: Access,
}

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `<`
    Read,
    /// `>`, `>>`, `>|`, `&>`, `&>>`
    Write,
    /// `<>`
    ReadWrite,
}

impl Access {
    /// Whether the file is read.
    #[must_use]
    pub fn reads(self) -> bool {
        matches!(self, Self::Read | Self::ReadWrite)
    }

    /// Whether it is made or written.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::ReadWrite)
    }
}

impl SimpleCommand {
    fn new(program: &str, words: &expansion::Words) -> Self {
        let arguments = words.iter().map(|word| word.known().map(str::to_owned)).collect();
        Self { program: program.to_owned(), arguments }
    }
}

/// Whether a text is plain: short, on one line, of words, simple variables, quotes, redirections and operators, so that there
/// is no more in it than can be seen. It is analysed in some microseconds, and takes little stack.
#[must_use]
pub fn is_plain(text: &str) -> bool {
    are_plain(text.bytes())
}

/// Whether a program's name and arguments, with a blank between them, are such a text.
#[must_use]
pub fn is_plain_argv(argv: &[String]) -> bool {
    are_plain(argv.iter().flat_map(|word| word.bytes().chain([b' '])))
}

fn are_plain(mut bytes: impl Iterator<Item = u8>) -> bool {
    let (mut length, mut separators) = (0, 0);
    bytes.all(|byte| {
        length += 1;
        separators += usize::from(b" \t|&;<>".contains(&byte));
        let is_allowed = byte.is_ascii_alphanumeric() || b" \t|&;<>$'\"-_./=:,@%+".contains(&byte);
        is_allowed && length <= MAX_PLAIN_BYTES && separators <= MAX_PLAIN_SEPARATORS
    })
}

/// What bash runs, given this text. For any other shell see [`analyze_posix`].
#[must_use]
pub fn analyze(text: &str) -> Analysis {
    collect(is_plain(text), || vec![Item::Text(Reader::Bash, text.to_owned())])
}

/// What `sh`, `dash` or `ash` runs, given this text, which may as well be bash: only what they all read alike is
/// understood, so no `[[`, `((`, `$'…'`, arrays, `<(…)`, `&>` and the like.
#[must_use]
pub fn analyze_posix(text: &str) -> Analysis {
    collect(is_plain(text), || vec![Item::Text(Reader::Posix, text.to_owned())])
}

/// What a program without a shell runs, given its name and arguments: wrappers and `sh -c` are looked through.
#[must_use]
pub fn analyze_argv(argv: &[String]) -> Analysis {
    collect(is_plain_argv(argv), || {
        if argv.iter().map(|word| word.len() + 1).sum::<usize>() > MAX_TEXT_BYTES {
            return vec![Item::Unknown("it is too long")];
        }
        let mut items = Vec::new();
        programs::run(Reader::Bash, argv.iter().cloned().map(Expansion::Known).collect(), &mut items);
        items
    })
}

/// Goes through the items, on a stack of their own unless they are plain: parser and tree are recursive, and a caller may be
/// deep already. A text that makes the parser panic, which some random ones do, is not understood, nor is any without memory
/// for that.
fn collect(is_plain: bool, items: impl FnOnce() -> Vec<Item> + UnwindSafe) -> Analysis {
    let needed = if is_plain { PLAIN_STACK_BYTES } else { usize::MAX };
    let collected = catch_unwind(|| stacker::maybe_grow(needed, STACK_BYTES, || collected::collect(items())));
    collected.unwrap_or_else(|_| {
        let mut analysis = Analysis::default();
        analysis.not_understood(PANICKED);
        analysis
    })
}

impl Analysis {
    fn add(&mut self, command: SimpleCommand) {
        self.uses_sudo |= programs::raises_rights(&command.program);
        if !self.programs.contains(&command.program) {
            self.programs.push(command.program.clone());
        }
        self.commands.push(command);
    }

    /// There is more than the text that decides what runs. The first reason stays.
    pub fn not_understood(&mut self, reason: &'static str) {
        self.understood = false;
        self.reason.get_or_insert(reason);
    }
}
