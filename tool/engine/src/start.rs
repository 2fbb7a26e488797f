//! The start of one execution: from its command to a process that runs, or to nothing.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use telexec_executor::{Command, ExecutorError, OnDisconnect, SpawnError, SpawnStage};
use telexec_spawn::Credentials;
use tokio::sync::oneshot;
use tracing::warn;

use crate::cgroup::Leaf;
use crate::containment::{ExecutionName, KillOnDrop};
use crate::key::Key;
use crate::observer::MainProcess;
use crate::output::transcript::MakeRoom;
use crate::process::own::{Canceller, End, OwnChild};
use crate::recovery::unfinished::{Start, Unfinished};
use crate::registry::Record;
use crate::share::Share;
use crate::shared::Shared;
use crate::spawn::Child;
use crate::spawn::account::Account;
use crate::spawn::working_directory::Report;
use crate::state::checkpoint::Checkpoint;
use crate::state::disk::DISK_TIMEOUT;
use crate::state::journal::{self, Note};
use crate::streams::{CommandEnds, HeldFiles};
use crate::wait::{RETRY_DELAY, until};

/// How long a start waits for its turn: far longer than those before it take, unless they are stuck.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);
/// From the SIGKILL of this engine at a time limit to that of a keeper, which is for an engine that does not run.
const KEEPER_DELAY: Duration = Duration::from_secs(2);

const NOT_RESPONDING: &str =
    "the agent's keeper does not respond (is it stopped, or its cgroup frozen?), and nothing can be started without it";

/// A main process that runs.
pub(crate) struct Main {
    pub(crate) pid: rustix::process::Pid,
    pub(crate) end: End,
    pub(crate) containment: KillOnDrop,
    pub(crate) started: Instant,
    /// The same moment by the clock.
    pub(crate) start_time: SystemTime,
    /// What the OOM killer had ended in this process's own cgroup, if no other execution was there.
    pub(crate) oom_kills_before: Option<u64>,
    pub(crate) user: String,
    pub(crate) working_directory: String,
    pub(crate) report: Option<Report>,
}

/// A process that runs, and what it was started with.
struct Spawned {
    child: Child,
    /// Taken just before the process was made: it may have run for a while when its start is seen.
    started: Instant,
    start_time: SystemTime,
    containment: KillOnDrop,
    report: Option<Report>,
    user: String,
    working_directory: String,
}

/// Why there is no process.
pub(crate) enum NotStarted {
    /// Nothing of it is left.
    Failed(ExecutorError),
    /// The process is no longer awaited, and it may still be made.
    GivenUp(ExecutorError, LateStart),
}

impl<E: Into<ExecutorError>> From<E> for NotStarted {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// A start that takes too long.
pub(crate) struct LateStart {
    spawning: oneshot::Receiver<Result<Spawned, ExecutorError>>,
    child: Canceller,
}

impl LateStart {
    /// Keeps it from starting, or ends what it started; returns when nothing of it is left.
    pub(crate) async fn end(mut self) {
        let spawned = loop {
            // before it runs its program it may be stopped, or wait for a dead file system
            self.child.cancel();
            if let Ok(spawned) = tokio::time::timeout(RETRY_DELAY, &mut self.spawning).await {
                break spawned;
            }
        };
        if let Ok(Ok(Spawned { containment, .. })) = spawned {
            end_now(containment).await;
        }
    }
}

/// What a keeper is told of an execution that is to be started.
pub(crate) struct ForKeeper {
    /// From its start to SIGKILL.
    pub(crate) time_limit: Option<Duration>,
    /// Where the start is recorded.
    pub(crate) reference: Option<String>,
    pub(crate) to_save: Option<ToSave>,
}

/// What the next agent needs of an execution that is to be started.
pub(crate) struct ToSave {
    pub(crate) checkpoint: Arc<Checkpoint>,
    pub(crate) unfinished: Unfinished,
    pub(crate) held: HeldFiles,
    /// It does not end with this agent.
    pub(crate) survives: bool,
}

/// The start of one execution.
pub(crate) struct Starter<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) record: &'a Record,
    /// Of its call.
    pub(crate) deadline: Option<Instant>,
    /// Of the identity that it counts for; `None`: as it is.
    pub(crate) share: Option<Share>,
}

