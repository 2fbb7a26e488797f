//! The connections to the agent: one for each caller that has a certificate of its own there, and one for all others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use telexec_client::{Agent, ConnectError, ConnectOptions, RemoteExecutor, Target, TlsOptions};
use telexec_executor::ExecutorError;
use telexec_nats_client::subjects::token;
use tracing::{info, warn};

use crate::Error;
use crate::args::Args;
use crate::callers::Callers;

/// Pauses between attempts, while the agent does not answer.
const MIN_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(5);

pub(crate) struct Agents {
    /// It did not answer last, and that is logged.
    is_away: AtomicBool,
    usual: Agent,
    own: HashMap<String, Agent>,
}

impl Agents {
    /// Waits for the agent.
    ///
    /// # Errors
    /// What does not pass by itself, such as a certificate that is not trusted.
    pub(crate) async fn connect(args: &Args, callers: &Callers) -> Result<Self, Error> {
        let tls = |cert, key| args.ca.as_ref().map(|ca| TlsOptions::new(cert, key, ca));
        let usual = args.cert.as_ref().zip(args.key.as_ref()).and_then(|(cert, key)| tls(cert, key));
        let usual = connect(&args.target, usual).await?;
        let mut own = HashMap::new();
        for (caller, cert, key) in callers.certificates() {
            let tls = tls(cert, key).ok_or("--caller NKEY=CERT:KEY needs --ca, and a target over TCP")?;
            own.insert(caller.to_owned(), connect(&args.target, Some(tls)).await?);
        }
        Ok(Self { is_away: AtomicBool::new(false), usual, own })
    }

    /// The agent, as this caller.
    pub(crate) fn of(&self, caller: &str) -> &Agent {
        self.own.get(caller).unwrap_or(&self.usual)
    }

    /// Logs it when the agent does not answer any more, and when it does again.
    pub(crate) fn note(&self, is_away: bool) {
        match (self.is_away.swap(is_away, Ordering::Relaxed), is_away) {
            (false, true) => warn!("the agent does not answer: requests wait for it"),
            (true, false) => info!("the agent answers again"),
            _ => {}
        }
    }

    /// Waits until the agent answers.
    pub(crate) async fn until_answering(&self) {
        let mut pause = Pause::default();
        while self.usual.info().await.is_err_and(|error| is_unavailable(&error)) {
            self.note(true);
            pause.wait().await;
        }
        self.note(false);
    }

    /// The agent's machine, for this caller.
    pub(crate) fn executor(&self, caller: &str) -> RemoteExecutor {
        self.of(caller).executor()
    }

    /// The agent's name in subjects.
    ///
    /// # Errors
    /// Its host name cannot be one.
    pub(crate) async fn name(&self, asked: Option<&str>) -> Result<String, Error> {
        if let Some(name) = asked {
            return Ok(name.to_owned());
        }
        let info = self.usual.info().await?;
        let name = info.hostname.split('.').next().unwrap_or_default();
        token(name).map_err(|error| format!("the agent's host name {:?} {error}: use --name", info.hostname).into())
    }
}

async fn connect(target: &Target, tls: Option<TlsOptions>) -> Result<Agent, Error> {
    let mut pause = Pause::default();
    loop {
        match Agent::connect(target, ConnectOptions { tls: tls.clone(), ..ConnectOptions::default() }).await {
            Ok(agent) => return Ok(agent),
            Err(error) if may_pass(&error) => {
                if pause.is_first() {
                    warn!(%target, error = %crate::chain(&error), "the agent does not answer: waiting for it");
                }
                pause.wait().await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn may_pass(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Unreachable { .. })
}

/// Whether the agent has not run what it was asked for, and may later.
pub(crate) fn is_unavailable(error: &ExecutorError) -> bool {
    matches!(error, ExecutorError::Unreachable { .. } | ExecutorError::Lost { .. } | ExecutorError::ShuttingDown)
}

/// Grows while nothing gets better.
pub(crate) struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(MIN_PAUSE)
    }
}

impl Pause {
    pub(crate) fn is_first(&self) -> bool {
        self.0 == MIN_PAUSE
    }

    /// It is time to say so.
    pub(crate) fn is_long(&self) -> bool {
        self.0 == MAX_PAUSE
    }

    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = self.0.saturating_mul(2).min(MAX_PAUSE);
    }
}
