//! Texts that are understood run nothing that is not listed: real shells run them, with a few programs that leave a
//! mark. `TELEXEC_ROUNDS` makes it go on for longer.

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
const CANARIES: [&str; 20] = [
    "zz", "zy", "a", "b", "x", "y", "E", "1", "10", "ls", "cat", "!", "-zz", "time", "select", "coproc", "function",
    "[[", "{x}", "x+=1",
];
const MARK: &str = "#!/bin/sh\necho \"${0##*/}\" >> \"${0%/bin/*}/log\"\n";
const ROUNDS: u64 = 4_000;
const PATIENCE: Duration = Duration::from_secs(1);

struct Machine {
    directory: tempfile::TempDir,
    runs: u32,
}

impl Machine {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let programs = directory.path().join("programs");
        fs::create_dir(&programs).unwrap();
        for name in CANARIES {
            let path = programs.join(name);
            fs::write(&path, MARK).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self { directory, runs: 0 }
    }

    /// The canaries that ran.
    fn run(&mut self, shell: &Path, text: &str) -> BTreeSet<String> {
        self.runs += 1;
        let place = self.directory.path().join(self.runs.to_string());
        fs::create_dir_all(place.join("empty")).unwrap();
        symlink(self.directory.path().join("programs"), place.join("bin")).unwrap();
        let mut command = Command::new(shell);
        if shell.ends_with("bash") {
            command.args(["--norc", "--noprofile"]);
        }
        command.args(["-c", text]).env_clear().env("PATH", place.join("bin")).env("HOME", place.join("empty"));
        command.env("LC_ALL", "C").current_dir(place.join("empty")).process_group(0);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = child.stderr.take().unwrap();
        let (sender, ended) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            let _ = errors.read_to_end(&mut Vec::new());
            let _ = sender.send(());
        });
        let _ = ended.recv_timeout(PATIENCE);
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        child.wait().unwrap();
        drop(reader);
        let log = fs::read_to_string(place.join("log")).unwrap_or_default();
        let _ = fs::remove_dir_all(place);
        log.lines().map(str::to_owned).collect()
    }

    /// Whether it was understood. What ran and is not listed is a failure.
    fn check(&mut self, shell: &Path, text: &str) -> bool {
        let analysis = if shell.ends_with("bash") { analyze(text) } else { analyze_posix(text) };
        if !analysis.understood {
            return false;
        }
        let listed = |name: &String| analysis.programs.iter().any(|program| program.rsplit('/').next() == Some(name));
        let hidden: Vec<_> = self.run(shell, text).into_iter().filter(|name| !listed(name)).collect();
        assert!(hidden.is_empty(), "{}: {text:?} ran {hidden:?}, not only {:?}", shell.display(), analysis.programs);
        true
    }
}

fn shells() -> Vec<PathBuf> {
    ["bash", "dash"]
        .iter()
        .filter_map(|name| ["/bin", "/usr/bin"].iter().map(|dir| Path::new(dir).join(name)).find(|path| path.exists()))
        .collect()
}

/// A small generator of numbers: the same texts each time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % bound.max(1)
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
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

#[test]
fn what_shells_run_is_listed() {
    let rounds = std::env::var("TELEXEC_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS);
    let seed = std::env::var("TELEXEC_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1_u64);
    let (mut machine, mut understood) = (Machine::new(), 0_u64);
    for shell in shells() {
        for text in TEXTS {
            understood += u64::from(machine.check(&shell, text));
        }
        let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ seed);
        for _ in 0..rounds / 2 {
            let text = random.text();
            if !is_harmful(&text) {
                understood += u64::from(machine.check(&shell, &text));
            }
        }
    }
    println!("{understood} understood of {rounds}");
}
