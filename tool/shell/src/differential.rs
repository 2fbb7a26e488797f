//! Texts that are understood run nothing that is not listed, with no other arguments, and make no other files: real shells
//! run them, with a few programs that leave a mark. `TELEXEC_ROUNDS` makes it run longer, with other texts for another `TELEXEC_SEED`.

#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use super::differential_texts::{ARGV, FRAGMENTS, PIECES, TEXTS};
use super::*;

/// The programs that there are; some have names that a shell may take for syntax.
const CANARIES: [&str; 23] = [
    "zz", "zy", "a", "b", "x", "y", "E", "1", "10", "ls", "cat", "!", "-zz", "time", "select", "coproc", "function",
    "[[", "{x}", "x+=1", "-a", "-c", "echo",
];
/// How many words, and each, with a NUL after it.
const MARK: &str = "#!/bin/sh\nprintf '%s\\0' $(($# + 1)) \"${0##*/}\" \"$@\" >> \"${0%/bin/*}/log\"\n";
const ROUNDS: u64 = 400;
const SHELL_TIMEOUT: Duration = Duration::from_secs(1);
/// What runs under this name where the text itself has changed PATH.
pub(super) const LAST: &str = "last";
const MOVED: &str = "moved";

/// Where shells run with no programs but these.
pub(super) struct Machine {
    directory: tempfile::TempDir,
    runs: u32,
}

impl Machine {
    /// With programs of these names that leave a mark, and continue as these others.
    pub(super) fn new<'a>(names: impl IntoIterator<Item = &'a str>, others: &[PathBuf]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (programs, moved) = (directory.path().join("programs"), directory.path().join("moved"));
        let add = |path: PathBuf, text: String| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        };
        fs::create_dir(&programs).unwrap();
        fs::create_dir(&moved).unwrap();
        for name in names {
            add(programs.join(name), MARK.to_owned());
        }
        for other in others {
            add(programs.join(other.file_name().unwrap()), format!("{MARK}exec {} \"$@\"\n", other.display()));
        }
        add(moved.join(LAST), format!("#!/bin/sh\nprintf '1\\0{MOVED}\\0' >> \"${{0%/moved/*}}/log\"\n"));
        // where PATH is a number
        fs::create_dir(directory.path().join("counted")).unwrap();
        add(directory.path().join("counted").join(LAST), format!("#!/bin/sh\nprintf '1\\0{MOVED}\\0' >> ../log\n"));
        Self { directory, runs: 0 }
    }

    /// With programs of these names, and the real ones that texts of nested constructs call.
    pub(super) fn with_tools(names: &[&str]) -> Self {
        let tools = ["bash", "cat", "env", "find", "nice", "sh", "timeout", "xargs"].into_iter().filter_map(found);
        Self::new(names.iter().copied(), &tools.collect::<Vec<_>>())
    }

    /// As [`check`](Self::check); files that no redirection makes are a failure too.
    pub(super) fn check_all(&mut self, shell: &Path, text: &str) -> Option<Ran> {
        let ran = self.check(shell, text);
        let made = ran.iter().flat_map(|ran| &ran.files).collect::<Vec<_>>();
        assert!(made.is_empty(), "{}: {text:?} made {made:?}, TELEXEC_SEED={}", shell.display(), seed());
        ran
    }

    fn run(&mut self, shell: &Path, text: &str) -> Ran {
        self.runs += 1;
        let place = self.directory.path().join(self.runs.to_string());
        let here = place.join("here");
        fs::create_dir_all(&here).unwrap();
        symlink(self.directory.path().join("counted"), here.join("1")).unwrap();
        fs::write(here.join("zu"), "").unwrap();
        symlink(self.directory.path().join("programs"), place.join("bin")).unwrap();
        symlink(self.directory.path().join("moved"), place.join("moved")).unwrap();
        let mut command = Command::new(shell);
        if shell.ends_with("bash") {
            command.args(["--norc", "--noprofile"]);
        }
        command.args(["-c", text]).env_clear().env("PATH", place.join("bin")).env("HOME", &here);
        command.env("D", place.join("moved")).env("LC_ALL", "C").current_dir(here).process_group(0);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = child.stderr.take().unwrap();
        let (sender, ended) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            let _ = errors.read_to_end(&mut Vec::new());
            let _ = sender.send(());
        });
        let _ = ended.recv_timeout(SHELL_TIMEOUT);
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        child.wait().unwrap();
        drop(reader);
        let log = fs::read(place.join("log")).unwrap_or_default();
        let mut words = String::from_utf8_lossy(&log).into_owned();
        words.truncate(words.rfind('\0').unwrap_or(0));
        let mut words = words.split('\0').map(str::to_owned);
        let mut calls = BTreeSet::new();
        while let Some(count) = words.next().and_then(|count| count.parse().ok()) {
            calls.insert(words.by_ref().take(count).collect());
        }
        let entries = fs::read_dir(place.join("here")).into_iter().flatten().filter_map(Result::ok);
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let files = names.filter(|name| !["1", "zu"].contains(&name.as_str())).collect();
        let _ = fs::remove_dir_all(place);
        Ran { calls, files }
    }

    /// What ran, if it was understood. What is not listed is a failure.
    pub(super) fn check(&mut self, shell: &Path, text: &str) -> Option<Ran> {
        let analysis = if shell.ends_with("bash") { analyze(text) } else { analyze_posix(text) };
        if !analysis.understood {
            return None;
        }
        let ran = self.run(shell, text);
        let hidden: Vec<_> = ran.calls.iter().filter(|call| !is_listed(&analysis, call)).collect();
        let (shell, seed) = (shell.display(), seed());
        let commands = &analysis.commands;
        assert!(hidden.is_empty(), "{shell}: {text:?} ran {hidden:?}, not only {commands:?}, TELEXEC_SEED={seed}");
        let files = ran.files.into_iter().filter(|file| !is_redirection(&analysis, file)).collect();
        Some(Ran { files, ..ran })
    }
}

