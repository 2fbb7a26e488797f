//! The keeper: the parent of telexec's agent and of all commands.
//!
//! It starts the agent, and again when that has crashed. It starts what the agent asks for, has the exit statuses, and ends
//! what was bound to an agent that is gone. It reads no configuration and nothing of the network: one loop, and no step in it that
//! waits for anyone, but for the agent's program to be loaded. Threads close what an agent has passed.
//!
//! `wire` is what both say, and `channel` how it gets to the other; `keeper` is the loop, `children` what was started, `users` as
//! whom, `agent` the agent's process, `agent_user` what is done for one that is not root, `given` the descriptors that come from
//! it, `paused` processes that are stopped for a moment, `signals` what other processes ask of this one, `state` what a keeper leaves to the program that takes its place, `exec`
//! how that begins, `init` what the first process of a machine owes it, `log` its own lines, `syslog` the log of starts.

#![cfg(target_os = "linux")]

mod agent;
pub mod agent_user;
pub mod channel;
mod children;
mod exec;
pub mod given;
mod init;
mod keeper;
pub mod log;
mod notify;
mod paused;
mod signals;
mod state;
mod syslog;
pub mod users;
pub mod wire;

pub use self::exec::inherited;
pub use self::keeper::{Terms, keep};

/// The argument before the users that commands may run as, see [`users::Users::write`].
pub const USERS: &str = "--command-users";

/// The argument with which no command gains privileges by executing a program, whatever the agent asks for.
pub const NO_NEW_PRIVILEGES: &str = "--no-new-privileges";

/// The argument before the Unix socket to which the keeper logs each start.
pub const SYSLOG: &str = "--syslog";

/// The argument before the user that the agent runs as, as [`users::write_one`] has it, and the directory of its cgroups.
pub const AGENT_USER: &str = "--agent-user";

/// The argument, first of all, before the descriptor of the state that the keeper's last program has left.
pub const STATE: &str = "--state-fd";

/// Asks the keeper's program for its [`formats`].
pub const FORMATS: &str = "--formats";

/// The versions of the protocol and of the state, as a text. A keeper and its agent must have the same.
pub fn formats() -> String {
    format!("protocol {}, state {}", wire::VERSION, state::VERSION)
}

/// The variable that says to an agent where its keeper is: a descriptor and, after a colon, the [`wire::VERSION`].
pub const VARIABLE: &str = "TELEXEC_KEEPER";
