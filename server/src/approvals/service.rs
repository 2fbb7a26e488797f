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
        counted(&call.reservation, ListApprovalsResponse { approvals: shown })
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
        let approval = shown.into_iter().next().ok_or_else(|| error_to_status(&ExecutorError::NoApproval(id)))?;
        counted(&call.reservation, GetApprovalResponse { approval: Some(approval) })
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
    /// Approves or rejects a request, if the policy permits that. In any case it goes to the audit log.
    async fn review(
        &self,
        call: &Call,
        approval_id: &str,
        reason: String,
        verdict: Verdict,
    ) -> Result<v1::Approval, Status> {
        let id = id(approval_id)?;
        check_reason(&reason)?;
        call.caller.check().map_err(|error| error_to_status(&error))?;
        let asked = self.stack.approvals.get(&id);
        let (decision, permitted) = self.permit_review(call, &id, asked.clone()).await;
        self.stack.metrics.decided(call.rpc, decision.allowed);
        let review = Review { reviewer: call.caller.identity.clone(), reason, time: SystemTime::now() };
        let reviewed = permitted.and_then(|()| self.stack.approvals.review(&id, verdict, review.clone()));
        let operation = Operation {
            about: asked.as_ref().map(|approval| &approval.identity),
            approval_id: Some(&id),
            reason: Some(&review.reason),
            ..Operation::default()
        };
        self.stack.audit.record_access(call, operation, &decision, reviewed.as_ref().err()).await;
        reviewed.map(|approval| to_wire(&approval, true)).map_err(|error| error_to_status(&error))
    }

    /// Whether this caller may approve or reject this. Who may do that with none hears so of any id.
    async fn permit_review(
        &self,
        call: &Call,
        id: &str,
        asked: Option<Arc<Approval>>,
    ) -> (Decision, Result<(), ExecutorError>) {
        let id = id.to_owned();
        let decide = move |stack: &Stack, call: &Call, detail| {
            let may_review = || {
                let policy = stack.policy.as_ref().map(Watched::current);
                policy.is_none_or(|policy| policy.may_review(&call.caller, call.rpc))
            };
            let subject = match asked.as_deref() {
                Some(approval) if approval.identity == call.caller.identity => {
                    let reason = "nobody approves or rejects what they have asked for themselves".to_owned();
                    let decision = Decision { reason, ..Decision::default() };
                    let denied = decision.permitted();
                    return (decision, denied);
                }
                Some(approval) => Subject::Approval(approval),
                None if may_review() => return (Decision::default(), Err(ExecutorError::NoApproval(id.clone()))),
                None => Subject::Agent,
            };
            let decision = stack.decide(&call.caller, call.rpc, &subject, detail);
            let permitted = decision.permitted();
            (decision, permitted)
        };
        self.stack.explain_denial(call, decide).await
    }

    /// Those of these that the caller has asked for, or may approve or reject. They are decided in its turn.
    async fn shown_to(&self, call: &Call, all: Vec<Arc<Approval>>) -> Result<Vec<v1::Approval>, ExecutorError> {
        let (stack, caller) = (self.stack.clone(), Arc::clone(&call.caller));
        let show = move || {
            let may_review = |approval: &Approval| {
                let subject = Subject::Approval(approval);
                let may = |rpc| stack.decide(&caller, rpc, &subject, Detail::Verdict).allowed;
                approval.identity != caller.identity && (may(Rpc::Approve) || may(Rpc::Reject))
            };
            let shown = all.iter().filter_map(|approval| match may_review(approval) {
                true => Some(to_wire(approval, true)),
                false => (approval.identity == caller.identity).then(|| to_wire(approval, false)),
            });
            shown.collect()
        };
        self.stack.evaluator.in_turn(call.caller.identity.as_str(), show).await
    }
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

fn to_wire(approval: &Approval, to_reviewer: bool) -> v1::Approval {
    let review = approval.review();
    let (state, execution_id) = match &approval.state {
        State::Pending => (ApprovalState::Pending, None),
        State::Approved(_) => (ApprovalState::Approved, None),
        State::Rejected(_) => (ApprovalState::Rejected, None),
        State::Used(_, id) => (ApprovalState::Used, Some(id)),
    };
    v1::Approval {
        approval_id: approval.id.clone(),
        identity: approval.identity.to_string(),
        request: approval.start.shown(to_reviewer),
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
