//! What stands between a caller and the engine, put together in one place: ownership, then limits, then the engine.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use telexec_tool::local::LocalExecutor;
use telexec_tool::{
    Command, Execution, ExecutionId, ExecutionInfo, Executor, ExecutorError, ListPage, ListQuery, Signal,
};
use tokio::sync::{Semaphore, TryAcquireError};

use crate::identity::Identity;

/// Makes the executor of each caller.
#[derive(Clone)]
pub(crate) struct Stack {
    limited: Arc<Limited<LocalExecutor>>,
}

impl Stack {
    pub(crate) fn new(engine: LocalExecutor, max_executions: u32) -> Self {
        let permits = Arc::new(Semaphore::new(max_executions as usize));
        Self { limited: Arc::new(Limited { inner: engine, permits, max_executions }) }
    }

    /// What this caller may use.
    pub(crate) fn executor_for(&self, identity: &Identity) -> impl Executor + use<> {
        Owned { inner: Arc::clone(&self.limited), identity: identity.clone() }
    }

    /// Refuses new commands from now on.
    pub(crate) fn close(&self) {
        self.limited.permits.close();
    }
}

/// Shows a caller only its own executions.
struct Owned<E> {
    inner: E,
    identity: Identity,
}

#[async_trait]
impl<E: Executor> Executor for Owned<E> {
    async fn execute(&self, command: Command) -> Result<Execution, ExecutorError> {
        self.inner.execute(command.with_identity(self.identity.as_str())).await
    }

    async fn signal(&self, id: &ExecutionId, signal: Signal) -> Result<ExecutionInfo, ExecutorError> {
        self.get(id).await?;
        self.inner.signal(id, signal).await
    }

    async fn get(&self, id: &ExecutionId) -> Result<ExecutionInfo, ExecutorError> {
        let info = self.inner.get(id).await?;
        // the same answer for another's as for none
        if info.identity == self.identity.as_str() { Ok(info) } else { Err(ExecutorError::NotFound(id.clone())) }
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, ExecutorError> {
        self.inner.list(ListQuery { identity: Some(self.identity.as_str().into()), ..query }).await
    }
}

/// Lets only so many commands run at once. A permit lives as long as its execution's stream.
struct Limited<E> {
    inner: E,
    permits: Arc<Semaphore>,
    max_executions: u32,
}

#[async_trait]
impl<E: Executor> Executor for Limited<E> {
    async fn execute(&self, command: Command) -> Result<Execution, ExecutorError> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().map_err(|error| match error {
            TryAcquireError::Closed => ExecutorError::ShuttingDown,
            TryAcquireError::NoPermits => ExecutorError::Exhausted {
                reason: format!("{} executions run already, the agent's max_executions", self.max_executions),
                retry_after: Some(Duration::from_secs(1)),
            },
        })?;
        let execution = self.inner.execute(command).await?;
        let started = execution.started().clone();
        let rest = execution.skip(1).map(move |event| {
            let _held = &permit;
            event
        });
        Ok(Execution::new(started, rest))
    }

    async fn signal(&self, id: &ExecutionId, signal: Signal) -> Result<ExecutionInfo, ExecutorError> {
        self.inner.signal(id, signal).await
    }

    async fn get(&self, id: &ExecutionId) -> Result<ExecutionInfo, ExecutorError> {
        self.inner.get(id).await
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, ExecutorError> {
        self.inner.list(query).await
    }
}
