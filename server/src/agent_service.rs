//! `telexec.v1.AgentService`: what this agent is.

use std::collections::HashMap;
use std::time::SystemTime;

use telexec_proto::v1::agent_service_server::AgentService;
use telexec_proto::v1::{GetAgentRequest, GetAgentResponse};
use telexec_tool::local::LocalExecutor;
use tonic::{Request, Response, Status};

use crate::call::{Call, Rpc};

pub(crate) struct Agent {
    engine: LocalExecutor,
    max_executions: u32,
    labels: HashMap<String, String>,
    start_time: SystemTime,
}

impl Agent {
    /// An agent that starts now.
    pub(crate) fn new(engine: LocalExecutor, max_executions: u32, labels: HashMap<String, String>) -> Self {
        Self { engine, max_executions, labels, start_time: SystemTime::now() }
    }
}

#[tonic::async_trait]
impl AgentService for Agent {
    async fn get_agent(&self, request: Request<GetAgentRequest>) -> Result<Response<GetAgentResponse>, Status> {
        let identity = Call::of(&request, Rpc::GetAgent)?.caller.identity.to_string();
        let system = rustix::system::uname();
        Ok(Response::new(GetAgentResponse {
            version: env!("CARGO_PKG_VERSION").into(),
            hostname: system.nodename().to_string_lossy().into_owned(),
            os: std::env::consts::OS.into(),
            architecture: std::env::consts::ARCH.into(),
            kernel: system.release().to_string_lossy().into_owned(),
            containment: self.engine.containment().as_str().into(),
            running_executions: u32::try_from(self.engine.running()).unwrap_or(u32::MAX),
            max_executions: self.max_executions,
            start_time: Some(self.start_time.into()),
            labels: self.labels.clone(),
            identity,
        }))
    }
}
