//! The keeper of an agent: the process that starts it.

use std::convert::Infallible;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use telexec_executor::text::error_chain;
use telexec_keeper::agent_user::AgentUser;
use telexec_keeper::users::{Users, write_one};
use tracing::warn;

use super::agent_user::user_to_become;
use crate::{Config, KeeperMode, KeptSockets};

const PROGRAM: &str = "telexec-keeper";
/// How long it may take to say which formats it reads: far longer than it does.
const FORMATS_TIMEOUT: Duration = Duration::from_secs(10);
/// Where packages have it, from the directory of this program.
const PACKAGED: &str = "../lib/telexec";

/// Why there is no keeper.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// It is of another version.
    #[error("{path}: reports \"{theirs}\", and this program needs \"{ours}\": install both from one package")]
    Version {
        /// The program.
        path: PathBuf,
        /// What it reports.
        theirs: String,
        /// What is needed.
        ours: String,
    },
    /// It does not say.
    #[error("{path}: does not report its version ({status}): is it telexec-keeper? {message}")]
    Failed {
        /// The program.
        path: PathBuf,
        /// How it has ended.
        status: ExitStatus,
        /// What it has written to standard error.
        message: String,
    },
    /// This program does not know where it is.
    #[error("where this program is cannot be found out, and so neither where {PROGRAM} is")]
    Place(#[source] io::Error),
    /// Another user may have written it.
    #[error("{0}: is not executed: it must belong to root, or to the owner of telexecd, and not be writable by others")]
    Untrusted(PathBuf),
    /// It cannot inherit the sockets.
    #[error("cannot pass the sockets to {PROGRAM}")]
    Sockets(#[source] io::Error),
    /// It cannot be run.
    #[error("{path}: cannot be run: install it beside telexecd, or in ../lib/telexec")]
    Run {
        /// The program.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// This program, and the keeper's.
fn programs() -> Result<(PathBuf, PathBuf), KeeperError> {
    let this = std::env::current_exe().map_err(KeeperError::Place)?;
    let beside = this.with_file_name(PROGRAM);
    let packaged = this.with_file_name(PACKAGED).join(PROGRAM);
    let path = if packaged.is_file() && !beside.is_file() { packaged } else { beside };
    Ok((this, path))
}

/// Whether an agent that no keeper has started is to have one. Blocks. Warns where root's has none, but could.
///
/// # Errors
/// It is to have one, and the keeper's program cannot be used.
pub fn decide(config: &Config) -> Result<bool, KeeperError> {
    match config.keeper {
        KeeperMode::Off => Ok(false),
        KeeperMode::Auto if user_to_become(config).is_none() && config.keeper_syslog.is_none() => {
            Ok(rustix::process::geteuid().is_root() && is_usable())
        }
        KeeperMode::On | KeeperMode::Auto => check().map(|()| true),
    }
}

fn is_usable() -> bool {
    let checked = check();
    if let Err(error) = &checked {
        let error = error_chain(error);
        warn!(
            error,
            "no keeper: if the agent crashes or is upgraded, its commands end, or run on untracked (--keeper off: without this warning)"
        );
    }
    checked.is_ok()
}

/// Checks that the keeper's program is there and of the version of this one.
fn check() -> Result<(), KeeperError> {
    let (this, path) = programs()?;
    check_owner(&this, &path)?;
    check_program(path)
}

/// Another user may have put it where it is looked for, in /tmp, say.
fn check_owner(this: &Path, path: &Path) -> Result<(), KeeperError> {
    let found = |path: &Path| path.metadata().map_err(|source| KeeperError::Run { path: path.to_owned(), source });
    let (this, keeper) = (found(this)?, found(path)?);
    let own = rustix::process::geteuid();
    // in a directory of its own the group of a user may write, as in many build trees
    let others = if own.is_root() && keeper.gid() != 0 { 0o022 } else { 0o002 };
    match [0, own.as_raw(), this.uid()].contains(&keeper.uid()) && keeper.mode() & others == 0 {
        true => Ok(()),
        false => Err(KeeperError::Untrusted(path.to_owned())),
    }
}

/// The same of the program that a running keeper would execute.
///
/// # Errors
/// It cannot take the place of this keeper's.
pub(crate) fn check_program(path: PathBuf) -> Result<(), KeeperError> {
    let output = match formats_of(&path) {
        Ok(output) => output,
        Err(source) => return Err(KeeperError::Run { path, source }),
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    let (ours, theirs) = (telexec_keeper::formats(), text(&output.stdout));
    match output.status.success() {
        true if theirs == ours => Ok(()),
        true => Err(KeeperError::Version { path, theirs, ours }),
        false => Err(KeeperError::Failed { path, status: output.status, message: text(&output.stderr) }),
    }
}

/// What it says that it reads.
fn formats_of(path: &Path) -> io::Result<Output> {
    let mut command = Command::new(path);
    command.arg(telexec_keeper::FORMATS).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (mut child, until) = (command.spawn()?, Instant::now() + FORMATS_TIMEOUT);
    while child.try_wait()?.is_none() {
        if Instant::now() >= until {
            child.kill()?;
            child.wait()?;
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.wait_with_output()
}

/// Becomes the keeper, which starts this program again with the same command line, as this user (`None`: as that of this
/// process), and holds it to these users (`None`: anyone).
/// Its agents inherit the sockets. It holds to `config` in whether commands may gain privileges, and whether their starts are logged.
///
/// # Errors
/// The keeper cannot be run; this process is as it was.
pub fn become_keeper(
    command_users: Option<&Users>,
    agent_user: Option<&AgentUser>,
    config: &Config,
    sockets: &KeptSockets,
) -> Result<Infallible, KeeperError> {
    let (this, path) = programs()?;
    let mut keeper = Command::new(&path);
    if let Some(users) = command_users {
        keeper.arg(telexec_keeper::USERS).arg(users.write());
    }
    if config.no_new_privileges {
        keeper.arg(telexec_keeper::NO_NEW_PRIVILEGES);
    }
    if let Some(socket) = &config.keeper_syslog {
        keeper.arg(telexec_keeper::SYSLOG).arg(socket);
    }
    if let Some(AgentUser { credentials, cgroups, .. }) = agent_user {
        keeper.arg(telexec_keeper::AGENT_USER).arg(write_one(credentials)).arg(cgroups);
    }
    let (name, value) = sockets.pass().map_err(KeeperError::Sockets)?;
    let source = keeper.env(name, value).arg(&this).args(std::env::args_os().skip(1)).exec();
    Err(KeeperError::Run { path, source })
}
