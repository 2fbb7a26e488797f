//! Finding processes among all of the machine's.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::environ::{EnvironReader, EnvironScan, Memory};
use super::table::{Process, is_process, last_pid, listed, read};
use crate::lock::lock;
use crate::workers::Workers;

/// Scans all processes. Callers at the same time share one scan.
pub(crate) struct ProcessScanner {
    /// Older processes are of no interest: their environments are not read.
    since: u64,
    /// Whether a process is in the cgroup of an execution: that identifies it, so its environment is not read.
    is_in_cgroup: Option<fn(i32) -> bool>,
    environs: EnvironReader,
    /// A scan takes a thread, and most callers can share one.
    pub(crate) threads: Workers,
    latest: Mutex<Option<(Instant, Arc<Snapshot>)>>,
}

/// All processes that are no kernel threads, at one moment, indexed by what ties them to an execution, so that finding
/// those of one costs nothing for those of others.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
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

    pub(crate) fn all(&self) -> impl Iterator<Item = &Process> {
        self.processes.values()
    }

    /// The process with this id.
    pub(crate) fn get(&self, pid: i32) -> Option<&Process> {
        self.processes.get(&pid)
    }

    /// Those in the session or group with this number.
    pub(crate) fn in_session_or_group(&self, number: i32) -> impl Iterator<Item = &Process> {
        let found = [self.sessions.get(&number), self.groups.get(&number)];
        self.all_of(found.into_iter().flatten().flatten())
    }

    /// Those whose environment holds this key.
    pub(crate) fn marked(&self, marker: &str) -> impl Iterator<Item = &Process> {
        self.all_of(self.markers.get(marker).into_iter().flatten())
    }

    /// Those whose environments do not answer: what they carry is not known.
    pub(crate) fn unread(&self) -> impl Iterator<Item = &Process> {
        self.all_of(self.unread.iter())
    }

    /// The live processes that are `roots` or descend from one, no older than `since`, this process excepted.
    pub(crate) fn with_descendants<'a>(&'a self, roots: impl Iterator<Item = &'a Process>, since: u64) -> Vec<Process> {
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

impl ProcessScanner {
    /// For what starts from now on.
    ///
    /// # Errors
    /// The threads that scan cannot be made.
    pub(crate) fn new(is_in_cgroup: Option<fn(i32) -> bool>) -> io::Result<Self> {
        let own = i32::try_from(std::process::id()).ok().and_then(|pid| read(pid).ok().flatten());
        let since = own.map_or(0, |process| process.start_ticks);
        let (environs, threads) = (EnvironReader::new()?, Workers::new("telexec-look", 1, MAX_THREADS)?);
        Ok(Self { since, is_in_cgroup, environs, threads, latest: Mutex::new(None) })
    }

    /// Also for what has started since this moment, in ticks since the machine was booted.
    pub(crate) fn since(self, ticks: u64) -> Self {
        Self { since: self.since.min(ticks), ..self }
    }

    /// For all, however old they are and whatever cgroup they are in.
    ///
    /// # Errors
    /// As [`ProcessScanner::new`].
    pub(crate) fn of_all() -> io::Result<Self> {
        Ok(Self { since: 0, ..Self::new(None)? })
    }

    /// All processes, scanned no earlier than `asked`. If this call is the one that scans, `visit` gets each process as
    /// soon as it was read.
    ///
    /// # Errors
    /// /proc cannot be read, for want of descriptors or memory.
    pub(crate) fn scan(&self, asked: Instant, visit: impl FnMut(&Process)) -> io::Result<Arc<Snapshot>> {
        let mut latest = lock(&self.latest);
        if let Some((began, processes)) = &*latest
            && *began >= asked
        {
            return Ok(Arc::clone(processes));
        }
        let began = Instant::now();
        let processes = Arc::new(self.scan_all(visit)?);
        *latest = Some((began, Arc::clone(&processes)));
        Ok(processes)
    }

