//! What stands between a caller and the engine, put together in one place: ownership, then the engine with its limits.

use async_trait::async_trait;
use telexec_tool::local::LocalExecutor;
use telexec_tool::{
    Command, Execution, ExecutionId, ExecutionInfo, Executor, ExecutorError, ListPage, ListQuery, Signal,
};

use crate::identity::Identity;

/// Makes the executor of each caller.
#[derive(Clone)]
pub(crate) struct Stack {
    pub(crate) engine: LocalExecutor,
}

impl Stack {
    /// What this caller may use.
    pub(crate) fn executor_for(&self, identity: &Identity) -> impl Executor + use<> {
        Owned { inner: self.engine.clone(), identity: identity.clone() }
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
