//! Keeping the processes of one execution together: finding, signalling and ending all of them.
//!
//! This is the "process-group" back end. Members are whatever is in the session or group of the main process, carries
//! the execution's marker in its environment, descends from such a process, or did so when it was last looked at. A
//! process that leaves the session, loses its parent and clears its environment, all three between two looks, is not
//! found.
//!
//! The main process is not reaped before the last member has ended: so the numbers of its session and group cannot be
//! given to strangers.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::process;
use super::processes::{self, Census, Process};
use crate::{ExecutionId, Signal};

/// The name of this back end.
pub(super) const NAME: &str = "process-group";

/// When descriptors or memory run out, or a process will not go: until the next look.
const PAUSE: Duration = Duration::from_millis(20);

/// The processes of one execution.
#[derive(Clone)]
pub(super) struct Containment {
    inner: Arc<Inner>,
}

struct Inner {
    main: i32,
    id: ExecutionId,
    /// No process of the execution is older than its main process.
    start_ticks: u64,
    started: Instant,
    census: Arc<Census>,
    /// Members at the last look: one stays a member whatever it does to hide.
    known: Mutex<HashSet<(i32, u64)>>,
    /// The main process is not reaped: the numbers of its session and group are its own.
    held: Mutex<bool>,
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
struct Sweep {
    /// Members that live and can be signalled.
    live: Vec<Process>,
    /// Members that live and that this process may not signal.
    refused: u32,
}

impl Containment {
    /// The processes of the execution `id`, whose main process was just started.
    pub(super) fn new(main: Pid, id: ExecutionId, census: Arc<Census>) -> Self {
        let main = main.as_raw_nonzero().get();
        let start_ticks = processes::read(main).ok().flatten().map_or(0, |process| process.start_ticks);
        Self {
            inner: Arc::new(Inner {
                main,
                id,
                start_ticks,
                started: Instant::now(),
                census,
                known: Mutex::default(),
                held: Mutex::new(true),
            }),
        }
    }

    /// How many members live, looked at no earlier than `asked`.
    pub(super) async fn count(&self, asked: Instant) -> u32 {
        let count = self.look(move |inner| Ok(inner.members(asked, |_| {})?.len())).await;
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Sends a signal to every live member.
    pub(super) async fn signal(&self, signal: Signal) {
        self.sweep(signal, Arc::default()).await;
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
            let left = self.sweep(Signal::KILL, Arc::default()).await;
            if left.live.is_empty() {
                return left.refused;
            }
            // a process in an uninterruptible sleep takes its time
            let _ = tokio::time::timeout(5 * PAUSE, all_ended(left.live)).await;
        }
    }

