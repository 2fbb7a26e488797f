//! The connection to one agent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use telexec_executor::{Command, ExecutorError};
use telexec_proto::convert::command_to_wire;
use telexec_proto::v1::agent_service_client::AgentServiceClient;
use telexec_proto::v1::{CheckCommandRequest, GetAgentRequest};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::channel::Channel;
use crate::connector::{Connector, Route, Transport};
use crate::forward::Forwards;
use crate::{
    AccessToken, AgentInfo, Approvals, CommandCheck, ConnectError, RemoteExecutor, RemoteFiles, Target, TlsOptions,
    error,
};

/// Large, so that many small chunks are not taken for a flood.
const STREAM_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// How to reach an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// For targets on TCP; needed for all that are not on this machine. Default: none.
    pub tls: Option<TlsOptions>,
    /// The token of each call, for agents that know callers by tokens. Default: none.
    pub access_token: Option<AccessToken>,
    /// Timeout for connecting, TLS included. Default: 10 s.
    pub connect_timeout: Duration,
    /// The flow-control window per execution, at least 64 KiB: each execution may buffer that much unread output in
    /// memory. With many agents, or many executions that are read slowly, choose less. Executions block each other once 2 GiB
    /// of a connection are unread. Default: 4 MiB.
    pub stream_window_bytes: u32,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            tls: None,
            access_token: None,
            connect_timeout: Duration::from_secs(10),
            stream_window_bytes: STREAM_WINDOW_BYTES,
        }
    }
}

/// A connection to an agent; clones share it. After it was lost, the next call connects again.
#[derive(Clone, Debug)]
pub struct Agent {
    channel: Channel,
    endpoint: Arc<str>,
    connector: Arc<Connector>,
}

/// The result of a [`ping`](Agent::ping).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ping {
    /// Whether it accepts commands; otherwise it is shutting down.
    pub serving: bool,
    /// The round-trip time, on an open connection.
    pub round_trip: Duration,
}

impl Agent {
    /// Connects to the agent at `target`.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn connect(target: &Target, options: ConnectOptions) -> Result<Self, ConnectError> {
        Self::connect_to(Route::Target(target.clone()), target.to_string().into(), options).await
    }

    /// Connects by another transport, whose security is its own; `name` is that of the agent in messages. The options for
    /// TLS are not used.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn connect_by(
        transport: Arc<dyn Transport>,
        name: &str,
        options: ConnectOptions,
    ) -> Result<Self, ConnectError> {
        Self::connect_to(Route::Custom(transport), name.into(), options).await
    }

    async fn connect_to(route: Route, name: Arc<str>, options: ConnectOptions) -> Result<Self, ConnectError> {
        let connector = Arc::new(Connector { route, name: Arc::clone(&name), options });
        let channel = Channel::connect(&connector).await?;
        Ok(Self { channel, endpoint: name, connector })
    }

    /// Whether its transport makes up for losses by itself, as a [`Transport`] does: [`RemoteExecutor::resuming`] is not needed.
    pub fn resumes_by_itself(&self) -> bool {
        matches!(self.connector.route, Route::Custom(_))
    }

    /// The target of the connection.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The agent's machine as an executor.
    pub fn executor(&self) -> RemoteExecutor {
        RemoteExecutor::new(self.channel.clone(), Arc::clone(&self.endpoint))
    }

    /// Connections to and from the network of the agent's machine.
    pub fn forwards(&self) -> Forwards {
        Forwards::new(self.channel.clone(), Arc::clone(&self.connector), Arc::clone(&self.endpoint))
    }

    /// The files of the agent's machine.
    pub fn files(&self) -> RemoteFiles {
        RemoteFiles::new(self.channel.clone(), Arc::clone(&self.endpoint))
    }

    /// The starts that another identity has to approve.
    pub fn approvals(&self) -> Approvals {
        Approvals::new(self.channel.clone(), Arc::clone(&self.endpoint))
    }

    /// Asks whether the agent serves.
    ///
    /// # Errors
    /// It did not answer.
    pub async fn ping(&self) -> Result<Ping, ExecutorError> {
        let asked = Instant::now();
        let answer = HealthClient::new(self.channel.clone()).check(HealthCheckRequest::default()).await;
        let HealthCheckResponse { status } = answer.map_err(|status| self.failed(status))?.into_inner();
        Ok(Ping { serving: status == i32::from(ServingStatus::Serving), round_trip: asked.elapsed() })
    }

    /// Asks for information about the agent.
    ///
    /// # Errors
    /// It did not answer.
    pub async fn info(&self) -> Result<AgentInfo, ExecutorError> {
        let answer = AgentServiceClient::new(self.channel.clone()).get_agent(GetAgentRequest {}).await;
        answer.map(tonic::Response::into_inner).map_err(|status| self.failed(status))
    }

    /// Asks whether the agent would run a command, and how. Nothing runs.
    ///
    /// # Errors
    /// It did not answer, or its policy does not let this caller ask.
    pub async fn check(&self, command: &Command) -> Result<CommandCheck, ExecutorError> {
        self.check_as(command, "").await
    }

    /// Asks whether the agent would run a command for another identity, such as `spiffe://example.org/ops/anna`; empty: the
    /// caller's own.
    ///
    /// # Errors
    /// It did not answer, or does not let this caller ask.
    pub async fn check_as(&self, command: &Command, identity: &str) -> Result<CommandCheck, ExecutorError> {
        let request = CheckCommandRequest { request: Some(command_to_wire(command)), identity: identity.to_owned() };
        let answer = AgentServiceClient::new(self.channel.clone()).check_command(request).await;
        answer.map(tonic::Response::into_inner).map_err(|status| self.failed(status))
    }

    fn failed(&self, status: tonic::Status) -> ExecutorError {
        error::calling(status, &self.endpoint)
    }
}
