//! What stands between a caller and the engine, put together in one place: policy and ownership, the pace of starts, the
//! audit log, then the engine with its limits.

pub(crate) mod call_limiter;
pub(crate) mod on_workers;
pub(crate) mod permission;
pub(crate) mod policy_evaluator;
mod start;
pub(crate) mod start_limiter;

use std::collections::BTreeSet;
use std::iter;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use async_trait::async_trait;
use telexec_engine::LocalExecutor;
use telexec_executor::{
    Attach, Command, Execution, ExecutionId, ExecutionInfo, Executor, ExecutorError, Input, ListPage, ListQuery,
    OnDisconnect, Signal, SpawnStage, TerminalSize,
};

use crate::admission::permission::{Permission, Permitted};
use crate::admission::policy_evaluator::PolicyEvaluator;
use crate::admission::start::Admitted;
use crate::admission::start_limiter::StartLimiter;
use crate::approvals::Approvals;
use crate::audit::{Audit, Operation};
use crate::call::caller::Caller;
use crate::call::{Call, Rpc};
use crate::http2::turns::BodyTurns;
use crate::identity::Identity;
use crate::metrics::Metrics;
use crate::named_command::{NamedCommands, Resolved};
use crate::policy::{Decision, Detail, Facts, PolicyFile, Subject};
use crate::receipts::Receipts;
use crate::reload::Watched;
use crate::trace::Traces;

/// Makes the executor of each caller.
#[derive(Clone)]
pub(crate) struct Stack {
    pub(crate) engine: LocalExecutor,
    pub(crate) start_limiter: StartLimiter,
    /// `None`: every authenticated caller may do anything with what is its own.
    pub(crate) policy: Option<Watched<PolicyFile>>,
    pub(crate) audit: Audit,
    pub(crate) evaluator: PolicyEvaluator,
    pub(crate) named_commands: NamedCommands,
    pub(crate) approvals: Approvals,
    pub(crate) receipts: Receipts,
    pub(crate) body_turns: BodyTurns,
    pub(crate) metrics: Metrics,
    pub(crate) traces: Traces,
}

/// What root may do with everybody's executions, on a Unix socket of an agent without a policy.
const ADMINISTERED: [Rpc; 3] = [Rpc::ListExecutions, Rpc::GetExecution, Rpc::SignalExecution];

impl Stack {
    /// The roles of a caller, in the order of their names.
    pub(crate) fn roles(&self, caller: &Caller) -> Vec<String> {
        let roles: BTreeSet<String> = match &self.policy {
            Some(policy) => policy.current().roles_of(caller).map(str::to_owned).collect(),
            None => caller.roles().iter().cloned().collect(),
        };
        roles.into_iter().collect()
    }

    /// Continues what an earlier agent has started, and was killed.
    pub(crate) fn continue_executions(&self) {
        self.engine.continue_executions(|all| {
            let recorders = all.iter().zip(self.audit.continue_recording(all));
            recorders
                .map(|(execution, recorder)| {
                    // what has ended was counted by the agent that it ended under
                    let counter = execution.exited.is_none().then(|| self.metrics.observer(Instant::now())).flatten();
                    counter.into_iter().chain(recorder).chain(self.receipts.continued(execution)).collect()
                })
                .collect()
        });
    }

    /// What this caller may use.
    pub(crate) fn executor_for(&self, call: Call) -> impl Executor + use<> {
        Guarded { stack: self.clone(), call, followed: OnceLock::new() }
    }

    /// Whether a caller may ask this of the agent itself.
    ///
    /// # Errors
    /// [`ExecutorError::Denied`].
    pub(crate) async fn permit(&self, call: &Call) -> Result<Decision, ExecutorError> {
        // its body may have come long after its headers
        call.caller.check_open_call()?;
        let decide = |this: &Self, call: &Call, detail| {
            let decision = this.decide(&call.caller, call.rpc, &Subject::Agent, detail);
            let permitted = decision.permitted();
            (decision, permitted)
        };
        let (decision, permitted) = self.explain_denial(call, decide).await;
        self.metrics.decided(call.rpc, decision.allowed);
        match permitted {
            Ok(()) => Ok(decision),
            Err(denied) => {
                self.audit.record_access(call, Operation::default(), &decision, Some(&denied)).await;
                Err(denied)
            }
        }
    }