/// For whom it counts.
struct Caller {
    identity: String,
    share: Option<Share>,
}

impl Starter<'_> {
    /// Starts the command, with these ends of its streams.
    pub(crate) async fn start(
        &self,
        command: Command,
        ends: CommandEnds,
        for_keeper: ForKeeper,
    ) -> Result<Main, NotStarted> {
        let oom_kills_before = self.shared.is_only_one().then(|| self.shared.cgroups.own_oom_kills()).flatten();
        let Spawned { child, started, start_time, containment, report, user, working_directory } =
            self.spawn(command, ends, for_keeper).await?;
        let Child { pid, end } = child;
        let end = match end.watch() {
            Ok(end) => end,
            Err(error) => {
                end_now(containment).await;
                return Err(prepare(error).into());
            }
        };
        Ok(Main { pid, end, containment, started, start_time, oom_kills_before, user, working_directory, report })
    }

    /// Waits for its turn and for its process, no longer than the call lasts.
    async fn spawn(&self, command: Command, ends: CommandEnds, for_keeper: ForKeeper) -> Result<Spawned, NotStarted> {
        if self.shared.kept.as_ref().is_some_and(|kept| !kept.responding.responds()) {
            return Err(not_responding().into());
        }
        let given_up = self.given_up();
        tokio::pin!(given_up);
        // before its turn: where the state directory does not answer, this takes a while
        tokio::select! {
            biased;
            error = &mut given_up => return Err(error.into()),
            ready = self.shared.check_spool(&command, self.record.identity()) => ready?,
        }
        let shared = Arc::clone(self.shared);
        let (id, identity) = (self.record.id.clone(), self.record.identity().to_owned());
        let name = ExecutionName { id, key: shared.keys.next(), identity };
        let caller = Caller { identity: self.record.counts_for().to_owned(), share: self.share };
        let own = shared.spawner.expect();
        let child = own.canceller();
        let (answer, mut spawning) = oneshot::channel();
        // set by the first of the two: the thread that starts it, or the task that gives up waiting
        let begun = Arc::new(AtomicBool::new(false));
        let begins = Arc::clone(&begun);
        let start = move || {
            if begins.swap(true, Ordering::AcqRel) {
                return;
            }
            let _ = answer.send(shared.spawn(&command, name, &caller, ends, own, for_keeper));
            // for the next one, while this is not awaited
            shared.prepare(&caller.identity);
        };
        let reports = self.shared.kept.as_ref().map_or(0, |kept| kept.responding.reports());
        let turn = async {
            let turn = self.shared.starters.run_with(self.record.counts_for(), self.share.unwrap_or_default(), start);
            if tokio::time::timeout(TURN_TIMEOUT, turn).await.is_err() && !begun.load(Ordering::Acquire) {
                return if self.shared.kept.as_ref().is_some_and(|kept| kept.has_unread()) {
                    not_responding()
                } else {
                    no_thread()
                };
            }
            // the start itself sends its result, unless there is no keeper to do it
            match &self.shared.kept {
                Some(kept) => kept.does_not_respond(reports).await,
                None => std::future::pending().await,
            }
            ExecutorError::Internal(format!("{NOT_RESPONDING}; gave up waiting for the start"))
        };
        let error = tokio::select! {
            spawned = &mut spawning => {
                let spawned = spawned.map_err(|_| ExecutorError::Internal("the thread that starts it has failed".into()))?;
                return Ok(spawned?);
            }
            error = &mut given_up => error,
            error = turn => error,
        };
        match begun.swap(true, Ordering::AcqRel) {
            true => Err(NotStarted::GivenUp(given_up_late(error), LateStart { spawning, child })),
            false => Err(error.into()),
        }
    }

    async fn given_up(&self) -> ExecutorError {
        tokio::select! {
            () = until(self.deadline) => ExecutorError::DeadlineExceeded,
            // nothing is there to see it
            () = self.record.cancel.cancelled() => ExecutorError::Internal("cancelled before it was started".into()),
            () = self.shared.shutdown.cancelled() => ExecutorError::ShuttingDown,
            () = self.record.shutdown.cancelled() => ExecutorError::ShuttingDown,
        }
    }
}

