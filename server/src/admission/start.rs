//! Whether one start is admitted.

use std::iter;
use std::sync::Arc;

use telexec_engine::{ExecutionObserver, Grant};
use telexec_executor::{Command, ExecutionId, ExecutorError};

use super::permission::{Judged, Permission, Permitted};
use super::{Guarded, Stack};
use crate::analysis::CommandAnalysis;
use crate::approvals::start::Start;
use crate::approvals::{Approval, State, Taken};
use crate::call::Rpc;
use crate::metrics::Refusal;
use crate::named_command::Resolved;
use crate::policy::{Decision, Facts, RequiredApproval};
use crate::request_memory::{self, ReservationHolder};

/// A command, with what the policy has decided.
pub(super) struct Decided {
    command: Command,
    /// The one that the policy saw, for the audit log.
    analysis: Arc<CommandAnalysis>,
    pub(super) decision: Decision,
    /// What is wrong with the use of a named command, keeps an approval from being asked for, or a receipt from being given.
    /// Those are told who may run the command, with an approval or without.
    refusal: Option<(Refusal, ExecutorError)>,
    /// To decide again while the command runs; `None`: there is no policy.
    facts: Option<Box<Facts>>,
}

/// A start that was admitted.
pub(super) struct Admitted {
    pub(super) command: Command,
    pub(super) grant: Grant,
    pub(super) permission: Arc<Permission>,
    /// The approval that it uses.
    pub(super) taken: Option<Taken>,
}

impl Guarded {
    /// Decides about a command.
    pub(super) async fn judge(&self, command: Command) -> Result<Decided, ExecutorError> {
        let Resolved { command, refusal } = self.stack.resolve(&self.call, command).await?;
        let unsigned = self.stack.receipts.refusal(&command).map(|error| (Refusal::Unsupported, error));
        let refusal = refusal.map(|error| (Refusal::NamedCommand, error)).or(unsigned);
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
        // what cannot run is nothing to approve
        let (decision, refusal) = match (&decision.approval, &refusal) {
            (Some(required), None) => match self.ask_for_approval(&facts, required, &decision).await {
                Ok(decision) => (decision, None),
                Err(error) => (decision, Some((Refusal::Approval, error))),
            },
            _ => (decision, refusal),
        };
        let analysis = facts.shared_analysis();
        let (command, facts) = facts.split();
        Ok(Decided { command, analysis, decision, refusal, facts: Some(Box::new(facts)) })
    }

    /// Asks all who may refuse a start, in this order: the policy, the limit of starts a second, the definition of a named
    /// command, the approvals, the audit log. What the others refuse, the last one records.
    pub(super) async fn admit(&self, mut decided: Decided) -> Result<Admitted, (Refusal, ExecutorError)> {
        if let Some(refused) = self.refused(&mut decided).await {
            return Err(refused);
        }
        let Decided { command, analysis, decision, facts, refusal: _ } = decided;
        let audit = &self.stack.audit;
        // where there is a policy, the request is kept to be judged again; a receipt has copies of its parts
        let counts_whole = facts.is_some() || command.receipt();
        let kept = if counts_whole { usize::MAX } else { request_memory::kept(&command) };
        let reservation = Arc::new(self.call.reservation.take());
        let judged = facts.map(|facts| Judged { facts, _reservation: Arc::clone(&reservation) });
        let id = command.execution_id().cloned().unwrap_or_else(ExecutionId::generate);
        let permitted = match decision.repeats {
            true => Permitted::Use(Rpc::Attach, id.clone(), self.identity().to_owned()),
            false => Permitted::Start(judged),
        };
        let permission = Permission::new(&self.stack, &self.call, permitted, &decision);
        let used = decision.approval_id.as_ref().map(|approval_id| self.stack.approvals.take(approval_id, &id));
        let taken = match used.transpose() {
            Ok(used) => used.flatten(),
            Err(denied) => {
                audit.record_denied(&self.call, &command, &analysis, &decision, &denied).await;
                return Err((Refusal::Approval, denied));
            }
        };
        let recorded = audit.record_start(&self.call, &id, &command, &analysis, &decision).await;
        let recorder = recorded.map_err(|error| (Refusal::Audit, error))?;
        let receipt = match decision.repeats {
            true => None,
            false => self.stack.receipts.observer(&self.call, &id, &command, &decision),
        };
        let holder: Box<dyn ExecutionObserver> = Box::new(ReservationHolder { reservation, kept });
        if !decision.repeats {
            let share = decision.allowance.share.unwrap_or_default();
            self.stack.body_turns.set_share(&self.call.caller.identity, share);
        }
        let grant = Grant {
            identity: permission.owner().to_owned(),
            id: Some(id),
            allowance: decision.allowance,
            trace: None,
            connection: self.call.connection.clone(),
            observers: recorder.into_iter().chain(receipt).chain(iter::once(holder)).collect(),
            stdin: None,
            internal_of: None,
            // the approval is for one start
            repeats: decision.repeats || decision.approval.is_some() && taken.is_none(),
        };
        Ok(Admitted { command, grant, permission, taken })
    }

