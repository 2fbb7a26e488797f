//! Evaluates commands against the policy on threads of its own, fairly among callers: looking up users and analysing texts
//! may take long.

use std::io;
use std::thread::available_parallelism;

use telexec_engine::LocalExecutor;
use telexec_engine::{Lost, Workers};
use telexec_executor::{Command, ExecutorError};

use crate::analysis::CommandAnalysis;
use crate::policy::Facts;

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
            users: Workers::with_share("users", 1, MAX_LOOK_UPS, MAX_LOOK_UPS_EACH)?,
            texts: Workers::with_share("policy", 2, processors, processors - 1)?,
        })
    }

    /// Resolves and analyses a command of `identity`, and applies `decide` to the result.
    ///
    /// # Errors
    /// [`ExecutorError::Internal`]: a worker panicked.
    pub(crate) async fn evaluate<T: Send + 'static>(
        &self,
        identity: &str,
        engine: &LocalExecutor,
        command: Command,
        decide: impl FnOnce(&Facts) -> T + Send + 'static,
    ) -> Result<(Facts, T), ExecutorError> {
        let (timeout, names_user) = (engine.timeout(&command), command.user().is_some());
        let find_place = {
            let engine = engine.clone();
            move || (engine.resolve(&command).ok(), command)
        };
        let (place, command) = match names_user {
            true => self.users.run(identity, find_place).await.map_err(lost)?,
            false => find_place(),
        };
        let shell = match &place {
            Some(place) => place.shell.clone(),
            None => engine.shell(&command),
        };
        let analysis = CommandAnalysis::new(shell.as_deref());
        let decide = move || {
            let facts = Facts::at(command, analysis, place, timeout);
            let decision = decide(&facts);
            (facts, decision)
        };
        self.texts.run(identity, decide).await.map_err(lost)
    }

    /// Applies `decide` to facts that are known already.
    ///
    /// # Errors
    /// [`ExecutorError::Internal`]: the worker panicked.
    pub(crate) async fn evaluate_again<T: Send + 'static>(
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