    /// Whether a caller may ask what another identity may do; in any case that goes to the audit log.
    ///
    /// # Errors
    /// [`ExecutorError::Denied`].
    pub(crate) async fn permit_as(&self, call: &Call, identity: &Identity) -> Result<(), ExecutorError> {
        call.caller.check_open_call()?;
        let name = identity.as_str().to_owned();
        let decide = move |this: &Self, call: &Call, detail| {
            let decision = match &this.policy {
                None if !call.caller.is_root() => Decision {
                    reason: "there is no policy: only root on a Unix socket of the agent may ask for others".to_owned(),
                    ..Decision::default()
                },
                _ => this.decide(&call.caller, call.rpc, &Subject::Identity(&name), detail),
            };
            let permitted = decision.permitted();
            (decision, permitted)
        };
        let (decision, permitted) = self.explain_denial(call, decide).await;
        self.metrics.decided(call.rpc, decision.allowed);
        let operation = Operation { about: Some(identity), ..Operation::default() };
        self.audit.record_access(call, operation, &decision, permitted.as_ref().err()).await;
        permitted
    }

    /// Puts the definition of a named command in the place of its name, in the turn of the identity that calls if that may take
    /// long.
    ///
    /// # Errors
    /// [`ExecutorError::Internal`].
    pub(crate) async fn resolve(&self, call: &Call, command: Command) -> Result<Resolved, ExecutorError> {
        if self.named_commands.is_quick(&command) {
            return Ok(self.named_commands.resolve(command));
        }
        let named_commands = self.named_commands.clone();
        let identity = call.caller.identity.as_str();
        self.evaluator.in_turn(identity, move || named_commands.resolve(command)).await
    }

    /// Whether `caller` may start this command by this RPC, and what is known of the command. It is judged in the turn of the
    /// identity that calls, unless that takes no longer than to wait for a turn.
    ///
    /// # Errors
    /// [`ExecutorError::Internal`].
    pub(crate) async fn judge(
        &self,
        call: &Call,
        caller: Arc<Caller>,
        rpc: Rpc,
        command: Command,
    ) -> Result<(Facts, Decision), ExecutorError> {
        let identity = call.caller.identity.as_str();
        let facts = self.evaluator.facts(identity, &self.engine, command).await?;
        if let Some(policy) = self.policy.as_ref().map(Watched::current).filter(|policy| policy.is_quick)
            && facts.are_quick()
        {
            let decision = policy.decide(&caller, rpc, &Subject::Command(&facts), Detail::Verdict);
            if decision.allowed {
                return Ok((facts, decision));
            }
        }
        let this = self.clone();
        let decide = move || {
            facts.analysis();
            let decision = this.decide(&caller, rpc, &Subject::Command(&facts), Detail::Explained);
            (facts, decision)
        };
        self.evaluator.in_turn(identity, decide).await
    }

