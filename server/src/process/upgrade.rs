//! Upgrades: the program on disk takes the place of the agent that runs, by its keeper.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use telexec_engine::{handover_formats, look_up_users, send_upgrade, serving_agents};
use telexec_executor::text::error_chain;
use telexec_keeper::users::write;
use telexec_keeper::{AGENT_USER, USERS};

use super::agent_user;
use super::keeper::{KeeperError, check_program};
use crate::Config;

/// How often `telexecd upgrade` looks.
const INTERVAL: Duration = Duration::from_millis(50);
/// How long the next agent may take to serve.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Why an agent does not hand over.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// The program that this one was started as cannot be run.
    #[error("{program}: cannot be run")]
    Run {
        /// The program.
        program: String,
        /// The cause.
        source: io::Error,
    },
    /// It would not continue what runs.
    #[error(
        "{program}: does not continue what this agent has started: it reads \"{theirs}\", and this agent writes \"{ours}\""
    )]
    Formats {
        /// The program.
        program: String,
        /// What it can read.
        theirs: String,
        /// What there is.
        ours: String,
    },
    /// It would not start.
    #[error("{program}: would not start: {reason}")]
    Config {
        /// The program.
        program: String,
        /// What it says.
        reason: String,
    },
    /// The keeper's program would not continue either.
    #[error("the keeper would not hand over to its program on disk")]
    Keeper(#[from] KeeperError),
    /// A user of the configuration is not there.
    #[error("a user of the configuration cannot be looked up")]
    Users(#[source] io::Error),
    /// There is no agent to be found.
    #[error(
        "no state_dir is configured, by which the agent is found: give its --config, or send SIGUSR2 to it or its keeper"
    )]
    NoStateDir,
    /// The state directory cannot be read.
    #[error("the state directory {path} cannot be read: run this as the agent's user or root")]
    StateDir {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// None, or several.
    #[error(
        "{count} agents run with the state directory {path}, and one is expected: is this the --config of the agent?"
    )]
    Agents {
        /// The directory.
        path: PathBuf,
        /// How many.
        count: usize,
    },
    /// Nothing would take its place.
    #[error("the agent, process {0}, has no keeper (keeper = \"on\"): restart it instead")]
    NoKeeper(i32),
    /// The keeper holds to what it was started with.
    #[error("{0} has changed, which only a restart takes up: restart the agent, or undo the change")]
    Changed(&'static str),
    /// It cannot be asked.
    #[error("the agent, process {pid}, cannot be asked to hand over")]
    Ask {
        /// Its process.
        pid: i32,
        /// The cause.
        source: io::Error,
    },
    /// It has not handed over.
    #[error("process {0} goes on as the agent: its log says why")]
    Unchanged(i32),
    /// It could not be replaced.
    #[error("the agent has handed over, but its keeper, process {0}, goes on with its old program: its log says why")]
    OldKeeper(u32),
    /// Nothing serves.
    #[error("no agent has taken the place of process {0}: see its log, and that of the keeper")]
    Lost(i32),
}

impl UpgradeError {
    /// There is no agent that could hand over: it is to be restarted.
    pub fn is_not_possible(&self) -> bool {
        matches!(self, Self::NoStateDir | Self::StateDir { .. } | Self::Agents { .. } | Self::NoKeeper(_))
    }
}

/// Whether the program on disk can take the place of this one. Blocks.
///
/// # Errors
/// It cannot, and why.
pub fn check() -> Result<(), UpgradeError> {
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_default();
    let name = program.to_string_lossy().into_owned();
    let run = |command: &mut Command| -> Result<Output, UpgradeError> {
        let command = command.env_remove(telexec_keeper::VARIABLE).stdin(Stdio::null());
        command.output().map_err(|source| UpgradeError::Run { program: name.clone(), source })
    };
    keeper_program().map_or(Ok(()), check_program)?;
    let ours = handover_formats();
    let theirs = run(Command::new(&program).arg("formats"))?;
    let theirs = String::from_utf8_lossy(&theirs.stdout).trim().to_owned();
    if theirs != ours {
        return Err(UpgradeError::Formats { program: name, theirs, ours });
    }
    let checked = run(Command::new(&program).args(arguments).arg("--check-config"))?;
    let reason = String::from_utf8_lossy(&checked.stderr);
    match checked.status.success() {
        true => Ok(()),
        false => Err(UpgradeError::Config { program: name, reason: reason.trim().to_owned() }),
    }
}

