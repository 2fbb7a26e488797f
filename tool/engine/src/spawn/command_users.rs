//! As whom commands may run.

use std::collections::BTreeSet;
use std::io;

use nix::unistd::geteuid;
use telexec_executor::ExecutorError;
use telexec_spawn::Credentials;

use super::account::Account;

/// The users that commands may run as, by id, since one may have several names.
pub(crate) struct CommandUsers(Option<BTreeSet<u32>>);

impl CommandUsers {
    /// `None`: anyone.
    ///
    /// # Errors
    /// One of them is not there.
    pub(crate) fn new(names: Option<&[String]>) -> io::Result<Self> {
        let uids = names.map(|names| names.iter().map(|name| Ok(find(name)?.uid)).collect::<io::Result<_>>());
        uids.transpose().map(Self)
    }

    /// # Errors
    /// [`ExecutorError::Denied`].
    pub(crate) fn check(&self, account: &Account) -> Result<(), ExecutorError> {
        match &self.0 {
            Some(uids) if !uids.contains(&account.uid) => Err(ExecutorError::Denied {
                rule: None,
                reason: format!(
                    "commands do not run as {} on this machine: command_users in the agent's configuration does not have it",
                    account.name
                ),
                nearest: None,
                missing: Vec::new(),
            }),
            _ => Ok(()),
        }
    }
}

/// What a keeper is to hold these users to, see [`LocalConfig::command_users`](crate::LocalConfig::command_users): their ids
/// and groups. Of the user of this process no groups are needed, since commands inherit those.
///
/// # Errors
/// One of them is not there, or cannot be looked up.
pub fn look_up_users(names: &[String]) -> io::Result<Vec<Credentials>> {
    let of = |name: &String| {
        let account = find(name)?;
        let own = || Credentials { name: account.name.clone(), uid: geteuid().as_raw(), gid: 0, groups: Vec::new() };
        Ok(account.credentials.clone().unwrap_or_else(own))
    };
    names.iter().map(of).collect()
}

fn find(name: &str) -> io::Result<Account> {
    Account::find(name).map_err(|error| io::Error::other(format!("command_users: {error}")))
}
