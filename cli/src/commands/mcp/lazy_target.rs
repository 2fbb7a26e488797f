//! A target that is connected to on first use, so that an unreachable one fails the call and not the server.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use telexec_client::{RemoteExecutor, Resume, Resuming};
use telexec_executor::{
    Attach, Command, Execution, ExecutionId, Executor, ExecutorError, OnDisconnect, forward_executor,
};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::config::ResolvedTarget;
use crate::connect::Session;
use crate::output::Failure;
use crate::syntax::Destination;

/// How long to wait until agents have received cancellations; clients kill servers soon after.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs commands on a target. They survive lost connections if the agent's policy allows it; a target that was never
/// reached fails at once.
pub(super) struct LazyTarget {
    name: String,
    resolved: ResolvedTarget,
    executors: OnceCell<Executors>,
    /// Keeps the connection of the executors open.
    session: Mutex<Option<Session>>,
}

struct Executors {
    /// Commands end with their connection.
    plain: RemoteExecutor,
    /// `None`: the policy does not allow it to end its executions.
    resuming: Option<Resuming>,
}

impl Executors {
    async fn new(plain: RemoteExecutor) -> Self {
        // the policy's answer for an unknown execution is that for the caller's own
        let end = Attach { position: 0, on_disconnect: OnDisconnect::Kill };
        let may_end = plain.attach(&ExecutionId::generate(), end).await;
        let may_end = !matches!(may_end, Err(ExecutorError::Denied { .. }));
        let resuming = may_end.then(|| plain.clone().resuming(Resume::default()));
        Self { plain, resuming }
    }

    async fn execute(&self, command: Command) -> Result<Execution, ExecutorError> {
        if let Some(resuming) = &self.resuming {
            match resuming.execute(command.clone()).await {
                // the policy may deny background executions, which resumable ones are for a while
                Err(ExecutorError::Denied { .. }) if !command.may_go_to_background() => {}
                answer => return answer,
            }
        }
        self.plain.execute(command).await
    }

    /// The executor for existing executions.
    fn preferred(&self) -> &dyn Executor {
        self.resuming.as_ref().map_or(&self.plain, |resuming| resuming as &dyn Executor)
    }
}

impl LazyTarget {
    pub(super) fn new(target: &Destination, resolved: ResolvedTarget) -> Self {
        Self { name: target.to_string(), resolved, executors: OnceCell::new(), session: Mutex::default() }
    }

    /// Its name in messages and for clients.
    pub(super) fn name(&self) -> String {
        self.name.clone()
    }

    /// The configured user.
    pub(super) fn user(&self) -> Option<String> {
        self.resolved.user.clone()
    }

    async fn executors(&self) -> Result<&Executors, ExecutorError> {
        self.executors.get_or_try_init(|| self.open()).await
    }

    async fn open(&self) -> Result<Executors, ExecutorError> {
        let session = Session::connect(&self.resolved).await;
        let session = session.map_err(|failure| ExecutorError::Internal(failure.to_string()))?;
        let executors = Executors::new(session.agent.executor()).await;
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
        Ok(executors)
    }

    /// Ends dropped executions, and an agent in this process.
    ///
    /// # Errors
    /// The agent in this process failed.
    pub(super) async fn close(&self) -> Result<(), Failure> {
        if let Some(Executors { resuming: Some(resuming), .. }) = self.executors.get() {
            // retries of an unreachable target take longer than clients wait
            let _ = timeout(CANCEL_TIMEOUT, resuming.settled()).await;
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
    async fn execute(&self, command: Command) -> Result<Execution, ExecutorError> {
        self.executors().await?.execute(command).await
    }

    forward_executor!(self => self.executors().await?.preferred(); attach, write_input, resize, signal, get, list);
}
