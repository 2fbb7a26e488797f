//! The machine's processes, as /proc shows them (see proc(5)).

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use std::{fs, io};

use futures_util::future::join_all;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::environ::{Environs, Look, Memory};
use super::{PAUSE, cgroup, is_passing, process};
use crate::Workers;

/// A process at one moment. Its id alone may be reused; together with its start time it is unique.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    /// All its threads have ended; it waits to be reaped.
    pub(super) zombie: bool,
    /// It is about to be one, and has no environment any more.
    pub(super) exiting: bool,
    /// Clock ticks after boot.
    pub(super) start_ticks: u64,
    /// Where its environment began; 0 if this process may not know.
    pub(super) environ_address: u64,
    /// The key of the execution that its environment names.
    pub(super) marker: Option<String>,
}

impl Process {
    /// Tells it from any other process since boot.
    pub(super) fn key(&self) -> (i32, u64) {
        (self.pid, self.start_ticks)
    }

    /// This process is never one of its own executions, whatever its environment says.
    pub(super) fn is_self(&self) -> bool {
        u32::try_from(self.pid) == Ok(std::process::id())
    }
}

/// Looks at all processes. Those who ask at the same time share one look.
pub(super) struct Census {
    /// Older processes are of no interest: their environments are not read.
    since: u64,
    /// Nor are those of processes that are in the cgroup of an execution, which tells whose they are.
    trust_cgroups: bool,
    environs: Environs,
    /// A look takes a thread, and most of those who ask can share one.
    pub(super) lookers: Workers,
    latest: Mutex<Option<(Instant, Arc<Snapshot>)>>,
}

/// All processes that are no kernel threads, at one moment; found by what ties them to an execution, so that looking for
/// one execution costs nothing for those of others.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    processes: BTreeMap<i32, Process>,
    children: HashMap<i32, Vec<i32>>,
    sessions: HashMap<i32, Vec<i32>>,
    groups: HashMap<i32, Vec<i32>>,
    markers: HashMap<String, Vec<i32>>,
    /// Those whose environments were not read.
    unread: Vec<i32>,
}

impl Snapshot {
    fn new(processes: BTreeMap<i32, Process>, unread: Vec<i32>) -> Self {
        let mut this = Self { unread, ..Self::default() };
        for (pid, process) in &processes {
            this.children.entry(process.parent).or_default().push(*pid);
            this.sessions.entry(process.session).or_default().push(*pid);
            this.groups.entry(process.group).or_default().push(*pid);
            if let Some(marker) = &process.marker {
                this.markers.entry(marker.clone()).or_default().push(*pid);
            }
        }
        this.processes = processes;
        this
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Process> {
        self.processes.values()
    }

    /// The process with this id.
    pub(super) fn get(&self, pid: i32) -> Option<&Process> {
        self.processes.get(&pid)
    }

    /// Those in the session or group with this number.
    pub(super) fn in_session_or_group(&self, number: i32) -> impl Iterator<Item = &Process> {
        let found = [self.sessions.get(&number), self.groups.get(&number)];
        self.all_of(found.into_iter().flatten().flatten())
    }

    /// Those whose environment holds this key.
    pub(super) fn marked(&self, marker: &str) -> impl Iterator<Item = &Process> {
        self.all_of(self.markers.get(marker).into_iter().flatten())
    }

    /// Those whose environments do not answer: what they carry is not known.
    pub(super) fn unread(&self) -> impl Iterator<Item = &Process> {
        self.all_of(self.unread.iter())
    }

    /// The live processes that are `roots` or descend from one, no older than `since`, this process excepted.
    pub(super) fn with_descendants<'a>(&'a self, roots: impl Iterator<Item = &'a Process>, since: u64) -> Vec<Process> {
        let young = |process: &&Process| process.start_ticks >= since && !process.is_self();
        let mut visit: Vec<&Process> = roots.filter(young).collect();
        let mut members = BTreeMap::new();
        while let Some(process) = visit.pop() {
            if members.insert(process.pid, process).is_none() {
                let children = self.children.get(&process.pid).into_iter().flatten();
                visit.extend(self.all_of(children).filter(young));
            }
        }
        members.into_values().filter(|process| !process.zombie).cloned().collect()
    }

    fn all_of<'a>(&'a self, pids: impl Iterator<Item = &'a i32>) -> impl Iterator<Item = &'a Process> {
        pids.filter_map(|pid| self.processes.get(pid))
    }
}

