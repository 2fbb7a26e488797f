//! What stands between a caller and the engine, put together in one place: policy and ownership, the pace of starts, the
//! audit log, then the engine with its limits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use async_trait::async_trait;
use telexec_tool::local::LocalExecutor;
use telexec_tool::{
    Attach, Command, Execution, ExecutionId, ExecutionInfo, Executor, ExecutorError, Input, ListPage, ListQuery,
    OnDisconnect, Signal, TerminalSize,
};

use tokio::sync::Semaphore;

use crate::audit::{Audit, Touch};
use crate::call::{Call, Rpc};
use crate::metrics::{Metrics, Refusal};
use crate::policy::{Decision, Facts, PolicyFile, Subject};
use crate::reload::Watched;
use crate::starts::Starts;
use crate::trace::{self, Traces};

/// Makes the executor of each caller.
#[derive(Clone)]
pub(crate) struct Stack {
    pub(crate) engine: LocalExecutor,
    pub(crate) starts: Starts,
    /// `None`: whoever is known may do anything with what is its own.
    pub(crate) policy: Option<Watched<PolicyFile>>,
    pub(crate) audit: Audit,
    /// How many commands may be judged at once.
    pub(crate) judging: Arc<Semaphore>,
    pub(crate) metrics: Metrics,
    pub(crate) traces: Traces,
}

/// Fewer than the blocking pool has threads: users that cannot be looked up must not keep commands from being ended.
pub(crate) const MOST_JUDGED: usize = 64;

impl Stack {
    /// What this caller may use.
    pub(crate) fn executor_for(&self, call: Call) -> impl Executor + use<> {
        Guarded { stack: self.clone(), call, followed: OnceLock::new(), typed: AtomicBool::new(false) }
    }

    /// Whether a caller may ask this of the agent itself.
    ///
    /// # Errors
    /// [`ExecutorError::Denied`].
    pub(crate) async fn permit(&self, call: &Call) -> Result<Decision, ExecutorError> {
        let decision = self.decide(call, call.rpc, &Subject::Agent);
        self.metrics.decided(call.rpc, decision.allowed);
        match decision.permitted() {
            Ok(()) => Ok(decision),
            Err(denied) => {
                self.audit.touched(call, Touch::default(), &decision, Some(&denied)).await;
                Err(denied)
            }
        }
    }

    /// Whether a caller may start this command by this RPC, and what there is to know of the command.
    pub(crate) async fn judge(&self, call: &Call, rpc: Rpc, command: Command) -> (Facts, Decision) {
        // never closed
        let _turn = Arc::clone(&self.judging).acquire_owned().await;
        let (this, call, asked) = (self.clone(), call.clone(), command.clone());
        // a large request takes its time, and a look for its user may take for ever
        let judged = tokio::task::spawn_blocking(move || {
            let facts = Facts::find_out(&this.engine, asked);
            let decision = this.decide(&call, rpc, &Subject::Command(&facts));
            (facts, decision)
        });
        judged.await.unwrap_or_else(|_| (Facts::unknown(command), Decision::default()))
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
    /// What this call has started or follows.
    followed: OnceLock<Followed>,
    /// It has sent input already.
    typed: AtomicBool,
}

/// An execution that a call may do more with than others.
struct Followed {
    id: ExecutionId,
    started: bool,
}

impl Guarded {
    fn identity(&self) -> &str {
        self.call.caller.identity.as_str()
    }

    /// Whether this may be done to an execution; what has an effect on it, and what is denied, is told to the audit log.
    async fn reach(&self, rpc: Rpc, id: &ExecutionId, touch: Touch<'_>) -> Result<(), ExecutorError> {
        let (decision, reached) = self.decide(rpc, id);
        self.stack.metrics.decided(rpc, decision.allowed);
        let has_effect = match rpc {
            Rpc::Attach | Rpc::SignalExecution => true,
            // not each key that is typed
            Rpc::WriteInput => !self.typed.swap(true, Ordering::Relaxed),
            _ => false,
        };
        if has_effect || matches!(reached, Err(ExecutorError::Denied { .. })) {
            let touch = Touch { execution_id: Some(id), action: Some(rpc), ..touch };
            self.stack.audit.touched(&self.call, touch, &decision, reached.as_ref().err()).await;
        }
        reached
    }

