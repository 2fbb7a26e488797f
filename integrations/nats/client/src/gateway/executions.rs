//! Methods that start, follow and change executions.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use telexec_executor::{Attach, ExecutionId, ExecutorError, OnDisconnect};
use telexec_proto::convert::{attach_from_wire, error_from_status, error_to_status};
use telexec_proto::timeout;
use telexec_proto::v1::execution_service_server::ExecutionService;
use telexec_proto::v1::{
    AttachRequest, DisconnectPolicy, ExecuteRequest, ExecutionEvent, GetExecutionRequest, GetExecutionResponse,
    InteractRequest, ListExecutionsRequest, ListExecutionsResponse, ResizeTerminalRequest, ResizeTerminalResponse,
    RunResponse, SignalExecutionRequest, SignalExecutionResponse, WriteInputRequest, WriteInputResponse,
};
use tonic::{Code, Request, Response, Status, Streaming};

use super::answers::not_found;
use super::following::Following;
use super::{Gateway, check_id, normal, polled};
use crate::Address;
use crate::cancel::{CancelOnDrop, Cancellation};
use crate::events::First;
use crate::nats::Message;

/// As much input goes into one message.
const INPUT_BYTES: usize = 128 * 1024;
/// Input may wait for a command that does not read.
const INPUT_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) type Events = Pin<Box<dyn Stream<Item = Result<ExecutionEvent, Status>> + Send>>;

impl Gateway {
    pub(super) fn cancel_on_drop(&self, id: &str, ends: bool) -> CancelOnDrop {
        self.cancel_on_drop_of(id, ends, None)
    }

    /// Ends only what this request has started.
    fn cancel_on_drop_of(&self, id: &str, ends: bool, request: Option<Arc<Message>>) -> CancelOnDrop {
        let (nats, id) = (self.0.nats.clone(), id.to_owned());
        let pending = ends.then_some(Cancellation { nats, id, request, sequence: None });
        CancelOnDrop::new(pending, self.0.cancellations.clone())
    }

    /// Puts a command into the queue, and waits for its start.
    async fn start(&self, request: ExecuteRequest) -> Result<Events, Status> {
        let ends = request.on_disconnect != i32::from(DisconnectPolicy::Detach);
        let yield_after = request.yield_after.map(|delay| Duration::try_from(delay).unwrap_or_default());
        let request = normal(request)?;
        let id = request.execution_id.clone();
        let message = Arc::new(self.0.nats.message(&self.0.address.subject(), &request, self.start_within())?);
        let mut cancel = self.cancel_on_drop_of(&id, ends, Some(message.clone()));
        let sequence = self.0.nats.publish(&message).await.inspect_err(|status| {
            if matches!(error_from_status(status), ExecutorError::Unreachable { .. }) {
                cancel.disarm();
            }
        })?;
        cancel.queued(sequence);
        let mut following = Following::open(self, &id, cancel).await?;
        following.expect(message.digests.clone(), sequence);
        let started = following.start(self.start_within()).await?;
        following.promote_after(yield_after);
        Ok(stream::iter([Ok(started)]).chain(following.into_events()).boxed())
    }

    /// Follows what a message has started, or else the agent's own.
    async fn follow(&self, id: &ExecutionId, from: Attach) -> Result<Events, Status> {
        check_id(id.as_str())?;
        let first = self.0.nats.first(id.as_str()).await?;
        let waits = self.0.options.queue.is_some();
        match (&self.0.address, first) {
            (Address::Agent(name), Some(First { agent: Some(other), .. })) if *name != other => {
                return Err(not_found(id.as_str()));
            }
            (Address::Agent(name), None) => {
                match polled::follow(self.clone(), name.clone(), id.clone(), from).await {
                    // it may be in the queue
                    Err(status) if waits && matches!(status.code(), Code::NotFound | Code::Unavailable) => {}
                    followed => return followed,
                }
            }
            (Address::Label(_), None) if !waits => return Err(not_found(id.as_str())),
            _ => {}
        }
        let cancel = self.cancel_on_drop(id.as_str(), from.on_disconnect == OnDisconnect::Kill);
        let mut following = Following::open(self, id.as_str(), cancel).await?;
        following.skip_to(from.position);
        let started = following.await_start(waits.then(|| self.start_within())).await?;
        Ok(stream::iter([Ok(started)]).chain(following.into_events()).boxed())
    }
}

