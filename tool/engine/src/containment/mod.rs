//! Keeping the processes of one execution together: finding, signalling and ending all of them.
//!
//! Members are whatever is in the execution's cgroup, in the session or group of its main process, carries its key in
//! its environment, descends from such a process, or did so at the last scan. A cgroup ends all that is in it at once
//! and reports when it is empty, so then the rest matters only for those who were moved out of it. Without one, a
//! process that leaves the session, loses its parent and clears its environment, all three between two scans, is not
//! found; nor is one that keeps its environment from being read instead, for longer than [`DOUBT_TIMEOUT`].
//!
//! Without a cgroup, the main process is not reaped before the last member has ended, or the engine goes: so the
//! numbers of its session and group cannot be given to strangers.

mod members;

use std::io;
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use telexec_executor::{Signal, Usage};
use tracing::warn;

pub(crate) use self::members::{ContainmentContext, ExecutionName};
use self::members::{Done, ExecutionProcesses, Sweep};
use crate::cgroup::{self, Leaf};
use crate::lock::lock;
use crate::process::own::{KeptHandle, OwnChild};
use crate::process::table::{Process, all_ended};
use crate::state::journal::{Journal, Note};
use crate::wait::RETRY_DELAY;
use crate::workers::Workers;

/// The processes of one execution.
#[derive(Clone)]
pub(crate) struct Containment {
    inner: Arc<ExecutionProcesses>,
}

/// Whether to ask again for processes that do not answer, and may be members: not forever, since anyone on the machine
/// can have one.
#[derive(Default)]
struct Doubt {
    since: Option<Instant>,
}

impl Doubt {
    /// Whether there is reason to ask again, after a scan since `asked` has found no member.
    fn remains(&mut self, unread: bool, asked: Instant) -> bool {
        unread && asked.saturating_duration_since(*self.since.get_or_insert(asked)) < DOUBT_TIMEOUT
    }
}

/// How long processes that do not answer are asked again.
const DOUBT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long to wait before that.
const DOUBT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Ends the processes of an execution at once if it is dropped before they have ended, as when a runtime is shut down.
pub(crate) struct KillOnDrop {
    containment: Containment,
}

impl KillOnDrop {
    /// The processes of an execution, whose main process was started then, in these cgroups; without `own` it is reaped.
    pub(crate) fn new(
        main: Pid,
        own: Option<OwnChild>,
        leaf: Option<Leaf>,
        name: ExecutionName,
        started: Instant,
        context: Arc<ContainmentContext>,
    ) -> Self {
        let containment = Containment {
            inner: Arc::new(ExecutionProcesses {
                main: main.as_raw_nonzero().get(),
                name,
                start_ticks: OnceLock::new(),
                started,
                context,
                known: Mutex::default(),
                held: Mutex::new(own),
                survived: Mutex::default(),
                leaf: Mutex::new(leaf.map(Arc::new)),
                left_alone: AtomicBool::new(false),
                note: Mutex::default(),
                session: Mutex::default(),
            }),
        };
        Self { containment }
    }
}

impl Deref for KillOnDrop {
    type Target = Containment;

    fn deref(&self) -> &Containment {
        &self.containment
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.containment.end_blocking();
    }
}

/// How long a scan of all processes may take where there is a cgroup, and the scan is a precaution.
const SCAN_TIMEOUT: Duration = Duration::from_secs(1);

/// How long processes that do not end are waited for before they are scanned again.
const MAX_END_TIMEOUT: Duration = Duration::from_secs(2);

/// How many times a drop tries to end processes that do not end, with a [`RETRY_DELAY`] between.
const ATTEMPTS: usize = 100;

