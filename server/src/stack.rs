//! What stands between a caller and the engine, put together in one place: ownership, the pace of starts, then the engine
//! with its limits.

use async_trait::async_trait;
use telexec_tool::local::LocalExecutor;
use telexec_tool::{
    Attach, Command, Execution, ExecutionId, ExecutionInfo, Executor, ExecutorError, Input, ListPage, ListQuery,
    Signal, TerminalSize,
};

use crate::call::Call;
use crate::starts::Starts;

/// Makes the executor of each caller.
#[derive(Clone)]
pub(crate) struct Stack {
    pub(crate) engine: LocalExecutor,
    pub(crate) starts: Starts,
}

impl Stack {
    /// What this caller may use.
    pub(crate) fn executor_for(&self, call: Call) -> impl Executor + use<> {
        Owned { inner: self.engine.clone(), starts: self.starts.clone(), call }
    }
}

/// Shows a caller only its own executions, and counts its starts.
struct Owned {
    inner: LocalExecutor,
    starts: Starts,
    call: Call,
}

impl Owned {
    /// The same answer for another's as for none.
    fn check(&self, id: &ExecutionId) -> Result<(), ExecutorError> {
        match self.inner.identity(id)? == self.call.caller.identity.as_str() {
            true => Ok(()),
            false => Err(ExecutorError::NotFound(id.clone())),
        }
    }
}

#[async_trait]
impl Executor for Owned {
    async fn execute(&self, command: Command) -> Result<Execution, ExecutorError> {
        self.starts.count(&self.call.caller.identity)?;
        self.inner.execute(command.with_identity(self.call.caller.identity.as_str())).await
    }

    async fn attach(&self, id: &ExecutionId, from: Attach) -> Result<Execution, ExecutorError> {
        self.check(id)?;
        self.inner.attach(id, from).await
    }

    async fn write_input(&self, id: &ExecutionId, input: Input) -> Result<u64, ExecutorError> {
        self.check(id)?;
        self.inner.write_input(id, input).await
    }

    async fn resize(&self, id: &ExecutionId, size: TerminalSize) -> Result<(), ExecutorError> {
        self.check(id)?;
        self.inner.resize(id, size).await
    }

    async fn signal(&self, id: &ExecutionId, signal: Signal) -> Result<ExecutionInfo, ExecutorError> {
        self.check(id)?;
        self.inner.signal(id, signal).await
    }

    async fn get(&self, id: &ExecutionId) -> Result<ExecutionInfo, ExecutorError> {
        self.check(id)?;
        self.inner.get(id).await
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, ExecutorError> {
        self.inner.list(ListQuery { identity: Some(self.call.caller.identity.as_str().into()), ..query }).await
    }
}
