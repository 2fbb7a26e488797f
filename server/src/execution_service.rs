//! `telexec.v1.ExecutionService`: from the wire to the caller's executor and back.

use std::pin::Pin;
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt, stream};
use telexec_proto::convert::{
    command_from_wire, error_to_status, event_to_wire, execution_to_wire, page_to_wire, query_from_wire,
};
use telexec_proto::timeout;
use telexec_proto::v1::execution_service_server::ExecutionService;
use telexec_proto::v1::{
    ExecuteRequest, ExecutionEvent, GetExecutionRequest, GetExecutionResponse, ListExecutionsRequest,
    ListExecutionsResponse, RunResponse, SignalExecutionRequest, SignalExecutionResponse,
};
use telexec_tool::{
    Command, Event, Execution, ExecutionId, Executor, ExecutorError, ExitCause, InvalidCommand, Signal,
};
use tonic::{Request, Response, Status};

use crate::identity::Identity;
use crate::run;
use crate::stack::Stack;

pub(crate) struct Executions {
    pub(crate) stack: Stack,
}

#[tonic::async_trait]
impl ExecutionService for Executions {
    type ExecuteStream = Pin<Box<dyn Stream<Item = Result<ExecutionEvent, Status>> + Send>>;

    async fn execute(&self, request: Request<ExecuteRequest>) -> Result<Response<Self::ExecuteStream>, Status> {
        let executor = self.executor_for(&request)?;
        let execution = executor.execute(command(request)?).await.map_err(|error| error_to_status(&error))?;
        // dropping the stream, when the call is cancelled or its connection is lost, drops the execution
        Ok(Response::new(gathered(execution).await.flat_map(|event| stream::iter(to_wire(event))).boxed()))
    }

    async fn run(&self, request: Request<ExecuteRequest>) -> Result<Response<RunResponse>, Status> {
        let executor = self.executor_for(&request)?;
        let execution = executor.execute(command(request)?).await.map_err(|error| error_to_status(&error))?;
        run::collect(execution).await.map(Response::new)
    }

    async fn signal_execution(
        &self,
        request: Request<SignalExecutionRequest>,
    ) -> Result<Response<SignalExecutionResponse>, Status> {
        let executor = self.executor_for(&request)?;
        let request = request.into_inner();
        let signal: Signal = request.signal.parse().map_err(invalid)?;
        let info = executor.signal(&id(&request.execution_id)?, signal).await;
        let execution = Some(execution_to_wire(info.map_err(|error| error_to_status(&error))?));
        Ok(Response::new(SignalExecutionResponse { execution }))
    }

    async fn get_execution(
        &self,
        request: Request<GetExecutionRequest>,
    ) -> Result<Response<GetExecutionResponse>, Status> {
        let executor = self.executor_for(&request)?;
        let info = executor.get(&id(&request.into_inner().execution_id)?).await;
        let execution = Some(execution_to_wire(info.map_err(|error| error_to_status(&error))?));
        Ok(Response::new(GetExecutionResponse { execution }))
    }

    async fn list_executions(
        &self,
        request: Request<ListExecutionsRequest>,
    ) -> Result<Response<ListExecutionsResponse>, Status> {
        let executor = self.executor_for(&request)?;
        let page = executor.list(query_from_wire(request.into_inner())).await;
        Ok(Response::new(page_to_wire(page.map_err(|error| error_to_status(&error))?)))
    }
}

impl Executions {
    fn executor_for<T>(&self, request: &Request<T>) -> Result<impl Executor + use<T>, Status> {
        Ok(self.stack.executor_for(caller(request)?))
    }
}

/// How long the start waits for company.
const MOMENT: Duration = Duration::from_millis(2);

/// The same events, after the first two are there or a moment has passed: the answer to a short command travels in one
/// piece, and while it runs nobody is woken who would compete with it for a processor.
async fn gathered(mut execution: Execution) -> impl Stream<Item = Result<Event, ExecutorError>> {
    let started = execution.next().await;
    let second = tokio::time::timeout(MOMENT, execution.next()).await.ok().flatten();
    stream::iter([started, second].into_iter().flatten()).chain(execution)
}

/// Who calls; the connection noted it. Also checks the one header that all calls may have.
pub(crate) fn caller<T>(request: &Request<T>) -> Result<&Identity, Status> {
    if let Some(value) = request.metadata().get(timeout::HEADER) {
        timeout::parse(value.as_bytes()).map_err(invalid)?;
    }
    request.extensions().get().ok_or_else(|| Status::unauthenticated("the transport did not say who calls"))
}

/// The command that is asked for, with the call's deadline counted from now.
fn command(request: Request<ExecuteRequest>) -> Result<Command, Status> {
    let received = Instant::now();
    let deadline = match request.metadata().get(timeout::HEADER) {
        // so long a time that no clock holds it is no deadline
        Some(value) => received.checked_add(timeout::parse(value.as_bytes()).map_err(invalid)?),
        None => None,
    };
    let command = command_from_wire(request.into_inner(), deadline).map_err(invalid)?;
    match deadline {
        Some(deadline) if deadline <= Instant::now() => Err(error_to_status(&ExecutorError::DeadlineExceeded)),
        _ => Ok(command),
    }
}

fn id(text: &str) -> Result<ExecutionId, Status> {
    text.parse().map_err(invalid)
}

fn invalid(error: InvalidCommand) -> Status {
    error_to_status(&error.into())
}

/// What a caller is sent of one event: the event, and after the end by a deadline that status too.
fn to_wire(event: Result<Event, ExecutorError>) -> impl Iterator<Item = Result<ExecutionEvent, Status>> {
    let late = matches!(&event, Ok(Event::Exited(exited)) if exited.cause == ExitCause::DeadlineExceeded);
    let status = late.then(|| Err(error_to_status(&ExecutorError::DeadlineExceeded)));
    [event.map(event_to_wire).map_err(|error| error_to_status(&error))].into_iter().chain(status)
}
