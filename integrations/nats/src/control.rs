//! Requests about executions that run: a method of telexec.v1.ExecutionService in a header, its request as the payload.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{HeaderMap, Message, Subject};
use bytes::Bytes;
use futures_util::StreamExt;
use telexec_client::{Agent, RemoteExecutor};
use telexec_executor::{
    Attach, Event, ExecutionId, ExecutionInfo, Executor, ExecutorError, Input, InvalidCommand, OnDisconnect, Signal,
};
use telexec_proto::convert::{
    attach_from_wire, command_from_wire, error_to_status, event_to_wire, execution_to_wire, page_to_wire,
    query_from_wire, size_from_wire,
};
use telexec_proto::v1;
use tokio::sync::Semaphore;
use tonic::Status;
use tracing::warn;

use crate::Bridge;
use crate::agents::Pause;
use crate::outlet::set_status;
use crate::work::Busy;
use telexec_nats_client::headers::{self, CONTENT_TYPE, METHOD};
use telexec_nats_client::payload::Format;
use telexec_nats_client::subjects;

/// Requests at the same time, and as many that may wait for a command; others are refused.
const MAX_REQUESTS: usize = 64;
/// What subjects for answers begin with.
const INBOX: &str = "_INBOX.";
/// The headers of an answer.
const OVERHEAD_BYTES: usize = 1024;
/// How long `Attach` waits for an event.
const ATTACH_WAIT: Duration = Duration::from_secs(30);
/// Input, for one, may wait for a command that does not read.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Answers requests to this subject until this program is to end.
pub(crate) async fn serve(bridge: Arc<Bridge>, subject: String) {
    let mut pause = Pause::default();
    let mut requests = loop {
        match bridge.server.client.queue_subscribe(subject.clone(), bridge.name.clone()).await {
            Ok(requests) => break requests,
            Err(error) => warn!(error = %crate::chain(&error), "cannot subscribe to {subject}: trying again"),
        }
        if bridge.stop.run_until_cancelled(pause.wait()).await.is_none() {
            return;
        }
    };
    let (short, long) = (Arc::new(Semaphore::new(MAX_REQUESTS)), Arc::new(Semaphore::new(MAX_REQUESTS)));
    while let Some(Some(request)) = bridge.stop.run_until_cancelled(requests.next()).await {
        // whoever asks must not have this program publish to where it may itself, such as the events of others
        let Some(reply) = request.reply.clone().filter(|reply| reply.starts_with(INBOX)) else { continue };
        let method = request.headers.as_ref().and_then(|headers| headers::get(headers, METHOD));
        let slots = if matches!(method, Some("Attach" | "WriteInput")) { &long } else { &short };
        let Ok(slot) = Arc::clone(slots).try_acquire_owned() else {
            let busy = Status::resource_exhausted("too many requests at the same time: try again later");
            respond(&bridge, reply, HeaderMap::new(), Err(busy)).await;
            continue;
        };
        let bridge = Arc::clone(&bridge);
        tokio::spawn(async move {
            let mut headers = HeaderMap::new();
            if let Some(Ok(format)) = request.headers.as_ref().map(Format::of) {
                headers::set(&mut headers, CONTENT_TYPE, format.content_type());
            }
            let answered = bounded(answer(&bridge, &request)).await;
            // of several agents, those that cannot say anything leave it to the others
            if answered.is_ok() || is_own(&bridge, &request.subject) {
                respond(&bridge, reply, headers, answered).await;
            }
            drop(slot);
        });
    }
}

/// Whether it is this agent's alone, and not a label's.
fn is_own(bridge: &Bridge, subject: &str) -> bool {
    *subject == subjects::control(&bridge.name)
}

async fn respond(bridge: &Bridge, reply: Subject, mut headers: HeaderMap, answered: Result<Bytes, Status>) {
    let fits = answered.and_then(|payload| match payload.len() + OVERHEAD_BYTES > bridge.server.max_payload() {
        true => Err(Status::resource_exhausted("the answer is longer than the NATS server's max_payload")),
        false => Ok(payload),
    });
    let payload = fits.unwrap_or_else(|status| {
        set_status(&mut headers, &status);
        Bytes::new()
    });
    // who does not wait for it any more needs no answer
    let _ = bridge.server.client.publish_with_headers(reply, headers, payload).await;
}

