//! Keeping the processes of one execution together: finding, signalling and ending all of them.
//!
//! Members are whatever is in the execution's cgroup, in the session or group of its main process, carries its key in
//! its environment, descends from such a process, or did so when it was last looked at. A cgroup ends all that is in it
//! at once and tells when it is empty, so then the rest matters only for those who were moved out of it. Without one, a
//! process that leaves the session, loses its parent and clears its environment, all three between two looks, is not
//! found; nor is one that keeps its environment from being read instead, for longer than [`DOUBT_TIME`].
//!
//! Without a cgroup, the main process is not reaped before the last member has ended, or the engine goes: so the numbers
//! of its session and group cannot be given to strangers.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use telexec_executor::{ExecutionId, Signal};
use tracing::warn;

use super::PAUSE;
use super::cgroup::{self, Leaf};
use super::children::OwnChild;
use super::key::Key;
use super::leftovers::{Journal, Note};
use super::process;
use super::processes::{self, Census, Process, all_ended};
use super::sessions::SessionNote;
use crate::Workers;

/// The processes of one execution.
#[derive(Clone)]
pub(super) struct Containment {
    inner: Arc<Inner>,
}

struct Inner {
    main: i32,
    name: Name,
    /// See [`Inner::start_ticks`].
    start_ticks: OnceLock<u64>,
    started: Instant,
    means: Arc<Means>,
    /// Members at the last look: one stays a member whatever it does to hide.
    known: Mutex<HashSet<(i32, u64)>>,
    /// The main process, while it is not reaped: the numbers of its session and group are its own.
    held: Mutex<Option<OwnChild>>,
    /// Its cgroups, until it is released.
    leaf: Mutex<Option<Arc<Leaf>>>,
    /// What lives was asked to stay.
    left_alone: AtomicBool,
    /// It may outlive its call, and the engine.
    note: Mutex<Option<Note>>,
    /// Without a cgroup.
    session: Mutex<Option<SessionNote>>,
}

/// Whose processes they are.
pub(super) struct Name {
    /// For the log.
    pub(super) id: ExecutionId,
    /// What they carry in their environment.
    pub(super) key: Key,
    /// Whose turn it is when there is much to do.
    pub(super) identity: String,
}

/// What it takes to find and end processes: of one engine, and there before anything is started.
pub(super) struct Means {
    census: Census,
    pub(super) workers: Workers,
}

impl Means {
    /// `trust_cgroups`: whoever is in the cgroup of an execution is looked for there.
    ///
    /// # Errors
    /// Threads cannot be made.
    pub(super) fn new(trust_cgroups: bool) -> io::Result<Self> {
        let workers = Workers::new("telexec-contain", WORKERS, MAX_WORKERS)?;
        Ok(Self { census: Census::new(trust_cgroups)?, workers })
    }
}

/// Threads that are there from the start.
const WORKERS: usize = 2;
/// They sleep more than they work: a freezer takes its time.
const MAX_WORKERS: usize = 16;

/// Which processes, by id and start time, were sent a signal, and what came of it.
type Done = HashMap<(i32, u64), Delivery>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Delivery {
    /// It has the signal, or has ended.
    Made,
    /// This process may not signal it.
    Refused,
}

/// What a pass over the processes found.
struct Sweep {
    /// Members that live and can be signalled.
    live: Vec<Process>,
    /// Members that live and that this process may not signal.
    refused: u32,
    /// There may be others.
    unsure: bool,
    /// There are processes that may be others, but do not answer.
    unread: bool,
}

/// The members at one moment.
struct Members {
    all: Vec<Process>,
    /// None but those that their cgroup ends.
    kept: bool,
    /// Without a cgroup: there are processes that may be members, but do not answer.
    unread: bool,
}

/// Whether processes that do not answer are members: they are asked again, but not for ever, since anyone on the machine may
/// have one.
#[derive(Default)]
struct Doubt {
    since: Option<Instant>,
}