impl Shared {
    /// Prepares what the next start will need.
    pub(crate) fn prepare(&self, identity: &str) {
        self.cgroups.prepare(identity, |cgroup| {
            if let (Some(kept), Ok(cgroup)) = (&self.kept, CString::new(cgroup.as_os_str().as_bytes())) {
                kept.prepare(cgroup);
            }
        });
    }

    /// There is no other live execution.
    fn is_only_one(&self) -> bool {
        self.max_executions as usize == self.permits.available_permits() + 1
    }

    /// Whether there is room for the output of a command that may run unattended.
    ///
    /// # Errors
    /// [`ExecutorError::Exhausted`].
    async fn check_spool(&self, command: &Command, identity: &str) -> Result<(), ExecutorError> {
        if !command.may_go_to_background() {
            return Ok(());
        }
        loop {
            match self.spool.full(identity).await {
                Ok(None) => return Ok(()),
                Ok(Some(full)) if self.registry.make_room(&full).await => {}
                Ok(Some(full)) => return Err(exhausted(full.reason.into())),
                Err(error) => return Err(exhausted(format!("the spool cannot be used: {error}"))),
            }
        }
    }

    /// The file in which a shell of this user reports its last directory.
    fn report(&self, key: &Key, user: Option<&Credentials>) -> Result<Report, ExecutorError> {
        let (disk, directory) = (self.spool.directory().disk().clone(), self.spool.directory().state_dir().to_owned());
        let (key, user) = (key.clone(), user.cloned());
        let made = self
            .spool
            .directory()
            .disk()
            .run_blocking(DISK_TIMEOUT, move || Report::new(disk, &directory, &key, user.as_ref()));
        Ok(made.map_err(|error| exhausted(error.to_string()))?.map_err(prepare)?)
    }

    /// Why no process could be made.
    fn refused(&self, error: SpawnError, identity: &str) -> ExecutorError {
        match self.cgroups.processes_at_limit(identity).filter(|_| error.errno == libc::EAGAIN) {
            Some(count) => ExecutorError::Exhausted {
                reason: format!(
                    "{identity} already has {count} processes and threads, the limit per caller (max_processes_per_identity)"
                ),
                retry_after: Some(Duration::from_secs(1)),
            },
            // it has not taken it in time
            None if self.kept.is_some() && error.errno == libc::ECANCELED => not_responding(),
            None => error.into(),
        }
    }

    /// With an id of its own, if it is a dynamic user.
    fn with_id(&self, account: Account) -> Result<Account, ExecutorError> {
        if !account.is_dynamic {
            return Ok(account);
        }
        // never as the user of this process
        let Some(ids) = &self.dynamic_ids else {
            return Err(ExecutorError::Internal("there are no IDs for dynamic users".into()));
        };
        let id = ids.next().map_err(|error| exhausted(format!("there is no ID for a dynamic user: {error}")))?;
        Ok(account.with_id(id))
    }

    /// Notes that it may outlive its call.
    fn note(&self, key: &Key, leaf: Option<&Leaf>) -> Option<Note> {
        let (journal, key) = (Arc::clone(&self.journal), key.clone());
        let cgroup = leaf.and_then(|leaf| leaf.path().map(Path::to_owned));
        let noted =
            self.spool.directory().disk().run_blocking(DISK_TIMEOUT, move || journal.outlives(&key, cgroup.as_deref()));
        journal::logged(noted)
    }