async fn bounded(answer: impl Future<Output = Result<Bytes, Status>>) -> Result<Bytes, Status> {
    let answered = tokio::time::timeout(REQUEST_TIMEOUT, answer).await;
    answered.unwrap_or_else(|_| Err(Status::deadline_exceeded("the agent took too long")))
}

async fn answer(bridge: &Bridge, request: &Message) -> Result<Bytes, Status> {
    let none = HeaderMap::new();
    let headers = request.headers.as_ref().unwrap_or(&none);
    let refused = |error: crate::callers::Refused| Status::unauthenticated(error.to_string());
    let caller = bridge.callers.accept_once(&request.subject, headers, &request.payload).map_err(refused)?;
    let format = Format::of(headers).map_err(|error| Status::invalid_argument(crate::chain(&error)))?;
    let executor = bridge.agents.executor(&caller);
    let agent = bridge.agents.of(&caller);
    let call = Call {
        agent,
        busy: &bridge.busy,
        executor,
        format,
        payload: &request.payload,
        most: bridge.server.max_payload() / 2,
    };
    let method = headers::get(headers, METHOD);
    match method {
        Some("GetAgent") => return call.get_agent().await,
        Some("CheckCommand") => return call.check_command().await,
        _ if !is_own(bridge, &request.subject) => {
            let text = format!("a request to a label must be GetAgent or CheckCommand, not {method:?}");
            return Err(Status::invalid_argument(text));
        }
        _ => {}
    }
    match method {
        Some("SignalExecution") => call.signal().await,
        Some("Cancel") => call.cancel().await,
        Some("WriteInput") => call.write_input().await,
        Some("ResizeTerminal") => call.resize().await,
        Some("GetExecution") => call.get().await,
        Some("ListExecutions") => call.list().await,
        Some("Attach") => call.attach().await,
        method => {
            let method = method.unwrap_or_default();
            Err(Status::unimplemented(format!(
                "{METHOD}: {method:?} is none of Attach, Cancel, CheckCommand, GetAgent, GetExecution, \
                 ListExecutions, ResizeTerminal, SignalExecution and WriteInput"
            )))
        }
    }
}

/// A request with its payload.
struct Call<'a> {
    agent: &'a Agent,
    busy: &'a Busy,
    executor: RemoteExecutor,
    format: Format,
    payload: &'a [u8],
    /// Output in an answer.
    most: usize,
}

