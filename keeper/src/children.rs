//! What was started and is not reaped.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, fstatfs, openat};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use telexec_spawn::Step;
use telexec_spawn::exit::{self, Exit};

use crate::given::Given;

/// A process that an agent has asked for, or may ask for.
pub(crate) struct Child {
    /// By which the agent names it; `None`: that agent is gone.
    pub(crate) id: Option<u64>,
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
    /// While it is on its way to its program: where it reports.
    pub(crate) starting: Option<OwnedFd>,
    /// Its starter has ended before it got what it was to become.
    pub(crate) has_not_begun: bool,
    /// Its end is awaited.
    pub(crate) is_watched: bool,
    /// Why it is not on its way any more.
    pub(crate) failure: Option<(Step, i32)>,
    /// How often it was looked at in vain.
    pub(crate) looks: u32,
    /// How it has ended, and when, since the machine was booted: then it is only kept for the agent.
    pub(crate) exit: Option<(Exit, Duration)>,
    /// The agent does not need it any more.
    pub(crate) is_released: bool,
    /// All that is held for it is still needed, though it is released.
    pub(crate) holds_all: bool,
    /// When it is to be killed, unless it has ended.
    pub(crate) kill_at: Option<Instant>,
    /// It was killed, since that time had come.
    pub(crate) is_overdue: bool,
    /// It does not end with its agent.
    pub(crate) survives: bool,
    /// Nor with this process.
    pub(crate) outlives: bool,
    /// For the next agent.
    pub(crate) held: Vec<Option<Given>>,
    /// Its cgroup v2.
    pub(crate) cgroup: Option<OwnedFd>,
}

impl Child {
    /// One that has nothing else yet.
    pub(crate) fn new(pid: Pid, pidfd: OwnedFd, cgroup: Option<OwnedFd>) -> Self {
        Self {
            id: None,
            pid,
            pidfd,
            starting: None,
            has_not_begun: false,
            is_watched: false,
            failure: None,
            looks: 0,
            exit: None,
            is_released: false,
            holds_all: false,
            kill_at: None,
            is_overdue: false,
            survives: false,
            outlives: false,
            held: Vec::new(),
            cgroup,
        }
    }

    /// Ends it and what is with it, at once; as far as that can be seen from here.
    pub(crate) fn kill(&self) {
        if let Some(cgroup) = &self.cgroup {
            let file = openat(cgroup, "cgroup.kill", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
            let _ = file.and_then(|file| rustix::io::write(file, b"1"));
        }
        // it is not reaped, so its numbers are its own
        let _ = kill_process_group(self.pid, Signal::KILL);
        let _ = kill_process(self.pid, Signal::KILL);
    }

    /// The next agent is to have it.
    fn is_to_stay(&self) -> bool {
        (self.survives || self.outlives) && !self.held.is_empty() && self.starting.is_none() && self.failure.is_none()
    }

    /// It ends with its agent.
    fn is_bound(&self) -> bool {
        self.exit.is_none() && !self.is_to_stay() && (!self.outlives || self.starting.is_some())
    }

    /// How it has ended, if it has; `None`: it has not, or a debugger has not seen that yet. That is not waited for long.
    pub(crate) fn look(&mut self) -> Option<Exit> {
        self.looks += 1;
        match exit::status(self.pid) {
            Ok(exit) => Some(exit),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && self.looks < MAX_LOOKS => None,
            Err(_) => Some(unknown()),
        }
    }
}

const MAX_LOOKS: u32 = 50;
/// Until a process that is overdue is killed again: its cgroup may not have been to be had.
const KILL_DELAY: Duration = Duration::from_secs(1);

/// Of a child whose status is not to be had.
fn unknown() -> Exit {
    let none = Duration::ZERO;
    Exit { exited: false, status: 0, core_dumped: false, user_time: none, system_time: none, max_rss_bytes: 0 }
}

/// Whether it is a directory that answers, with a file that ends all in it.
pub(crate) fn is_cgroup(directory: &OwnedFd) -> bool {
    /// CGROUP2_SUPER_MAGIC of linux/magic.h.
    const MAGIC: u64 = 0x6367_7270;
    fstatfs(directory).is_ok_and(|system| u64::try_from(system.f_type) == Ok(MAGIC))
}

/// All of them, by numbers that are not used again.
#[derive(Default)]
pub(crate) struct Children {
    all: HashMap<u64, Child>,
    /// Of the agent that runs, and those that it has from an earlier one.
    by_id: HashMap<u64, u64>,
    by_pid: HashMap<i32, u64>,
    /// When they are to be killed, with their numbers.
    kill_at: BTreeSet<(Instant, u64)>,
    /// What is held of those that are reaped, by their ids.
    remembered: BTreeMap<u64, Vec<Option<Given>>>,
    next: u64,
}

/// What becomes of the children of an agent that is gone.
pub(crate) struct Lost {
    pub(crate) killed: usize,
    /// The numbers of those that have ended.
    pub(crate) ended: Vec<u64>,
}

/// What is held for one.
pub(crate) struct Held<'a> {
    pub(crate) id: u64,
    /// `None`: it is released.
    pub(crate) pid: Option<Pid>,
    pub(crate) exit: Option<(Exit, Duration)>,
    /// By their numbers.
    pub(crate) descriptors: Vec<(u8, BorrowedFd<'a>)>,
}

impl Children {
    pub(crate) fn has_id(&self, id: u64) -> bool {
        self.by_id.contains_key(&id) || self.remembered.contains_key(&id)
    }

