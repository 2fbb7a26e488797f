//! `telexec.v1.ForwardService`.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, StreamExt, stream};
use telexec_executor::{ExecutorError, InvalidCommand};
use telexec_proto::convert::{ForwardFailure, ForwardStep, error_to_status, forward_failure_to_status};
use telexec_proto::v1::connect_request::Step;
use telexec_proto::v1::forward_service_server::ForwardService;
use telexec_proto::v1::{
    ConnectRequest, ConnectResponse, Connected, Dial, ListenRequest, ListenResponse, connect_response,
};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument;

use super::Forwards;
use super::listen::Listener;
use super::passage::Passage;
use super::relay::Relay;
use super::socket::Socket;
use super::wire::{Dialled, dialled, listening};
use crate::admission::Stack;
use crate::call::status::invalid;
use crate::call::{Call, Rpc};
use crate::policy::{Endpoint, PortAction, PortUse};

/// Pieces that wait for the caller.
const QUEUE: usize = 1;

/// The RPCs.
pub(crate) struct ForwardRpcs {
    pub(super) stack: Stack,
    pub(super) forwards: Forwards,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl ForwardService for ForwardRpcs {
    type ConnectStream = Answers<ConnectResponse>;

    async fn connect(
        &self,
        request: Request<Streaming<ConnectRequest>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let call = Call::of(&request, Rpc::Connect)?;
        let mut requests = request.into_inner();
        let first = requests.next().await.transpose()?.and_then(|request| request.step);
        let Some(Step::Dial(dial)) = first else {
            return Err(invalid(InvalidCommand::new("dial", "is missing: it must be the first")));
        };
        call.reservation.release();
        let (socket, passage) = self.reach(&call, dial).await?;
        let (answers, queue) = mpsc::channel(QUEUE);
        let connected = connect_response::Step::Connected(Connected { peer: socket.peer() });
        let relay = Relay {
            passage,
            requests,
            reservation: Arc::clone(&call.reservation),
            answers,
            deadline: call.deadline,
            closing: self.forwards.closing.clone(),
        };
        tokio::spawn(relay.run(socket).in_current_span());
        let connected = stream::iter([Ok(ConnectResponse { step: Some(connected) })]);
        Ok(Response::new(connected.chain(queued(queue)).boxed()))
    }

    type ListenStream = Answers<ListenResponse>;

    async fn listen(&self, request: Request<ListenRequest>) -> Result<Response<Self::ListenStream>, Status> {
        let call = Call::of(&request, Rpc::Listen)?;
        let ListenRequest { at, user } = request.into_inner();
        let endpoint = listening(at).map_err(invalid)?;
        let identity = call.caller.identity.clone();
        let passage = self.permit(&call, PortAction::Listen, endpoint, &user, "user").await?;
        let bound = match self.forwards.bind(&passage.used.endpoint, &identity).await {
            Ok(bound) => bound,
            Err(failure) => return Err(failed(passage, &failure)),
        };
        let (answers, queue) = mpsc::channel(QUEUE);
        let listener = Listener {
            bound,
            passage,
            identity,
            limiter: self.forwards.limiter.clone(),
            accepted: self.forwards.accepted.clone(),
            answers,
            deadline: call.deadline,
            closing: self.forwards.closing.clone(),
        };
        tokio::spawn(listener.run().in_current_span());
        Ok(Response::new(queued(queue).boxed()))
    }
}

impl ForwardRpcs {
    /// A connection that is made, or that was accepted.
    async fn reach(&self, call: &Call, dial: Dial) -> Result<(Socket, Passage), Status> {
        match dialled(dial.to).map_err(invalid)? {
            Dialled::To(endpoint) => {
                let passage = self.permit(call, PortAction::Forward, endpoint, &dial.user, "dial.user").await?;
                let dialled = tokio::select! {
                    biased;
                    refused = passage.permission.ended() => return Err(error_to_status(&refused)),
                    () = self.forwards.closing.cancelled() => return Err(error_to_status(&ExecutorError::ShuttingDown)),
                    dialled = self.forwards.dial(&passage.used.endpoint, &call.caller.identity) => dialled,
                };
                match dialled {
                    Ok(socket) => Ok((socket, passage)),
                    Err(failure) => Err(failed(passage, &failure)),
                }
            }
            Dialled::Accepted(id) => {
                let taken = self.forwards.accepted.take(&call.caller.identity, &id);
                let taken = taken.ok_or_else(|| {
                    let reason = "it was already taken, or closed because nobody took it within 10 s";
                    forward_failure_to_status(&ForwardFailure::because(ForwardStep::Take, &id, "ENOENT", reason))
                })?;
                let permit = Some(taken.permit);
                let passage = Passage::permit(&self.stack, &self.forwards, call, taken.used, permit).await;
                Ok((taken.socket, passage.map_err(|error| error_to_status(&error))?))
            }
        }
    }

    async fn permit(
        &self,
        call: &Call,
        action: PortAction,
        endpoint: Endpoint,
        user: &str,
        field: &'static str,
    ) -> Result<Passage, Status> {
        let is_foreign = matches!(endpoint, Endpoint::Unix(_)) && !self.forwards.is_own(user);
        let used = PortUse { action, endpoint };
        let passage = Passage::permit(&self.stack, &self.forwards, call, used, None).await;
        let passage = passage.map_err(|error| error_to_status(&error))?;
        if is_foreign {
            passage.end("unsupported", None);
            let reason = "the agent uses Unix sockets as its own user only".to_owned();
            return Err(error_to_status(&ExecutorError::Unsupported { field: field.into(), reason }));
        }
        Ok(passage)
    }
}

/// The status of a forward that came to nothing, which is recorded.
fn failed(passage: Passage, failure: &ForwardFailure) -> Status {
    let cause = if failure.step == ForwardStep::Listen { "listen_failed" } else { "dial_failed" };
    passage.end(cause, Some(&failure.errno));
    forward_failure_to_status(failure)
}

fn queued<T>(queue: mpsc::Receiver<T>) -> impl Stream<Item = T> {
    stream::unfold(queue, |mut queue| async move { queue.recv().await.map(|answer| (answer, queue)) })
}
