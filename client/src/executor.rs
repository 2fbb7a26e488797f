//! An executor on a remote machine, over gRPC.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use async_trait::async_trait;
use telexec_executor::{Attach, Command, Event, Execution, ExecutionId, ExecutionInfo, Input, Signal, TerminalSize};
use telexec_executor::{Executor, ExecutorError, ListPage, ListQuery, TraceContext};
use telexec_proto::v1::execution_service_client::ExecutionServiceClient;
use telexec_proto::v1::{
    ExecutionEvent, GetExecutionRequest, ResizeTerminalRequest, SignalExecutionRequest, WriteInputRequest,
};
use telexec_proto::{convert, start_time};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::channel::Channel;
use crate::events::Events;
use crate::following::{Following, Overdue};
use crate::{Resume, Resuming, error};

/// A page of executions is the largest response.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// The machine of an [`Agent`](crate::Agent); clones share the connection. If that is lost, the agent ends the command
/// unless it is detached, and the [`Execution`] ends with [`ExecutorError::Lost`]; see [`RemoteExecutor::resuming`].
#[derive(Clone, Debug)]
pub struct RemoteExecutor {
    client: ExecutionServiceClient<Channel>,
    channel: Channel,
    endpoint: Arc<str>,
}

impl RemoteExecutor {
    pub(crate) fn new(channel: Channel, endpoint: Arc<str>) -> Self {
        let client = ExecutionServiceClient::new(channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES);
        Self { client, channel, endpoint }
    }

    /// The same machine, whose executions survive the loss of a connection.
    pub fn resuming(self, resume: Resume) -> Resuming {
        Resuming::new(self, resume)
    }

    /// The number of the connection that a call is made on now.
    pub(crate) fn connection(&self) -> u64 {
        self.channel.connection()
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// When the agent was started, by its own clock; `None`: not reported. No policy denies this call.
    pub(crate) async fn agent_start(&self) -> Result<Option<SystemTime>, ExecutorError> {
        let answer = HealthClient::new(self.channel.clone()).check(HealthCheckRequest::default()).await;
        let answer = answer.map_err(|status| error::calling(status, &self.endpoint))?;
        Ok(answer.metadata().get(start_time::HEADER).and_then(|value| start_time::parse(value.as_bytes())))
    }

    /// Attaches to a command, with the time when its end is overdue if it has a deadline.
    pub(crate) async fn attach_before(
        &self,
        overdue: Option<Overdue>,
        id: &ExecutionId,
        from: Attach,
    ) -> Result<Execution, ExecutorError> {
        let response = self.client.clone().attach(convert::attach_to_wire(id, from)).await;
        self.follow(response, overdue).await
    }

    /// The execution, after its start event.
    async fn follow(
        &self,
        response: Result<Response<Streaming<ExecutionEvent>>, Status>,
        overdue: Option<Overdue>,
    ) -> Result<Execution, ExecutorError> {
        let response = response.map_err(|status| error::calling(status, &self.endpoint))?;
        let mut following = Following::new(Events::of(response), overdue, Arc::clone(&self.endpoint));
        match following.next().await? {
            Event::Started(started) => Ok(Execution::new(started, following.into_stream())),
            _ => Err(ExecutorError::Internal("the agent's first event was not the start of the command".to_owned())),
        }
    }

    fn answer<T>(&self, result: Result<Response<T>, Status>) -> Result<T, ExecutorError> {
        result.map(Response::into_inner).map_err(|status| error::calling(status, &self.endpoint))
    }
}

/// Sets the headers of W3C Trace Context.
fn hand_on(trace: &TraceContext, metadata: &mut MetadataMap) {
    let state = Some(trace.tracestate()).filter(|state| !state.is_empty()).map(str::parse);
    // cannot fail: a trace context is valid in headers
    if let Ok(parent) = trace.traceparent().parse() {
        metadata.insert("traceparent", parent);
    }
    if let Some(Ok(state)) = state {
        metadata.insert("tracestate", state);
    }
}

#[async_trait]
impl Executor for RemoteExecutor {
    async fn execute(&self, command: Command) -> Result<Execution, ExecutorError> {
        let mut request = Request::new(convert::command_to_wire(&command));
        if let Some(deadline) = command.deadline() {
            let left = deadline.checked_duration_since(Instant::now()).ok_or(ExecutorError::DeadlineExceeded)?;
            request.set_timeout(left);
        }
        if let Some(trace) = command.trace() {
            hand_on(trace, request.metadata_mut());
        }
        let response = self.client.clone().execute(request).await;
        self.follow(response, Overdue::of(&command)).await
    }

    async fn attach(&self, id: &ExecutionId, from: Attach) -> Result<Execution, ExecutorError> {
        self.attach_before(None, id, from).await
    }

    async fn write_input(&self, id: &ExecutionId, input: Input) -> Result<u64, ExecutorError> {
        let Input { data, offset, close } = input;
        let (append, offset) = (offset.is_none(), offset.unwrap_or_default());
        let request = WriteInputRequest { execution_id: id.to_string(), data, offset, close, append };
        Ok(self.answer(self.client.clone().write_input(request).await)?.committed_offset)
    }

    async fn resize(&self, id: &ExecutionId, size: TerminalSize) -> Result<(), ExecutorError> {
        let request = ResizeTerminalRequest { execution_id: id.to_string(), size: Some(convert::size_to_wire(size)) };
        self.answer(self.client.clone().resize_terminal(request).await).map(|_| ())
    }

    async fn signal(&self, id: &ExecutionId, signal: Signal) -> Result<ExecutionInfo, ExecutorError> {
        let request = SignalExecutionRequest { execution_id: id.to_string(), signal: signal.to_string() };
        let answer = self.answer(self.client.clone().signal_execution(request).await)?;
        convert::execution_from_wire(answer.execution)
    }

    async fn get(&self, id: &ExecutionId) -> Result<ExecutionInfo, ExecutorError> {
        let request = GetExecutionRequest { execution_id: id.to_string() };
        let answer = self.answer(self.client.clone().get_execution(request).await)?;
        convert::execution_from_wire(answer.execution)
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, ExecutorError> {
        let answer = self.client.clone().list_executions(convert::query_to_wire(query)).await;
        convert::page_from_wire(self.answer(answer)?)
    }
}