    /// What `decide` decides now. If it denies, it is asked again with an explanation. That, and all of it where the policy is
    /// long, is done on other threads and in the turn of the identity that calls: it must not hold up other calls.
    pub(crate) async fn explain_denial<T: Send + 'static>(
        &self,
        call: &Call,
        decide: impl Fn(&Self, &Call, Detail) -> (Decision, Result<T, ExecutorError>) + Send + 'static,
    ) -> (Decision, Result<T, ExecutorError>) {
        let denies = |decided: &(_, Result<T, ExecutorError>)| matches!(decided.1, Err(ExecutorError::Denied { .. }));
        let is_quick = self.policy.as_ref().is_none_or(|policy| policy.current().is_quick);
        if is_quick {
            let decided = decide(self, call, Detail::Verdict);
            if !denies(&decided) {
                return decided;
            }
        }
        let (this, about) = (self.clone(), call.clone());
        let explain = move || {
            let decided = (!is_quick).then(|| decide(&this, &about, Detail::Verdict));
            let permitted = decided.filter(|decided| !denies(decided));
            permitted.unwrap_or_else(|| decide(&this, &about, Detail::Explained))
        };
        let explained = self.evaluator.in_turn(call.caller.identity.as_str(), explain).await;
        explained.unwrap_or_else(|error| (Decision::default(), Err(error)))
    }

    /// What the policy decides about this now.
    pub(crate) fn decide(&self, caller: &Caller, rpc: Rpc, subject: &Subject<'_>, detail: Detail) -> Decision {
        match &self.policy {
            Some(policy) => policy.current().decide(caller, rpc, subject, detail),
            // root on the machine administers it
            None => {
                Decision { any_owner: caller.is_root() && ADMINISTERED.contains(&rpc), ..Decision::without_policy() }
            }
        }
    }

    /// Whose execution this may be done to, of those that these identities have of an id: the caller's own, or the only
    /// other one that a rule reaches. Of one that is not reached the answer is the same as of none.
    pub(crate) fn decide_use(
        &self,
        call: &Call,
        rpc: Rpc,
        id: &ExecutionId,
        owners: &[String],
        detail: Detail,
    ) -> (Decision, Result<String, ExecutorError>) {
        let own = owners.iter().find(|owner| *owner == call.caller.identity.as_str());
        if own.is_none()
            && let Some(reached) = self.reach_other(call, rpc, id, owners)
        {
            return reached;
        }
        // who may do this to no execution hears so of each
        let decision = self.decide_of(call, rpc, id, call.caller.identity.as_str(), detail);
        let found = own.cloned().ok_or_else(|| ExecutorError::NotFound(id.clone()));
        let reached = decision.permitted().and(found);
        (decision, reached)
    }

    /// `None`: no rule reaches an execution of these.
    fn reach_other(
        &self,
        call: &Call,
        rpc: Rpc,
        id: &ExecutionId,
        owners: &[String],
    ) -> Option<(Decision, Result<String, ExecutorError>)> {
        let may_reach_others = match &self.policy {
            Some(policy) => policy.current().may_reach_others(&call.caller),
            None => call.caller.is_root(),
        };
        // whom no rule lets reach others is answered in the same time, no matter who has the id
        if !may_reach_others {
            return None;
        }
        if owners.is_empty() {
            let _ = self.decide_of(call, rpc, id, "", Detail::Verdict);
        }
        let decided = owners.iter().map(|owner| (self.decide_of(call, rpc, id, owner, Detail::Verdict), owner));
        let mut reached: Vec<_> = decided.filter(|(decision, _)| decision.allowed && decision.any_owner).collect();
        let (decision, owner) = reached.pop()?;
        let reason = "the id is ambiguous: several identities have an execution with it, see ListExecutions";
        let owner = match reached.is_empty() {
            true => Ok(owner.clone()),
            false => Err(ExecutorError::FailedPrecondition { reason: reason.into() }),
        };
        Some((decision, owner))
    }

    fn decide_of(&self, call: &Call, rpc: Rpc, id: &ExecutionId, owner: &str, detail: Detail) -> Decision {
        self.decide(&call.caller, rpc, &Subject::Execution { id: id.as_str(), owner }, detail)
    }
}

/// Whether it is certain that the engine has run nothing of a command that it has not started.
fn has_run_nothing(error: &ExecutorError) -> bool {
    match error {
        // of this step some is done once the process is there
        ExecutorError::Spawn(error) => error.stage != SpawnStage::Prepare,
        ExecutorError::Exhausted { .. }
        | ExecutorError::Unsupported { .. }
        | ExecutorError::AlreadyExists(_)
        | ExecutorError::AlreadyRunning(_) => true,
        _ => false,
    }
}

/// The engine, for one call.
struct Guarded {
    stack: Stack,
    call: Call,
    /// What this call has started or follows.
    followed: OnceLock<Followed>,
}

/// An execution that a call may do more with than others.
struct Followed {
    id: ExecutionId,
    started: bool,
    permission: Arc<Permission>,
}

