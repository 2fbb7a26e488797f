//! What takes its time before the rules can decide on a command, in fair turns of those who ask.

use std::io;
use std::thread::available_parallelism;

use telexec_engine::LocalExecutor;
use telexec_engine::{Lost, Workers};
use telexec_executor::{Command, ExecutorError};

use crate::policy::Facts;

/// A directory of users that does not answer may hold up so many look-ups.
const MAX_LOOK_UPS: usize = 64;
/// Of these, so many of one identity.
const MAX_LOOK_UPS_EACH: usize = 48;

/// Threads that find out what a command is; clones share them.
#[derive(Clone)]
pub(crate) struct PolicyEvaluator {
    /// Wait for others, perhaps for ever: users are looked up over networks.
    users: Workers,
    /// Compute: a long text takes some tenths of a second.
    texts: Workers,
}

impl PolicyEvaluator {
    /// As many threads for texts as there are processors, of which one is left by each identity for others.
    ///
    /// # Errors
    /// The first threads cannot be made.
    pub(crate) fn new() -> io::Result<Self> {
        let processors = processors();
        Ok(Self {
            users: Workers::with_share("users", 1, MAX_LOOK_UPS, MAX_LOOK_UPS_EACH)?,
            texts: Workers::with_share("judging", 2, processors, processors - 1)?,
        })
    }

    /// Finds out what there is to know of a command of `identity`, and what `judge` makes of it.
    ///
    /// # Errors
    /// [`ExecutorError::Internal`]: one of them panicked.
    pub(crate) async fn evaluate<T: Send + 'static>(
        &self,
        identity: &str,
        engine: &LocalExecutor,
        command: Command,
        judge: impl FnOnce(&Facts) -> T + Send + 'static,
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
        let judge = move || {
            let facts = Facts::at(command, place, timeout);
            let judgement = judge(&facts);
            (facts, judgement)
        };
        self.texts.run(identity, judge).await.map_err(lost)
    }

    /// Judges something again that is known already.
    ///
    /// # Errors
    /// [`ExecutorError::Internal`]: it panicked.
    pub(crate) async fn evaluate_again<T: Send + 'static>(
        &self,
        identity: &str,
        judge: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ExecutorError> {
        self.texts.run(identity, judge).await.map_err(lost)
    }
}

/// As many threads compute at once as there are processors, at least two: one long piece of work does not hold up all.
pub(crate) fn processors() -> usize {
    available_parallelism().map_or(1, usize::from).max(2)
}

fn lost(lost: Lost) -> ExecutorError {
    ExecutorError::Internal(format!("the command was not judged: {lost}"))
}
