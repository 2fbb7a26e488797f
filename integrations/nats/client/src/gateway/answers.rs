//! Methods that are asked and answered: each is a message to the agent, and its answer.

use std::time::{Duration, SystemTime};

use prost::Message;
use telexec_executor::ExecutorError;
use telexec_proto::convert::error_to_status;
use telexec_proto::start_time;
use telexec_proto::v1::agent_service_server::AgentService;
use telexec_proto::v1::{CheckCommandRequest, CheckCommandResponse, GetAgentRequest, GetAgentResponse};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::Gateway;
use crate::Address;

impl Gateway {
    /// Asks the agent, or any with the label.
    pub(super) async fn ask<A: Message + Default>(&self, method: &str, request: &impl Message) -> Result<A, Status> {
        let timeout = self.0.options.connect_timeout;
        self.0.nats.ask(&self.0.address.subject(), method, request, timeout).await
    }

    /// Asks the agent that has this execution.
    pub(super) async fn ask_of<A: Message + Default>(
        &self,
        id: &str,
        method: &str,
        request: &impl Message,
        timeout: Duration,
    ) -> Result<A, Status> {
        self.0.nats.ask(&self.agent_of(id).await?, method, request, timeout).await
    }

    async fn agent_of(&self, id: &str) -> Result<String, Status> {
        match &self.0.address {
            Address::Agent(name) => Ok(name.clone()),
            Address::Label(_) => {
                let first = self.0.nats.first(id).await?;
                first.and_then(|first| first.agent).ok_or_else(|| not_found(id))
            }
        }
    }
}

/// Nobody knows this execution.
pub(super) fn not_found(id: &str) -> Status {
    match id.parse() {
        Ok(id) => error_to_status(&ExecutorError::NotFound(id)),
        Err(error) => error_to_status(&ExecutorError::Invalid(error)),
    }
}

/// Another command has this ID.
pub(super) fn already_exists(id: &str) -> Status {
    match id.parse() {
        Ok(id) => error_to_status(&ExecutorError::AlreadyExists(id)),
        Err(error) => error_to_status(&ExecutorError::Invalid(error)),
    }
}

#[tonic::async_trait]
impl AgentService for Gateway {
    async fn get_agent(&self, request: Request<GetAgentRequest>) -> Result<Response<GetAgentResponse>, Status> {
        self.ask("GetAgent", request.get_ref()).await.map(Response::new)
    }

    async fn check_command(
        &self,
        request: Request<CheckCommandRequest>,
    ) -> Result<Response<CheckCommandResponse>, Status> {
        self.ask("CheckCommand", request.get_ref()).await.map(Response::new)
    }
}

#[tonic::async_trait]
impl Health for Gateway {
    /// The agent answers, and was asked to end all that was dropped.
    async fn check(&self, _: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let info = self.info().await;
        // also where the agent is away: requests are withdrawn without it; others may be dropped all the time
        let _ = tokio::time::timeout(self.0.options.connect_timeout, self.0.cancellations.wait()).await;
        let start_time = info?.start_time.and_then(|time| SystemTime::try_from(time).ok());
        let mut answer = Response::new(HealthCheckResponse { status: ServingStatus::Serving.into() });
        // digits are always valid
        if let Some(Ok(start_time)) = start_time.map(|time| start_time::format(time).parse()) {
            answer.metadata_mut().insert(start_time::HEADER, start_time);
        }
        Ok(answer)
    }

    type WatchStream = futures_util::stream::Empty<Result<HealthCheckResponse, Status>>;

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("Watch is not answered here"))
    }
}