impl Guarded {
    fn identity(&self) -> &str {
        self.call.caller.identity.as_str()
    }

    /// Whether this may be done to an execution, and for how long; what has an effect on it, and what is denied, goes to the
    /// audit log.
    async fn reach(
        &self,
        rpc: Rpc,
        id: &ExecutionId,
        operation: Operation<'_>,
    ) -> Result<Arc<Permission>, ExecutorError> {
        let (decision, reached) = match self.included(rpc, id) {
            Some(permission) => {
                // which reports it itself
                permission.check()?;
                (Decision::without_policy(), Ok(permission))
            }
            None => self.decide(rpc, id).await,
        };
        self.stack.metrics.decided(rpc, decision.allowed);
        let has_effect = match rpc {
            Rpc::Attach | Rpc::SignalExecution => true,
            // not each key that is typed
            Rpc::WriteInput => self.stack.audit.is_first_input(&self.call, id),
            Rpc::ResizeTerminal | Rpc::GetExecution | Rpc::ListExecutions => false,
            // not done to an execution
            Rpc::Execute | Rpc::Run | Rpc::Interact | Rpc::GetAgent | Rpc::CheckCommand => false,
            Rpc::Connect | Rpc::Listen => false,
            Rpc::ReadFile | Rpc::WriteFile | Rpc::GetFileInfo | Rpc::ListDirectory | Rpc::MakeDirectory => false,
            Rpc::MoveFile | Rpc::RemoveFile | Rpc::GetUpload | Rpc::Transfer | Rpc::ServeSftp => false,
            Rpc::SearchFiles | Rpc::WatchFiles => false,
            Rpc::ListApprovals | Rpc::GetApproval | Rpc::Approve | Rpc::Reject | Rpc::ExportLogs => false,
        };
        if has_effect || matches!(reached, Err(ExecutorError::Denied { .. })) {
            let operation = Operation { execution_id: Some(id), action: Some(rpc), ..operation };
            self.stack.audit.record_access(&self.call, operation, &decision, reached.as_ref().err()).await;
        }
        reached
    }

    async fn decide(&self, rpc: Rpc, id: &ExecutionId) -> (Decision, Result<Arc<Permission>, ExecutorError>) {
        if let Err(unknown) = self.call.caller.check_open_call() {
            return (Decision::default(), Err(unknown));
        }
        let owners = match self.followed(id) {
            // another one of the id may have come
            Some(followed) => vec![followed.permission.owner().to_owned()],
            None => self.stack.engine.owners(id),
        };
        let asked = id.clone();
        let decide = move |stack: &Stack, call: &Call, detail| stack.decide_use(call, rpc, &asked, &owners, detail);
        let (decision, reached) = self.stack.explain_denial(&self.call, decide).await;
        let permission =
            |owner| Permission::new(&self.stack, &self.call, Permitted::Use(rpc, id.clone(), owner), &decision);
        let reached = reached.map(permission);
        (decision, reached)
    }

    /// What was permitted with the beginning of a call: all that goes with a start, and to see how that goes which is followed.
    fn included(&self, rpc: Rpc, id: &ExecutionId) -> Option<Arc<Permission>> {
        let followed = self.followed(id)?;
        (followed.started || rpc == Rpc::GetExecution).then(|| Arc::clone(&followed.permission))
    }

    fn followed(&self, id: &ExecutionId) -> Option<&Followed> {
        self.followed.get().filter(|followed| followed.id == *id)
    }

    /// The engine, acting as the owner of what is permitted to be used.
    fn engine(&self, permission: &Permission) -> LocalExecutor {
        self.stack.engine.acting_as(permission.owner())
    }

    /// From now on this call follows an execution, while that is permitted.
    fn follow(&self, execution: Execution, started: bool, permission: Arc<Permission>) -> Execution {
        let execution = permission.limit(execution);
        let _ = self.followed.set(Followed { id: execution.id().clone(), started, permission });
        execution
    }
}

