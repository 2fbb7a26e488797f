//! `telexec.v1.ApprovalService`.

use std::sync::Arc;
use std::time::SystemTime;

use telexec_executor::{ExecutionId, ExecutorError, InvalidCommand};
use telexec_proto::convert::error_to_status;
use telexec_proto::v1::approval_service_server::ApprovalService;
use telexec_proto::v1::{
    self, ApprovalState, ApproveRequest, ApproveResponse, GetApprovalRequest, GetApprovalResponse,
    ListApprovalsRequest, ListApprovalsResponse, RejectRequest, RejectResponse,
};
use tonic::{Request, Response, Status};

use super::{Approval, Review, State, Verdict};
use crate::admission::Stack;
use crate::audit::Operation;
use crate::call::status::{counted, invalid};
use crate::call::{Call, Rpc};
use crate::policy::{Decision, Detail, Subject};
use crate::reload::Watched;

/// As of the reason of a command.
const MAX_REASON_BYTES: usize = 1024;
/// Of a request in a list: clients of gRPC accept 4 MiB by default.
const MAX_LISTED_BYTES: usize = 2048;

pub(crate) struct ApprovalRpcs {
    pub(crate) stack: Stack,
}

#[tonic::async_trait]
impl ApprovalService for ApprovalRpcs {
    async fn list_approvals(
        &self,
        request: Request<ListApprovalsRequest>,
    ) -> Result<Response<ListApprovalsResponse>, Status> {
        let call = Call::of(&request, Rpc::ListApprovals)?;
        self.stack.permit(&call).await.map_err(|error| error_to_status(&error))?;
        let shown = self.shown_to(&call, self.stack.approvals.list()).await.map_err(|error| error_to_status(&error))?;
        let approvals = shown.iter().map(|approval| to_wire_in_list(approval)).collect();
        counted(&call.reservation, ListApprovalsResponse { approvals })
    }

    async fn get_approval(
        &self,
        request: Request<GetApprovalRequest>,
    ) -> Result<Response<GetApprovalResponse>, Status> {
        let call = Call::of(&request, Rpc::GetApproval)?;
        let id = id(&request.into_inner().approval_id)?;
        self.stack.permit(&call).await.map_err(|error| error_to_status(&error))?;
        let found = self.stack.approvals.get(&id).into_iter().collect();
        let shown = self.shown_to(&call, found).await.map_err(|error| error_to_status(&error))?;
        let approval = shown.first().ok_or_else(|| error_to_status(&ExecutorError::NoApproval(id)))?;
        counted(&call.reservation, GetApprovalResponse { approval: Some(to_wire(approval)) })
    }

    async fn approve(&self, request: Request<ApproveRequest>) -> Result<Response<ApproveResponse>, Status> {
        let call = Call::of(&request, Rpc::Approve)?;
        let ApproveRequest { approval_id, reason } = request.into_inner();
        let approval = self.review(&call, &approval_id, reason, Verdict::Approve).await?;
        counted(&call.reservation, ApproveResponse { approval: Some(approval) })
    }

    async fn reject(&self, request: Request<RejectRequest>) -> Result<Response<RejectResponse>, Status> {
        let call = Call::of(&request, Rpc::Reject)?;
        let RejectRequest { approval_id, reason } = request.into_inner();
        let approval = self.review(&call, &approval_id, reason, Verdict::Reject).await?;
        counted(&call.reservation, RejectResponse { approval: Some(approval) })
    }
}

impl ApprovalRpcs {
    /// Approves or rejects a request, if the policy permits that: once the audit log has it.
    async fn review(
        &self,
        call: &Call,
        approval_id: &str,
        reason: String,
        verdict: Verdict,
    ) -> Result<v1::Approval, Status> {
        let id = id(approval_id)?;
        check_reason(&reason)?;
        call.caller.check_open_call().map_err(|error| error_to_status(&error))?;
        let Stack { approvals, audit, metrics, .. } = &self.stack;
        let asked = approvals.get(&id);
        let (decision, permitted) = self.permit_review(call, &id, asked.clone()).await;
        metrics.decided(call.rpc, decision.allowed);
        let permitted = permitted.and_then(|()| approvals.check(&id, verdict));
        let operation = Operation {
            about: asked.as_ref().map(|approval| &approval.identity),
            approval_id: Some(&id),
            reason: Some(&reason),
            ..Operation::default()
        };
        let recorded = match (&permitted, &asked) {
            (Ok(()), Some(approval)) => match approval.start.command() {
                Ok((command, analysis)) => audit.record_review(call, operation, &decision, &command, &analysis).await,
                Err(error) => Err(error),
            },
            (refused, _) => {
                audit.record_access(call, operation, &decision, refused.as_ref().err()).await;
                Ok(())
            }
        };
        let (reviewer, reason) = (call.caller.identity.clone(), reason.clone());
        let review = Review { reviewer, reason, time: SystemTime::now() };
        let permitted = permitted.and(recorded);
        let is_recorded = permitted.is_ok();
        let reviewed = permitted.and_then(|()| approvals.review(&id, verdict, review));
        if let (true, Err(error)) = (is_recorded, &reviewed) {
            // another one was first
            audit.record_access(call, operation, &decision, Some(error)).await;
        }
        match reviewed {
            Ok(approval) => Ok(to_wire(&approval)),
            Err(error) => Err(error_to_status(&self.hidden(call, asked, error).await)),
        }
    }

