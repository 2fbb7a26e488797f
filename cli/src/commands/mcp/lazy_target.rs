//! A target that is connected to on first use, so that an unreachable one fails the call and not the server.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use telexec_client::Resuming;
use telexec_executor::{Executor, ExecutorError, forward_executor};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::config::ResolvedTarget;
use crate::connect::{ReconnectArgs, Session};
use crate::output::Failure;

/// How long to wait until agents have received cancellations; clients kill servers soon after.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs commands on a target. They survive lost connections; a target that was never reached fails at once.
pub(super) struct LazyTarget {
    name: String,
    resolved: ResolvedTarget,
    reconnect: ReconnectArgs,
    executor: OnceCell<Resuming>,
    /// Keeps the connection of the executor open.
    session: Mutex<Option<Session>>,
}

impl LazyTarget {
    pub(super) fn new(name: &str, resolved: ResolvedTarget, reconnect: ReconnectArgs) -> Self {
        let (executor, session) = (OnceCell::new(), Mutex::default());
        Self { name: name.to_owned(), resolved, reconnect, executor, session }
    }

    /// Its name in messages and for clients.
    pub(super) fn name(&self) -> String {
        self.name.clone()
    }

    /// The configured user.
    pub(super) fn user(&self) -> Option<String> {
        self.resolved.user.clone()
    }

    async fn executor(&self) -> Result<&Resuming, ExecutorError> {
        self.executor.get_or_try_init(|| self.open()).await
    }

    async fn open(&self) -> Result<Resuming, ExecutorError> {
        let session = Session::connect(&self.resolved).await;
        let session = session.map_err(|failure| ExecutorError::Internal(failure.to_string()))?;
        let executor = session.agent.executor().resuming(self.reconnect.resume());
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
        Ok(executor)
    }

    /// Ends dropped executions, and an agent in this process.
    ///
    /// # Errors
    /// The agent in this process failed.
    pub(super) async fn close(&self) -> Result<(), Failure> {
        if let Some(executor) = self.executor.get() {
            // retries of an unreachable target take longer than clients wait
            let _ = timeout(CANCEL_TIMEOUT, executor.settled()).await;
        }
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner).take();
        match session {
            Some(session) => session.close().await,
            None => Ok(()),
        }
    }
}

#[async_trait]
impl Executor for LazyTarget {
    forward_executor!(self => self.executor().await?; execute, attach, write_input, resize, signal, get, list);
}