/// What the keeper, which is the parent of its agent, executes; `None`: its command line is not to be seen.
fn keeper_program() -> Option<PathBuf> {
    let keeper = rustix::process::getppid()?.as_raw_nonzero();
    let line = std::fs::read(format!("/proc/{keeper}/cmdline")).ok()?;
    let program = line.split(|byte| *byte == 0).next()?;
    (!program.is_empty()).then(|| OsStr::from_bytes(program).into())
}

/// What the agent, or the next one, would refuse.
fn check_config(keeper: u32, config: &Config) -> Result<(), UpgradeError> {
    if config.listen.is_empty() {
        // it is not the agent's, but says where its state directory is
        return Ok(());
    }
    let invalid = |error: &dyn std::error::Error| UpgradeError::Config {
        program: std::env::args().next().unwrap_or_default(),
        reason: error_chain(error),
    };
    config.check().map_err(|error| invalid(&error))?;
    config
        .agent_user
        .as_deref()
        .map_or(Ok(()), |name| agent_user::check(config, name))
        .map_err(|error| invalid(&error))?;
    check_settings(keeper, config)
}

/// Whether the keeper was started with these settings. It is not known where this process may not see its command line.
fn check_settings(keeper: u32, config: &Config) -> Result<(), UpgradeError> {
    let Ok(line) = std::fs::read(format!("/proc/{keeper}/cmdline")) else { return Ok(()) };
    let line: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let has = |flag: &str| line.iter().skip_while(|argument| *argument != flag).nth(1).map(ToString::to_string);
    let wanted = |names: &[String]| look_up_users(names).map(|users| write(&users)).map_err(UpgradeError::Users);
    let agent_user = config.agent_user.as_ref().map(|name| wanted(std::slice::from_ref(name))).transpose()?;
    if has(AGENT_USER) != agent_user {
        return Err(UpgradeError::Changed("agent_user"));
    }
    if has(USERS) != config.command_users.as_deref().map(wanted).transpose()? {
        return Err(UpgradeError::Changed("command_users"));
    }
    Ok(())
}

/// Whether another program is where the one that this process runs was. Not known of another user's.
fn is_replaced(process: u32) -> bool {
    let program = std::fs::read_link(format!("/proc/{process}/exe"));
    program.is_ok_and(|program| program.as_os_str().as_bytes().ends_with(b" (deleted)"))
}

/// Asks the agent of this configuration to hand over to the program on disk, and waits until that serves. Returns its process.
/// Blocks.
///
/// # Errors
/// There is no such agent, or it does not hand over.
pub fn upgrade(config: &Config) -> Result<i32, UpgradeError> {
    let state_dir = config.state_dir.as_deref().ok_or(UpgradeError::NoStateDir)?;
    let unreadable = |source| UpgradeError::StateDir { path: state_dir.to_owned(), source };
    let agents = |state_dir: &Path| serving_agents(state_dir).map_err(unreadable);
    let found = agents(state_dir)?;
    let [agent] = &found[..] else {
        return Err(UpgradeError::Agents { path: state_dir.to_owned(), count: found.len() });
    };
    let pid = agent.pid();
    let keeper = agent.keeper().ok_or(UpgradeError::NoKeeper(pid))?;
    check_config(keeper, config)?;
    send_upgrade(agent).map_err(|source| UpgradeError::Ask { pid, source })?;
    let patience = config.shutdown_grace.saturating_add(config.max_kill_grace);
    let until = Instant::now() + patience.saturating_add(START_TIMEOUT);
    loop {
        let now = agents(state_dir)?;
        match now.iter().find(|other| other.pid() != pid && other.keeper() == Some(keeper)) {
            Some(next) if !now.iter().any(|other| other.pid() == pid) => {
                return if is_replaced(keeper) { Err(UpgradeError::OldKeeper(keeper)) } else { Ok(next.pid()) };
            }
            _ if !Path::new(&format!("/proc/{keeper}")).exists() => return Err(UpgradeError::Lost(pid)),
            _ if Instant::now() < until => std::thread::sleep(INTERVAL),
            _ if now.is_empty() => return Err(UpgradeError::Lost(pid)),
            _ => return Err(UpgradeError::Unchanged(pid)),
        }
    }
}