impl Call<'_> {
    async fn get_agent(&self) -> Result<Bytes, Status> {
        let _: v1::GetAgentRequest = self.read("GetAgentRequest")?;
        self.write("GetAgentResponse", &self.agent.info().await.map_err(failed)?)
    }

    async fn check_command(&self) -> Result<Bytes, Status> {
        let request: v1::CheckCommandRequest = self.read("CheckCommandRequest")?;
        let command = request.request.ok_or_else(|| invalid(InvalidCommand::new("request", "is missing")))?;
        let command = command_from_wire(command, None).map_err(invalid)?;
        let check = self.agent.check_as(&command, &request.identity).await.map_err(failed)?;
        self.write("CheckCommandResponse", &check)
    }

    async fn signal(&self) -> Result<Bytes, Status> {
        let request: v1::SignalExecutionRequest = self.read("SignalExecutionRequest")?;
        let signal = request.signal.parse().map_err(invalid)?;
        self.signalled(&id(&request.execution_id)?, signal).await
    }

    /// Ends it as the loss of a caller does: with the grace that it was started with, and as cancelled.
    async fn cancel(&self) -> Result<Bytes, Status> {
        let request: v1::GetExecutionRequest = self.read("GetExecutionRequest")?;
        let id = id(&request.execution_id)?;
        match end(self.agent, &id).await {
            Ok(info) => {
                let execution = Some(execution_to_wire(info));
                self.write("SignalExecutionResponse", &v1::SignalExecutionResponse { execution })
            }
            // it is about to be started
            Err(ExecutorError::NotFound(_)) if self.busy.cancel(id.as_str()) => {
                self.write("SignalExecutionResponse", &v1::SignalExecutionResponse::default())
            }
            Err(error) => Err(failed(error)),
        }
    }

    async fn signalled(&self, id: &ExecutionId, signal: Signal) -> Result<Bytes, Status> {
        let info = self.executor.signal(id, signal).await.map_err(failed)?;
        self.write("SignalExecutionResponse", &v1::SignalExecutionResponse { execution: Some(execution_to_wire(info)) })
    }

    async fn write_input(&self) -> Result<Bytes, Status> {
        let request: v1::WriteInputRequest = self.read("WriteInputRequest")?;
        let offset = Some(request.offset).filter(|_| !request.append);
        let input = Input { data: request.data, offset, close: request.close };
        let written = self.executor.write_input(&id(&request.execution_id)?, input).await;
        let committed_offset = written.map_err(failed)?;
        self.write("WriteInputResponse", &v1::WriteInputResponse { committed_offset })
    }

    async fn resize(&self) -> Result<Bytes, Status> {
        let request: v1::ResizeTerminalRequest = self.read("ResizeTerminalRequest")?;
        let size = request.size.ok_or_else(|| InvalidCommand::new("size", "is missing"));
        let size = size.and_then(size_from_wire).map_err(invalid)?;
        self.executor.resize(&id(&request.execution_id)?, size).await.map_err(failed)?;
        self.write("ResizeTerminalResponse", &v1::ResizeTerminalResponse {})
    }

    async fn get(&self) -> Result<Bytes, Status> {
        let request: v1::GetExecutionRequest = self.read("GetExecutionRequest")?;
        let info = self.executor.get(&id(&request.execution_id)?).await.map_err(failed)?;
        self.write("GetExecutionResponse", &v1::GetExecutionResponse { execution: Some(execution_to_wire(info)) })
    }

    async fn list(&self) -> Result<Bytes, Status> {
        let request: v1::ListExecutionsRequest = self.read("ListExecutionsRequest")?;
        let page = self.executor.list(query_from_wire(request)).await.map_err(failed)?;
        self.write("ListExecutionsResponse", &page_to_wire(page))
    }

    /// The next event from a position on: whoever asks says when there may come more.
    async fn attach(&self) -> Result<Bytes, Status> {
        let request: v1::AttachRequest = self.read("AttachRequest")?;
        let (id, from) = attach_from_wire(&request).map_err(invalid)?;
        let from = Attach::position(from.position);
        let mut execution = self.executor.attach(&id, from).await.map_err(failed)?;
        let next = async {
            loop {
                match execution.next().await {
                    Some(Ok(Event::Started(_))) => {}
                    Some(event) => return event.map_err(failed),
                    None => return Err(Status::internal("the execution has no end")),
                }
            }
        };
        let nothing = |_| Status::deadline_exceeded("nothing has happened: ask again");
        let mut event = tokio::time::timeout(ATTACH_WAIT, next).await.map_err(nothing)??;
        if let Event::Output(output) = &mut event {
            output.data.truncate(self.most);
        }
        self.write("ExecutionEvent", &event_to_wire(event, &id))
    }

    fn read<M: prost::Message + Default>(&self, name: &'static str) -> Result<M, Status> {
        self.format.decode(name, self.payload).map_err(|error| Status::invalid_argument(crate::chain(&error)))
    }

    fn write(&self, name: &'static str, message: &impl prost::Message) -> Result<Bytes, Status> {
        self.format.encode(name, message).map_err(|error| Status::internal(crate::chain(&error)))
    }
}

/// Ends an execution as the loss of its caller does; how it was before.
///
/// # Errors
/// The agent does not know it, or does not answer.
pub(crate) async fn end(agent: &Agent, id: &ExecutionId) -> Result<ExecutionInfo, ExecutorError> {
    let executor = agent.executor();
    let info = executor.get(id).await?;
    if info.exited.is_none() {
        let from = Attach { on_disconnect: OnDisconnect::Kill, ..Attach::position(info.position) };
        drop(executor.attach(id, from).await?);
        // an answer on the same connection: the agent has heard of it
        agent.ping().await?;
    }
    Ok(info)
}

fn id(text: &str) -> Result<ExecutionId, Status> {
    text.parse().map_err(invalid)
}

fn invalid(error: InvalidCommand) -> Status {
    failed(error.into())
}

fn failed(error: ExecutorError) -> Status {
    error_to_status(&error)
}
