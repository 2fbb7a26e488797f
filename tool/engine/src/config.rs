//! How an engine is configured.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::{ContainmentKind, Keeper};

/// How a [`LocalExecutor`](crate::LocalExecutor) runs commands.
#[derive(Clone, Debug)]
pub struct LocalConfig {
    /// The shell for shell text that names none. Default `bash`.
    pub shell: String,
    /// Where commands start that name no directory. Default: the home of the user that this process runs as.
    pub working_directory: Option<String>,
    /// Added to the base environment of every command; PATH here is also where programs are looked up.
    pub environment: BTreeMap<String, String>,
    /// From SIGTERM to SIGKILL, for commands that set no grace of their own. Default 2 s.
    pub kill_grace: Duration,
    /// Longer ones, asked for or not, are cut to this. Default 60 s.
    pub max_kill_grace: Duration,
    /// Longer ones ([`Command::disconnect_grace`](telexec_executor::Command::disconnect_grace)) are cut to this. Default
    /// 5 min.
    pub max_disconnect_grace: Duration,
    /// For commands that set no timeout of their own. Default: none.
    pub default_timeout: Option<Duration>,
    /// Longer timeouts, and none, are cut to this. Default: no limit.
    pub max_timeout: Option<Duration>,
    /// For each stream of commands that set no limit of their own, in bytes. Default 0: no limit.
    pub max_output_bytes: u64,
    /// How many executions may run or linger at once; more are [`telexec_executor::ExecutorError::Exhausted`]. Default
    /// 4,096.
    pub max_executions: u32,
    /// Of these, how many may be of one identity. Default: any number.
    pub max_executions_per_identity: u32,
    /// How much memory the executions of one identity may use together, in bytes and without swap. Requires cgroup v2 with the
    /// controller `memory`. Default: no limit.
    pub max_memory_bytes_per_identity: Option<u64>,
    /// How many processes and threads the executions of one identity may have together. Requires cgroup v2 with the controller
    /// `pids`. Default: three quarters of what the machine can have, where it can be enforced.
    pub max_processes_per_identity: Option<u32>,
    /// How long ended executions are remembered.
    pub retention: Retention,
    /// How much output is kept on disk, for commands that may go to the background.
    pub spool: SpoolLimits,
    /// For small files while commands run, for kept output, and for what
    /// [`LocalExecutor::leave`](crate::LocalExecutor::leave) leaves; no one else may write to it. Default: a temporary
    /// one.
    pub state_dir: Option<PathBuf>,
    /// Log the text of commands at info level instead of debug. Default: no.
    pub log_commands: bool,
    /// Keep processes together in this way only. Default: the best that works here.
    pub containment: Option<ContainmentKind>,
    /// Fail rather than do without a cgroup. Default: no.
    pub require_cgroup: bool,
    /// Let this process be moved into a cgroup `agent` below its own, if the controllers for limits need that (see "no
    /// internal processes", cgroups(7)). Default: no.
    pub may_move: bool,
    /// As whom commands may run: users by name, or by id. Also the user of this process is allowed only if it is among them;
    /// with a keeper of another user, that of this process never is, and commands that name none run as the first of them.
    /// Default: anyone.
    pub command_users: Option<Vec<String>>,
    /// Each command that names no user, or [`DYNAMIC_USER`](crate::DYNAMIC_USER), runs under a user ID that belongs to no account,
    /// with `/tmp`, `/var/tmp` and `/dev/shm` of its own, and cannot gain privileges. Only root, or a keeper that is root, can
    /// start such commands; [`try_dynamic_users`](crate::try_dynamic_users) says whether this process can. Requires
    /// [`state_dir`](Self::state_dir), where the next free ID is kept. Default: no.
    pub dynamic_users: bool,
    /// How much such a command may store in its `/tmp`, `/var/tmp` and `/dev/shm` together, in bytes; they take memory, and count
    /// against [its limit](telexec_executor::ResourceLimits) of that. Default: a quarter of the machine's memory.
    pub max_private_bytes: Option<u64>,
    /// No command gains privileges by executing a program, whether it asks for that or not; see
    /// [`Command::no_new_privileges`](telexec_executor::Command::no_new_privileges). Default: no.
    pub no_new_privileges: bool,
    /// Starts what is to run, in place of this process. An engine with one is to
    /// [continue](crate::LocalExecutor::continue_executions) what earlier ones have started, before anything else. Default: none.
    pub keeper: Option<Keeper>,
}

impl Default for LocalConfig {
    fn default() -> Self {
        Self {
            shell: "bash".into(),
            working_directory: None,
            environment: BTreeMap::new(),
            kill_grace: Duration::from_secs(2),
            max_kill_grace: Duration::from_secs(60),
            max_disconnect_grace: Duration::from_secs(300),
            default_timeout: None,
            max_timeout: None,
            max_output_bytes: 0,
            max_executions: 4096,
            max_executions_per_identity: u32::MAX,
            max_memory_bytes_per_identity: None,
            max_processes_per_identity: None,
            retention: Retention::default(),
            spool: SpoolLimits::default(),
            state_dir: None,
            log_commands: false,
            containment: None,
            require_cgroup: false,
            may_move: false,
            command_users: None,
            dynamic_users: false,
            max_private_bytes: None,
            no_new_privileges: false,
            keeper: None,
        }
    }
}

/// How long ended executions are remembered, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// From the end on. Default 1 h.
    pub age: Duration,
    /// Default 1,000. Past this and the other limits, the oldest of the identity that has the most are forgotten first.
    pub count: usize,
    /// How much memory they may take, their output in memory included. Default 64 MiB.
    pub bytes: usize,
    /// Of this, how much those of one identity may take. Default 32 MiB.
    pub bytes_per_identity: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            age: Duration::from_secs(3600),
            count: 1000,
            bytes: 64 * 1024 * 1024,
            bytes_per_identity: 32 * 1024 * 1024,
        }
    }
}

/// How much output may be kept on disk, index included, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpoolLimits {
    /// Of one execution. Default 64 MiB.
    pub execution: u64,
    /// Of those of one identity. Default 768 MiB.
    pub identity: u64,
    /// Of all. Default 1 GiB. What ended executions hold of it is given up for others, the oldest first: at the limit of an identity its
    /// own, and at this one those of the identity that has most, if that is not less than the one has for which it is done.
    pub total: u64,
}

impl Default for SpoolLimits {
    fn default() -> Self {
        Self { execution: 64 << 20, identity: 768 << 20, total: 1 << 30 }
    }
}