#[tonic::async_trait]
impl ExecutionService for Gateway {
    type ExecuteStream = Events;
    type InteractStream = Events;
    type AttachStream = Events;

    async fn execute(&self, request: Request<ExecuteRequest>) -> Result<Response<Events>, Status> {
        let left = request.metadata().get(timeout::HEADER).map(|value| timeout::parse(value.as_bytes()));
        let left = left.transpose().map_err(invalid)?;
        let mut request = request.into_inner();
        if let Some(left) = left {
            let given = request.timeout.and_then(|timeout| Duration::try_from(timeout).ok());
            request.timeout = prost_types::Duration::try_from(given.map_or(left, |given| given.min(left))).ok();
        }
        self.start(request).await.map(Response::new)
    }

    async fn run(&self, _: Request<ExecuteRequest>) -> Result<Response<RunResponse>, Status> {
        Err(Status::unimplemented("Run is not answered here: use Execute"))
    }

    async fn interact(&self, _: Request<Streaming<InteractRequest>>) -> Result<Response<Events>, Status> {
        Err(Status::unimplemented("Interact is not answered here: use Execute and WriteInput"))
    }

    async fn attach(&self, request: Request<AttachRequest>) -> Result<Response<Events>, Status> {
        let (id, from) = attach_from_wire(request.get_ref()).map_err(invalid)?;
        self.follow(&id, from).await.map(Response::new)
    }

    async fn write_input(&self, request: Request<WriteInputRequest>) -> Result<Response<WriteInputResponse>, Status> {
        let mut request = request.into_inner();
        loop {
            let data = request.data.split_to(request.data.len().min(INPUT_BYTES));
            let is_last = request.data.is_empty();
            let piece = WriteInputRequest { data, close: request.close && is_last, ..request.clone() };
            let length = piece.data.len() as u64;
            let answer = self.ask_of(&piece.execution_id, "WriteInput", &piece, INPUT_TIMEOUT).await?;
            if is_last {
                return Ok(Response::new(answer));
            }
            request.offset += length;
        }
    }

    async fn signal_execution(
        &self,
        request: Request<SignalExecutionRequest>,
    ) -> Result<Response<SignalExecutionResponse>, Status> {
        let (request, timeout) = (request.get_ref(), self.0.options.connect_timeout);
        self.ask_of(&request.execution_id, "SignalExecution", request, timeout).await.map(Response::new)
    }

    async fn resize_terminal(
        &self,
        request: Request<ResizeTerminalRequest>,
    ) -> Result<Response<ResizeTerminalResponse>, Status> {
        let (request, timeout) = (request.get_ref(), self.0.options.connect_timeout);
        self.ask_of(&request.execution_id, "ResizeTerminal", request, timeout).await.map(Response::new)
    }

    async fn get_execution(
        &self,
        request: Request<GetExecutionRequest>,
    ) -> Result<Response<GetExecutionResponse>, Status> {
        let (request, timeout) = (request.get_ref(), self.0.options.connect_timeout);
        self.ask_of(&request.execution_id, "GetExecution", request, timeout).await.map(Response::new)
    }

    async fn list_executions(
        &self,
        request: Request<ListExecutionsRequest>,
    ) -> Result<Response<ListExecutionsResponse>, Status> {
        match &self.0.address {
            Address::Agent(_) => self.ask("ListExecutions", request.get_ref()).await.map(Response::new),
            Address::Label(label) => {
                let reason = format!("label:{label} is any of several agents: name one");
                Err(error_to_status(&ExecutorError::FailedPrecondition { reason }))
            }
        }
    }
}

fn invalid(error: telexec_executor::InvalidCommand) -> Status {
    error_to_status(&ExecutorError::Invalid(error))
}
