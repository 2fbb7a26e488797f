//! The starts that another identity has to approve.

use std::sync::Arc;

use telexec_executor::ExecutorError;
use telexec_proto::v1::approval_service_client::ApprovalServiceClient;
use telexec_proto::v1::{ApproveRequest, GetApprovalRequest, ListApprovalsRequest, RejectRequest};
use tonic::Status;

use crate::channel::Channel;
use crate::{Approval, error};

/// Requests for the approval of starts on an agent, made when a start is refused with [`ExecutorError::ApprovalRequired`]; clones share the connection.
#[derive(Clone, Debug)]
pub struct Approvals {
    client: ApprovalServiceClient<Channel>,
    endpoint: Arc<str>,
}

impl Approvals {
    pub(crate) fn new(channel: Channel, endpoint: Arc<str>) -> Self {
        Self { client: ApprovalServiceClient::new(channel), endpoint }
    }

    /// Lists those that this caller has asked for, or may approve or reject; the oldest first.
    ///
    /// # Errors
    /// The agent did not answer, or its policy does not let this caller ask.
    pub async fn list(&self) -> Result<Vec<Approval>, ExecutorError> {
        let answer = self.client.clone().list_approvals(ListApprovalsRequest {}).await;
        answer.map(|answer| answer.into_inner().approvals).map_err(|status| self.failed(status))
    }

    /// Returns one of those.
    ///
    /// # Errors
    /// As [`list`](Self::list), and [`ExecutorError::NoApproval`].
    pub async fn get(&self, id: &str) -> Result<Approval, ExecutorError> {
        let answer = self.client.clone().get_approval(GetApprovalRequest { approval_id: id.to_owned() }).await;
        self.one(answer.map(|answer| answer.into_inner().approval))
    }

    /// Approves one; the reason is for the requester and the audit log, and may be empty.
    ///
    /// # Errors
    /// [`ExecutorError::NoApproval`]; [`ExecutorError::Denied`]: it is the caller's own, or the policy does not permit it;
    /// [`ExecutorError::FailedPrecondition`]: it was approved or rejected before; or the agent did not answer.
    pub async fn approve(&self, id: &str, reason: &str) -> Result<Approval, ExecutorError> {
        let request = ApproveRequest { approval_id: id.to_owned(), reason: reason.to_owned() };
        let answer = self.client.clone().approve(request).await;
        self.one(answer.map(|answer| answer.into_inner().approval))
    }

    /// Rejects one, also if it is approved and not used yet.
    ///
    /// # Errors
    /// As [`approve`](Self::approve).
    pub async fn reject(&self, id: &str, reason: &str) -> Result<Approval, ExecutorError> {
        let request = RejectRequest { approval_id: id.to_owned(), reason: reason.to_owned() };
        let answer = self.client.clone().reject(request).await;
        self.one(answer.map(|answer| answer.into_inner().approval))
    }

    fn one(&self, answer: Result<Option<Approval>, Status>) -> Result<Approval, ExecutorError> {
        let approval = answer.map_err(|status| self.failed(status))?;
        approval.ok_or_else(|| ExecutorError::Internal("the agent answered without the approval".to_owned()))
    }

    fn failed(&self, status: Status) -> ExecutorError {
        error::calling(status, &self.endpoint)
    }
}
