//! What all executions of one engine share.

use std::io;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{geteuid, getpid};
use telexec_executor::{Command, OnDisconnect};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use crate::cgroup::{Cgroups, GroupLimits};
use crate::containment::ContainmentContext;
use crate::grant::Allowance;
use crate::key::Keys;
use crate::output::spool::Spool;
use crate::process::keeper::Kept;
use crate::process::signaller::Signaller;
use crate::recovery::handed_over::{self, HandedOver};
use crate::recovery::{handover, leftovers};
use crate::registry::Registry;
use crate::spawn::command_users::CommandUsers;
use crate::spawn::dynamic_user::DynamicIds;
use crate::spawn::resolve::Defaults;
use crate::spawn::{DirectSpawner, KeeperSpawner, Spawner};
use crate::state::disk::Disk;
use crate::state::journal::Journal;
use crate::state::own_directory;
use crate::streams::end::StreamThreads;
use crate::turns::Each;
use crate::workers::Workers;
use crate::{ContainmentKind, Keeper, LocalConfig};

/// How long the engine may take to take over what is in its state directory.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How many starts may be on their way at once.
pub(crate) const MAX_STARTS: usize = 64;
/// Of these, how many of one identity, including those that are held up; others are as many as there are processors, and one: more
/// would only wait for each other, and keep the processors from what other identities want.
pub(crate) const MAX_STARTS_PER_IDENTITY: usize = 16;

/// What all executions of one engine share.
pub(crate) struct Shared {
    pub(crate) defaults: Defaults,
    pub(crate) command_users: CommandUsers,
    /// `None`: there are no dynamic users.
    pub(crate) dynamic_ids: Option<DynamicIds>,
    pub(crate) spawner: Box<dyn Spawner>,
    /// What its keeper has, if there is one.
    pub(crate) kept: Option<Arc<Kept>>,
    pub(crate) registry: Registry,
    pub(crate) keys: Keys,
    pub(crate) spool: Arc<Spool>,
    pub(crate) journal: Arc<Journal>,
    /// No longer than `max_kill_grace`.
    pub(crate) kill_grace: Duration,
    pub(crate) max_kill_grace: Duration,
    pub(crate) max_disconnect_grace: Duration,
    pub(crate) default_timeout: Option<Duration>,
    pub(crate) max_timeout: Option<Duration>,
    pub(crate) max_output_bytes: u64,
    pub(crate) log_commands: bool,
    pub(crate) context: Arc<ContainmentContext>,
    pub(crate) max_executions: u32,
    /// Closed when nothing new may start.
    pub(crate) permits: Arc<Semaphore>,
    /// Threads for starts: looking a user up, entering a directory and loading a program may take long, or forever, on
    /// a network.
    pub(crate) starters: Workers,
    /// Threads for the streams of commands.
    pub(crate) stream_threads: StreamThreads,
    pub(crate) tracker: TaskTracker,
    /// Ends what runs, and refuses what comes.
    pub(crate) shutdown: CancellationToken,
    /// Cuts every grace short.
    pub(crate) hurry: CancellationToken,
    /// What ends from now on is for the next agent to see.
    pub(crate) hands_over: CancellationToken,
    /// To be continued.
    pub(crate) handed_over: Mutex<Vec<HandedOver>>,
    /// Dropped last: its directories can be removed once all executions are.
    pub(crate) cgroups: Cgroups,
}