    pub(crate) fn has_pid(&self, pid: Pid) -> bool {
        self.by_pid.contains_key(&pid.as_raw_nonzero().get())
    }

    pub(crate) fn add(&mut self, child: Child) -> u64 {
        let number = self.next;
        self.next += 1;
        self.by_pid.insert(child.pid.as_raw_nonzero().get(), number);
        if let Some(id) = child.id {
            self.by_id.insert(id, number);
        }
        self.kill_at.extend(child.kill_at.map(|at| (at, number)));
        self.all.insert(number, child);
        number
    }

    /// It is to be killed then, unless it has ended.
    pub(crate) fn set_kill_at(&mut self, number: u64, at: Instant) {
        if let Some(child) = self.all.get_mut(&number) {
            self.kill_at.extend(child.kill_at.replace(at).is_none().then_some((at, number)));
        }
    }

    /// When the first of them is to be killed.
    pub(crate) fn next_kill(&self) -> Option<Instant> {
        self.kill_at.first().map(|(at, _)| *at)
    }

    /// Kills those whose time has come, and again after a while, until they have ended; returns the processes that were not killed
    /// before.
    pub(crate) fn kill_overdue(&mut self, now: Instant) -> Vec<Pid> {
        let mut killed = Vec::new();
        while let Some(&(at, number)) = self.kill_at.first()
            && at <= now
        {
            self.kill_at.pop_first();
            let Some(child) = self.all.get_mut(&number) else { continue };
            child.kill_at = None;
            // one that has ended in time may not be seen yet
            if child.exit.is_some() || exit::status(child.pid).is_ok() {
                continue;
            }
            child.kill();
            if !std::mem::replace(&mut child.is_overdue, true) {
                killed.push(child.pid);
            }
            self.set_kill_at(number, now + KILL_DELAY);
        }
        killed
    }

    /// Gives this id to one that has none.
    pub(crate) fn name(&mut self, number: u64, id: u64) -> Option<&mut Child> {
        let child = self.all.get_mut(&number)?;
        child.id = Some(id);
        self.by_id.insert(id, number);
        Some(child)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Child> {
        self.all.values()
    }

    /// There may be processes of commands.
    pub(crate) fn has_any(&self) -> bool {
        !self.all.is_empty() || !self.remembered.is_empty()
    }

    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.all.keys().copied().collect()
    }

    /// What is held of those that are reaped, with their ids.
    pub(crate) fn remembered(&self) -> impl Iterator<Item = (u64, &Vec<Option<Given>>)> {
        self.remembered.iter().map(|(id, held)| (*id, held))
    }

    /// Holds this of one that is reaped.
    pub(crate) fn remember(&mut self, id: u64, held: Vec<Option<Given>>) {
        self.remembered.insert(id, held);
    }

    /// How many descriptors are held.
    pub(crate) fn count_held(&self) -> usize {
        let held = self.all.values().map(|child| &child.held).chain(self.remembered.values());
        held.flatten().flatten().count()
    }

