//! Connects to the agent of a target: `local` runs one in this process, `reconnect` makes up for lost connections, `hint`
//! suggests fixes for failures.

mod hint;
mod local;
mod nats;
mod own_certificate;
mod reconnect;

use std::error::Error;
use std::time::Duration;

use telexec_client::{Agent, Cause, ConnectError, Forwards, is_settled};
use telexec_executor::ExecutorError;

use self::hint::unreachable;
pub(crate) use self::hint::{hint, hint_for};
use self::local::LocalAgent;
pub(crate) use self::nats::{enqueue, labelled};
pub(crate) use self::own_certificate::{check as check_own_certificate, expire_time as own_expire_time};
pub(crate) use self::reconnect::{Link, Outages, ReconnectArgs, is_lost};
use crate::config::{Config, ConnectArgs, ResolvedTarget, Route};
use crate::output::{Failure, exit, print_message, printable};
use crate::syntax::Destination;
use crate::terminal::Signals;

/// How long to wait until the agent has received a cancellation.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);
const QUEUE_CANCEL_TIMEOUT: Duration = Duration::from_secs(10);
/// As much of a forwarded connection that is not read here waits in memory.
const FORWARD_WINDOW_BYTES: u32 = 1024 * 1024;

/// A connected agent, and the agent itself if it runs in this process.
pub(crate) struct Session {
    pub(crate) agent: Agent,
    local: Option<LocalAgent>,
}

impl Session {
    pub(crate) async fn open(target: &Destination, args: &ConnectArgs) -> Result<Self, Failure> {
        Self::connect(&resolve(target, args)?).await
    }

    async fn open_for_forwards(target: &Destination, args: &ConnectArgs) -> Result<Self, Failure> {
        let mut resolved = resolve(target, args)?;
        if let Route::Nats(target, _) = &resolved.route {
            let text = format!("{target}: connections cannot be forwarded by way of NATS");
            return Err(Failure::message(exit::USAGE, text));
        }
        resolved.options.stream_window_bytes = FORWARD_WINDOW_BYTES;
        Self::connect(&resolved).await
    }

    pub(crate) async fn connect(resolved: &ResolvedTarget) -> Result<Self, Failure> {
        if matches!(resolved.route, Route::Local) {
            let (agent, local) = LocalAgent::start().await.map_err(|failure| failure.context("local"))?;
            return Ok(Self { agent, local: Some(local) });
        }
        match connect(resolved).await {
            Ok(agent) => Ok(Self { agent, local: None }),
            Err(error) => Err(unreachable(error, resolved)),
        }
    }

    /// Closes the connection. An agent in this process has ended all its executions when this returns.
    ///
    /// # Errors
    /// The agent in this process failed.
    pub(crate) async fn close(self) -> Result<(), Failure> {
        drop(self.agent);
        match self.local {
            Some(local) => local.stop().await,
            None => Ok(()),
        }
    }

    /// Closes after an execution was dropped: waits for a ping, whose answer proves that the cancellation arrived.
    ///
    /// # Errors
    /// As [`close`](Self::close).
    pub(crate) async fn abandon(self) -> Result<(), Failure> {
        // by way of a queue it takes longer, and nobody ends it later
        let timeout = if self.agent.resumes_by_itself() { QUEUE_CANCEL_TIMEOUT } else { CANCEL_TIMEOUT };
        let asked = tokio::time::timeout(timeout, self.agent.ping()).await;
        if self.agent.resumes_by_itself() && !matches!(asked, Ok(Ok(_))) {
            print_message("it is not known whether the command is ended or withdrawn: the agent does not answer");
        }
        self.close().await
    }
}

/// Connects to an agent that runs elsewhere.
///
/// # Errors
/// See [`ConnectError`].
pub(crate) async fn connect(resolved: &ResolvedTarget) -> Result<Agent, ConnectError> {
    match &resolved.route {
        Route::Direct(target) => Agent::connect(target, resolved.options.clone()).await,
        Route::Nats(target, settings) => Ok(nats::connect(target, settings, resolved).await?.agent().clone()),
        Route::Local => Err(ConnectError::Unreachable {
            endpoint: "local".to_owned(),
            source: Cause::from(Box::<dyn Error + Send + Sync>::from("it runs in this process only")),
        }),
    }
}

fn resolve(target: &Destination, args: &ConnectArgs) -> Result<ResolvedTarget, Failure> {
    let config = Config::load()?;
    let resolved = config.resolve(target, args)?;
    own_certificate::check(&config, &resolved)?;
    Ok(resolved)
}

/// Connects, runs `work` and closes the session. A signal drops `work` and returns its exit code as a failure.
pub(crate) async fn with_agent<T>(
    target: &Destination,
    args: &ConnectArgs,
    work: impl AsyncFnOnce(&Agent) -> Result<T, Failure>,
) -> Result<T, Failure> {
    with_session(Session::open(target, args), work).await
}

/// The same for forwards.
pub(crate) async fn with_forwards<T>(
    target: &Destination,
    args: &ConnectArgs,
    work: impl AsyncFnOnce(&Forwards) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let work = async |agent: &Agent| work(&agent.forwards()).await;
    with_session(Session::open_for_forwards(target, args), work).await
}

async fn with_session<T>(
    open: impl Future<Output = Result<Session, Failure>>,
    work: impl AsyncFnOnce(&Agent) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut signals = Signals::listen()?;
    let mut session = None;
    let done = tokio::select! {
        done = async { work(&session.insert(open.await?).agent).await } => done,
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

/// The failure of a call to an agent.
pub(crate) fn call_failure(code: u8, target: &Destination, error: &ExecutorError) -> Failure {
    let is_lost = matches!(error, ExecutorError::Lost { .. }) && !is_settled(error);
    let hint = match error {
        ExecutorError::ApprovalRequired { approval_id, .. } => {
            Some(hint::approval_hint(&target.to_string(), &printable(approval_id)))
        }
        _ => hint::commands_hint(&target.to_string(), error).or_else(|| hint(error)),
    };
    let failure = Failure::new(code, error).hint(hint).lost(is_lost);
    match error {
        // these messages contain the endpoint
        ExecutorError::Unreachable { .. } | ExecutorError::Untrusted { .. } | ExecutorError::Lost { .. } => failure,
        _ => failure.context(target),
    }
}
