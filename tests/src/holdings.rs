//! What an agent holds of its machine, seen from outside of it.

use std::fs;
use std::time::{Duration, Instant};

use crate::cgroups;

/// Threads that are not needed any more end after ten seconds.
const QUIET: Duration = Duration::from_secs(12);
const SETTLING_LIMIT: Duration = Duration::from_secs(120);

/// Looks until nothing has changed for a while, or for as long as that may take, and gives what was seen last.
pub fn settled<T: PartialEq>(look: impl Fn() -> T) -> T {
    let (begin, mut since, mut last) = (Instant::now(), Instant::now(), look());
    while since.elapsed() < QUIET && begin.elapsed() < SETTLING_LIMIT {
        std::thread::sleep(Duration::from_millis(200));
        let now = look();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    last
}

/// What grows with the executions of an agent, and must shrink with their ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Open descriptors; 0 where only root can count them.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
    /// Child processes, those that have ended and were not reaped included.
    pub children: usize,
    /// Its control groups, in every mounted hierarchy.
    pub cgroups: usize,
}

impl Holdings {
    /// Of the agent with this process id.
    ///
    /// # Panics
    /// It has ended.
    pub fn of(pid: i32) -> Self {
        let entries = |name: &str| fs::read_dir(format!("/proc/{pid}/{name}")).unwrap().count();
        // what it holds is closed to its own user
        let is_open = fs::read_dir(format!("/proc/{pid}/fd")).is_ok() || rustix::process::getuid().is_root();
        if !is_open {
            eprintln!("partly skipped: only root can count the descriptors of an agent");
        }
        Self {
            descriptors: if is_open { entries("fd") } else { 0 },
            threads: entries("task"),
            children: children(pid),
            cgroups: cgroups(pid).len(),
        }
    }
}

fn children(of: i32) -> usize {
    let parent = |stat: String| stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse::<i32>().ok();
    let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let stats = entries.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    stats.filter_map(parent).filter(|parent| *parent == of).count()
}

/// What a process has in memory, in bytes. See proc_pid_status(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All of it.
    pub resident: u64,
    /// Without what is in files: heap and stacks.
    pub anonymous: u64,
    /// The most that it ever had.
    pub peak: u64,
}

impl Memory {
    /// Of the process with this id.
    ///
    /// # Panics
    /// It has ended.
    pub fn of(pid: i32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let bytes = |name: &str| {
            let kibibytes = status.lines().find_map(|line| line.strip_prefix(name)?.strip_suffix(" kB"));
            kibibytes.unwrap().trim().parse::<u64>().unwrap() * 1024
        };
        Self { resident: bytes("VmRSS:"), anonymous: bytes("RssAnon:"), peak: bytes("VmHWM:") }
    }
}
