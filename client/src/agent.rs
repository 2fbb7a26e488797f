//! The connection to one agent.

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

use crate::connector::{Connector, Route, Transport};
use crate::forward::Forwards;
use crate::{AgentInfo, Approvals, CommandCheck, ConnectError, RemoteExecutor, RemoteFiles, Target, TlsOptions, error};

/// Large, so that many small chunks are not taken for a flood.
const STREAM_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// How many executions may fill their windows without stalling the others.
const STREAMS_IN_CONNECTION: u32 = 16;
/// A whole chunk of output in one frame: twice as fast as in pieces of the default 16 KiB.
const FRAME_BYTES: u32 = 1024 * 1024;
/// Pings on a quiet connection, and the timeout of their acknowledgement. Together well below the 30 s for which an agent
/// waits for a client by default: a loss that only this side sees would be noticed too late.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(15);

/// How to reach an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// For targets on TCP; needed for all that are not on this machine. Default: none.
    pub tls: Option<TlsOptions>,
    /// Timeout for connecting, TLS included. Default: 10 s.
    pub connect_timeout: Duration,
    /// The flow-control window per execution, at least 64 KiB: that much unread output may be buffered in memory. With
    /// connections to many agents choose less. Default: 4 MiB.
    pub stream_window_bytes: u32,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self { tls: None, connect_timeout: Duration::from_secs(10), stream_window_bytes: STREAM_WINDOW_BYTES }
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
        let endpoint = connector.endpoint().map_err(|error| error::connecting(error, &name))?;
        let dialler = Arc::clone(&connector);
        let service = tower::service_fn(move |_: Uri| {
            let dialler = Arc::clone(&dialler);
            async move { dialler.connect().await }
        });
        match endpoint.connect_with_connector(service).await {
            Ok(channel) => Ok(Self { channel, endpoint: name, connector }),
            Err(error) => Err(error::connecting(error, &name)),
        }
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

impl Connector {
    /// The settings of a connection.
    fn endpoint(&self) -> Result<Endpoint, tonic::transport::Error> {
        let Self { route, options, .. } = self;
        let (scheme, authority) = match route {
            Route::Target(target @ Target::Tcp { .. }) if options.tls.is_some() => ("https", target.authority()),
            Route::Target(target) => ("http", target.authority()),
            Route::Custom(_) => ("http", "localhost".to_owned()),
        };
        endpoint(scheme, &authority, options.stream_window_bytes)
    }

    /// A further connection, which is made when it is used first.
    pub(crate) fn channel(self: &Arc<Self>) -> Result<Channel, tonic::transport::Error> {
        let dialler = Arc::clone(self);
        let service = tower::service_fn(move |_: Uri| {
            let dialler = Arc::clone(&dialler);
            async move { dialler.connect().await }
        });
        Ok(self.endpoint()?.connect_with_connector_lazy(service))
    }
}

fn endpoint(scheme: &str, authority: &str, window: u32) -> Result<Endpoint, tonic::transport::Error> {
    // HTTP/2 starts with 64 KiB - 1, and allows at most 2^31 - 1
    let window = window.clamp(64 * 1024, i32::MAX as u32);
    let endpoint = Endpoint::from_shared(format!("http://{authority}"))?
        .initial_stream_window_size(window)
        .initial_connection_window_size(window.saturating_mul(STREAMS_IN_CONNECTION).min(i32::MAX as u32))
        .max_frame_size(FRAME_BYTES.min(window))
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .user_agent(concat!("telexec/", env!("CARGO_PKG_VERSION")))?;
    // not as the endpoint itself: for https tonic would set up TLS itself
    match Uri::builder().scheme(scheme).authority(authority).path_and_query("/").build() {
        Ok(origin) => Ok(endpoint.origin(origin)),
        Err(_) => Ok(endpoint),
    }
}