    /// Why this is not to be started, which is recorded.
    async fn refused(&self, decided: &mut Decided) -> Option<(Refusal, ExecutorError)> {
        let refusal = decided.refusal.take();
        let Decided { command, analysis, decision, .. } = &*decided;
        let Stack { start_limiter, audit, .. } = &self.stack;
        let refusal = refusal.filter(|_| decision.allowed || decision.approval.is_some());
        if refusal.is_none()
            && let Err(denied) = decision.permitted()
        {
            audit.record_denied(&self.call, command, analysis, decision, &denied).await;
            let why = if decision.approval.is_some() { Refusal::Approval } else { Refusal::Policy };
            return Some((why, denied));
        }
        let early = start_limiter.count(&self.call.caller.identity).err().map(|early| (Refusal::Pace, early));
        let (why, refusal) = early.or(refusal)?;
        audit.record_refused(&self.call, command, analysis, decision, &refusal).await;
        Some((why, refusal))
    }

    /// The decision by what has become of the approval that a start needs. A request for it is made if there is none.
    ///
    /// # Errors
    /// It cannot be made.
    async fn ask_for_approval(
        &self,
        facts: &Facts,
        required: &RequiredApproval,
        decision: &Decision,
    ) -> Result<Decision, ExecutorError> {
        let (identity, start) = (&self.call.caller.identity, Start::new(facts)?);
        let approvals = &self.stack.approvals;
        if let Some(id) = facts.command.execution_id() {
            if let Some(approval) = approvals.used(identity, &start, id, required) {
                return Ok(by_approval(&approval, Some(id), decision.clone()));
            }
            // whoever may attach to it anyway need not wait for somebody; the engine answers with it, or refuses that
            let (attach, reached) = self.decide(Rpc::Attach, id).await;
            if reached.is_ok_and(|permission| permission.owner() == identity.as_str()) {
                return Ok(Decision { repeats: true, ..attach });
            }
        }
        let approval = approvals.ask(identity, start, required)?;
        Ok(by_approval(&approval, facts.command.execution_id(), decision.clone()))
    }
}

/// The decision by what has become of the request for an approval.
fn by_approval(approval: &Approval, id_of_start: Option<&ExecutionId>, decision: Decision) -> Decision {
    let rules = decision.approval.as_ref().map(RequiredApproval::names).unwrap_or_default();
    let id = approval.id.clone();
    match &approval.state {
        State::Starting(_, other) if id_of_start != Some(other) => Decision {
            reason: format!("request {id} is being used by another start: try again"),
            approval_id: Some(id),
            ..decision
        },
        State::Approved(by) | State::Starting(by, _) | State::Used(by, _) => Decision {
            allowed: true,
            reason: format!("the policy permits it: {rules}; {} has approved it", by.reviewer),
            approval_id: Some(id),
            approved_by: Some(by.reviewer.clone()),
            ..decision
        },
        State::Pending => Decision {
            reason: format!("the rule {rules} requires another identity's approval: request {id} is pending"),
            approval_id: Some(id),
            is_pending: true,
            ..decision
        },
        State::Rejected(by) => {
            let why = if by.reason.is_empty() { String::new() } else { format!(": {}", by.reason) };
            let reason = format!("{} has rejected request {id}{why}", by.reviewer);
            Decision { reason, approval_id: Some(id), ..decision }
        }
    }
}
