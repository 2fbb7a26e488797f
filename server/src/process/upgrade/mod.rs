//! Upgrades: the programs on disk take the place of the agent that runs, and of its keeper's.

mod check;
mod error;

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use telexec_engine::{ServingAgent, send_upgrade, serving_agents};
use telexec_executor::text::error_chain;

use self::check::check_config;
pub use self::check::{check, check_as_next};
pub use self::error::UpgradeError;
use crate::Config;

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
    let state_dir = config.state_dir.as_deref().ok_or(UpgradeError::NoStateDir)?;
    let unreadable = |source| UpgradeError::StateDir { path: state_dir.to_owned(), source };
    let agents = |state_dir: &Path| serving_agents(state_dir).map_err(unreadable);
    let found = agents(state_dir)?;
    let agent = match &found[..] {
        [agent] => agent,
        [] => return Err(UpgradeError::NoAgent { path: state_dir.to_owned() }),
        several => return Err(UpgradeError::Agents { path: state_dir.to_owned(), count: several.len() }),
    };
    let pid = agent.pid();
    let keeper = agent.keeper().ok_or(UpgradeError::NoKeeper(pid))?;
    check_config(keeper, config)?;
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