impl Census {
    /// For what starts from now on.
    ///
    /// # Errors
    /// The threads that look cannot be made.
    pub(super) fn new(trust_cgroups: bool) -> io::Result<Self> {
        let own = i32::try_from(std::process::id()).ok().and_then(|pid| read(pid).ok().flatten());
        let since = own.map_or(0, |process| process.start_ticks);
        let (environs, lookers) = (Environs::new()?, Workers::new("telexec-look", 1, LOOKERS)?);
        Ok(Self { since, trust_cgroups, environs, lookers, latest: Mutex::new(None) })
    }

    /// For all, however old they are and whatever cgroup they are in.
    ///
    /// # Errors
    /// As [`Census::new`].
    pub(super) fn of_all() -> io::Result<Self> {
        Ok(Self { since: 0, ..Self::new(false)? })
    }

    /// All processes, looked at no earlier than `asked`. If this call is the one to look, `visit` sees each process as
    /// soon as it was read.
    ///
    /// # Errors
    /// /proc cannot be read, for want of descriptors or memory.
    pub(super) fn take(&self, asked: Instant, visit: impl FnMut(&Process)) -> io::Result<Arc<Snapshot>> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((began, processes)) = &*latest
            && *began >= asked
        {
            return Ok(Arc::clone(processes));
        }
        let began = Instant::now();
        let processes = Arc::new(self.look(visit)?);
        *latest = Some((began, Arc::clone(&processes)));
        Ok(processes)
    }

    /// All processes that are no kernel threads.
    ///
    /// A list of ids is old when it has been read: processes that replaced each other meanwhile would all be missed. So
    /// every id that was given out since the list was made is looked at too, until none is new.
    fn look(&self, mut visit: impl FnMut(&Process)) -> io::Result<Snapshot> {
        let (mut seen, mut look) = (Seen::default(), Look::begin());
        let mut newest = last_pid()?;
        self.note(listed()?, &mut seen, &mut look, &mut visit)?;
        for _ in 0..MAX_PASSES {
            let last = last_pid()?;
            if last == newest {
                break;
            } else if (newest..=newest.saturating_add(MANY)).contains(&last) {
                let new = (newest + 1..=last).filter(|pid| is_process(*pid)).collect();
                self.note(new, &mut seen, &mut look, &mut visit)?;
            } else {
                // ids started again at the smallest, or too many are new
                self.note(listed()?, &mut seen, &mut look, &mut visit)?;
            }
            newest = last;
        }
        let unclear = std::mem::take(&mut seen.unclear);
        self.environs.settle(unclear, &mut look, |pid, key| seen.mark(pid, key, &mut visit))?;
        Ok(Snapshot::new(seen.processes, look.unread().collect()))
    }

    /// Looks at these, a few at a time: first at what they are, then at whose.
    fn note(
        &self,
        pids: Vec<i32>,
        seen: &mut Seen,
        look: &mut Look,
        visit: &mut impl FnMut(&Process),
    ) -> io::Result<()> {
        for few in pids.chunks(AT_ONCE) {
            let mut unmarked = Vec::new();
            for pid in few {
                let process = read(*pid)?.filter(|process| process.pid != KTHREADD && process.parent != KTHREADD);
                let Some(process) = process else { continue };
                visit(&process);
                if self.may_be_marked(&process) && !(self.trust_cgroups && cgroup::keeps(*pid)) {
                    unmarked.push(Memory::of(&process));
                }
                seen.processes.insert(*pid, process);
            }
            let unclear = self.environs.keys(unmarked, look, |pid, key| seen.mark(pid, key, &mut *visit))?;
            seen.unclear.extend(unclear);
        }
        Ok(())
    }

    fn may_be_marked(&self, process: &Process) -> bool {
        process.start_ticks >= self.since && !process.zombie && !process.exiting
    }

    /// Whether one of these carries this key, or does not answer.
    ///
    /// # Errors
    /// They cannot be looked at now, for want of descriptors or memory.
    pub(super) fn may_any_carry(&self, key: &str, processes: &[Process]) -> io::Result<bool> {
        let of = processes.iter().filter(|process| self.may_be_marked(process)).map(Memory::of).collect();
        let (mut found, mut look) = (false, Look::begin());
        let unclear = self.environs.keys(of, &mut look, |_, carried| found |= carried == key)?;
        self.environs.settle(unclear, &mut look, |_, carried| found |= carried == key)?;
        Ok(found || look.unread().next().is_some())
    }
}

/// What one look has seen so far.
#[derive(Default)]
struct Seen {
    processes: BTreeMap<i32, Process>,
    unclear: Vec<Memory>,
}

impl Seen {
    fn mark(&mut self, pid: i32, key: String, mut visit: impl FnMut(&Process)) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.marker = Some(key);
            visit(process);
        }
    }
}

