//! What stands between a caller and the engine, put together in one place: policy and ownership, the pace of starts, then
//! the engine with its limits.

use async_trait::async_trait;
use telexec_tool::local::LocalExecutor;
use telexec_tool::{
    Attach, Command, Execution, ExecutionId, ExecutionInfo, Executor, ExecutorError, Input, ListPage, ListQuery,
    OnDisconnect, Signal, TerminalSize,
};

use crate::call::{Call, Rpc};
use crate::policy::{Decision, Facts, PolicyFile, Subject};
use crate::reload::Watched;
use crate::starts::Starts;

/// Makes the executor of each caller.
#[derive(Clone)]
pub(crate) struct Stack {
    pub(crate) engine: LocalExecutor,
    pub(crate) starts: Starts,
    /// `None`: whoever is known may do anything with what is its own.
    pub(crate) policy: Option<Watched<PolicyFile>>,
}

impl Stack {
    /// What this caller may use.
    pub(crate) fn executor_for(&self, call: Call) -> impl Executor + use<> {
        Guarded { stack: self.clone(), call }
    }

    /// Whether a caller may ask this of the agent itself.
    ///
    /// # Errors
    /// [`ExecutorError::Denied`].
    pub(crate) fn permit(&self, call: &Call) -> Result<(), ExecutorError> {
        self.decide(call, call.rpc, &Subject::Agent).permitted()
    }

    /// Whether a caller may start this command by this RPC, and what there is to know of the command.
    pub(crate) async fn judge(&self, call: &Call, rpc: Rpc, command: Command) -> (Facts, Decision) {
        let facts = Facts::of(&self.engine, command).await;
        let decision = self.decide(call, rpc, &Subject::Command(&facts));
        (facts, decision)
    }

    fn decide(&self, call: &Call, rpc: Rpc, subject: &Subject<'_>) -> Decision {
        match &self.policy {
            Some(policy) => policy.current().decide(&call.caller, rpc, subject),
            None => Decision::unruled(),
        }
    }
}

/// The engine, for one call.
struct Guarded {
    stack: Stack,
    call: Call,
}

impl Guarded {
    fn identity(&self) -> &str {
        self.call.caller.identity.as_str()
    }

    /// Whether this may be done to an execution. Of one that is someone else's the answer is the same as of none, unless a
    /// rule reaches it.
    fn reach(&self, rpc: Rpc, id: &ExecutionId) -> Result<(), ExecutorError> {
        let owner = self.stack.engine.identity(id).ok();
        let decide = |owner: &str| self.stack.decide(&self.call, rpc, &Subject::Execution { id: id.as_str(), owner });
        let is_own = owner.as_deref() == Some(self.identity());
        if let Some(other) = owner.filter(|_| !is_own) {
            let decision = decide(&other);
            if decision.allowed && decision.any_owner {
                return Ok(());
            }
        }
        // who may do this to no execution hears so of each
        decide(self.identity()).permitted()?;
        if is_own { Ok(()) } else { Err(ExecutorError::NotFound(id.clone())) }
    }
}

#[async_trait]
impl Executor for Guarded {
    async fn execute(&self, command: Command) -> Result<Execution, ExecutorError> {
        let stack = &self.stack;
        let command = command.with_identity(self.identity());
        let command = match stack.policy {
            Some(_) => {
                let (facts, decision) = stack.judge(&self.call, self.call.rpc, command).await;
                decision.permitted()?;
                facts.command.with_allowance(decision.allowance)
            }
            None => command,
        };
        stack.starts.count(&self.call.caller.identity)?;
        stack.engine.execute(command).await
    }

    async fn attach(&self, id: &ExecutionId, from: Attach) -> Result<Execution, ExecutorError> {
        self.reach(Rpc::Attach, id)?;
        if from.on_disconnect == OnDisconnect::Kill {
            // to go is to end it
            self.reach(Rpc::SignalExecution, id)?;
        }
        self.stack.engine.attach(id, from).await
    }

    async fn write_input(&self, id: &ExecutionId, input: Input) -> Result<u64, ExecutorError> {
        self.reach(Rpc::WriteInput, id)?;
        self.stack.engine.write_input(id, input).await
    }

    async fn resize(&self, id: &ExecutionId, size: TerminalSize) -> Result<(), ExecutorError> {
        self.reach(Rpc::ResizeTerminal, id)?;
        self.stack.engine.resize(id, size).await
    }

    async fn signal(&self, id: &ExecutionId, signal: Signal) -> Result<ExecutionInfo, ExecutorError> {
        self.reach(Rpc::SignalExecution, id)?;
        self.stack.engine.signal(id, signal).await
    }

    async fn get(&self, id: &ExecutionId) -> Result<ExecutionInfo, ExecutorError> {
        self.reach(Rpc::GetExecution, id)?;
        self.stack.engine.get(id).await
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, ExecutorError> {
        let decision = self.stack.decide(&self.call, Rpc::ListExecutions, &Subject::Agent);
        decision.permitted()?;
        let identity = (!decision.any_owner).then(|| self.identity().to_owned());
        self.stack.engine.list(ListQuery { identity, ..query }).await
    }
}
