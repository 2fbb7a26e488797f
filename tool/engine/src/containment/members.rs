//! Finding and signalling the processes of one execution.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use telexec_executor::{ExecutionId, Signal};

use crate::cgroup::{self, Leaf};
use crate::key::Key;
use crate::lock::lock;
use crate::process::own::{KeptHandle, OwnChild};
use crate::process::scanner::ProcessScanner;
use crate::process::signaller::Signaller;
use crate::process::table::{self, Process};
use crate::state::journal::Note;
use crate::state::sessions::SessionNote;
use crate::workers::Workers;

/// What all handles of one execution's processes share.
pub(super) struct ExecutionProcesses {
    pub(super) main: i32,
    pub(super) name: ExecutionName,
    /// See [`ExecutionProcesses::start_ticks`].
    pub(super) start_ticks: OnceLock<u64>,
    pub(super) started: Instant,
    pub(super) context: Arc<ContainmentContext>,
    /// Members at the last scan: one stays a member whatever it does to hide.
    pub(super) known: Mutex<HashSet<(i32, u64)>>,
    /// The main process, while it is not reaped: the numbers of its session and group are its own.
    pub(super) held: Mutex<Option<OwnChild>>,
    /// What the keeper holds of a main process that is reaped, while others are left.
    pub(super) survived: Mutex<Option<KeptHandle>>,
    /// Its cgroups, until it is released.
    pub(super) leaf: Mutex<Option<Arc<Leaf>>>,
    /// The processes that live were asked to stay.
    pub(super) left_alone: AtomicBool,
    /// It may outlive its call, and the engine.
    pub(super) note: Mutex<Option<Note>>,
    /// Without a cgroup.
    pub(super) session: Mutex<Option<SessionNote>>,
}

/// Whose processes they are.
pub(crate) struct ExecutionName {
    /// For the log.
    pub(crate) id: ExecutionId,
    /// What they carry in their environment.
    pub(crate) key: Key,
    /// Whose turn it is when there is much to do.
    pub(crate) identity: String,
}

/// What finding and ending processes takes: one for each engine, made before anything is started.
pub(crate) struct ContainmentContext {
    pub(super) scanner: ProcessScanner,
    pub(super) signaller: Signaller,
    pub(crate) workers: Workers,
}

impl ContainmentContext {
    /// `trust_cgroups`: processes in the cgroup of an execution are found there. Those of executions whose main processes
    /// are `continued` may be older than this one.
    ///
    /// # Errors
    /// Threads cannot be made.
    pub(crate) fn new(
        trust_cgroups: bool,
        signaller: Signaller,
        continued: impl Iterator<Item = Pid>,
    ) -> io::Result<Self> {
        let is_in_cgroup: Option<fn(i32) -> bool> = if trust_cgroups { Some(cgroup::keeps) } else { None };
        let workers = Workers::new("telexec-contain", WORKERS, MAX_WORKERS)?;
        let started = |main: Pid| table::read(main.as_raw_nonzero().get()).ok()?.map(|main| main.start_ticks);
        let since = continued.filter_map(started).min().unwrap_or(u64::MAX);
        Ok(Self { scanner: ProcessScanner::new(is_in_cgroup)?.since(since), signaller, workers })
    }
}

/// Threads that are there from the start.
const WORKERS: usize = 2;
/// They sleep more than they work: a freezer takes its time.
const MAX_WORKERS: usize = 16;

/// Which processes, by id and start time, were sent a signal, and what came of it.
pub(super) type Done = HashMap<(i32, u64), Delivery>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    /// It has the signal, or has ended.
    Made,
    /// This process may not signal it.
    Refused,
}

/// What a pass over the processes found.
pub(super) struct Sweep {
    /// Members that live and can be signalled.
    pub(super) live: Vec<Process>,
    /// How many members live that this process may not signal.
    pub(super) refused: u32,
    /// There may be others.
    pub(super) unsure: bool,
    /// There are processes that do not answer, and may be members.
    pub(super) unread: bool,
}