    /// Of an execution that is someone else's the answer is the same as of none, unless a rule reaches it.
    fn decide(&self, rpc: Rpc, id: &ExecutionId) -> (Decision, Result<(), ExecutorError>) {
        if self.is_included(rpc, id) {
            return (Decision::unruled(), Ok(()));
        }
        let owner = self.stack.engine.identity(id).ok();
        let decide = |owner: &str| self.stack.decide(&self.call, rpc, &Subject::Execution { id: id.as_str(), owner });
        let is_own = owner.as_deref() == Some(self.identity());
        // both are decided, whoever it belongs to: the time that it takes tells nothing
        let others = decide(owner.as_deref().unwrap_or_default());
        if owner.is_some() && !is_own && others.allowed && others.any_owner {
            return (others, Ok(()));
        }
        // who may do this to no execution hears so of each
        let decision = decide(self.identity());
        let found = if is_own { Ok(()) } else { Err(ExecutorError::NotFound(id.clone())) };
        let reached = decision.permitted().and(found);
        (decision, reached)
    }

    /// What was permitted with the beginning of a call: all that goes with a start, and to see how that goes which is followed.
    fn is_included(&self, rpc: Rpc, id: &ExecutionId) -> bool {
        let Some(followed) = self.followed.get() else { return false };
        followed.id == *id && (followed.started || rpc == Rpc::GetExecution)
    }

    /// From now on this call follows an execution.
    fn follow(&self, execution: Execution, started: bool) -> Execution {
        let _ = self.followed.set(Followed { id: execution.id().clone(), started });
        execution
    }

    /// What the policy says of a command, which it may have found out something about.
    async fn judge(&self, command: Command) -> (Command, Decision) {
        if self.stack.policy.is_none() {
            return (command, Decision::unruled());
        }
        let (facts, decision) = self.stack.judge(&self.call, self.call.rpc, command).await;
        (facts.command, decision)
    }
}

#[async_trait]
impl Executor for Guarded {
    async fn execute(&self, command: Command) -> Result<Execution, ExecutorError> {
        let asked = Instant::now();
        let Stack { engine, starts, audit, metrics, traces, .. } = &self.stack;
        let (command, span) = traces.continued(&self.call, command.with_identity(self.identity()));
        let (command, decision) = self.judge(command).await;
        metrics.decided(self.call.rpc, decision.allowed);
        if let Err(denied) = decision.permitted() {
            metrics.refused(Refusal::Policy);
            trace::refused(span, &denied);
            audit.denied(&self.call, &command, &decision, &denied).await;
            return Err(denied);
        }
        if let Err(early) = starts.count(&self.call.caller.identity) {
            metrics.refused(Refusal::Pace);
            trace::refused(span, &early);
            audit.refused(&self.call, &command, &decision, &early).await;
            return Err(early);
        }
        let command = command.with_allowance(decision.allowance);
        let told = match audit.start(&self.call, &command, &decision).await {
            Ok(told) => told,
            Err(error) => {
                metrics.refused(Refusal::Audit);
                trace::refused(span, &error);
                return Err(error);
            }
        };
        match metrics.watch(asked, trace::watch(span, told)) {
            Some((id, watcher)) => engine.execute_watched(command, id, watcher).await,
            None => engine.execute(command).await,
        }
        .map(|execution| self.follow(execution, true))
    }

    async fn attach(&self, id: &ExecutionId, from: Attach) -> Result<Execution, ExecutorError> {
        let touch = Touch { position: Some(from.position), ..Touch::default() };
        self.reach(Rpc::Attach, id, touch).await?;
        if from.on_disconnect == OnDisconnect::Kill {
            // to go is to end it
            self.reach(Rpc::SignalExecution, id, touch).await?;
        }
        self.stack.engine.attach(id, from).await.map(|execution| self.follow(execution, false))
    }

    async fn write_input(&self, id: &ExecutionId, input: Input) -> Result<u64, ExecutorError> {
        self.reach(Rpc::WriteInput, id, Touch::default()).await?;
        self.stack.engine.write_input(id, input).await
    }

    async fn resize(&self, id: &ExecutionId, size: TerminalSize) -> Result<(), ExecutorError> {
        self.reach(Rpc::ResizeTerminal, id, Touch::default()).await?;
        self.stack.engine.resize(id, size).await
    }

    async fn signal(&self, id: &ExecutionId, signal: Signal) -> Result<ExecutionInfo, ExecutorError> {
        self.reach(Rpc::SignalExecution, id, Touch { signal: Some(signal), ..Touch::default() }).await?;
        self.stack.engine.signal(id, signal).await
    }

    async fn get(&self, id: &ExecutionId) -> Result<ExecutionInfo, ExecutorError> {
        self.reach(Rpc::GetExecution, id, Touch::default()).await?;
        self.stack.engine.get(id).await
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, ExecutorError> {
        let decision = self.stack.permit(&self.call).await?;
        let identity = (!decision.any_owner).then(|| self.identity().to_owned());
        self.stack.engine.list(ListQuery { identity, ..query }).await
    }
}
