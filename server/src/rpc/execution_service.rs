//! `telexec.v1.ExecutionService`, over the caller's executor.

use std::sync::Arc;

use telexec_executor::{ExecutionId, Executor, Input, InvalidCommand, Signal};
use telexec_proto::convert::{
    attach_from_wire, error_to_status, execution_to_wire, page_to_wire, query_from_wire, size_from_wire,
};
use telexec_proto::v1::execution_service_server::ExecutionService;
use telexec_proto::v1::{
    AttachRequest, ExecuteRequest, GetExecutionRequest, GetExecutionResponse, InteractRequest, ListExecutionsRequest,
    ListExecutionsResponse, ResizeTerminalRequest, ResizeTerminalResponse, RunResponse, SignalExecutionRequest,
    SignalExecutionResponse, WriteInputRequest, WriteInputResponse,
};
use tonic::{Request, Response, Status, Streaming};

use crate::admission::Stack;
use crate::call::events::answer;
use crate::call::status::{counted, invalid};
use crate::call::{Call, Rpc};
use crate::http2::body::{EventPlaceholder, carrying};
use crate::rpc::interact::interact;
use crate::rpc::run;

pub(crate) struct Executions {
    pub(crate) stack: Stack,
}

#[tonic::async_trait]
impl ExecutionService for Executions {
    type ExecuteStream = EventPlaceholder;

    async fn execute(&self, request: Request<ExecuteRequest>) -> Result<Response<Self::ExecuteStream>, Status> {
        let call = Call::of(&request, Rpc::Execute)?;
        let command = call.deadline.command(request.into_inner())?;
        answer(self.stack.executor_for(call).execute(command).await).map(carrying)
    }

    type InteractStream = EventPlaceholder;

    async fn interact(
        &self,
        request: Request<Streaming<InteractRequest>>,
    ) -> Result<Response<Self::InteractStream>, Status> {
        let call = Call::of(&request, Rpc::Interact)?;
        let (deadline, reservation) = (call.deadline.clone(), Arc::clone(&call.reservation));
        let executor = Arc::new(self.stack.executor_for(call));
        interact(executor, request.into_inner(), &deadline, reservation).await.map(carrying)
    }

    type AttachStream = EventPlaceholder;

    async fn attach(&self, request: Request<AttachRequest>) -> Result<Response<Self::AttachStream>, Status> {
        let call = Call::of(&request, Rpc::Attach)?;
        let deadline = call.deadline.clone();
        let (id, from) = attach_from_wire(request.get_ref()).map_err(invalid)?;
        let events = answer(self.stack.executor_for(call).attach(&id, from).await)?;
        Ok(carrying(deadline.until(events)))
    }

    async fn write_input(&self, request: Request<WriteInputRequest>) -> Result<Response<WriteInputResponse>, Status> {
        let executor = self.executor_for(&request, Rpc::WriteInput)?;
        let request = request.into_inner();
        let offset = (!request.append).then_some(request.offset);
        let input = Input { data: request.data, offset, close: request.close };
        let written = executor.write_input(&id(&request.execution_id)?, input).await;
        let committed_offset = written.map_err(|error| error_to_status(&error))?;
        Ok(Response::new(WriteInputResponse { committed_offset }))
    }

    async fn resize_terminal(
        &self,
        request: Request<ResizeTerminalRequest>,
    ) -> Result<Response<ResizeTerminalResponse>, Status> {
        let executor = self.executor_for(&request, Rpc::ResizeTerminal)?;
        let request = request.into_inner();
        let size = request.size.ok_or_else(|| invalid(InvalidCommand::new("size", "is missing")))?;
        let size = size_from_wire(size).map_err(invalid)?;
        let resized = executor.resize(&id(&request.execution_id)?, size).await;
        resized.map(|()| Response::new(ResizeTerminalResponse {})).map_err(|error| error_to_status(&error))
    }

    async fn run(&self, request: Request<ExecuteRequest>) -> Result<Response<RunResponse>, Status> {
        let call = Call::of(&request, Rpc::Run)?;
        let reservation = Arc::clone(&call.reservation);
        let command = call.deadline.command(request.into_inner())?;
        let execution =
            self.stack.executor_for(call).execute(command).await.map_err(|error| error_to_status(&error))?;
        run::collect(execution, &reservation).await.map(Response::new)
    }

    async fn signal_execution(
        &self,
        request: Request<SignalExecutionRequest>,
    ) -> Result<Response<SignalExecutionResponse>, Status> {
        let call = Call::of(&request, Rpc::SignalExecution)?;
        let (reservation, executor) = (Arc::clone(&call.reservation), self.stack.executor_for(call));
        let request = request.into_inner();
        let signal: Signal = request.signal.parse().map_err(invalid)?;
        let info = executor.signal(&id(&request.execution_id)?, signal).await;
        let execution = Some(execution_to_wire(info.map_err(|error| error_to_status(&error))?));
        counted(&reservation, SignalExecutionResponse { execution }).map_err(|status| {
            let message = format!("the signal was sent, but there is no room for its answer: {}", status.message());
            Status::new(status.code(), message)
        })
    }

    async fn get_execution(
        &self,
        request: Request<GetExecutionRequest>,
    ) -> Result<Response<GetExecutionResponse>, Status> {
        let call = Call::of(&request, Rpc::GetExecution)?;
        let (reservation, executor) = (Arc::clone(&call.reservation), self.stack.executor_for(call));
        let info = executor.get(&id(&request.into_inner().execution_id)?).await;
        let execution = Some(execution_to_wire(info.map_err(|error| error_to_status(&error))?));
        counted(&reservation, GetExecutionResponse { execution })
    }

    async fn list_executions(
        &self,
        request: Request<ListExecutionsRequest>,
    ) -> Result<Response<ListExecutionsResponse>, Status> {
        let call = Call::of(&request, Rpc::ListExecutions)?;
        let (reservation, executor) = (Arc::clone(&call.reservation), self.stack.executor_for(call));
        let page = executor.list(query_from_wire(request.into_inner())).await;
        counted(&reservation, page_to_wire(page.map_err(|error| error_to_status(&error))?))
    }
}

impl Executions {
    fn executor_for<T>(&self, request: &Request<T>, rpc: Rpc) -> Result<impl Executor + use<T>, Status> {
        Ok(self.stack.executor_for(Call::of(request, rpc)?))
    }
}

fn id(text: &str) -> Result<ExecutionId, Status> {
    text.parse().map_err(invalid)
}