/// The members at one moment.
pub(super) struct Members {
    pub(super) all: Vec<Process>,
    /// All of them are in their cgroup, which ends them.
    pub(super) kept: bool,
    /// Without a cgroup: there are processes that do not answer, and may be members.
    pub(super) unread: bool,
}

impl ExecutionProcesses {
    /// Sends `signal` to every live member that is not `done`. SIGKILL is sent until a pass finds none that is new; any other
    /// signal in one pass, since it is not meant for what a handler starts.
    pub(super) fn sweep(&self, signal: Signal, done: &mut Done, asked: Instant) -> io::Result<Sweep> {
        // before any is signalled: those that only their parents identify are known from now on
        let members = self.members(asked, |_| {})?;
        if members.kept {
            return self.sweep_leaf(signal, done);
        }
        loop {
            if signal == Signal::KILL {
                self.kill_together()?;
            }
            let before = done.len();
            let mut failed = None;
            let mut deliver = |process: &Process| match done.contains_key(&process.key()) {
                true => {}
                false => match self.send(process, signal) {
                    Ok(delivery) => {
                        done.insert(process.key(), delivery);
                    }
                    Err(error) => failed = Some(error),
                },
            };
            // at once, since a process may live for less than a pass takes; then the others
            let Members { all, unread, .. } = self.members(Instant::now(), &mut deliver)?;
            all.iter().for_each(&mut deliver);
            if let Some(error) = failed {
                return Err(error);
            }
            if signal != Signal::KILL || done.len() == before {
                let refused = |process: &Process| done.get(&process.key()) == Some(&Delivery::Refused);
                let (refused, live): (Vec<_>, Vec<_>) = all.into_iter().partition(refused);
                let refused = u32::try_from(refused.len()).unwrap_or(u32::MAX);
                return Ok(Sweep { live, refused, unsure: false, unread });
            }
        }
    }

    /// The same for those in the cgroup alone.
    pub(super) fn sweep_leaf(&self, signal: Signal, done: &mut Done) -> io::Result<Sweep> {
        let Some(leaf) = self.keeping_leaf() else {
            return Ok(Sweep { live: Vec::new(), refused: 0, unsure: false, unread: false });
        };
        if signal == Signal::KILL {
            // before anything else that can fail
            let killed = leaf.kill(&self.context.signaller)?;
            let (refused, live) =
                leaf.members()?.into_iter().partition::<Vec<_>, _>(|p| killed.refused.contains(&p.key()));
            let refused = u32::try_from(refused.len()).unwrap_or(u32::MAX);
            return Ok(Sweep { live, refused, unsure: !killed.all && refused == 0, unread: false });
        }
        let live = leaf.members()?;
        for process in &live {
            if let Entry::Vacant(entry) = done.entry(process.key()) {
                entry.insert(self.send(process, signal)?);
            }
        }
        Ok(Sweep { live, refused: 0, unsure: false, unread: false })
    }