impl Shared {
    /// A new engine, which first ends and takes over what earlier ones have left.
    ///
    /// # Errors
    /// As [`LocalExecutor::new`](crate::LocalExecutor::new).
    pub(crate) fn new(config: LocalConfig) -> io::Result<Self> {
        let disk = Disk::new()?;
        let (kept, left) = config.keeper.clone().map(Kept::new).transpose()?.unzip();
        let mut handed_over = match (&kept, left) {
            (Some(kept), Some(left)) => handed_over::read(left, kept),
            _ => Vec::new(),
        };
        let continued = handed_over::continued(&handed_over);
        let inherited_cgroups = handed_over::cgroups(&continued);
        let state_dir = config.state_dir.clone();
        disk.run_blocking(START_TIMEOUT, move || match state_dir {
            Some(state_dir) => leftovers::end_in(&own_directory(&state_dir)?, &continued),
            None => {
                leftovers::end_in_temporary(&continued);
                Ok(())
            }
        })??;
        let own = config.keeper.as_ref().map_or_else(|| geteuid().as_raw(), Keeper::uid);
        let command_users = CommandUsers::new(config.command_users.as_deref(), config.dynamic_users, own)?;
        let dynamic_ids = dynamic_ids(&config, own, &disk)?;
        let spawner: Box<dyn Spawner> = match &kept {
            Some(kept) => Box::new(KeeperSpawner::new(Arc::clone(kept))?),
            None => Box::new(DirectSpawner::new()?),
        };
        let cgroups = containment(&config, &inherited_cgroups)?;
        let registry = Registry::new(config.retention, config.max_executions_per_identity);
        let (state_dir, limits) = (config.state_dir.clone(), config.spool);
        let make = {
            let disk = disk.clone();
            move || {
                let opened = handover::open(disk, state_dir.as_deref(), limits, &mut handed_over);
                opened.map(|(spool, inherited)| (spool, inherited, handed_over))
            }
        };
        let (spool, inherited, handed_over) = disk.run_blocking(START_TIMEOUT, make)??;
        registry.inherit(inherited);
        let keys = Keys::new();
        let journal = {
            let (directory, engine) = (Arc::clone(spool.directory()), keys.engine().to_owned());
            let trees = cgroups.trees();
            disk.run_blocking(START_TIMEOUT, move || Journal::begin(directory, &engine, &trees))?
        };
        let continued = handed_over.iter().filter_map(|one| one.main);
        let context = ContainmentContext::new(
            cgroups.kind() != ContainmentKind::ProcessGroup,
            Signaller::new(kept.as_ref())?,
            continued,
        )?;
        Ok(Self {
            defaults: Defaults::new(&config, own, command_users.default.clone()),
            command_users,
            dynamic_ids,
            spawner,
            kept,
            registry,
            keys,
            journal: Arc::new(journal),
            spool,
            kill_grace: config.kill_grace.min(config.max_kill_grace),
            max_kill_grace: config.max_kill_grace,
            max_disconnect_grace: config.max_disconnect_grace,
            default_timeout: config.default_timeout,
            max_timeout: config.max_timeout,
            max_output_bytes: config.max_output_bytes,
            log_commands: config.log_commands,
            context: Arc::new(context),
            max_executions: config.max_executions,
            permits: Arc::new(Semaphore::new(config.max_executions as usize)),
            starters: Workers::with_turns("start", 1, MAX_STARTS, starts_of_identity())?,
            stream_threads: StreamThreads::new()?,
            tracker: TaskTracker::new(),
            shutdown: CancellationToken::new(),
            hurry: CancellationToken::new(),
            hands_over: CancellationToken::new(),
            handed_over: Mutex::new(handed_over),
            cgroups,
        })
    }

    /// The time that a command gets; `None`: as long as it takes.
    pub(crate) fn timeout(&self, command: &Command, allowance: &Allowance) -> Option<Duration> {
        let asked = command.timeout().or(self.default_timeout);
        [asked, self.max_timeout, allowance.timeout].into_iter().flatten().min()
    }

    /// From SIGTERM to SIGKILL.
    pub(crate) fn kill_grace(&self, command: &Command) -> Duration {
        // there is nobody left who could send its processes another signal
        if self.kept.as_ref().is_some_and(|kept| kept.lost.is_cancelled() && kept.keeper.is_of_another_user()) {
            return Duration::ZERO;
        }
        command.kill_grace().unwrap_or(self.kill_grace).min(self.max_kill_grace)
    }