impl Doubt {
    /// Whether there is reason to ask again, after a look since `asked` has found no member.
    fn remains(&mut self, unread: bool, asked: Instant) -> bool {
        unread && asked.saturating_duration_since(*self.since.get_or_insert(asked)) < DOUBT_TIME
    }
}

/// How long processes that do not answer are asked again.
const DOUBT_TIME: Duration = Duration::from_secs(1);

/// How long to wait before that.
const DOUBT_PAUSE: Duration = Duration::from_millis(100);

/// Who answers for the processes of an execution: if it is dropped early, since a runtime was shut down, they are ended
/// at once.
pub(super) struct Guard {
    containment: Containment,
}

impl Guard {
    /// The processes of an execution, whose main process was just started, in these cgroups.
    pub(super) fn new(main: Pid, own: OwnChild, leaf: Option<Leaf>, name: Name, means: Arc<Means>) -> Self {
        let containment = Containment {
            inner: Arc::new(Inner {
                main: main.as_raw_nonzero().get(),
                name,
                start_ticks: OnceLock::new(),
                started: Instant::now(),
                means,
                known: Mutex::default(),
                held: Mutex::new(Some(own)),
                leaf: Mutex::new(leaf.map(Arc::new)),
                left_alone: AtomicBool::new(false),
                note: Mutex::default(),
                session: Mutex::default(),
            }),
        };
        Self { containment }
    }
}

impl Deref for Guard {
    type Target = Containment;

    fn deref(&self) -> &Containment {
        &self.containment
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.containment.end_blocking();
    }
}

/// With a cgroup, looking at all processes is a precaution: so long it may take.
const LOOK_TIME: Duration = Duration::from_secs(1);

/// How long processes that do not go are waited for before they are looked at again.
const MAX_PATIENCE: Duration = Duration::from_secs(2);

/// How many times a guard tries to end processes that do not go, with a [`PAUSE`] between.
const ATTEMPTS: usize = 100;