    /// All processes that are no kernel threads.
    ///
    /// A list of ids is outdated once it has been read: processes that replaced each other meanwhile would all be
    /// missed. So every id that was given out since is read too, until none is new.
    fn scan_all(&self, mut visit: impl FnMut(&Process)) -> io::Result<Snapshot> {
        let (mut seen, mut scan) = (Seen::default(), EnvironScan::begin());
        let mut newest = last_pid()?;
        self.scan_pids(listed()?, &mut seen, &mut scan, &mut visit)?;
        for _ in 0..MAX_PASSES {
            let last = last_pid()?;
            if last == newest {
                break;
            } else if (newest..=newest.saturating_add(MAX_NEW_IDS)).contains(&last) {
                let new = (newest + 1..=last).filter(|pid| is_process(*pid)).collect();
                self.scan_pids(new, &mut seen, &mut scan, &mut visit)?;
            } else {
                // ids started again at the smallest, or too many are new
                self.scan_pids(listed()?, &mut seen, &mut scan, &mut visit)?;
            }
            newest = last;
        }
        let unclear = std::mem::take(&mut seen.unclear);
        self.environs.settle(unclear, &mut scan, |pid, key| seen.mark(pid, key, &mut visit))?;
        Ok(Snapshot::new(seen.processes, scan.unread().collect()))
    }

    /// Reads these, a few at a time: first their state, then their environments.
    fn scan_pids(
        &self,
        pids: Vec<i32>,
        seen: &mut Seen,
        scan: &mut EnvironScan,
        visit: &mut impl FnMut(&Process),
    ) -> io::Result<()> {
        for few in pids.chunks(BATCH) {
            let mut unmarked = Vec::new();
            for pid in few {
                let process = read(*pid)?.filter(|process| process.pid != KTHREADD && process.parent != KTHREADD);
                let Some(process) = process else { continue };
                visit(&process);
                if self.may_be_marked(&process) && !self.is_in_cgroup.is_some_and(|is_in| is_in(*pid)) {
                    unmarked.push(Memory::of(&process));
                }
                seen.processes.insert(*pid, process);
            }
            let unclear = self.environs.keys(unmarked, scan, |pid, key| seen.mark(pid, key, &mut *visit))?;
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
    /// They cannot be read now, for want of descriptors or memory.
    pub(crate) fn may_any_carry(&self, key: &str, processes: &[Process]) -> io::Result<bool> {
        let of = processes.iter().filter(|process| self.may_be_marked(process)).map(Memory::of).collect();
        let (mut found, mut scan) = (false, EnvironScan::begin());
        let unclear = self.environs.keys(of, &mut scan, |_, carried| found |= carried == key)?;
        self.environs.settle(unclear, &mut scan, |_, carried| found |= carried == key)?;
        Ok(found || scan.unread().next().is_some())
    }
}

/// What one scan has seen so far.
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

/// How many processes are read before their environments are: those of one execution may replace each other fast.
const BATCH: usize = 16;

/// How many threads scan, or wait for the one that does.
const MAX_THREADS: usize = 4;

const KTHREADD: i32 = 2;
/// Up to this many new ids are read one by one.
const MAX_NEW_IDS: i32 = 1000;
/// Where processes are made so fast that a scan would never end, the next one continues.
const MAX_PASSES: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_is_shared_by_those_who_asked_before_it_began() {
        let scanner = ProcessScanner::new(None).unwrap();
        let asked = Instant::now();
        let first = scanner.scan(asked, |_| {}).unwrap();
        let pid = i32::try_from(std::process::id()).unwrap();
        assert!(first.get(pid).is_some());
        assert!(Arc::ptr_eq(&first, &scanner.scan(asked, |_| {}).unwrap()));
        assert!(!Arc::ptr_eq(&first, &scanner.scan(Instant::now(), |_| {}).unwrap()));
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