    /// How long it waits for its caller after a lost connection. Zero: not at all, or as long as it takes.
    pub(crate) fn disconnect_grace(&self, on_disconnect: OnDisconnect, asked: Duration) -> Duration {
        match on_disconnect {
            OnDisconnect::Kill => asked.min(self.max_disconnect_grace),
            OnDisconnect::Detach => Duration::ZERO,
        }
    }

    /// Leaves the ended executions to the next engine, or removes all files. Blocks on the file system.
    pub(crate) fn leave(&self) {
        let directory = self.spool.directory();
        let hands_over = self.hands_over.is_cancelled();
        let left = match directory.is_temporary() {
            true => Vec::new(),
            // the keeper has the others
            false => self.registry.to_leave(|record| !hands_over || record.transcript.checkpoint().is_none()),
        };
        let write = || {
            directory.recreate()?;
            handover::write(directory.path(), &left)
        };
        // the output of what runs is there too
        match (hands_over || !left.is_empty()).then(write) {
            Some(Ok(())) => directory.leave(),
            Some(Err(error)) => {
                warn!(%error, "the next agent will not know the executions that have ended");
                directory.remove();
            }
            None => directory.remove(),
        }
    }

    /// How much is delivered of each stream of a command; 0: all.
    pub(crate) fn max_output_bytes(&self, command: &Command, allowance: &Allowance) -> u64 {
        let asked = match command.max_output_bytes() {
            0 => self.max_output_bytes,
            bytes => bytes,
        };
        match allowance.output_bytes {
            Some(most) if asked == 0 || asked > most => most,
            _ => asked,
        }
    }
}

fn starts_of_identity() -> Each {
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    Each { at_once: (processors + 1).min(MAX_STARTS_PER_IDENTITY), in_all: MAX_STARTS_PER_IDENTITY }
}

/// `own`: the user of the process that starts commands. Blocks.
fn dynamic_ids(config: &LocalConfig, own: u32, disk: &Disk) -> io::Result<Option<DynamicIds>> {
    if !config.dynamic_users {
        return Ok(None);
    }
    if own != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "dynamic users require root"));
    }
    let Some(state_dir) = config.state_dir.clone() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "dynamic users require a state directory"));
    };
    let of_ids = disk.clone();
    disk.run_blocking(START_TIMEOUT, move || DynamicIds::new(of_ids, &state_dir))?.map(Some)
}

/// The containment that the configuration asks for, or the best that works here.
fn containment(config: &LocalConfig, inherited: &[PathBuf]) -> io::Result<Cgroups> {
    let keeper = config.keeper.as_ref().and_then(Keeper::pid);
    let movable: Vec<_> = if config.may_move { keeper.into_iter().chain([getpid()]).collect() } else { Vec::new() };
    let is_delegated = config.keeper.as_ref().is_some_and(Keeper::is_of_another_user);
    let (mut cgroups, faults) = Cgroups::probe(config.containment, &movable, inherited, is_delegated);
    let kind = cgroups.kind();
    let required = match config.containment {
        Some(asked) => kind == asked,
        None => kind != ContainmentKind::ProcessGroup || !config.require_cgroup,
    };
    let faults = faults.join("; ");
    if is_delegated && kind != ContainmentKind::CgroupV2 {
        return Err(io::Error::other(format!(
            "an agent with a user of its own (agent_user) needs cgroup-v2, which does not work here: {faults}"
        )));
    }
    if !required {
        let asked = config.containment.map_or("a cgroup", ContainmentKind::as_str);
        return Err(io::Error::other(format!(
            "the configuration requires {asked}, which does not work here: {faults}"
        )));
    }
    cgroups.limit_identities(GroupLimits::of(config)).map_err(io::Error::other)?;
    if !faults.is_empty() {
        warn!(containment = kind.as_str(), reason = faults, "better containment is not available");
    }
    Ok(cgroups)
}
