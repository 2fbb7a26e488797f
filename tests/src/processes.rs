//! Finding the processes of a command, without asking the agent.

use std::fs;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::until;

/// The variable that marks a command's processes: `command.env(MARK, &mark)`.
pub const MARK: &str = "TELEXEC_TEST";

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: i32,
    /// The name of its program, cut to 15 bytes.
    pub name: String,
    /// As ps(1) shows it: `S` sleeps, `T` is stopped, `Z` has ended and is not reaped.
    pub state: char,
    /// The id of its session.
    pub session: i32,
}

/// A new value for [`MARK`].
pub fn marker() -> String {
    uuid::Uuid::now_v7().simple().to_string()
}

/// The processes that carry the mark, or one that begins with it, in their environment or name it in their arguments,
/// and have not ended.
pub fn processes_with(mark: &str) -> Vec<Process> {
    let variable = format!("{MARK}={mark}");
    let found = pids().filter(|pid| carries(*pid, mark, &variable)).filter_map(read).map(|(process, _)| process);
    found.filter(|process| !"ZX".contains(process.state)).collect()
}

/// The children of a process, also those that have ended and that it has not reaped.
pub fn children(pid: i32) -> Vec<Process> {
    pids().filter_map(read).filter(|(_, parent)| *parent == pid).map(|(process, _)| process).collect()
}

/// Stops a process; returns when none of its threads runs any more. On a busy machine that takes a while.
pub async fn stop(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::STOP).unwrap();
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|entry| entry.unwrap().path().join("stat"));
    let has_stopped = |stat: &String| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'));
    until("it has stopped", async || {
        threads().filter_map(|stat| fs::read_to_string(stat).ok()).all(|stat| has_stopped(&stat))
    })
    .await;
}

fn pids() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

fn carries(pid: i32, mark: &str, variable: &str) -> bool {
    let file = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    file("environ").split(|byte| *byte == 0).any(|entry| entry.starts_with(variable.as_bytes()))
        || String::from_utf8_lossy(&file("cmdline")).contains(mark)
}

/// The process and its parent's id. See proc_pid_stat(5).
fn read(pid: i32) -> Option<(Process, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let state = fields.first()?.chars().next()?;
    let (parent, session) = (fields.get(1)?.parse().ok()?, fields.get(3)?.parse().ok()?);
    Some((Process { pid, name: name.to_owned(), state, session }, parent))
}

/// Processes whose end is waited for, without looking for them again and again.
#[derive(Debug)]
pub struct Watch(Vec<OwnedFd>);

impl Watch {
    /// Of these, by their ids; those that have ended and were reaped are left out.
    pub fn of(pids: impl IntoIterator<Item = i32>) -> Self {
        let open = |pid| pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok();
        Self(pids.into_iter().filter_map(open).collect())
    }

    /// How many these are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Blocks until all have ended; whether they were reaped does not matter.
    ///
    /// # Panics
    /// One does not end.
    pub fn wait(&self) {
        let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
        for process in &self.0 {
            // a signal for the tests, such as SIGCHLD, ends no process
            let ended = retry_on_intr(|| poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&limit))).unwrap();
            assert!(ended == 1, "a process does not end");
        }
    }
}
