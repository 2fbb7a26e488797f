//! The methods of an agent, by messages: what answers them in this process.

mod answers; // of methods that ask
mod executions; // methods that run and follow
mod following; // the messages of one execution
mod polled; // an execution that was not started by a message

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use telexec_proto::convert::error_to_status;
use telexec_proto::v1::agent_service_server::AgentServiceServer;
use telexec_proto::v1::execution_service_server::ExecutionServiceServer;
use telexec_proto::v1::{DisconnectPolicy, ExecuteRequest, GetAgentRequest, GetAgentResponse};
use telexec_proto::v1::{approval_service_server, file_service_server, forward_service_server};
use tokio::io::DuplexStream;
use tokio_util::task::TaskTracker;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;
use tower::ServiceExt;
use tracing::debug;

use crate::agent::Options;
use crate::{Address, Nats, subjects};

/// Longer than that no request is good.
const MAX_QUEUE: Duration = Duration::from_secs(24 * 3600 - 10);

/// Answers the methods of one agent; clones share the connection.
#[derive(Clone)]
pub(crate) struct Gateway(Arc<Shared>);

struct Shared {
    nats: Arc<Nats>,
    address: Address,
    options: Options,
    /// Tasks that cancel what was dropped.
    cancellations: TaskTracker,
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("address", &self.0.address).finish_non_exhaustive()
    }
}

impl Gateway {
    pub(crate) fn new(nats: Arc<Nats>, address: Address, options: Options) -> Self {
        let cancellations = TaskTracker::new();
        // it can be waited for then, and takes tasks all the same
        cancellations.close();
        Self(Arc::new(Shared { nats, address, options, cancellations }))
    }

    /// Speaks HTTP/2 on this connection, until its end.
    pub(crate) async fn serve(self, stream: DuplexStream) {
        let routes = Routes::new(ExecutionServiceServer::new(self.clone()))
            .add_service(AgentServiceServer::new(self.clone()))
            .add_service(HealthServer::new(self))
            .prepare();
        let service = hyper::service::service_fn(move |request| answer(routes.clone(), request));
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
            debug!(%error, "the connection within this process has ended");
        }
    }

    /// What the agent is.
    pub(crate) async fn info(&self) -> Result<GetAgentResponse, Status> {
        self.ask("GetAgent", &GetAgentRequest {}).await
    }

    /// Adds a request to the queue; its execution ID.
    pub(crate) async fn enqueue(&self, request: ExecuteRequest) -> Result<String, Status> {
        let request = normal(request)?;
        let message = self.0.nats.message(&self.0.address.subject(), &request, self.start_within())?;
        self.0.nats.publish(&message).await?;
        Ok(request.execution_id)
    }

    /// After that no command is started.
    fn start_within(&self) -> Duration {
        let Options { connect_timeout, queue, .. } = &self.0.options;
        queue.unwrap_or(*connect_timeout).min(MAX_QUEUE)
    }
}

/// Without what has no meaning here, so that a repeat is equal, and with an ID.
///
/// # Errors
/// The ID is invalid.
fn normal(mut request: ExecuteRequest) -> Result<ExecuteRequest, Status> {
    if request.execution_id.is_empty() {
        request.execution_id = uuid::Uuid::now_v7().to_string();
    }
    check_id(&request.execution_id)?;
    Ok(ExecuteRequest {
        on_disconnect: DisconnectPolicy::Unspecified.into(),
        disconnect_grace: None,
        yield_after: None,
        ..request
    })
}

/// # Errors
/// No execution can have this ID here.
fn check_id(id: &str) -> Result<(), Status> {
    let checked = id.parse().and_then(|id| subjects::check_id(&id));
    checked.map_err(|error| error_to_status(&error.into()))
}

async fn answer(routes: Routes, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let service = request.uri().path().split('/').nth(1).unwrap_or_default();
    let others = [
        approval_service_server::SERVICE_NAME,
        file_service_server::SERVICE_NAME,
        forward_service_server::SERVICE_NAME,
    ];
    if others.contains(&service) {
        let text = "not possible by way of NATS, which carries neither files nor connections nor approvals";
        return Ok(Status::unimplemented(text).into_http());
    }
    routes.oneshot(request.map(Body::new)).await
}
