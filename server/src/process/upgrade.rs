//! Upgrades: the program on disk takes the place of the agent that runs, by its keeper.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use telexec_engine::{handover_formats, send_upgrade, serving_agents};

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
    if !agent.has_keeper() {
        return Err(UpgradeError::NoKeeper(pid));
    }
    send_upgrade(agent).map_err(|source| UpgradeError::Ask { pid, source })?;
    let patience = config.shutdown_grace.saturating_add(config.max_kill_grace);
    let until = Instant::now() + patience.saturating_add(START_TIMEOUT);
    loop {
        let now = agents(state_dir)?;
        match now.iter().find(|other| other.pid() != pid) {
            Some(next) if !now.iter().any(|other| other.pid() == pid) => return Ok(next.pid()),
            _ if Instant::now() < until => std::thread::sleep(INTERVAL),
            _ if now.is_empty() => return Err(UpgradeError::Lost(pid)),
            _ => return Err(UpgradeError::Unchanged(pid)),
        }
    }
}
