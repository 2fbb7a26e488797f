//! Connections to and from the network of this machine: `telexec.v1.ForwardService`.
//!
//! `service` has the RPCs, `wire` reads their addresses, `user` says as whom a Unix socket is used, `passage` has what goes
//! with each forward: permission, limit, audit. `dial`, `dial_as` (which gets it `passed`) and `listen` make the sockets,
//! `accepted` keeps those that wait to be taken, `relay` carries the bytes.

mod accepted;
mod dial;
mod dial_as;
mod limiter;
mod listen;
mod passage;
mod passed;
mod relay;
mod service;
mod socket;
mod user;
mod wire;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use telexec_engine::{LocalExecutor, Workers};
use telexec_executor::{Command, CommandBuilder};
use tokio_util::sync::CancellationToken;

use self::accepted::AcceptedConnections;
pub(crate) use self::limiter::ForwardLimiter;
pub(crate) use self::service::ForwardRpcs;
use crate::admission::Stack;
use crate::config::Config;

/// Concurrent look-ups of names, which may block on the network, and of these for one identity.
const MAX_LOOK_UPS: usize = 64;
const MAX_LOOK_UPS_EACH: usize = 48;

/// What all forwards share; clones share it.
#[derive(Clone)]
pub(crate) struct Forwards {
    pub(crate) limiter: ForwardLimiter,
    /// Ends all of them.
    pub(crate) closing: CancellationToken,
    accepted: AcceptedConnections,
    names: Workers,
    /// Whether the agent may listen on other addresses than of the loopback without a policy.
    allow_remote_bind: bool,
    /// Whether it may start processes of this program, which connect as other users.
    has_processes: bool,
    own: Arc<Own>,
}

/// The agent itself.
struct Own {
    user: String,
    uid: u32,
    /// Commands that name no user run as it too.
    runs_commands: bool,
    /// The Unix sockets that it listens on.
    sockets: Vec<PathBuf>,
}

impl Forwards {
    /// # Errors
    /// Threads cannot be made.
    pub(crate) fn new(config: &Config, engine: &LocalExecutor, sockets: Vec<PathBuf>) -> io::Result<Self> {
        let uid = rustix::process::geteuid().as_raw();
        let resolve = |command: CommandBuilder| command.build().ok().and_then(|command| engine.resolve(&command).ok());
        let runs_commands = resolve(Command::shell("true")).is_none_or(|default| default.uid == uid);
        let own = resolve(Command::shell("true").user(uid.to_string()));
        let user = own.map_or_else(|| uid.to_string(), |own| own.user);
        Ok(Self {
            limiter: ForwardLimiter::new(config),
            closing: CancellationToken::new(),
            accepted: AcceptedConnections::default(),
            names: Workers::with_max_each("names", 1, MAX_LOOK_UPS, MAX_LOOK_UPS_EACH)?,
            allow_remote_bind: config.allow_remote_bind,
            has_processes: config.serves_files,
            own: Arc::new(Own { user, uid, runs_commands, sockets }),
        })
    }

    /// The RPCs.
    pub(crate) fn rpcs(&self, stack: Stack) -> ForwardRpcs {
        ForwardRpcs { stack, forwards: self.clone() }
    }

    /// Whether this is the agent's own user, by name, by id, or since nobody is named.
    fn is_own(&self, user: &str) -> bool {
        user.is_empty() || user == self.own.user || user.parse() == Ok(self.own.uid)
    }

    /// Whether the agent itself connects to a Unix socket as this user. One with a user of its own does not lend that.
    fn connects_as(&self, user: &str) -> bool {
        self.own.runs_commands && self.is_own(user)
    }
}