    fn send(&self, process: &Process, signal: Signal) -> io::Result<Delivery> {
        let Some(pidfd) = table::open(process)? else { return Ok(Delivery::Made) };
        match self.context.signaller.send(process, &pidfd, signal) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(Delivery::Refused),
            _ => Ok(Delivery::Made),
        }
    }

    /// The cgroups, as long as the execution has some.
    pub(super) fn leaf(&self) -> Option<Arc<Leaf>> {
        lock(&self.leaf).clone()
    }

    /// The cgroup that finds and ends its processes.
    pub(super) fn keeping_leaf(&self) -> Option<Arc<Leaf>> {
        self.leaf().filter(|leaf| leaf.keeps())
    }

    /// No process is left to be found.
    pub(super) fn is_released(&self) -> bool {
        lock(&self.held).is_none() && lock(&self.leaf).is_none() && !self.left_alone.load(Ordering::Relaxed)
    }

    pub(super) fn reap(&self) {
        let main = lock(&self.held).take();
        if let Some(main) = main {
            main.reap();
        }
    }

    /// Kills many at once, so that none of them can fork out of the way.
    pub(super) fn kill_together(&self) -> io::Result<()> {
        if let Some(leaf) = self.keeping_leaf() {
            let _ = leaf.kill(&self.context.signaller)?;
        }
        let held = lock(&self.held);
        if held.is_some()
            && let Some(main) = Pid::from_raw(self.main)
        {
            let _ = rustix::process::kill_process_group(main, rustix::process::Signal::KILL);
        }
        Ok(())
    }

    /// Live members, scanned no earlier than `asked`. `visit` gets those that are known without their parents as soon
    /// as they are found.
    pub(super) fn members(&self, asked: Instant, mut visit: impl FnMut(&Process)) -> io::Result<Members> {
        let leaf = self.keeping_leaf();
        if self.is_released() {
            return Ok(Members { all: Vec::new(), kept: true, unread: false });
        }
        let in_leaf = match &leaf {
            Some(leaf) => leaf.members()?,
            None => Vec::new(),
        };
        let in_leaf: HashSet<_> = in_leaf.iter().map(Process::key).collect();
        let born = self.start_ticks()?;
        let is_root = |process: &Process| in_leaf.contains(&process.key()) || self.is_root(process);
        let all = self.context.scanner.scan(asked, |process| {
            if is_root(process) && process.start_ticks >= born && !process.zombie && !process.is_self() {
                visit(process);
            }
        })?;
        let known: Vec<_> = lock(&self.known).iter().chain(&in_leaf).copied().collect();
        let known = known.into_iter().filter_map(|(pid, _)| all.get(pid));
        let related = all.in_session_or_group(self.main).chain(all.marked(self.name.key.as_str())).chain(known);
        let members = all.with_descendants(related.filter(|process| is_root(process)), born);
        let known: HashSet<_> = members.iter().map(Process::key).collect();
        let kept = leaf.is_some() && members.iter().all(|process| in_leaf.contains(&process.key()));
        let may_be =
            |process: &Process| process.start_ticks >= born && !process.is_self() && !known.contains(&process.key());
        let unread = leaf.is_none() && all.unread().any(may_be);
        *lock(&self.known) = known;
        Ok(Members { all: members, kept, unread })
    }

    /// When the main process was born: no process of the execution is older. Read when it is first asked for, since
    /// most executions never scan all processes; 0 if it is reaped by then.
    pub(super) fn start_ticks(&self) -> io::Result<u64> {
        if let Some(ticks) = self.start_ticks.get() {
            return Ok(*ticks);
        }
        // while it is held, its id is its own
        let held = lock(&self.held);
        let main = if held.is_some() { table::read(self.main)? } else { None };
        Ok(*self.start_ticks.get_or_init(|| main.map_or(0, |process| process.start_ticks)))
    }

    /// It is a member whatever its parents are, and whether or not it is in the cgroup.
    pub(super) fn is_root(&self, process: &Process) -> bool {
        let numbers_are_its_own = || lock(&self.held).is_some();
        (process.session == self.main || process.group == self.main) && numbers_are_its_own()
            || lock(&self.known).contains(&process.key())
            || process.marker.as_deref() == Some(self.name.key.as_str())
    }

    /// All that was born since the main process, if that is cheap to find out. Process ids count up, and do not wrap
    /// round during the time of a young execution.
    pub(super) fn young(&self) -> io::Result<Option<Vec<Process>>> {
        let last = table::last_pid()?;
        if self.started.elapsed() > Duration::from_millis(100) || !(0..=MAX_YOUNG).contains(&(last - self.main)) {
            return Ok(None);
        }
        let mut young = Vec::new();
        for pid in self.main + 1..=last {
            young.extend(table::read(pid)?);
        }
        // one that ended before it was read could have left a younger one
        Ok((table::last_pid()? == last).then_some(young))
    }

    /// None of these, which are all that was born since the main process, is a member.
    pub(super) fn are_strangers(&self, young: &[Process]) -> io::Result<bool> {
        Ok(!young.iter().any(|process| self.is_root(process))
            && !self.context.scanner.may_any_carry(self.name.key.as_str(), young)?)
    }
}

/// Up to this many processes are read one by one, rather than all of the machine.
const MAX_YOUNG: i32 = 64;
