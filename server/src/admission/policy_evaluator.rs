//! What may take long before a command is permitted, on threads of its own and fairly among callers: looking up users,
//! analysing texts, evaluating the policy.

use std::io;
use std::thread::available_parallelism;

use telexec_engine::{LocalExecutor, Lost, ResolvedCommand, Workers};
use telexec_executor::{Command, ExecutorError};

use crate::analysis::CommandAnalysis;
use crate::policy::{Facts, STACK_BYTES};

/// Concurrent user look-ups, which a directory that does not answer may block.
const MAX_LOOK_UPS: usize = 64;
/// Of these, for one identity.
const MAX_LOOK_UPS_EACH: usize = 48;

/// Worker threads; clones share them.
#[derive(Clone)]
pub(crate) struct PolicyEvaluator {
    /// Blocked on the network, perhaps for ever: user look-ups.
    users: Workers,
    /// CPU-bound: a long text takes some tenths of a second.
    texts: Workers,
}

impl PolicyEvaluator {
    /// One thread for texts per processor; each identity may use all but one.
    ///
    /// # Errors
    /// The first threads cannot be made.
    pub(crate) fn new() -> io::Result<Self> {
        let processors = processors();
        Ok(Self {
            users: Workers::with_max_each("users", 1, MAX_LOOK_UPS, MAX_LOOK_UPS_EACH)?,
            texts: Workers::with_stack("policy", 2, processors, processors - 1, STACK_BYTES)
                // where there is no memory for that, rules with many operators do not permit
                .or_else(|_| Workers::with_max_each("policy", 2, processors, processors - 1))?,
        })
    }

    /// What is known of a command of `identity`, before it is analysed.
    ///
    /// # Errors
    /// [`ExecutorError::Internal`]: a worker panicked.
    pub(crate) async fn facts(
        &self,
        identity: &str,
        engine: &LocalExecutor,
        command: Command,
    ) -> Result<Facts, ExecutorError> {
        let timeout = engine.timeout(&command);
        let (place, command) = self.resolve(identity, engine, command).await?;
        let analysis = CommandAnalysis::new(engine.shell(&command).as_deref());
        Ok(Facts::at(command, analysis, place, timeout))
    }

    /// Where a command would run, and the same command with the shell that it would really have; `None`: there is no such
    /// user.
    ///
    /// # Errors
    /// [`ExecutorError::Internal`]: a worker panicked.
    pub(crate) async fn resolve(
        &self,
        identity: &str,
        engine: &LocalExecutor,
        command: Command,
    ) -> Result<(Option<ResolvedCommand>, Command), ExecutorError> {
        let names_user = engine.names_user(&command);
        let find = {
            let engine = engine.clone();
            move || (engine.resolve(&command).ok(), command)
        };
        let (place, command) = match names_user {
            true => self.users.run(identity, find).await.map_err(lost)?,
            false => find(),
        };
        let shell = place.as_ref().and_then(|place| place.shell.as_deref());
        let command = match shell {
            Some(shell) => command.with_user_shell(shell),
            None => command,
        };
        Ok((place, command))
    }

    /// Runs `decide` in the turn of `identity`.
    ///
    /// # Errors
    /// [`ExecutorError::Internal`]: the worker panicked.
    pub(crate) async fn in_turn<T: Send + 'static>(
        &self,
        identity: &str,
        decide: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ExecutorError> {
        self.texts.run(identity, decide).await.map_err(lost)
    }
}

/// The number of processors, at least two, so that one long task does not block all others.
pub(crate) fn processors() -> usize {
    available_parallelism().map_or(1, usize::from).max(2)
}

fn lost(lost: Lost) -> ExecutorError {
    ExecutorError::Internal(format!("the command was not evaluated: {lost}"))
}