impl Containment {
    /// How many members live, scanned no earlier than `asked`.
    pub(crate) async fn count(&self, asked: Instant) -> u32 {
        let count = match self.inner.keeping_leaf() {
            Some(leaf) => self.repeat(move |_| Ok(leaf.members()?.len())).await,
            None => self.scan(move |inner, _| Ok(inner.members(asked, |_| {})?.all.len())).await,
        };
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// The live members, without a cgroup. If there are none, those that do not answer were asked again first.
    async fn members(&self) -> Vec<Process> {
        let mut doubt = Doubt::default();
        loop {
            let asked = Instant::now();
            let members = self.scan(|inner, asked| inner.members(asked, |_| {})).await;
            if !members.all.is_empty() || !doubt.remains(members.unread, asked) {
                return members.all;
            }
            tokio::time::sleep(DOUBT_RETRY_DELAY).await;
        }
    }

    /// Sends a signal to every live member.
    pub(crate) async fn signal(&self, signal: Signal) {
        self.sweep(signal, Arc::default()).await;
    }

    /// Ends every member: SIGTERM, `grace` (cut short by `hurry`), SIGKILL. Returns once no process is left but those
    /// that this process may not signal, and how many those are. See [`Doubt`] for those that do not answer.
    pub(crate) async fn end(&self, grace: Duration, hurry: impl Future<Output = ()>) -> u32 {
        let (mut timeout, mut doubt) = (5 * RETRY_DELAY, Doubt::default());
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
                tokio::time::sleep(DOUBT_RETRY_DELAY).await;
                continue;
            }
            doubt = Doubt::default();
            // a process in an uninterruptible sleep takes its time, and a frozen one forever
            if tokio::time::timeout(timeout, self.all_ended(left.live.clone())).await.is_err() {
                self.thaw(left.live).await;
                timeout = (2 * timeout).min(MAX_END_TIMEOUT);
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
                tokio::time::sleep(DOUBT_RETRY_DELAY).await;
                continue;
            }
            *doubt = Doubt::default();
            // a stopped process acts on SIGTERM once it continues
            self.signal(Signal::CONT).await;
            all_ended(left.live).await;
        }
    }

    /// How many members live, now that the main process has exited.
    pub(crate) async fn survivors(&self) -> u32 {
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
    pub(crate) async fn outlive(&self) {
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
    pub(crate) fn has_run_out_of_memory(&self) -> Option<bool> {
        self.inner.leaf()?.has_run_out_of_memory()
    }

    /// What its processes have used so far; nothing where no cgroup of its own counts it.
    pub(crate) fn usage(&self) -> Usage {
        self.inner.leaf().map(|leaf| leaf.usage()).unwrap_or_default()
    }

    /// The processes that live were asked to stay. Takes the main process, which has ended, from the process table,
    /// unless others are still to be found by it.
    pub(crate) fn leave_alone(&self) {
        self.inner.left_alone.store(true, Ordering::Relaxed);
        if self.inner.keeping_leaf().is_some() {
            // asked while it can be
            let _ = self.inner.start_ticks();
            let main = lock(&self.inner.held).take();
            *lock(&self.inner.survived) = main.and_then(OwnChild::reap_and_hold);
        }
    }

    /// Notes its session, if no cgroup keeps it, in case the engine is killed.
    pub(crate) fn note_session(&self, journal: &Journal) {
        if self.inner.keeping_leaf().is_some() {
            return;
        }
        // one that cannot be read is found by its environment
        if let Ok(start_ticks) = self.inner.start_ticks() {
            let note = journal.session(&self.inner.name.key, self.inner.main, start_ticks);
            *lock(&self.inner.session) = Some(note);
        }
    }

    /// What the keeper holds of it, while only others than the main process are left.
    pub(crate) fn survives(&self, main: KeptHandle) {
        self.inner.left_alone.store(true, Ordering::Relaxed);
        *lock(&self.inner.survived) = Some(main);
    }

    /// It may outlive its call, and the engine if that crashes.
    pub(crate) fn spare(&self, note: Note) {
        lock(&self.inner.held).iter().for_each(OwnChild::outlives);
        *lock(&self.inner.note) = Some(note);
    }

    /// The same, noted now in the turn of `owner`.
    pub(crate) async fn outlive_call(&self, journal: &Arc<Journal>, owner: &str) {
        if lock(&self.inner.note).is_some() {
            return;
        }
        let cgroup = self.inner.leaf().and_then(|leaf| leaf.path().map(Path::to_owned));
        if let Some(note) = journal.note(owner, self.inner.name.key.clone(), cgroup).await {
            self.spare(note);
        }
    }

    /// Takes the main process, the last one, from the process table, and removes the cgroups; nothing is scanned or
    /// signalled from now on.
    pub(crate) fn release(&self) {
        self.inner.reap();
        let leaf = lock(&self.inner.leaf).take();
        drop((lock(&self.inner.note).take(), lock(&self.inner.session).take(), lock(&self.inner.survived).take()));
        self.inner.left_alone.store(false, Ordering::Relaxed);
        if let Some(leaf) = leaf {
            // the kernel may be busy with other cgroups
            drop(self.inner.context.workers.spawn(&self.inner.name.identity, move || drop(leaf)));
        }
    }

    /// Ends every member at once, without a runtime, as far as that can be done soon.
    pub(crate) fn end_blocking(&self) {
        if self.inner.is_released() {
            return;
        }
        if self.inner.left_alone.load(Ordering::Relaxed) {
            // the engine ends: the ended main process need not be kept for others to be found by it
            return self.inner.reap();
        }
        let mut doubt = Doubt::default();
        for _ in 0..ATTEMPTS {
            let asked = Instant::now();
            match self.inner.sweep(Signal::KILL, &mut Done::new(), asked) {
                Ok(left) if left.live.is_empty() && !left.unsure && !doubt.remains(left.unread, asked) => break,
                _ => std::thread::sleep(RETRY_DELAY),
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
        let wide = self.scan(move |inner, asked| inner.sweep(signal, &mut lock(&done), asked));
        if self.inner.keeping_leaf().is_none() {
            return wide.await;
        }
        if let Ok(sweep) = tokio::time::timeout(SCAN_TIMEOUT, wide).await {
            return sweep;
        }
        warn!(id = %self.inner.name.id, "looking at all processes takes too long: trusting the cgroup alone");
        self.repeat(move |inner| inner.sweep_leaf(signal, &mut Done::new())).await
    }

    /// Does what needs a scan of all processes, no earlier than now: see [`Containment::repeat`].
    async fn scan<T: Send + 'static>(
        &self,
        work: impl Fn(&ExecutionProcesses, Instant) -> io::Result<T> + Send + Sync + 'static,
    ) -> T {
        let asked = Instant::now();
        self.repeat_by(&self.inner.context.scanner.threads, move |inner| work(inner, asked)).await
    }

    /// Does what takes milliseconds on a busy machine, off the runtime's threads; until it can be done.
    async fn repeat<T: Send + 'static>(
        &self,
        work: impl Fn(&ExecutionProcesses) -> io::Result<T> + Send + Sync + 'static,
    ) -> T {
        self.repeat_by(&self.inner.context.workers, work).await
    }

    async fn repeat_by<T: Send + 'static>(
        &self,
        workers: &Workers,
        work: impl Fn(&ExecutionProcesses) -> io::Result<T> + Send + Sync + 'static,
    ) -> T {
        let work = Arc::new(work);
        loop {
            let (inner, work) = (Arc::clone(&self.inner), Arc::clone(&work));
            if let Ok(Ok(result)) = workers.run(&self.inner.name.identity, move || work(&inner)).await {
                return result;
            }
            // out of descriptors or memory: nothing may be concluded from that
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }
}
