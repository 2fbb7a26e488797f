//! Whether one start is admitted.

use std::iter;
use std::sync::Arc;

use telexec_engine::{ExecutionObserver, Grant};
use telexec_executor::{Command, ExecutionId, ExecutorError};

use super::permission::{Judged, Permission, Permitted};
use super::{Guarded, Stack};
use crate::analysis::CommandAnalysis;
use crate::approvals::State;
use crate::approvals::start::Start;
use crate::identity::Identity;
use crate::metrics::Refusal;
use crate::named_command::Resolved;
use crate::policy::{Decision, Facts};
use crate::request_memory::{self, ReservationHolder};

/// A command, with what the policy has decided.
pub(super) struct Decided {
    command: Command,
    /// The one that the policy saw, for the audit log.
    analysis: Arc<CommandAnalysis>,
    pub(super) decision: Decision,
    /// What is wrong with the use of a named command.
    refusal: Option<ExecutorError>,
    /// To decide again while the command runs; `None`: there is no policy.
    facts: Option<Box<Facts>>,
}

/// A start that was admitted.
pub(super) struct Admitted {
    pub(super) command: Command,
    pub(super) grant: Grant,
    pub(super) permission: Arc<Permission>,
    /// By which it was admitted.
    pub(super) decision: Decision,
}

impl Guarded {
    /// Decides about a command.
    pub(super) async fn judge(&self, command: Command) -> Result<Decided, ExecutorError> {
        let Resolved { command, refusal } = self.stack.resolve(&self.call, command).await?;
        if self.stack.policy.is_none() {
            let command = match command.uses_user_shell() {
                true => {
                    let identity = self.call.caller.identity.as_str();
                    self.stack.evaluator.resolve(identity, &self.stack.engine, command).await?.1
                }
                false => command,
            };
            // made only if the audit log needs it
            let analysis = CommandAnalysis::new(self.stack.engine.shell(&command).as_deref());
            return Ok(Decided { command, analysis, decision: Decision::without_policy(), refusal, facts: None });
        }
        let (facts, decision) =
            self.stack.judge(&self.call, Arc::clone(&self.call.caller), self.call.rpc, command).await?;
        let decision = match (&decision.approval, &refusal) {
            (None, _) => decision,
            // what cannot run is nothing to approve
            (Some(_), Some(_)) => Decision { allowed: true, ..decision },
            (Some(_), None) => self.stack.ask_for_approval(&self.call.caller.identity, &facts, decision),
        };
        let analysis = facts.shared_analysis();
        let (command, facts) = facts.split();
        Ok(Decided { command, analysis, decision, refusal, facts: Some(Box::new(facts)) })
    }

    /// Asks all who may refuse a start, in this order: the policy, the limit of starts a second, the definition of a named
    /// command, the audit log. What the others refuse, the last one records.
    pub(super) async fn admit(&self, decided: Decided) -> Result<Admitted, (Refusal, ExecutorError)> {
        let Decided { command, analysis, decision, refusal, facts } = decided;
        let Stack { start_limiter, audit, .. } = &self.stack;
        if let Err(denied) = decision.permitted() {
            audit.record_denied(&self.call, &command, &analysis, &decision, &denied).await;
            let refusal = if decision.approval.is_some() { Refusal::Approval } else { Refusal::Policy };
            return Err((refusal, denied));
        }
        if let Err(early) = start_limiter.count(&self.call.caller.identity) {
            audit.record_refused(&self.call, &command, &analysis, &decision, &early).await;
            return Err((Refusal::Pace, early));
        }
        if let Some(refusal) = refusal {
            audit.record_refused(&self.call, &command, &analysis, &decision, &refusal).await;
            return Err((Refusal::NamedCommand, refusal));
        }
        // where there is a policy, the request is kept to be judged again
        let kept = if facts.is_some() { usize::MAX } else { request_memory::kept(&command) };
        let reservation = Arc::new(self.call.reservation.take());
        let judged = facts.map(|facts| Judged { facts, _reservation: Arc::clone(&reservation) });
        let permission = Permission::new(&self.stack, &self.call, Permitted::Start(judged), &decision);
        let id = command.execution_id().cloned().unwrap_or_else(ExecutionId::generate);
        if let Some(approval_id) = &decision.approval_id
            && let Err(denied) = self.stack.approvals.take(approval_id, &id)
        {
            audit.record_denied(&self.call, &command, &analysis, &decision, &denied).await;
            return Err((Refusal::Approval, denied));
        }
        let recorded = audit.record_start(&self.call, &id, &command, &analysis, &decision).await;
        let recorder = recorded.map_err(|error| {
            self.stack.not_started(&decision, &id, &error);
            (Refusal::Audit, error)
        })?;
        let holder: Box<dyn ExecutionObserver> = Box::new(ReservationHolder { reservation, kept });
        let grant = Grant {
            identity: permission.owner().to_owned(),
            id: Some(id),
            allowance: decision.allowance,
            trace: None,
            connection: self.call.connection.clone(),
            observers: recorder.into_iter().chain(iter::once(holder)).collect(),
            stdin: None,
            is_internal: false,
        };
        Ok(Admitted { command, grant, permission, decision })
    }
}

impl Stack {
    /// The decision on a start that needs an approval, by what has become of the request for that.
    fn ask_for_approval(&self, identity: &Identity, facts: &Facts, decision: Decision) -> Decision {
        let Some(required) = &decision.approval else { return decision };
        let is_known = |id: &ExecutionId| self.engine.owners(id).iter().any(|owner| owner == identity.as_str());
        let asked = Start::new(facts).and_then(|start| self.approvals.ask(identity, start, required, is_known));
        let approval = match asked {
            Ok(approval) => approval,
            Err(reason) => return Decision { reason, ..decision },
        };
        let (id, rules) = (approval.id.clone(), required.names());
        match &approval.state {
            State::Pending => Decision {
                reason: format!(
                    "another identity has to approve this first, by the rule {rules}: approval {id} is pending"
                ),
                approval_id: Some(id),
                ..decision
            },
            State::Approved(by) | State::Used(by, _) => Decision {
                allowed: true,
                reason: format!("the policy permits it: {rules}; {} has approved it", by.reviewer),
                approval_id: Some(id),
                approved_by: Some(by.reviewer.clone()),
                ..decision
            },
            State::Rejected(by) => {
                let why = if by.reason.is_empty() { String::new() } else { format!(": {}", by.reason) };
                Decision { reason: format!("{} has rejected approval {id}{why}", by.reviewer), ..decision }
            }
        }
    }

    /// Gives back the approval of a start, if it is certain that nothing has run.
    pub(super) fn not_started(&self, decision: &Decision, id: &ExecutionId, error: &ExecutorError) {
        let ran_nothing = matches!(
            error,
            ExecutorError::Exhausted { .. } | ExecutorError::Spawn(_) | ExecutorError::Unsupported { .. }
        );
        if let Some(approval_id) = decision.approval_id.as_ref().filter(|_| ran_nothing) {
            self.approvals.give_back(approval_id, id);
        }
    }
}
