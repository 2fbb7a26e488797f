//! As whom commands may run.

use std::collections::BTreeSet;
use std::io;

use nix::unistd::geteuid;
use telexec_executor::ExecutorError;
use telexec_spawn::Credentials;

use super::account::Account;

/// The users that commands may run as, by id, since one may have several names.
pub(crate) struct CommandUsers {
    /// `None`: anyone.
    allowed: Option<BTreeSet<u32>>,
    /// The agent's user, if another one starts commands.
    agent: Option<u32>,
}

impl CommandUsers {
    /// `names`: `None` is anyone. `own`: the user of the process that starts commands.
    ///
    /// # Errors
    /// One of them is not there.
    pub(crate) fn new(names: Option<&[String]>, own: u32) -> io::Result<Self> {
        let uids = names.map(|names| names.iter().map(|name| Ok(find(name, own)?.uid)).collect::<io::Result<_>>());
        let agent = geteuid().as_raw();
        Ok(Self { allowed: uids.transpose()?, agent: (agent != own).then_some(agent) })
    }

    /// # Errors
    /// [`ExecutorError::Denied`].
    pub(crate) fn check(&self, account: &Account) -> Result<(), ExecutorError> {
        let reason = match &self.allowed {
            Some(uids) if !uids.contains(&account.uid) => "command_users in the agent's configuration does not have it",
            _ if self.agent == Some(account.uid) => "it is the agent's user",
            _ => return Ok(()),
        };
        Err(ExecutorError::Denied {
            rule: None,
            reason: format!("commands do not run as {} on this machine: {reason}", account.name),
            nearest: None,
            missing: Vec::new(),
        })
    }
}

/// What a keeper is to hold these users to, see [`LocalConfig::command_users`](crate::LocalConfig::command_users): their ids
/// and groups. Of the user of this process no groups are needed, since commands inherit those.
///
/// # Errors
/// One of them is not there, or cannot be looked up.
pub fn look_up_users(names: &[String]) -> io::Result<Vec<Credentials>> {
    let of = |name: &String| {
        let account = find(name, geteuid().as_raw())?;
        let own = || Credentials { name: account.name.clone(), uid: geteuid().as_raw(), gid: 0, groups: Vec::new() };
        Ok(account.credentials.clone().unwrap_or_else(own))
    };
    names.iter().map(of).collect()
}

fn find(name: &str, own: u32) -> io::Result<Account> {
    Account::find(name, own).map_err(|error| io::Error::other(format!("command_users: {error}")))
}