    /// Notes cgroups that were made again.
    fn note_restored(&self) {
        if !self.cgroups.were_restored() {
            return;
        }
        let (journal, trees) = (Arc::clone(&self.journal), self.cgroups.trees());
        let noted = self.spool.directory().disk().run_blocking(DISK_TIMEOUT, move || journal.note_cgroups(&trees));
        if let Err(error) = noted.map_err(io::Error::from).and_then(|noted| noted) {
            warn!(%error, "after a crash of this agent some of its commands would run on");
        }
    }

    /// From a command to a process: who it runs as, what it becomes, where it is kept.
    fn spawn(
        &self,
        command: &Command,
        name: ExecutionName,
        caller: &Caller,
        ends: CommandEnds,
        own: OwnChild,
        for_keeper: ForKeeper,
    ) -> Result<Spawned, ExecutorError> {
        let ForKeeper { time_limit, reference, to_save } = for_keeper;
        let account = self.defaults.account(command)?;
        self.command_users.check(&account.name, account.uid, account.is_dynamic)?;
        let account = self.with_id(account)?;
        let mut report = match command.report_working_directory() {
            // where it stood is gone with it
            _ if account.is_dynamic => None,
            true => Some(self.report(&name.key, account.credentials.as_ref())?),
            false => None,
        };
        let (user, working_directory) = (account.name.clone(), self.defaults.working_directory(command, &account));
        let mut spec = self.defaults.resolve(command, account, &name.id, &name.key, report.as_ref());
        spec.time_limit = time_limit.map(|limit| limit.saturating_add(KEEPER_DELAY));
        spec.chown = report.as_mut().and_then(|report| report.to_chown.take());
        let mut leaf = self.cgroups.leaf(&caller.identity, caller.share, &command.limits())?;
        self.note_restored();
        if self.kept.is_some() {
            spec.purpose = purpose(&name, reference.as_deref());
        }
        if let Some(leaf) = &leaf {
            (spec.cgroup, spec.cgroups) = match self.kept {
                Some(_) => leaf.entry_by_keeper().map_err(prepare)?,
                None => (CString::default(), leaf.entry().map_err(prepare)?),
            };
        }
        // before there is a process: a crash leaves none that is not noted
        let note = match command.on_disconnect() {
            OnDisconnect::Detach => self.note(&name.key, leaf.as_ref()),
            OnDisconnect::Kill => None,
        };
        let (started, start_time) = (Instant::now(), SystemTime::now());
        if let Some(ToSave { checkpoint, unfinished, held, survives }) = to_save {
            let (leaf, report) = (leaf.as_ref().map(Leaf::record), report.as_ref().map(Report::files));
            // its number is not known yet
            let main =
                MainProcess { pid: 0, start_time, user: user.clone(), working_directory: working_directory.clone() };
            let start = Start::new(name.key.to_string(), &main, started, leaf, report);
            unfinished.save(start, &checkpoint).map_err(prepare)?;
            if let OwnChild::Kept(own) = &own {
                checkpoint.is_held(own.held());
            }
            (spec.held, spec.survives) = (held, survives);
        }
        let (own, child) =
            self.spawner.spawn(&spec, ends, own).map_err(|error| self.refused(error, &caller.identity))?;
        leaf.iter_mut().for_each(Leaf::set_entered);
        let containment = KillOnDrop::new(child.pid, Some(own), leaf, name, started, Arc::clone(&self.context));
        containment.note_session(&self.journal);
        note.into_iter().for_each(|note| containment.spare(note));
        Ok(Spawned { child, started, start_time, containment, report, user, working_directory })
    }
}

/// What an execution is, in the log of a keeper.
fn purpose(name: &ExecutionName, reference: Option<&str>) -> CString {
    let ExecutionName { id, identity, .. } = name;
    let purpose = match reference {
        Some(reference) => format!("execution {id}, {reference}, of {identity}"),
        None => format!("execution {id}, of {identity}"),
    };
    CString::new(purpose.replace('\0', "\u{fffd}")).unwrap_or_default()
}