/// What a shell has done.
pub(super) struct Ran {
    /// Programs, with their arguments.
    calls: BTreeSet<Vec<String>>,
    /// The names of files that it has made; of [`Machine::check`] those that no redirection makes.
    files: Vec<String>,
}

/// Whether a call, with these arguments, is one of the commands.
fn is_listed(analysis: &Analysis, call: &[String]) -> bool {
    let [name, arguments @ ..] = call else { return false };
    let is_it = |command: &SimpleCommand| {
        command.program.rsplit('/').next() == Some(name) && matches(&command.arguments, arguments)
    };
    analysis.commands.iter().any(is_it)
}

/// Whether a file may have been made by one of the redirections.
fn is_redirection(analysis: &Analysis, file: &str) -> bool {
    let mut writes = analysis.redirections.iter().filter(|redirection| redirection.access != Access::Read);
    writes.any(|redirection| redirection.path.as_ref().is_none_or(|path| path.trim_start_matches("./") == file))
}

/// Whether arguments come to these words; one that is not known comes to any number.
fn matches(arguments: &[Option<String>], words: &[String]) -> bool {
    match arguments {
        [] => words.is_empty(),
        [None, rest @ ..] => (0..=words.len()).any(|count| matches(rest, &words[count..])),
        [Some(known), rest @ ..] => {
            words.split_first().is_some_and(|(word, words)| word == known && matches(rest, words))
        }
    }
}

pub(super) fn shells() -> Vec<PathBuf> {
    ["bash", "dash"].into_iter().filter_map(found).collect()
}

pub(super) fn found(name: &str) -> Option<PathBuf> {
    ["/bin", "/usr/bin"].iter().map(|directory| Path::new(directory).join(name)).find(|path| path.exists())
}

pub(super) fn rounds(usual: u64) -> u64 {
    std::env::var("TELEXEC_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(usual)
}

fn seed() -> u64 {
    std::env::var("TELEXEC_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// A small generator of numbers: the same texts each time.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15 ^ seed())
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % bound.max(1)
    }

    pub(super) fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    fn text(&mut self) -> String {
        if self.below(3) == 0 {
            return (0..3 + self.below(10)).map(|_| self.one(FRAGMENTS)).collect();
        }
        let mut text: Vec<char> = self.one(TEXTS).chars().collect();
        for _ in 0..1 + self.below(4) {
            let start = self.below(text.len() + 1);
            let end = text.len().min(start + 1 + self.below(4));
            let other: Vec<char> = self.one(TEXTS).chars().collect();
            let from = self.below(other.len());
            let piece = self.one(PIECES).chars();
            match self.below(10) {
                0..4 => drop(text.splice(start..start, piece)),
                4..6 => drop(text.drain(start..end)),
                6..8 => drop(text.splice(start..end, piece)),
                _ => drop(text.splice(start..start, other.into_iter().skip(from).take(12))),
            }
        }
        text.into_iter().collect()
    }
}

/// How many texts were understood, and how many of them ran a program.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) understood: u64,
    pub(super) ran: u64,
}

impl Counts {
    pub(super) fn add(&mut self, ran: Option<Ran>) {
        self.understood += u64::from(ran.is_some());
        self.ran += u64::from(ran.is_some_and(|ran| ran.calls.iter().any(|call| call[0] != LAST)));
    }
}

/// It writes outside of its directory, or may never end.
fn is_harmful(text: &str) -> bool {
    text.contains('\0')
        || text.contains('>') && ["/", "$_", "${_", "$0", "${0"].iter().any(|path| text.contains(path))
        || (text.contains("()") && text.contains(['&', '|']))
        || ["while", "until", "for", "coproc"].iter().any(|word| text.contains(word)) && text.contains('&')
}

#[test]
fn calls_that_were_found_are_not_understood_or_listed() {
    for argv in ARGV {
        let argv: Vec<String> = argv.split(' ').map(|word| word.replace('_', " ")).collect();
        let analysis = analyze_argv(&argv);
        let lists = analysis.programs.iter().any(|program| program == "zz");
        assert!(lists || !analysis.understood, "{argv:?}");
    }
}

/// All texts, and others at random.
fn compare(shell: &Path, rounds: u64) {
    let (mut machine, mut counts, mut random) = (Machine::new(CANARIES, &[]), Counts::default(), Random::new());
    let mut check = |text: &str| counts.add(machine.check_all(shell, text));
    TEXTS.iter().for_each(|text| check(text));
    for _ in 0..rounds {
        let text = random.text();
        if !is_harmful(&text) {
            check(&text);
        }
    }
    println!("{}: {counts:?} of {} and {rounds}", shell.display(), TEXTS.len());
    // of those that are always the same there are twice as many
    assert!(counts.understood > 100 && counts.ran > 80, "{}: {counts:?}", shell.display());
}

#[test]
fn what_shells_run_is_listed() {
    let shells = shells();
    assert!(!shells.is_empty(), "there is no shell to compare with");
    std::thread::scope(|scope| {
        for shell in &shells {
            scope.spawn(|| compare(shell, rounds(ROUNDS)));
        }
    });
}
