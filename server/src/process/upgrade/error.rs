//! Why an agent does not hand over.

use std::io;
use std::path::PathBuf;

use crate::listen::BindError;
use crate::process::agent_user::AgentUserError;
use crate::process::keeper::KeeperError;

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
    /// Nothing could be handed over.
    #[error("the keeper, process {0}, does not respond: is it stopped, or its cgroup frozen?")]
    Stuck(i32),
    /// It would not start.
    #[error("{program}: would not start: {reason}")]
    Config {
        /// The program.
        program: String,
        /// What it says.
        reason: String,
    },
    /// The keeper's program would not continue either.
    #[error("the keeper would not hand over to its program on disk")]
    Keeper(#[from] KeeperError),
    /// It could not listen there.
    #[error("the next agent could not listen as configured")]
    Listen(#[source] BindError),
    /// There are no resources for it.
    #[error("cannot check the programs on disk")]
    Check(#[source] io::Error),
    /// It takes too long.
    #[error("the programs on disk do not finish checking the configuration (--check-config)")]
    NoAnswer,
    /// A user of the configuration is not there.
    #[error("a user of the configuration cannot be looked up")]
    Users(#[source] io::Error),
    /// There is no agent to be found.
    #[error(
        "no state_dir is configured, by which the agent is found: give its --config, or send SIGUSR2 to it or its keeper"
    )]
    NoStateDir,
    /// The state directory cannot be read.
    #[error("the state directory {path} cannot be read: check --config, and run this as root")]
    StateDir {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// They are not its user's.
    #[error("cannot give the agent its directories")]
    Directories(#[from] AgentUserError),
    /// None is to be seen.
    #[error(
        "no agent with the state directory {path} is running, or may be seen by this user: is telexecd started? check --config, and run this as root; after a change of state_dir, restart the agent"
    )]
    NoAgent {
        /// The directory.
        path: PathBuf,
    },
    /// Several.
    #[error("{count} agents run with the state directory {path}: give each its own")]
    Agents {
        /// The directory.
        path: PathBuf,
        /// How many.
        count: usize,
    },
    /// Nothing would take its place.
    #[error("the agent, process {0}, has no keeper (see telexecd --keeper): restart it instead")]
    NoKeeper(i32),
    /// The keeper holds to what it was started with.
    #[error("{0} has changed, which only a restart takes up: restart the agent, or undo the change")]
    Changed(&'static str),
    /// It cannot be asked.
    #[error("the agent, process {pid}, cannot be asked to hand over")]
    Ask {
        /// Its process.
        pid: i32,
        /// The cause.
        source: io::Error,
    },
    /// It has said no.
    #[error("process {pid} goes on as the agent, and has refused: {reason}")]
    Refused {
        /// Its process.
        pid: i32,
        /// Why.
        reason: String,
    },
    /// It has not handed over.
    #[error("process {0} goes on as the agent: its log says why")]
    Unchanged(i32),
    /// It could not be replaced.
    #[error("the agent has handed over, but its keeper, process {0}, goes on with its old program: its log says why")]
    OldKeeper(u32),
    /// Nothing serves.
    #[error("no agent has taken the place of process {0}: see its log, and that of the keeper")]
    Lost(i32),
}

impl UpgradeError {
    /// There is no agent that could hand over: it is to be restarted.
    pub fn is_not_possible(&self) -> bool {
        matches!(
            self,
            Self::NoStateDir | Self::StateDir { .. } | Self::NoAgent { .. } | Self::Agents { .. } | Self::NoKeeper(_)
        )
    }
}
