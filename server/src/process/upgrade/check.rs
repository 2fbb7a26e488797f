//! What is checked before an agent hands over: by who asks for it, by the agent, and by the program that is to take its place.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde::{Deserialize, Serialize};
use telexec_engine::{handover_formats, look_up_users};
use telexec_executor::text::error_chain;
use telexec_keeper::users::Users;
use telexec_keeper::{AGENT_USER, NO_NEW_PRIVILEGES, SYSLOG, USERS};

use super::UpgradeError;
use crate::address::ListenAddress;
use crate::listen::bound;
use crate::process::agent_user;
use crate::process::keeper::check_program;
use crate::{Config, KeeperMode, Listeners};

/// For the program that is to take an agent's place, when it checks its configuration: what that agent has.
const PREDECESSOR: &str = "TELEXEC_PREDECESSOR";

/// An agent that would hand over.
#[derive(Debug, Serialize, Deserialize)]
struct Predecessor {
    keeper: u32,
    /// Where it listens, as configured.
    listen: Vec<String>,
    state_dir: Option<PathBuf>,
    #[serde(default)]
    dynamic_users: bool,
}

impl Predecessor {
    /// This process, with this configuration.
    fn this(config: &Config) -> Self {
        let listen = config.listen.iter().chain(&config.metrics_listen).map(ToString::to_string).collect();
        // the keeper is the parent of its agent
        let keeper = rustix::process::getppid().map_or(0, |keeper| keeper.as_raw_nonzero().get());
        let dynamic_users = config.users.is_some();
        Self { keeper: keeper.unsigned_abs(), listen, state_dir: config.state_dir.clone(), dynamic_users }
    }

    /// What its keeper executes; `None`: the command line is not to be seen.
    fn keeper_program(&self) -> Option<PathBuf> {
        let program = command_line(self.keeper)?.into_iter().next()?;
        (!program.is_empty()).then(|| OsStr::from_bytes(&program).into())
    }
}

/// `None`: it may not be read.
fn command_line(process: u32) -> Option<Vec<Vec<u8>>> {
    let line = std::fs::read(format!("/proc/{process}/cmdline")).ok()?;
    Some(line.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect())
}

/// Whether the programs on disk can take the place of this agent, which has this configuration, and of its keeper's. Blocks.
///
/// # Errors
/// They cannot, and why.
pub fn check(config: &Config) -> Result<(), UpgradeError> {
    if let Some(keeper) = config.kept_by.as_ref().filter(|keeper| keeper.is_stuck()) {
        return Err(UpgradeError::Stuck(keeper.process_id()));
    }
    let this = Predecessor::this(config);
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_default();
    let name = program.to_string_lossy().into_owned();
    let run = |command: &mut Command| -> Result<Output, UpgradeError> {
        let command = command.env_remove(telexec_keeper::VARIABLE).env_remove(bound::VARIABLE).stdin(Stdio::null());
        command.output().map_err(|source| UpgradeError::Run { program: name.clone(), source })
    };
    this.keeper_program().map_or(Ok(()), check_program)?;
    let ours = handover_formats();
    let theirs = run(Command::new(&program).arg("formats"))?;
    let theirs = String::from_utf8_lossy(&theirs.stdout).trim().to_owned();
    if theirs != ours {
        return Err(UpgradeError::Formats { program: name, theirs, ours });
    }
    let predecessor = serde_json::to_string(&this).unwrap_or_default();
    let mut next = Command::new(&program);
    let checked = run(next.args(arguments).arg("--check-config").env(PREDECESSOR, predecessor))?;
    match checked.status.success() {
        true => Ok(()),
        false => Err(UpgradeError::Config { program: name, reason: reason(&checked.stderr) }),
    }
}

/// Of what the program has written, its errors, without the lines of its log.
fn reason(written: &[u8]) -> String {
    let written = String::from_utf8_lossy(written);
    let errors: Vec<_> = written.lines().filter_map(|line| line.strip_prefix("telexecd: ")).collect();
    if errors.is_empty() { written.trim().to_owned() } else { errors.join("; ") }
}

