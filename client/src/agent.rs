//! One agent, and the one connection to it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use telexec_executor::{Command, ExecutorError};
use telexec_proto::convert::command_to_wire;
use telexec_proto::v1::agent_service_client::AgentServiceClient;
use telexec_proto::v1::{CheckCommandRequest, GetAgentRequest};
use tonic::transport::{Channel, Endpoint, Uri};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::connector::Connector;
use crate::{AgentInfo, CommandCheck, ConnectError, RemoteExecutor, Target, TlsOptions, error};

/// Many small chunks must not look like a flood.
const STREAM_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// So many executions may fill their windows without stalling the others.
const STREAMS_IN_CONNECTION: u32 = 16;
/// A whole chunk of output in one frame: twice as fast as in pieces of the default 16 KiB.
const FRAME_BYTES: u32 = 1024 * 1024;
/// How often a quiet connection is tried, and how long an answer may take.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// How to reach an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// For targets on TCP; needed for all that are not on this machine. Default: none.
    pub tls: Option<TlsOptions>,
    /// Until the connection is ready, TLS included. Default: 10 s.
    pub connect_timeout: Duration,
    /// How much output an execution may send before it is read, at least 64 KiB; as much may wait in memory, for each
    /// execution. One who is connected to many agents wants less. Default: 4 MiB.
    pub stream_window_bytes: u32,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self { tls: None, connect_timeout: Duration::from_secs(10), stream_window_bytes: STREAM_WINDOW_BYTES }
    }
}

/// A connection to an agent; its clones share it. When it has broken, the next call makes a new one.
#[derive(Clone, Debug)]
pub struct Agent {
    channel: Channel,
    endpoint: Arc<str>,
}

/// An agent's answer to a [`ping`](Agent::ping).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ping {
    /// It takes commands; otherwise it is shutting down.
    pub serving: bool,
    /// From the question to the answer, on a connection that was there.
    pub round_trip: Duration,
}

impl Agent {
    /// Connects to the agent at `target`.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn connect(target: &Target, options: ConnectOptions) -> Result<Self, ConnectError> {
        let name: Arc<str> = target.to_string().into();
        let scheme = if options.tls.is_some() && matches!(target, Target::Tcp { .. }) { "https" } else { "http" };
        let window = options.stream_window_bytes;
        let endpoint =
            endpoint(scheme, &target.authority(), window).map_err(|error| error::connecting(error, &name))?;
        let connector = Arc::new(Connector { target: target.clone(), options });
        let service = tower::service_fn(move |_: Uri| {
            let connector = Arc::clone(&connector);
            async move { connector.connect().await }
        });
        match endpoint.connect_with_connector(service).await {
            Ok(channel) => Ok(Self { channel, endpoint: name }),
            Err(error) => Err(error::connecting(error, &name)),
        }
    }

    /// The target that it was connected to.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The agent's machine as somewhere commands can run.
    pub fn executor(&self) -> RemoteExecutor {
        RemoteExecutor::new(self.channel.clone(), Arc::clone(&self.endpoint))
    }

    /// Asks whether it serves.
    ///
    /// # Errors
    /// It did not answer.
    pub async fn ping(&self) -> Result<Ping, ExecutorError> {
        let asked = Instant::now();
        let answer = HealthClient::new(self.channel.clone()).check(HealthCheckRequest::default()).await;
        let HealthCheckResponse { status } = answer.map_err(|status| self.failed(status))?.into_inner();
        Ok(Ping { serving: status == i32::from(ServingStatus::Serving), round_trip: asked.elapsed() })
    }

    /// Asks what it is.
    ///
    /// # Errors
    /// It did not answer.
    pub async fn info(&self) -> Result<AgentInfo, ExecutorError> {
        let answer = AgentServiceClient::new(self.channel.clone()).get_agent(GetAgentRequest {}).await;
        answer.map(tonic::Response::into_inner).map_err(|status| self.failed(status))
    }

    /// Asks whether it would run a command, and what it would come to. Nothing runs.
    ///
    /// # Errors
    /// It did not answer, or its policy does not let this caller ask.
    pub async fn check(&self, command: &Command) -> Result<CommandCheck, ExecutorError> {
        let request = CheckCommandRequest { request: Some(command_to_wire(command)) };
        let answer = AgentServiceClient::new(self.channel.clone()).check_command(request).await;
        answer.map(tonic::Response::into_inner).map_err(|status| self.failed(status))
    }

    fn failed(&self, status: tonic::Status) -> ExecutorError {
        error::calling(status, &self.endpoint)
    }
}

fn endpoint(scheme: &str, authority: &str, window: u32) -> Result<Endpoint, tonic::transport::Error> {
    // HTTP/2 begins with less, and has 2^31 - 1 as the most
    let window = window.clamp(64 * 1024, i32::MAX as u32);
    let endpoint = Endpoint::from_shared(format!("http://{authority}"))?
        .initial_stream_window_size(window)
        .initial_connection_window_size(window.saturating_mul(STREAMS_IN_CONNECTION).min(i32::MAX as u32))
        .max_frame_size(FRAME_BYTES.min(window))
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .user_agent(concat!("telexec/", env!("CARGO_PKG_VERSION")))?;
    // not as the endpoint itself: tonic would want to do TLS on its own
    match Uri::builder().scheme(scheme).authority(authority).path_and_query("/").build() {
        Ok(origin) => Ok(endpoint.origin(origin)),
        Err(_) => Ok(endpoint),
    }
}
