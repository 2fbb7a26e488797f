//! From a target and flags to a connected agent: `local` is one in this process, `hint` what to try when that fails.

mod hint;
mod local;

use std::time::Duration;

use telexec_client::Agent;
use telexec_executor::ExecutorError;

use self::hint::hint;
use self::local::LocalAgent;
use crate::config::{Config, ConnectArgs, Place};
use crate::output::{Failure, exit, with_causes};
use crate::syntax::Destination;
use crate::terminal::Signals;

/// For an agent to hear that its command is no longer wanted.
const LAST_WORD: Duration = Duration::from_secs(1);

/// A connected agent, and the agent itself if it lives in this process.
pub(crate) struct Session {
    pub(crate) agent: Agent,
    local: Option<LocalAgent>,
}

impl Session {
    pub(crate) async fn open(target: &Destination, args: &ConnectArgs) -> Result<Self, Failure> {
        Self::reach(&Config::load()?.place(target, args)?).await
    }

    pub(crate) async fn reach(place: &Place) -> Result<Self, Failure> {
        let Some(target) = &place.target else {
            let (agent, local) = LocalAgent::start().await.map_err(|failure| failure.during("local"))?;
            return Ok(Self { agent, local: Some(local) });
        };
        match Agent::connect(target, place.options.clone()).await {
            Ok(agent) => Ok(Self { agent, local: None }),
            Err(error) => {
                let text = with_causes(&error);
                let hint = hint(&ExecutorError::from(error));
                Err(Failure::text(exit::LOST, text).advice(hint))
            }
        }
    }

    /// Ends it. An agent in this process has ended everything that it ran when this returns.
    ///
    /// # Errors
    /// The agent in this process had failed.
    pub(crate) async fn close(self) -> Result<(), Failure> {
        drop(self.agent);
        match self.local {
            Some(local) => local.stop().await,
            None => Ok(()),
        }
    }

    /// Ends it when an execution was dropped: an answer to anything asked after that means that it was heard.
    ///
    /// # Errors
    /// As [`close`](Self::close).
    pub(crate) async fn abandon(self) -> Result<(), Failure> {
        let _ = tokio::time::timeout(LAST_WORD, self.agent.ping()).await;
        self.close().await
    }
}

/// Connects, works, and ends the session. A signal drops the work: its exit code is then the failure.
pub(crate) async fn with_agent<T>(
    target: &Destination,
    args: &ConnectArgs,
    work: impl AsyncFnOnce(&Agent) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut signals = Signals::listen()?;
    let mut session = None;
    let done = tokio::select! {
        done = async { work(&session.insert(Session::open(target, args).await?).agent).await } => done,
        code = signals.exit_code() => Err(Failure::silent(code)),
    };
    if let Some(session) = session {
        match &done {
            Ok(_) => session.close().await?,
            Err(_) => session.abandon().await?,
        }
    }
    done
}

/// A failure of a call to an agent.
pub(crate) fn call_failure(code: u8, target: &Destination, error: &ExecutorError) -> Failure {
    let failure = Failure::new(code, error).advice(hint(error));
    match error {
        // these name it themselves
        ExecutorError::Unreachable { .. } | ExecutorError::Untrusted { .. } | ExecutorError::Lost { .. } => failure,
        _ => failure.during(target),
    }
}