impl Containment {
    /// How many members live, looked at no earlier than `asked`.
    pub(super) async fn count(&self, asked: Instant) -> u32 {
        let count = match self.inner.keeping_leaf() {
            Some(leaf) => self.repeat(move |_| Ok(leaf.members()?.len())).await,
            None => self.look(move |inner, _| Ok(inner.members(asked, |_| {})?.all.len())).await,
        };
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// The live members, without a cgroup. None: those that do not answer were waited for.
    async fn members(&self) -> Vec<Process> {
        let mut doubt = Doubt::default();
        loop {
            let asked = Instant::now();
            let members = self.look(|inner, asked| inner.members(asked, |_| {})).await;
            if !members.all.is_empty() || !doubt.remains(members.unread, asked) {
                return members.all;
            }
            tokio::time::sleep(DOUBT_PAUSE).await;
        }
    }

    /// Sends a signal to every live member.
    pub(super) async fn signal(&self, signal: Signal) {
        self.sweep(signal, Arc::default()).await;
    }

    /// Ends every member: SIGTERM, `grace` (cut short by `hurry`), SIGKILL. Returns once no process is left but those
    /// that this process may not signal, and how many those are. See [`Doubt`] for those that do not answer.
    pub(super) async fn end(&self, grace: Duration, hurry: impl Future<Output = ()>) -> u32 {
        let (mut patience, mut doubt) = (5 * PAUSE, Doubt::default());
        if !grace.is_zero() {
            tokio::select! {
                () = self.ask_to_end(&mut doubt) => {}
                () = tokio::time::sleep(grace) => {}
                () = hurry => {}
            }
        }
        loop {
            let asked = Instant::now();
            let left = self.sweep(Signal::KILL, Arc::default()).await;
            if left.live.is_empty() && !left.unsure {
                if !doubt.remains(left.unread, asked) {
                    return left.refused;
                }
                tokio::time::sleep(DOUBT_PAUSE).await;
                continue;
            }
            doubt = Doubt::default();
            // a process in an uninterruptible sleep takes its time, and a frozen one for ever
            if tokio::time::timeout(patience, self.all_ended(left.live.clone())).await.is_err() {
                self.thaw(left.live).await;
                patience = (2 * patience).min(MAX_PATIENCE);
            }
        }
    }

    /// Sends SIGTERM to every member once, and to those that they leave behind; returns when none is left.
    async fn ask_to_end(&self, doubt: &mut Doubt) {
        let done = Arc::default();
        loop {
            let asked = Instant::now();
            let left = self.sweep(Signal::TERM, Arc::clone(&done)).await;
            if left.live.is_empty() {
                if !doubt.remains(left.unread, asked) {
                    return;
                }
                tokio::time::sleep(DOUBT_PAUSE).await;
                continue;
            }
            *doubt = Doubt::default();
            // a stopped process acts on SIGTERM once it goes on
            self.signal(Signal::CONT).await;
            all_ended(left.live).await;
        }
    }

    /// How many members live, now that the main process has exited.
    pub(super) async fn survivors(&self) -> u32 {
        if let Some(leaf) = self.inner.keeping_leaf() {
            let alone = leaf.is_empty().unwrap_or(false);
            return if alone { 0 } else { self.count(Instant::now()).await };
        }
        let alone = match self.inner.young().unwrap_or(None) {
            Some(young) if young.is_empty() => true,
            Some(young) => self.repeat(move |inner| inner.are_strangers(&young)).await,
            None => false,
        };
        if alone { 0 } else { u32::try_from(self.members().await.len()).unwrap_or(u32::MAX) }
    }

    /// Waits until no member lives any more.
    pub(super) async fn outlive(&self) {
        if let Some(leaf) = self.inner.keeping_leaf() {
            return leaf.emptied().await;
        }
        loop {
            let left = self.members().await;
            if left.is_empty() {
                return;
            }
            all_ended(left).await;
        }
    }

    /// The kernel ended a member for want of memory; `None`: no cgroup of its own counts that.
    pub(super) fn has_run_out_of_memory(&self) -> Option<bool> {
        self.inner.leaf()?.has_run_out_of_memory()
    }

    /// The processes that live were asked to stay. Takes the main process, which has ended, from the process table, unless
    /// others are still to be found by it.
    pub(super) fn leave_alone(&self) {
        self.inner.left_alone.store(true, Ordering::Relaxed);
        if self.inner.keeping_leaf().is_some() {
            // asked while it can be
            let _ = self.inner.start_ticks();
            self.inner.reap();
        }
    }

    /// Notes its session, if no cgroup keeps it, in case the engine is killed.
    pub(super) fn note_session(&self, journal: &Journal) {
        if self.inner.keeping_leaf().is_some() {
            return;
        }
        // one that cannot be looked at is found by its environment
        if let Ok(start_ticks) = self.inner.start_ticks() {
            let note = journal.session(&self.inner.name.key, self.inner.main, start_ticks);
            *lock(&self.inner.session) = Some(note);
        }
    }

    /// It may outlive its call, and the engine if that crashes.
    pub(super) fn spare(&self, note: Note) {
        *lock(&self.inner.note) = Some(note);
    }

    /// The same, noted now in the turn of `owner`.
    pub(super) async fn outlive_call(&self, journal: &Arc<Journal>, owner: &str) {
        if lock(&self.inner.note).is_some() {
            return;
        }
        let cgroup = self.inner.leaf().and_then(|leaf| leaf.path().map(Path::to_owned));
        if let Some(note) = journal.note(owner, self.inner.name.key.clone(), cgroup).await {
            self.spare(note);
        }
    }

    /// Takes the main process, the last one, from the process table, and removes the cgroups; nothing is looked for or
    /// signalled from now on.
    pub(super) fn release(&self) {
        self.inner.reap();
        let leaf = lock(&self.inner.leaf).take();
        drop((lock(&self.inner.note).take(), lock(&self.inner.session).take()));
        self.inner.left_alone.store(false, Ordering::Relaxed);
        if let Some(leaf) = leaf {
            // the kernel may be busy with other cgroups
            drop(self.inner.means.workers.spawn(&self.inner.name.identity, move || drop(leaf)));
        }
    }

    /// Ends every member at once, without a runtime, as far as that can be done soon.
    pub(super) fn end_blocking(&self) {
        if self.inner.is_released() {
            return;
        }
        if self.inner.left_alone.load(Ordering::Relaxed) {
            // the engine goes: others are not found by the main process any more, which has ended
            return self.inner.reap();
        }
        let mut doubt = Doubt::default();
        for _ in 0..ATTEMPTS {
            let asked = Instant::now();
            match self.inner.sweep(Signal::KILL, &mut Done::new(), asked) {
                Ok(left) if left.live.is_empty() && !left.unsure && !doubt.remains(left.unread, asked) => break,
                _ => std::thread::sleep(PAUSE),
            }
        }
        self.inner.reap();
        drop(lock(&self.inner.leaf).take());
    }

    async fn thaw(&self, members: Vec<Process>) {
        self.repeat(move |_| {
            cgroup::thaw(&members);
            Ok(())
        })
        .await;
    }

    async fn all_ended(&self, members: Vec<Process>) {
        match self.inner.keeping_leaf() {
            Some(leaf) if !leaf.is_empty().unwrap_or(true) => leaf.emptied().await,
            _ => all_ended(members).await,
        }
    }

    async fn sweep(&self, signal: Signal, done: Arc<Mutex<Done>>) -> Sweep {
        let wide = self.look(move |inner, asked| inner.sweep(signal, &mut lock(&done), asked));
        if self.inner.keeping_leaf().is_none() {
            return wide.await;
        }
        if let Ok(sweep) = tokio::time::timeout(LOOK_TIME, wide).await {
            return sweep;
        }
        warn!(id = %self.inner.name.id, "looking at all processes takes too long: trusting the cgroup alone");
        self.repeat(move |inner| inner.sweep_leaf(signal, &mut Done::new())).await
    }

    /// Does what needs a look at all processes, no earlier than now: see [`Containment::repeat`].
    async fn look<T: Send + 'static>(
        &self,
        work: impl Fn(&Inner, Instant) -> io::Result<T> + Send + Sync + 'static,
    ) -> T {
        let asked = Instant::now();
        self.repeat_by(&self.inner.means.census.lookers, move |inner| work(inner, asked)).await
    }

