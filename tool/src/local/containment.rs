//! Keeping the processes of one execution together: finding, signalling and ending all of them.
//!
//! This is the "process-group" back end. Members are whatever is in the session or group of the main process, carries
//! the execution's marker in its environment, or descends from such a process. A process that leaves the session, loses
//! its parent and clears its environment, all three, is not found.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::process;
use super::processes::{self, Process};
use crate::{ExecutionId, Signal};

/// The name of this back end.
pub(super) const NAME: &str = "process-group";

/// The processes of one execution.
#[derive(Clone)]
pub(super) struct Containment {
    inner: Arc<Inner>,
}

struct Inner {
    main: Pid,
    id: ExecutionId,
    /// No process of the execution is older than its main process.
    start_ticks: u64,
    started: Instant,
    leader: Mutex<Leader>,
}

/// Whether the numbers of the session and group are known to be ours.
enum Leader {
    /// The main process is not reaped, so its id cannot be given to another.
    Held,
    /// It was reaped; a number that one of these still holds as its session or group is still ours.
    Reaped { survivors: HashSet<(i32, u64)> },
}

/// Which processes, by id and start time, were sent a signal, and what came of it.
type Done = HashMap<(i32, u64), Delivery>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Delivery {
    /// It has the signal, or has ended.
    Made,
    /// This process may not signal it.
    Refused,
}

/// What one pass over the processes found.
#[derive(Default)]
struct Sweep {
    /// Live members, each by a descriptor that can mean no other process.
    live: Vec<OwnedFd>,
    /// Live members that this process may not signal.
    refused: u32,
}

impl Containment {
    /// The processes of the execution `id`, whose main process was just started.
    pub(super) fn new(main: Pid, id: ExecutionId) -> Self {
        let start_ticks = processes::read(main.as_raw_nonzero().get()).map_or(0, |process| process.start_ticks);
        let leader = Mutex::new(Leader::Held);
        Self { inner: Arc::new(Inner { main, id, start_ticks, started: Instant::now(), leader }) }
    }

    /// How many members live.
    pub(super) async fn count(&self) -> u32 {
        self.blocking(|inner| u32::try_from(inner.members(|_| {}).len()).unwrap_or(u32::MAX)).await
    }

    /// Sends a signal to every live member.
    pub(super) async fn signal(&self, signal: Signal) {
        self.blocking(move |inner| inner.sweep(signal, &mut Done::new())).await;
    }

    /// Ends every member: SIGTERM, `grace` (cut short by `hurry`), SIGKILL. Returns once no process is left but those
    /// that this process may not signal, and how many those are.
    pub(super) async fn end(&self, grace: Duration, hurry: impl Future<Output = ()>) -> u32 {
        if !grace.is_zero() {
            tokio::select! {
                () = self.ask_to_end() => {}
                () = tokio::time::sleep(grace) => {}
                () = hurry => {}
            }
        }
        loop {
            let left = self.blocking(|inner| inner.sweep(Signal::KILL, &mut Done::new())).await;
            if left.live.is_empty() {
                return left.refused;
            }
            // a process in an uninterruptible sleep takes its time
            let _ = tokio::time::timeout(Duration::from_millis(100), all_ended(left.live)).await;
        }
    }

    /// Sends SIGTERM to every member once, also to those that appear meanwhile; returns when none is left.
    async fn ask_to_end(&self) {
        let mut done = Done::new();
        loop {
            let left;
            (left, done) = self.blocking(move |inner| (inner.sweep(Signal::TERM, &mut done), done)).await;
            if left.live.is_empty() {
                return;
            }
            // a stopped process acts on SIGTERM once it goes on
            self.signal(Signal::CONT).await;
            all_ended(left.live).await;
        }
    }

    /// How many members live, now that the main process has exited.
    pub(super) async fn survivors(&self) -> u32 {
        if self.inner.surely_alone() { 0 } else { self.count().await }
    }

    /// Waits until no member lives any more. The main process has been reaped.
    pub(super) async fn outlive(&self) {
        loop {
            let left = self.blocking(Inner::open_members).await;
            if left.live.is_empty() {
                return;
            }
            all_ended(left.live).await;
        }
    }

    /// Notes what holds the numbers of the session and group from now on. Called before the main process is reaped.
    pub(super) async fn leader_goes(&self, survivors: u32) {
        let survivors = match survivors {
            0 => HashSet::new(),
            _ => self.blocking(|inner| inner.members(|_| {}).iter().map(Process::key).collect()).await,
        };
        *self.inner.leader.lock().unwrap_or_else(PoisonError::into_inner) = Leader::Reaped { survivors };
    }

    /// Reading /proc takes milliseconds on a busy machine.
    async fn blocking<T: Default + Send + 'static>(&self, work: impl FnOnce(&Inner) -> T + Send + 'static) -> T {
        let inner = Arc::clone(&self.inner);
        tokio::task::spawn_blocking(move || work(&inner)).await.unwrap_or_default()
    }
}

impl Inner {
    /// Sends `signal` to every live member that is not `done`, until a pass finds nobody new.
    fn sweep(&self, signal: Signal, done: &mut Done) -> Sweep {
        loop {
            if signal == Signal::KILL {
                self.kill_group();
            }
            let before = done.len();
            let mut deliver = |process: &Process| {
                done.entry(process.key()).or_insert_with(|| send(process, signal));
            };
            // at once, since a process may live for less than a pass takes; then those that only their parents tell
            let members = self.members(&mut deliver);
            members.iter().for_each(deliver);
            if done.len() == before {
                let refused = |process: &&Process| done.get(&process.key()) == Some(&Delivery::Refused);
                let (refused, live): (Vec<_>, Vec<_>) = members.iter().partition(refused);
                let refused = u32::try_from(refused.len()).unwrap_or(u32::MAX);
                return Sweep { live: live.into_iter().filter_map(open).collect(), refused };
            }
        }
    }