    /// Sends SIGTERM to every member once, and to those that they leave behind; returns when none is left.
    async fn ask_to_end(&self) {
        let done = Arc::default();
        loop {
            let left = self.sweep(Signal::TERM, Arc::clone(&done)).await;
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
        if self.inner.surely_alone().unwrap_or(false) { 0 } else { self.count(Instant::now()).await }
    }

    /// Waits until no member lives any more.
    pub(super) async fn outlive(&self) {
        loop {
            let asked = Instant::now();
            let left = self.look(move |inner| inner.members(asked, |_| {})).await;
            if left.is_empty() {
                return;
            }
            all_ended(left).await;
        }
    }

    /// Takes the main process, the last one, from the process table; nothing is looked for or signalled from now on.
    pub(super) fn release(&self) {
        let mut held = self.inner.held();
        if std::mem::replace(&mut *held, false)
            && let Some(main) = Pid::from_raw(self.inner.main)
        {
            // it cannot fail but by someone else's having reaped it
            let _ = process::reap(main);
        }
    }

    async fn sweep(&self, signal: Signal, done: Arc<Mutex<Done>>) -> Sweep {
        self.look(move |inner| inner.sweep(signal, &mut done.lock().unwrap_or_else(PoisonError::into_inner))).await
    }

    /// Does what takes milliseconds on a busy machine, off the runtime's threads; again and again until it can be done.
    async fn look<T: Send + 'static>(&self, work: impl Fn(&Inner) -> io::Result<T> + Send + Sync + 'static) -> T {
        let work = Arc::new(work);
        loop {
            let (inner, work) = (Arc::clone(&self.inner), Arc::clone(&work));
            if let Ok(Ok(result)) = tokio::task::spawn_blocking(move || work(&inner)).await {
                return result;
            }
            // out of descriptors or memory: nothing may be concluded from that
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Inner {
    /// Sends `signal` to every live member that is not `done`. SIGKILL is sent until a pass finds nobody new; any other
    /// signal in one pass, since what a handler starts is not meant.
    fn sweep(&self, signal: Signal, done: &mut Done) -> io::Result<Sweep> {
        // before anyone is signalled: those that only their parents tell are known from now on
        self.members(Instant::now(), |_| {})?;
        loop {
            if signal == Signal::KILL {
                self.kill_group();
            }
            let before = done.len();
            let mut failed = None;
            let mut deliver = |process: &Process| match done.contains_key(&process.key()) {
                true => {}
                false => match send(process, signal) {
                    Ok(delivery) => {
                        done.insert(process.key(), delivery);
                    }
                    Err(error) => failed = Some(error),
                },
            };
            // at once, since a process may live for less than a pass takes; then the others
            let members = self.members(Instant::now(), &mut deliver)?;
            members.iter().for_each(&mut deliver);
            if let Some(error) = failed {
                return Err(error);
            }
            if signal != Signal::KILL || done.len() == before {
                let refused = |process: &Process| done.get(&process.key()) == Some(&Delivery::Refused);
                let (refused, live): (Vec<_>, Vec<_>) = members.into_iter().partition(refused);
                return Ok(Sweep { live, refused: u32::try_from(refused.len()).unwrap_or(u32::MAX) });
            }
        }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, bool> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reaches the whole group at once, so that none of it can fork out of the way.
    fn kill_group(&self) {
        let held = self.held();
        if *held && let Some(main) = Pid::from_raw(self.main) {
            let _ = rustix::process::kill_process_group(main, rustix::process::Signal::KILL);
        }
    }

    /// Live members, looked at no earlier than `asked`. `visit` sees those that are known without their parents as soon
    /// as they are found.
    fn members(&self, asked: Instant, mut visit: impl FnMut(&Process)) -> io::Result<Vec<Process>> {
        if !*self.held() {
            return Ok(Vec::new());
        }
        let all = self.census.take(asked, |process| {
            if self.is_root(process) && process.start_ticks >= self.start_ticks && !process.zombie && !is_self(process)
            {
                visit(process);
            }
        })?;
        let members = with_descendants(&all, self.start_ticks, |process| self.is_root(process));
        *self.known() = members.iter().map(Process::key).collect();
        Ok(members)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashSet<(i32, u64)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is a member whatever its parents are.
    fn is_root(&self, process: &Process) -> bool {
        process.session == self.main
            || process.group == self.main
            || process.marker.as_deref() == Some(self.id.as_str())
            || self.known().contains(&process.key())
    }

    /// Nothing that was born since the main process is a member, so it left none behind; cheap, and true only if it is
    /// certain. Process ids count up, and a young execution cannot have seen them go round.
    fn surely_alone(&self) -> io::Result<bool> {
        let last = processes::last_pid()?;
        if self.started.elapsed() > Duration::from_millis(100) || !(0..=FEW).contains(&(last - self.main)) {
            return Ok(false);
        }
        for pid in self.main + 1..=last {
            if processes::read_with_marker(pid)?.is_some_and(|process| self.is_root(&process)) {
                return Ok(false);
            }
        }
        // one that ended before it was looked at could have left a younger one
        Ok(processes::last_pid()? == last)
    }
}

/// Up to so many processes are looked at one by one, rather than all of the machine.
const FEW: i32 = 64;

/// The live processes that are `roots` or descend from one, no older than `since`, this process excepted.
fn with_descendants(all: &[Process], since: u64, roots: impl Fn(&Process) -> bool) -> Vec<Process> {
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
    all.iter().filter(|process| !process.zombie && members.contains(&process.pid)).cloned().collect()
}

/// This process is never one of its own executions, whatever its environment says.
fn is_self(process: &Process) -> bool {
    u32::try_from(process.pid) == Ok(std::process::id())
}

/// A descriptor for exactly this process; `None`: it has ended.
fn open(process: &Process) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = Pid::from_raw(process.pid) else { return Ok(None) };
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(Errno::SRCH) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // its id may have been given to another between the look at it and the open
    let now = processes::read(process.pid)?;
    Ok(now.filter(|now| now.key() == process.key() && !now.zombie).map(|_| pidfd))
}

fn send(process: &Process, signal: Signal) -> io::Result<Delivery> {
    let Some(pidfd) = open(process)? else { return Ok(Delivery::Made) };
    match process::send(&pidfd, signal) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(Delivery::Refused),
        _ => Ok(Delivery::Made),
    }
}

/// Waits for the ends of all of these.
async fn all_ended(processes: Vec<Process>) {
    join_all(processes.iter().map(|process| async {
        match open(process).and_then(|pidfd| pidfd.map(process::watch).transpose()) {
            Ok(Some(pidfd)) => process::ended(&pidfd).await,
            Ok(None) => {}
            // out of descriptors: look again soon
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }))
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, session: i32, start_ticks: u64) -> Process {
        Process { pid, parent, group: session, session, zombie: false, start_ticks, marker: None }
    }

    fn pids(members: &[Process]) -> Vec<i32> {
        members.iter().map(|process| process.pid).collect()
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
        assert_eq!(pids(&with_descendants(&all, 100, |p| p.session == 10)), [10, 11, 12]);
    }

    #[test]
    fn a_zombie_is_no_member_but_its_children_are() {
        let mut all = [process(10, 1, 10, 100), process(11, 10, 11, 100)];
        all[0].zombie = true;
        assert_eq!(pids(&with_descendants(&all, 100, |p| p.pid == 10)), [11]);
    }
}