/// What an agent would refuse as the next one, with this configuration; nothing, if it is not to be one. Blocks.
///
/// # Errors
/// See [`UpgradeError`].
pub fn check_as_next(config: &Config) -> Result<(), UpgradeError> {
    let Some(text) = std::env::var_os(PREDECESSOR) else { return Ok(()) };
    let Ok(before) = serde_json::from_str::<Predecessor>(&text.to_string_lossy()) else { return Ok(()) };
    // whatever "auto" would decide, the running keeper starts it
    if config.keeper == KeeperMode::Off {
        return Err(UpgradeError::Changed("keeper"));
    }
    if config.state_dir != before.state_dir {
        return Err(UpgradeError::Changed("state_dir"));
    }
    if config.users.is_some() != before.dynamic_users {
        return Err(UpgradeError::Changed("users"));
    }
    check_settings(before.keeper, config)?;
    let is_new = |listen: &&ListenAddress| match listen {
        ListenAddress::Tcp(_) | ListenAddress::Unix(_) => !before.listen.contains(&listen.to_string()),
        // passed, or of the machine
        ListenAddress::Systemd | ListenAddress::Vsock { .. } => false,
    };
    let config = Config {
        listen: config.listen.iter().filter(is_new).cloned().collect(),
        metrics_listen: config.metrics_listen.as_ref().filter(is_new).cloned(),
        ..config.clone()
    };
    // those that it would take over
    let kept = before.listen.iter().filter_map(|listen| listen.parse().ok());
    kept.clone().try_for_each(|listen| bound::check(&listen)).map_err(UpgradeError::Listen)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(UpgradeError::Check)?;
    runtime.block_on(Listeners::bind(&config)).map(drop).map_err(UpgradeError::Listen)
}

/// What the agent, or the next one, would refuse.
pub(super) fn check_config(keeper: u32, config: &Config) -> Result<(), UpgradeError> {
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
        .map_or(Ok(()), |name| agent_user::check(config, name, None))
        .map_err(|error| invalid(&error))?;
    check_settings(keeper, config)
}

/// Whether the keeper was started with these settings. It is not known where this process may not see its command line.
fn check_settings(keeper: u32, config: &Config) -> Result<(), UpgradeError> {
    let Some(line) = command_line(keeper) else { return Ok(()) };
    let value = |flag: &str| line.iter().skip_while(|argument| **argument != flag.as_bytes()).nth(1);
    let has = |flag: &str| value(flag).map(|text| uids(&String::from_utf8_lossy(text)));
    // groups look different to each user, and those of the keeper hold
    let uids_of = |users: &Users| uids(&users.write());
    let agent_user = config.agent_user.as_ref().map(|name| look_up_users(std::slice::from_ref(name))).transpose();
    let agent_user = agent_user.map_err(UpgradeError::Users)?.map(|user| uids_of(&Users::new(user, false)));
    // a keeper that runs as that user has started the agent as itself
    let owner = std::fs::metadata(format!("/proc/{keeper}")).map_or(0, |process| process.uid());
    if has(AGENT_USER) != agent_user.filter(|uids| *uids != [owner.to_string()]) {
        return Err(UpgradeError::Changed("agent_user"));
    }
    if has(USERS) != config.allowed_users().map_err(UpgradeError::Users)?.as_ref().map(uids_of) {
        return Err(UpgradeError::Changed("command_users or users"));
    }
    if line.iter().any(|argument| **argument == *NO_NEW_PRIVILEGES.as_bytes()) != config.no_new_privileges {
        return Err(UpgradeError::Changed("no_new_privileges"));
    }
    if value(SYSLOG).map(|path| &**path) != config.keeper_syslog.as_ref().map(|path| path.as_os_str().as_bytes()) {
        return Err(UpgradeError::Changed("keeper_syslog"));
    }
    Ok(())
}

/// The ids of the users in an argument of the keeper.
fn uids(users: &str) -> Vec<String> {
    users.split(';').map(|user| user.split(':').next().unwrap_or_default().to_owned()).collect()
}
