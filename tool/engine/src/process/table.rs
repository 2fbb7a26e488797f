//! The machine's processes, as /proc shows them (see proc(5)).

use std::os::fd::OwnedFd;
use std::{fs, io};

use futures_util::future::join_all;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::control;
use crate::wait::{RETRY_DELAY, is_transient};

/// A process at one moment. Its id alone may be reused; together with its start time it is unique.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    /// All its threads have ended; it waits to be reaped.
    pub(crate) zombie: bool,
    /// It is about to be one, and has no environment any more.
    pub(crate) exiting: bool,
    /// Clock ticks after boot.
    pub(crate) start_ticks: u64,
    /// Where its environment began; 0 if this process may not know.
    pub(crate) environ_address: u64,
    /// The key of the execution that its environment names.
    pub(crate) marker: Option<String>,
}

impl Process {
    /// Unique among all processes since boot.
    pub(crate) fn key(&self) -> (i32, u64) {
        (self.pid, self.start_ticks)
    }

    /// This process is never one of its own executions, whatever its environment says.
    pub(crate) fn is_self(&self) -> bool {
        u32::try_from(self.pid) == Ok(std::process::id())
    }
}

/// The ids of all processes.
///
/// # Errors
/// /proc cannot be read.
pub(crate) fn listed() -> io::Result<Vec<i32>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc")? {
        pids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(pids)
}

/// The real, effective, saved and file system user ids of a process; `None`: it has ended, or they cannot be read.
pub(crate) fn uids(pid: i32) -> Option<Vec<u32>> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    Some(uids.split_whitespace().filter_map(|uid| uid.parse().ok()).collect())
}

/// Threads have an id, and files under it, but are not listed.
pub(super) fn is_process(pid: i32) -> bool {
    of_thread(pid).is_none_or(|process| process == pid)
}

/// The process of a thread; `None`: it has ended.
pub(crate) fn of_thread(id: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// One process, without its marker; `None`: there is none with this id.
///
/// # Errors
/// It cannot be read, for want of descriptors or memory.
pub(crate) fn read(pid: i32) -> io::Result<Option<Process>> {
    Ok(read_file(&format!("/proc/{pid}/stat"))?.and_then(|stat| parse_stat(pid, &stat)))
}

/// The file of a process; `None`: the process is gone, or this one may not read it.
pub(crate) fn read_file(path: &str) -> io::Result<Option<Vec<u8>>> {
    match read_all(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) => Some(io::Error::from(error)).filter(is_transient).map_or(Ok(None), Err),
    }
}

/// A file of /proc, which comes whole if there is room for it: with a third of the system calls of the standard
/// library, since thousands are read.
pub(crate) fn read_all(path: &str) -> Result<Vec<u8>, Errno> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    while rustix::io::read(&file, rustix::buffer::spare_capacity(&mut bytes))? > 0 && bytes.len() == bytes.capacity() {
        bytes.reserve(bytes.len());
    }
    Ok(bytes)
}

/// Room for what most files of /proc hold.
const USUAL_BYTES: usize = 2048;

fn parse_stat(pid: i32, stat: &[u8]) -> Option<Process> {
    // the name, in parentheses, may hold anything, parentheses included
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = std::str::from_utf8(stat.get(after_name..)?).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    let flags: u64 = fields.nth(2)?.parse().ok()?;
    let threads: u32 = fields.nth(10)?.parse().ok()?;
    let start_ticks = fields.nth(1)?.parse().ok()?;
    // older kernels do not report it
    let environ_address = fields.nth(27).and_then(|address| address.parse().ok()).unwrap_or(0);
    // the first thread may end before the others
    let zombie = state == "X" || (state == "Z" && threads <= 1);
    let exiting = flags & PF_EXITING != 0;
    Some(Process { pid, parent, group, session, zombie, exiting, start_ticks, environ_address, marker: None })
}

/// See linux/sched.h.
const PF_EXITING: u64 = 4;

/// The id that was given out last in this pid namespace; ids count up and start again at the smallest.
///
/// # Errors
/// /proc cannot be read.
pub(crate) fn last_pid() -> io::Result<i32> {
    let load = fs::read_to_string("/proc/loadavg")?;
    let last = load.split_ascii_whitespace().last().and_then(|last| last.parse().ok());
    last.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// A descriptor for exactly this process; `None`: it has ended.
pub(crate) fn open(process: &Process) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = Pid::from_raw(process.pid) else { return Ok(None) };
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(Errno::SRCH) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // its id may have been given to another process since it was read
    let now = read(process.pid)?;
    Ok(now.filter(|now| now.key() == process.key() && !now.zombie).map(|_| pidfd))
}

/// Waits for the ends of these, or of the first of many: each takes a descriptor.
pub(crate) async fn all_ended(processes: Vec<Process>) {
    join_all(processes.iter().take(MAX_WAITED_FOR).map(|process| async {
        match open(process).and_then(|pidfd| pidfd.map(control::watch).transpose()) {
            Ok(Some(pidfd)) => control::ended(&pidfd).await,
            Ok(None) => {}
            // out of descriptors: try again soon
            Err(_) => tokio::time::sleep(RETRY_DELAY).await,
        }
    }))
    .await;
}

/// How many ends are waited for at once.
const MAX_WAITED_FOR: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(state: &str, threads: u32) -> Option<Process> {
        let text = format!("42 (a) Z 1 1 1 (x) {state} 7 8 9 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 {threads} 0 12345 1 1");
        parse_stat(42, text.as_bytes())
    }

    #[test]
    fn a_hostile_process_name_does_not_confuse() {
        let process = stat("S", 1).unwrap();
        assert_eq!((process.parent, process.group, process.session, process.zombie), (7, 8, 9, false));
        assert_eq!(process.start_ticks, 12345);
        assert_eq!(parse_stat(42, b"42 (a"), None);
        assert_eq!(parse_stat(42, b""), None);
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_lives() {
        assert!(stat("Z", 1).unwrap().zombie);
        assert!(!stat("Z", 2).unwrap().zombie);
    }
}