    pub(crate) fn number(&self, id: u64) -> Option<u64> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn get(&mut self, number: u64) -> Option<&mut Child> {
        self.all.get_mut(&number)
    }

    /// It is reaped. Of what is held for it only the first descriptor stays.
    pub(crate) fn remove(&mut self, number: u64) -> Option<Child> {
        let mut child = self.all.remove(&number)?;
        if let Some(at) = child.kill_at {
            self.kill_at.remove(&(at, number));
        }
        self.by_pid.remove(&child.pid.as_raw_nonzero().get());
        if let Some(id) = child.id {
            self.by_id.remove(&id);
            let mut held = std::mem::take(&mut child.held);
            if !child.holds_all {
                held.truncate(1);
            }
            if child.failure.is_none() && held.iter().any(Option::is_some) {
                self.remember(id, held);
            }
        }
        Some(child)
    }

    /// Closes what is held for it, or one of that.
    pub(crate) fn forget(&mut self, id: u64, only: Option<u8>) {
        let number = self.number(id);
        let child = number.and_then(|number| self.all.get_mut(&number));
        let Some(held) = child.map(|child| &mut child.held).or(self.remembered.get_mut(&id)) else { return };
        match only {
            None => held.clear(),
            Some(number) => held.get_mut(usize::from(number)).into_iter().for_each(|held| *held = None),
        }
        if only.is_none() {
            self.remembered.remove(&id);
        }
    }

    /// Of what is held for one that is reaped only the first descriptor stays.
    pub(crate) fn hold_first(&mut self, id: u64) {
        self.remembered.get_mut(&id).into_iter().for_each(|held| held.truncate(1));
    }

    /// What the next agent is to have: the ids.
    pub(crate) fn to_hand_over(&self) -> Vec<u64> {
        let mut ids: Vec<_> = self.by_id.keys().chain(self.remembered.keys()).copied().collect();
        ids.sort_unstable();
        ids
    }

    pub(crate) fn held(&self, id: u64) -> Option<Held<'_>> {
        if let Some(held) = self.remembered.get(&id) {
            return Some(Held { id, pid: None, exit: None, descriptors: numbered(held) });
        }
        let child = self.all.get(&self.number(id)?)?;
        let descriptors = numbered(&child.held);
        Some(Held { id, pid: (!child.is_released).then_some(child.pid), exit: child.exit, descriptors })
    }

    /// The agent is gone: what is bound to it is killed.
    pub(crate) fn lose_agent(&mut self) -> Lost {
        let mut lost = Lost { killed: 0, ended: Vec::new() };
        for (number, child) in &mut self.all {
            if child.is_to_stay() {
                continue;
            }
            let id = child.id.take();
            if let Some(id) = &id {
                self.by_id.remove(id);
            }
            child.held.clear();
            if child.exit.is_some() {
                lost.ended.push(*number);
            } else if child.is_bound() {
                child.kill();
                lost.killed += usize::from(id.is_some());
            }
        }
        lost
    }

    /// Kills what ends with its agent.
    pub(crate) fn kill_lost(&self) {
        self.all.values().filter(|child| child.is_bound()).for_each(Child::kill);
    }

    /// Holds nothing any more, and kills all.
    pub(crate) fn abandon_all(&mut self) {
        self.remembered.clear();
        for child in self.all.values_mut() {
            child.held.clear();
            if child.exit.is_none() {
                child.kill();
            }
        }
    }

    /// Kills what does not outlive the agent.
    pub(crate) fn kill_bound(&self) {
        self.all.values().filter(|child| child.exit.is_none() && !child.outlives).for_each(Child::kill);
    }
}

/// With their numbers.
fn numbered(held: &[Option<Given>]) -> Vec<(u8, BorrowedFd<'_>)> {
    (0..16).zip(held).filter_map(|(number, file)| Some((number, file.as_ref()?.as_fd()))).collect()
}

/// All children of this process, also those that were given to it; `None`: the kernel does not list them.
pub(crate) fn listed() -> Option<Vec<Pid>> {
    let this = std::process::id();
    let path = format!("/proc/self/task/{this}/children");
    let file = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let text = std::io::read_to_string(std::fs::File::from(file)).ok()?;
    Some(text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect())
}