    /// Does what takes milliseconds on a busy machine, off the runtime's threads; again and again until it can be done.
    async fn repeat<T: Send + 'static>(&self, work: impl Fn(&Inner) -> io::Result<T> + Send + Sync + 'static) -> T {
        self.repeat_by(&self.inner.means.workers, work).await
    }

    async fn repeat_by<T: Send + 'static>(
        &self,
        workers: &Workers,
        work: impl Fn(&Inner) -> io::Result<T> + Send + Sync + 'static,
    ) -> T {
        let work = Arc::new(work);
        loop {
            let (inner, work) = (Arc::clone(&self.inner), Arc::clone(&work));
            if let Ok(Ok(result)) = workers.run(&self.inner.name.identity, move || work(&inner)).await {
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
    fn sweep(&self, signal: Signal, done: &mut Done, asked: Instant) -> io::Result<Sweep> {
        // before anyone is signalled: those that only their parents tell are known from now on
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
                false => match send(process, signal) {
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
    fn sweep_leaf(&self, signal: Signal, done: &mut Done) -> io::Result<Sweep> {
        let Some(leaf) = self.keeping_leaf() else {
            return Ok(Sweep { live: Vec::new(), refused: 0, unsure: false, unread: false });
        };
        if signal == Signal::KILL {
            // before anything else that can fail
            let killed = leaf.kill()?;
            let (refused, live) =
                leaf.members()?.into_iter().partition::<Vec<_>, _>(|p| killed.refused.contains(&p.key()));
            let refused = u32::try_from(refused.len()).unwrap_or(u32::MAX);
            return Ok(Sweep { live, refused, unsure: !killed.all && refused == 0, unread: false });
        }
        let live = leaf.members()?;
        for process in &live {
            if let Entry::Vacant(entry) = done.entry(process.key()) {
                entry.insert(send(process, signal)?);
            }
        }
        Ok(Sweep { live, refused: 0, unsure: false, unread: false })
    }

    /// The cgroups, as long as the execution has some.
    fn leaf(&self) -> Option<Arc<Leaf>> {
        lock(&self.leaf).clone()
    }

    /// The cgroup that finds and ends its processes.
    fn keeping_leaf(&self) -> Option<Arc<Leaf>> {
        self.leaf().filter(|leaf| leaf.keeps())
    }

    /// There is nothing left to look for.
    fn is_released(&self) -> bool {
        lock(&self.held).is_none() && lock(&self.leaf).is_none() && !self.left_alone.load(Ordering::Relaxed)
    }

    fn reap(&self) {
        let main = lock(&self.held).take();
        if let Some(main) = main {
            main.reap();
        }
    }

    /// Reaches many at once, so that none of them can fork out of the way.
    fn kill_together(&self) -> io::Result<()> {
        if let Some(leaf) = self.keeping_leaf() {
            let _ = leaf.kill()?;
        }
        let held = lock(&self.held);
        if held.is_some()
            && let Some(main) = Pid::from_raw(self.main)
        {
            let _ = rustix::process::kill_process_group(main, rustix::process::Signal::KILL);
        }
        Ok(())
    }

    /// Live members, looked at no earlier than `asked`. `visit` sees those that are known without their parents as soon
    /// as they are found.
    fn members(&self, asked: Instant, mut visit: impl FnMut(&Process)) -> io::Result<Members> {
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
        let all = self.means.census.take(asked, |process| {
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
    /// most executions never look at all processes; 0 if it is reaped by then.
    fn start_ticks(&self) -> io::Result<u64> {
        if let Some(ticks) = self.start_ticks.get() {
            return Ok(*ticks);
        }
        // while it is held, its id is its own
        let held = lock(&self.held);
        let main = if held.is_some() { processes::read(self.main)? } else { None };
        Ok(*self.start_ticks.get_or_init(|| main.map_or(0, |process| process.start_ticks)))
    }

    /// It is a member whatever its parents are, and whether or not it is in the cgroup.
    fn is_root(&self, process: &Process) -> bool {
        let numbers_are_its_own = || lock(&self.held).is_some();
        (process.session == self.main || process.group == self.main) && numbers_are_its_own()
            || lock(&self.known).contains(&process.key())
            || process.marker.as_deref() == Some(self.name.key.as_str())
    }

    /// All that was born since the main process, if that is cheap to tell. Process ids count up, and a young execution cannot
    /// have seen them go round.
    fn young(&self) -> io::Result<Option<Vec<Process>>> {
        let last = processes::last_pid()?;
        if self.started.elapsed() > Duration::from_millis(100) || !(0..=MAX_YOUNG).contains(&(last - self.main)) {
            return Ok(None);
        }
        let mut young = Vec::new();
        for pid in self.main + 1..=last {
            young.extend(processes::read(pid)?);
        }
        // one that ended before it was looked at could have left a younger one
        Ok((processes::last_pid()? == last).then_some(young))
    }

    /// None of these, which are all that was born since the main process, is a member.
    fn are_strangers(&self, young: &[Process]) -> io::Result<bool> {
        Ok(!young.iter().any(|process| self.is_root(process))
            && !self.means.census.may_any_carry(self.name.key.as_str(), young)?)
    }
}

/// Up to so many processes are looked at one by one, rather than all of the machine.
const MAX_YOUNG: i32 = 64;

/// A panic while the lock was held leaves nothing half done here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn send(process: &Process, signal: Signal) -> io::Result<Delivery> {
    let Some(pidfd) = processes::open(process)? else { return Ok(Delivery::Made) };
    match process::send(&pidfd, signal) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(Delivery::Refused),
        _ => Ok(Delivery::Made),
    }
}
