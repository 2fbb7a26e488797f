//! As whom commands may run.

use std::collections::BTreeSet;
use std::io;

use nix::unistd::geteuid;
use telexec_executor::ExecutorError;
use telexec_keeper::users::{DYNAMIC, Users};
use telexec_spawn::Credentials;

use super::account::Account;

/// The users that commands may run as, by id, since one may have several names.
pub(crate) struct CommandUsers {
    /// `None`: anyone.
    allowed: Option<BTreeSet<u32>>,
    /// The agent's user, if another one starts commands.
    agent: Option<u32>,
    /// That of commands that name none.
    pub(crate) default: Account,
}

impl CommandUsers {
    /// `names`: `None` is anyone. `dynamic`: commands that name none get a dynamic user. `own`: the user of the process that starts
    /// commands.
    ///
    /// # Errors
    /// One of them is not there, or has the ID of a dynamic user.
    pub(crate) fn new(names: Option<&[String]>, dynamic: bool, own: u32) -> io::Result<Self> {
        let find = |name: &String| {
            Account::find(name, own).map_err(|error| io::Error::other(format!("command_users: {error}")))
        };
        let accounts = |names: &[String]| names.iter().map(find).collect::<io::Result<Vec<_>>>();
        let accounts = names.map(accounts).transpose()?;
        let is_of_dynamic = |account: &&Account| dynamic && DYNAMIC.contains(&account.uid);
        if let Some(account) = accounts.iter().flatten().find(is_of_dynamic) {
            return Err(io::Error::other(format!(
                "command_users: the ID of {} is that of a dynamic user",
                account.name
            )));
        }
        let allowed = accounts.as_ref().map(|accounts| accounts.iter().map(|account| account.uid).collect());
        let agent = Some(geteuid().as_raw()).filter(|agent| *agent != own);
        let first = accounts.and_then(|accounts| accounts.into_iter().next()).filter(|_| agent.is_some());
        let default = if dynamic { Account::dynamic() } else { first.unwrap_or_else(|| Account::of(own)) };
        Ok(Self { allowed, agent, default })
    }

    /// # Errors
    /// [`ExecutorError::Denied`].
    pub(crate) fn check(&self, name: &str, uid: u32, is_dynamic: bool) -> Result<(), ExecutorError> {
        let reason = match &self.allowed {
            // there are such users only where the configuration wants them
            _ if is_dynamic => return Ok(()),
            _ if self.default.is_dynamic && DYNAMIC.contains(&uid) => "its id is that of a dynamic user",
            _ if self.agent == Some(uid) => "it is the agent's user",
            Some(uids) if !uids.contains(&uid) => "it is not in command_users of the agent's configuration",
            _ => return Ok(()),
        };
        Err(ExecutorError::denied(format!("commands do not run as {name} on this machine: {reason}")))
    }
}

/// The users that commands may run as, as a keeper is to know them: these, and if `dynamic` also dynamic users.
///
/// # Errors
/// As [`look_up_users`].
pub fn allowed_users(names: &[String], dynamic: bool) -> io::Result<Users> {
    Ok(Users::new(look_up_users(names)?, dynamic))
}

/// The ids and groups of these users. Of the user of this process no groups are needed, since
/// commands inherit those.
///
/// # Errors
/// One of them is not there, or cannot be looked up.
pub fn look_up_users(names: &[String]) -> io::Result<Vec<Credentials>> {
    let of = |name: &String| {
        let account = Account::find(name, geteuid().as_raw()).map_err(io::Error::other)?;
        let own = || Credentials { name: account.name.clone(), uid: geteuid().as_raw(), gid: 0, groups: Vec::new() };
        Ok(account.credentials.clone().unwrap_or_else(own))
    };
    names.iter().map(of).collect()
}