fn exhausted(reason: String) -> ExecutorError {
    ExecutorError::Exhausted { reason, retry_after: Some(Duration::from_secs(10)) }
}

/// A refusal says that nothing runs, which is not certain any more.
fn given_up_late(error: ExecutorError) -> ExecutorError {
    match error {
        ExecutorError::Exhausted { .. } => ExecutorError::Internal("its start took too long, and was given up".into()),
        error => error,
    }
}

fn not_responding() -> ExecutorError {
    exhausted(format!("{NOT_RESPONDING}; nothing ran"))
}

fn no_thread() -> ExecutorError {
    ExecutorError::Exhausted {
        reason: "there is no thread to start it, since other starts do not come to an end; nothing ran".into(),
        retry_after: Some(Duration::from_secs(1)),
    }
}

async fn end_now(containment: KillOnDrop) {
    containment.end(Duration::ZERO, std::future::pending()).await;
    containment.release();
}

/// The error that what a command needs could not be had.
pub(crate) fn prepare(error: std::io::Error) -> SpawnError {
    SpawnError {
        stage: SpawnStage::Prepare,
        subject: "the command's pipes and files".into(),
        errno: error.raw_os_error().unwrap_or(libc::EIO),
        missing_interpreter: false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};

    use super::*;
    use crate::process::children::DirectChild;
    use crate::shared::{MAX_STARTS, MAX_STARTS_PER_IDENTITY};
    use crate::spawn::{SpawnSpec, Spawner};
    use crate::{LocalConfig, LocalExecutor};
    use telexec_executor::Executor;

    /// Starts nothing, and takes until the other side of the channel is dropped.
    struct Stuck {
        held: Mutex<mpsc::Receiver<()>>,
        begun: mpsc::Sender<()>,
    }

    impl Spawner for Stuck {
        fn expect(&self) -> OwnChild {
            OwnChild::Direct(DirectChild::expect())
        }

        fn spawn(&self, _: &SpawnSpec, _: CommandEnds, _: OwnChild) -> Result<(OwnChild, Child), SpawnError> {
            self.begun.send(()).unwrap();
            let _ = self.held.lock().unwrap().recv();
            Err(prepare(io::Error::from_raw_os_error(libc::EPERM)))
        }
    }

    /// The clock advances only while nothing else does.
    #[tokio::test(start_paused = true)]
    async fn while_all_threads_are_stuck_starts_are_refused() {
        let (hold, held) = mpsc::channel();
        let (begin, begun) = mpsc::channel();
        let mut executor = LocalExecutor::new(LocalConfig::default()).unwrap();
        let stuck = Stuck { held: Mutex::new(held), begun: begin };
        Arc::get_mut(&mut executor.shared).unwrap().spawner = Box::new(stuck);
        let start = |identity: &str| {
            let (executor, command) = (executor.acting_as(identity), Command::argv(["true"]).build().unwrap());
            tokio::spawn(async move { executor.execute(command).await.err().unwrap() })
        };
        let on_their_way: Vec<_> =
            (0..MAX_STARTS).map(|n| start(&format!("{}", n / MAX_STARTS_PER_IDENTITY))).collect();
        for _ in 0..100 {
            // all of them are queued then
            tokio::task::yield_now().await;
        }
        assert_eq!(begun.iter().take(MAX_STARTS).count(), MAX_STARTS);
        let refused = start("another").await.unwrap();
        assert!(matches!(refused, ExecutorError::Exhausted { retry_after: Some(_), .. }), "{refused}");
        // from here on threads are waited for, which know no paused clock
        tokio::time::resume();
        drop(hold);
        for one in on_their_way {
            assert!(matches!(one.await.unwrap(), ExecutorError::Spawn(_)));
        }
        assert!(matches!(start("another").await.unwrap(), ExecutorError::Spawn(_)));
        assert_eq!(begun.try_iter().count(), 1, "what was refused is not begun any more");
    }
}