/// So many processes are looked at before their environments are: those of one execution may replace each other fast.
const AT_ONCE: usize = 16;

/// So many threads look, or wait for who looks.
const LOOKERS: usize = 4;

const KTHREADD: i32 = 2;
/// New ids up to this many are looked at one by one.
const MANY: i32 = 1000;
/// Where processes are made so fast that a look never ends, the next one goes on.
const MAX_PASSES: usize = 1000;

/// The ids of all processes.
///
/// # Errors
/// /proc cannot be read.
pub(super) fn listed() -> io::Result<Vec<i32>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc")? {
        pids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(pids)
}

/// Threads have an id, and files under it, but are not listed.
fn is_process(pid: i32) -> bool {
    of_thread(pid).is_none_or(|process| process == pid)
}

/// The process of a thread; `None`: it has ended.
pub(super) fn of_thread(id: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// One process, without its marker; `None`: there is none with this id.
///
/// # Errors
/// It cannot be told, for want of descriptors or memory.
pub(super) fn read(pid: i32) -> io::Result<Option<Process>> {
    Ok(read_file(&format!("/proc/{pid}/stat"))?.and_then(|stat| parse_stat(pid, &stat)))
}

/// The file of a process; `None`: the process is gone, or this one may not read it.
pub(super) fn read_file(path: &str) -> io::Result<Option<Vec<u8>>> {
    match read_all(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) => Some(io::Error::from(error)).filter(is_passing).map_or(Ok(None), Err),
    }
}

/// A file of /proc, which comes whole if there is room for it: with a third of the system calls of the standard library,
/// since thousands are read.
pub(super) fn read_all(path: &str) -> Result<Vec<u8>, Errno> {
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
    // older kernels do not tell
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
pub(super) fn last_pid() -> io::Result<i32> {
    let load = fs::read_to_string("/proc/loadavg")?;
    let last = load.split_ascii_whitespace().last().and_then(|last| last.parse().ok());
    last.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// A descriptor for exactly this process; `None`: it has ended.
pub(super) fn open(process: &Process) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = Pid::from_raw(process.pid) else { return Ok(None) };
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(Errno::SRCH) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // its id may have been given to another between the look at it and the open
    let now = read(process.pid)?;
    Ok(now.filter(|now| now.key() == process.key() && !now.zombie).map(|_| pidfd))
}

/// Waits for the ends of these, or of the first of many: each takes a descriptor.
pub(super) async fn all_ended(processes: Vec<Process>) {
    join_all(processes.iter().take(WATCHED).map(|process| async {
        match open(process).and_then(|pidfd| pidfd.map(process::watch).transpose()) {
            Ok(Some(pidfd)) => process::ended(&pidfd).await,
            Ok(None) => {}
            // out of descriptors: look again soon
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }))
    .await;
}

/// How many ends are waited for at once.
const WATCHED: usize = 64;

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

    #[test]
    fn a_look_is_shared_by_those_who_asked_before_it_began() {
        let census = Census::new(false).unwrap();
        let asked = Instant::now();
        let first = census.take(asked, |_| {}).unwrap();
        let pid = i32::try_from(std::process::id()).unwrap();
        assert!(first.get(pid).is_some());
        assert!(Arc::ptr_eq(&first, &census.take(asked, |_| {}).unwrap()));
        assert!(!Arc::ptr_eq(&first, &census.take(Instant::now(), |_| {}).unwrap()));
    }

    fn process(pid: i32, parent: i32, session: i32, start_ticks: u64) -> Process {
        let (zombie, exiting, environ_address, marker) = (false, false, 0, None);
        Process { pid, parent, group: session, session, zombie, exiting, start_ticks, environ_address, marker }
    }

    fn descendants(all: impl IntoIterator<Item = Process>, session: i32, since: u64) -> Vec<i32> {
        let all = Snapshot::new(all.into_iter().map(|process| (process.pid, process)).collect(), Vec::new());
        all.with_descendants(all.in_session_or_group(session), since).iter().map(|process| process.pid).collect()
    }

    #[test]
    fn members_are_roots_and_their_descendants_and_nobody_older() {
        let all = [
            process(10, 1, 10, 100),
            process(11, 10, 11, 101),
            process(12, 11, 12, 102),
            process(13, 1, 10, 99),
            process(14, 1, 14, 103),
        ];
        assert_eq!(descendants(all, 10, 100), [10, 11, 12]);
    }

    #[test]
    fn a_zombie_is_no_member_but_its_children_are() {
        let mut all = [process(10, 1, 10, 100), process(11, 10, 11, 100)];
        all[0].zombie = true;
        assert_eq!(descendants(all, 10, 100), [11]);
    }
}