#[async_trait]
impl Executor for Guarded {
    async fn execute(&self, command: Command) -> Result<Execution, ExecutorError> {
        let asked = Instant::now();
        // a call of Interact may be old when it starts something
        self.call.caller.check_open_call()?;
        let Stack { engine, metrics, traces, .. } = &self.stack;
        let (trace, span) = traces.begin(&self.call);
        let decided = self.judge(command).await?;
        metrics.decided(self.call.rpc, decided.decision.allowed);
        let Admitted { command, mut grant, permission, mut taken } = match self.admit(decided).await {
            Ok(admitted) => admitted,
            Err((refusal, error)) => {
                metrics.refused(refusal);
                span.into_iter().for_each(|span| span.fail(&error));
                return Err(error);
            }
        };
        grant.trace = trace;
        let span = span.zip(grant.id.as_ref()).map(|(span, id)| span.observer(id));
        // first, so that an end in the audit log is already counted
        grant.observers.splice(..0, metrics.observer(asked).into_iter().chain(span));
        self.call.deadline.hand_over();
        permission.outlive_connection();
        if let Some(taken) = &mut taken {
            taken.started();
        }
        let execution = permission.during(engine.execute_granted(command, grant)).await;
        if let (Err(error), Some(taken)) = (&execution, &mut taken)
            && has_run_nothing(error)
        {
            taken.not_started();
        }
        let started = !permission.is_of_attach();
        Ok(self.follow(execution?, started, permission))
    }

    async fn attach(&self, id: &ExecutionId, from: Attach) -> Result<Execution, ExecutorError> {
        let operation = Operation { position: Some(from.position), ..Operation::default() };
        let permission = self.reach(Rpc::Attach, id, operation).await?;
        // to go is to end it; whoever has started it bound to a call might do that anyway
        let is_own = permission.owner() == self.identity();
        let continues = is_own && !from.disconnect_grace.is_zero() && self.engine(&permission).waits_for_caller(id);
        let ending = match from.on_disconnect {
            OnDisconnect::Kill if continues => None,
            OnDisconnect::Kill => Some(self.reach(Rpc::SignalExecution, id, operation).await?),
            OnDisconnect::Detach => None,
        };
        // another one of the id may have come in between
        if ending.as_ref().is_some_and(|ending| ending.owner() != permission.owner()) {
            return Err(ExecutorError::NotFound(id.clone()));
        }
        iter::once(&permission).chain(&ending).for_each(Permission::outlive_connection);
        self.call.deadline.outlive(&self.call.connection);
        let execution =
            permission.during(self.engine(&permission).attach_over(id, from, self.call.connection.clone())).await?;
        let execution = match ending {
            Some(ending) => ending.limit(execution),
            None => execution,
        };
        Ok(self.follow(execution, false, permission))
    }

    async fn write_input(&self, id: &ExecutionId, input: Input) -> Result<u64, ExecutorError> {
        let permission = self.reach(Rpc::WriteInput, id, Operation::default()).await?;
        permission.during(self.engine(&permission).write_input(id, input)).await
    }

    async fn resize(&self, id: &ExecutionId, size: TerminalSize) -> Result<(), ExecutorError> {
        let permission = self.reach(Rpc::ResizeTerminal, id, Operation::default()).await?;
        self.engine(&permission).resize(id, size).await
    }

    async fn signal(&self, id: &ExecutionId, signal: Signal) -> Result<ExecutionInfo, ExecutorError> {
        let operation = Operation { signal: Some(signal), ..Operation::default() };
        let permission = self.reach(Rpc::SignalExecution, id, operation).await?;
        self.engine(&permission).signal(id, signal).await
    }

    async fn get(&self, id: &ExecutionId) -> Result<ExecutionInfo, ExecutorError> {
        let permission = self.reach(Rpc::GetExecution, id, Operation::default()).await?;
        self.engine(&permission).get(id).await
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, ExecutorError> {
        let decision = self.stack.permit(&self.call).await?;
        let identity = (!decision.any_owner).then(|| self.identity().to_owned());
        self.stack.engine.list(ListQuery { identity, ..query }).await
    }
}