    /// Reaches the whole group at once, so that none of it can fork out of the way.
    fn kill_group(&self) {
        let leader = self.leader.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*leader, Leader::Held) {
            let _ = rustix::process::kill_process_group(self.main, rustix::process::Signal::KILL);
        }
    }

    fn open_members(&self) -> Sweep {
        Sweep { live: self.members(|_| {}).iter().filter_map(open).collect(), refused: 0 }
    }

    /// Live members, at this moment. `visit` sees those that are known without their parents as soon as they are found.
    fn members(&self, mut visit: impl FnMut(&Process)) -> Vec<Process> {
        let numbers_are_ours = self.numbers_are_ours();
        let is_root = |process: &Process| self.is_root(process, numbers_are_ours);
        let all = processes::snapshot(self.start_ticks, |process| {
            if is_root(process) && process.start_ticks >= self.start_ticks && !process.zombie && !is_self(process) {
                visit(process);
            }
        });
        with_descendants(all, self.start_ticks, is_root)
    }

    /// The numbers of the session and group cannot have been given to a stranger.
    fn numbers_are_ours(&self) -> bool {
        match &*self.leader.lock().unwrap_or_else(PoisonError::into_inner) {
            Leader::Held => true,
            Leader::Reaped { survivors } => survivors.iter().any(|survivor| {
                processes::read(survivor.0).is_some_and(|now| now.key() == *survivor && self.has_our_number(&now))
            }),
        }
    }

    fn has_our_number(&self, process: &Process) -> bool {
        let main = self.main.as_raw_nonzero().get();
        process.session == main || process.group == main
    }

    /// Nothing that was born since the main process is a member, so it left none behind; cheap, and true only if it is
    /// certain. Process ids count up, and a young execution cannot have seen them go round.
    fn surely_alone(&self) -> bool {
        let main = self.main.as_raw_nonzero().get();
        let Some(last) = processes::last_pid() else { return false };
        self.started.elapsed() < Duration::from_millis(100)
            && (0..=FEW).contains(&(last - main))
            && (main + 1..=last).filter_map(processes::read_with_marker).all(|process| !self.is_root(&process, true))
    }

    fn is_root(&self, process: &Process, numbers_are_ours: bool) -> bool {
        (numbers_are_ours && self.has_our_number(process)) || process.marker.as_deref() == Some(self.id.as_str())
    }
}

/// Up to so many processes are looked at one by one, rather than all of the machine.
const FEW: i32 = 64;

/// The live processes that are `roots` or descend from one, no older than `since`, this process excepted.
fn with_descendants(all: Vec<Process>, since: u64, roots: impl Fn(&Process) -> bool) -> Vec<Process> {
    let young = |process: &&Process| process.start_ticks >= since && !is_self(process);
    let mut members: HashSet<i32> = all.iter().filter(young).filter(|p| roots(p)).map(|p| p.pid).collect();
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for process in all.iter().filter(young) {
        children.entry(process.parent).or_default().push(process.pid);
    }
    let mut visit: Vec<i32> = members.iter().copied().collect();
    while let Some(parent) = visit.pop() {
        let descendants = children.get(&parent).into_iter().flatten();
        visit.extend(descendants.filter(|child| members.insert(**child)));
    }
    all.into_iter().filter(|process| !process.zombie && members.contains(&process.pid)).collect()
}

/// This process is never one of its own executions, whatever its environment says.
fn is_self(process: &Process) -> bool {
    u32::try_from(process.pid) == Ok(std::process::id())
}

/// A descriptor for exactly this process; `None`: it has ended.
fn open(process: &Process) -> Option<OwnedFd> {
    let pidfd = pidfd_open(Pid::from_raw(process.pid)?, PidfdFlags::empty()).ok()?;
    // its id may have been given to another between the look at it and the open
    let still = processes::read(process.pid)?;
    (still.start_ticks == process.start_ticks && !still.zombie).then_some(pidfd)
}

/// Waits for the ends of all of these.
async fn all_ended(pidfds: Vec<OwnedFd>) {
    join_all(pidfds.into_iter().map(|pidfd| async {
        match process::watch(pidfd) {
            Ok(pidfd) => process::ended(&pidfd).await,
            // out of descriptors: look again soon
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }))
    .await;
}

fn send(process: &Process, signal: Signal) -> Delivery {
    match open(process).map(|pidfd| super::process::send(&pidfd, signal)) {
        Some(Err(error)) if error.raw_os_error() == Some(libc::EPERM) => Delivery::Refused,
        _ => Delivery::Made,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, session: i32, start_ticks: u64) -> Process {
        Process { pid, parent, group: session, session, zombie: false, start_ticks, marker: None }
    }

    #[test]
    fn members_are_roots_and_their_descendants_and_nobody_older() {
        let all = vec![
            process(10, 1, 10, 100),
            process(11, 10, 11, 101),
            process(12, 11, 12, 102),
            process(13, 1, 10, 99),
            process(14, 1, 14, 103),
        ];
        let members = with_descendants(all, 100, |p| p.session == 10);
        assert_eq!(members.iter().map(|p| p.pid).collect::<Vec<_>>(), [10, 11, 12]);
    }

    #[test]
    fn a_zombie_is_no_member_but_its_children_are() {
        let mut all = vec![process(10, 1, 10, 100), process(11, 10, 11, 100)];
        all[0].zombie = true;
        let members = with_descendants(all, 100, |p| p.pid == 10);
        assert_eq!(members.iter().map(|p| p.pid).collect::<Vec<_>>(), [11]);
    }
}