    /// What a caller is told who may not do this: nothing of what it may not see.
    async fn hidden(&self, call: &Call, asked: Option<Arc<Approval>>, error: ExecutorError) -> ExecutorError {
        match (error, asked) {
            (error @ ExecutorError::Denied { .. }, Some(approval)) if self.may_review_some(call) => {
                let id = approval.id.clone();
                match self.shown_to(call, vec![approval]).await {
                    Ok(shown) if shown.is_empty() => ExecutorError::NoApproval(id),
                    _ => error,
                }
            }
            (error, _) => error,
        }
    }

    /// Whether a rule may let this caller do this with some request.
    fn may_review_some(&self, call: &Call) -> bool {
        let policy = self.stack.policy.as_ref().map(Watched::current);
        policy.is_none_or(|policy| policy.may_review(&call.caller, call.rpc))
    }

    /// Whether this caller may approve or reject this. Who may do that with none hears so of any id.
    async fn permit_review(
        &self,
        call: &Call,
        id: &str,
        asked: Option<Arc<Approval>>,
    ) -> (Decision, Result<(), ExecutorError>) {
        if asked.is_none() && self.may_review_some(call) {
            let unknown = Decision { allowed: true, ..Decision::default() };
            return (unknown, Err(ExecutorError::NoApproval(id.to_owned())));
        }
        // who may review none is told the same of each
        let may_review = self.may_review_some(call);
        let decide = move |stack: &Stack, call: &Call, detail| {
            let decision = match asked.as_deref() {
                Some(approval) if approval.identity == call.caller.identity => Decision {
                    reason: "you cannot approve or reject your own request".to_owned(),
                    ..Decision::default()
                },
                Some(approval) if may_review => {
                    stack.decide(&call.caller, call.rpc, &Subject::Approval(approval), detail)
                }
                Some(_) | None => stack.decide(&call.caller, call.rpc, &Subject::Agent, detail),
            };
            let permitted = decision.permitted();
            (decision, permitted)
        };
        self.stack.explain_denial(call, decide).await
    }

    /// Those of these that the caller has asked for, or may approve or reject. They are decided in its turn.
    async fn shown_to(&self, call: &Call, all: Vec<Arc<Approval>>) -> Result<Vec<Arc<Approval>>, ExecutorError> {
        let (stack, caller) = (self.stack.clone(), Arc::clone(&call.caller));
        let show = move || {
            let policy = stack.policy.as_ref().map(Watched::current);
            let may = |rpc, approval: &Approval| {
                policy.as_ref().is_none_or(|policy| policy.may_review(&caller, rpc))
                    && stack.decide(&caller, rpc, &Subject::Approval(approval), Detail::Verdict).allowed
            };
            let may_review = |approval: &Approval| may(Rpc::Approve, approval) || may(Rpc::Reject, approval);
            let is_shown = |approval: &Arc<Approval>| approval.identity == caller.identity || may_review(approval);
            all.into_iter().filter(is_shown).collect()
        };
        self.stack.evaluator.in_turn(call.caller.identity.as_str(), show).await
    }
}

/// Without a long request.
fn to_wire_in_list(approval: &Approval) -> v1::Approval {
    let is_short = approval.start.bytes() <= MAX_LISTED_BYTES;
    v1::Approval { request: is_short.then(|| approval.start.shown()), ..without_request(approval) }
}

fn to_wire(approval: &Approval) -> v1::Approval {
    v1::Approval { request: Some(approval.start.shown()), ..without_request(approval) }
}

/// It has the grammar of the ids of executions.
fn id(text: &str) -> Result<String, Status> {
    let malformed = |error: InvalidCommand| invalid(InvalidCommand::new("approval_id", error.reason));
    text.parse().map(|id: ExecutionId| id.to_string()).map_err(malformed)
}

fn check_reason(reason: &str) -> Result<(), Status> {
    let fault = match reason {
        reason if reason.len() > MAX_REASON_BYTES => "is longer than 1024 bytes",
        reason if reason.contains(char::is_control) => "has a control character",
        _ => return Ok(()),
    };
    Err(invalid(InvalidCommand::new("reason", fault)))
}

fn without_request(approval: &Approval) -> v1::Approval {
    let review = approval.review();
    let (state, execution_id) = match &approval.state {
        State::Pending => (ApprovalState::Pending, None),
        State::Approved(_) | State::Starting(..) => (ApprovalState::Approved, None),
        State::Rejected(_) => (ApprovalState::Rejected, None),
        State::Used(_, id) => (ApprovalState::Used, Some(id)),
    };
    v1::Approval {
        approval_id: approval.id.clone(),
        identity: approval.identity.to_string(),
        request: None,
        named_command: approval.start.named_command.clone().unwrap_or_default(),
        rules: approval.rules.iter().cloned().collect(),
        state: state.into(),
        create_time: Some(approval.created.into()),
        expire_time: Some(approval.expires.into()),
        reviewer: review.map(|review| review.reviewer.to_string()).unwrap_or_default(),
        review_reason: review.map(|review| review.reason.clone()).unwrap_or_default(),
        review_time: review.map(|review| review.time.into()),
        execution_id: execution_id.map(ToString::to_string).unwrap_or_default(),
    }
}
