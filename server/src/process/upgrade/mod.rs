//! Upgrades: the programs on disk take the place of the agent that runs, and of its keeper's.

mod check;
mod error;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use telexec_engine::{ServingAgent, send_upgrade, serving_agents};
use telexec_executor::text::error_chain;

use self::check::check_config;
pub use self::check::{check, check_as_next};
pub use self::error::UpgradeError;
use crate::Config;
use crate::process::agent_user::restore_directories;

/// How often `telexecd upgrade` looks.
const INTERVAL: Duration = Duration::from_millis(50);
/// How long the next agent may take to serve.
const START_TIMEOUT: Duration = Duration::from_secs(30);

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
    hand_over(config, &find(config)?)
}

/// The same if anything has changed since the agent was started: its program, its keeper's, or the configuration `file`.
/// `None`: nothing has.
///
/// # Errors
/// As [`upgrade`].
pub fn upgrade_if_changed(config: &Config, file: Option<&Path>) -> Result<Option<i32>, UpgradeError> {
    let agent = find(config)?;
    let keeper = agent.keeper();
    let is_changed = [u32::try_from(agent.pid()).ok(), keeper].into_iter().flatten().any(is_replaced)
        || file.is_some_and(|file| changed_since(file, agent.start_time()));
    is_changed.then(|| hand_over(config, &agent)).transpose()
}

/// By the time of its last change of any kind (ctime of inode(7)): one that takes the place of another may be older.
fn changed_since(file: &Path, time: SystemTime) -> bool {
    let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let changed = |file: std::fs::Metadata| {
        let seconds = u64::try_from(file.ctime()).unwrap_or(0);
        Duration::new(seconds, u32::try_from(file.ctime_nsec()).unwrap_or(0))
    };
    let [of_file, of_link] = [std::fs::metadata(file), std::fs::symlink_metadata(file)];
    [of_file, of_link].into_iter().flatten().any(|file| changed(file) > since_epoch)
}

fn agents(state_dir: &Path) -> Result<Vec<ServingAgent>, UpgradeError> {
    serving_agents(state_dir).map_err(|source| UpgradeError::StateDir { path: state_dir.to_owned(), source })
}

fn find(config: &Config) -> Result<ServingAgent, UpgradeError> {
    let state_dir = config.state_dir.as_deref().ok_or(UpgradeError::NoStateDir)?;
    let mut found = agents(state_dir)?;
    match (found.pop(), found.len()) {
        (Some(agent), 0) => Ok(agent),
        (None, _) => Err(UpgradeError::NoAgent { path: state_dir.to_owned() }),
        (Some(_), others) => Err(UpgradeError::Agents { path: state_dir.to_owned(), count: others + 1 }),
    }
}

fn hand_over(config: &Config, agent: &ServingAgent) -> Result<i32, UpgradeError> {
    let state_dir = config.state_dir.as_deref().ok_or(UpgradeError::NoStateDir)?;
    let pid = agent.pid();
    let keeper = agent.keeper().ok_or(UpgradeError::NoKeeper(pid))?;
    check_config(keeper, config)?;
    // of new sockets, and what systemd has given to root: it does so at each reload of a unit with StateDirectory=
    restore_directories(config)?;
    agent.forget_refusal();
    send_upgrade(agent).map_err(|source| UpgradeError::Ask { pid, source })?;
    let patience = config.shutdown_grace.saturating_add(config.max_kill_grace);
    let until = Instant::now() + patience.saturating_add(START_TIMEOUT);
    loop {
        if let Some(reason) = agent.refusal() {
            return Err(UpgradeError::Refused { pid, reason });
        }
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

/// Says why this agent does not hand over, to who has asked for it by [`upgrade`].
pub fn refuse(config: &Config, error: &UpgradeError) {
    let found = config.state_dir.as_deref().and_then(|state_dir| serving_agents(state_dir).ok());
    let this = |agent: &&ServingAgent| agent.pid().unsigned_abs() == std::process::id();
    found.iter().flatten().find(this).into_iter().for_each(|agent| agent.refuse(&error_chain(error)));
}
