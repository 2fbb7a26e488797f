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
use super::dial::DialError;
use super::listen::Listener;
use super::passage::Passage;
use super::relay::Relay;
use super::socket::Socket;
use super::user::Asked;
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
        let asked = Asked { user: &user, field: "user" };
        let passage = self.permit(&call, PortAction::Listen, endpoint, asked).await?;
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
        let asked = Asked { user: &dial.user, field: "dial.user" };
        match dialled(dial.to).map_err(invalid)? {
            Dialled::To(endpoint) => {
                let passage = self.permit(call, PortAction::Forward, endpoint, asked).await?;
                let dialled = tokio::select! {
                    biased;
                    refused = passage.permission.ended() => return Err(error_to_status(&refused)),
                    () = self.forwards.closing.cancelled() => return Err(error_to_status(&ExecutorError::ShuttingDown)),
                    dialled = self.forwards.dial(&self.stack, &passage.used, &call.caller.identity) => dialled,
                };
                match dialled {
                    Ok(socket) => Ok((socket, passage)),
                    Err(DialError::Failed(failure)) => Err(failed(passage, &failure)),
                    Err(DialError::Process(error)) => {
                        passage.end("dial_failed", None);
                        Err(error_to_status(&error))
                    }
                }
            }
            Dialled::Accepted(_) if !self.forwards.is_own(asked.user) => {
                Err(invalid(InvalidCommand::new(asked.field, "is for dial.unix_path only")))
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
        asked: Asked<'_>,
    ) -> Result<Passage, Status> {
        let refused = |error: ExecutorError| error_to_status(&error);
        let user = self.forwards.user_of(&self.stack, call, action, &endpoint, asked).await.map_err(refused)?;
        let used = PortUse { action, endpoint, user };
        let passage = Passage::permit(&self.stack, &self.forwards, call, used, None).await.map_err(refused)?;
        // whom the policy refuses does not learn which users there are
        match self.forwards.check_user(&passage.used, asked) {
            Ok(()) => Ok(passage),
            Err(error) => {
                let is_invalid = matches!(error, ExecutorError::Invalid(_));
                passage.end(if is_invalid { "invalid" } else { "unsupported" }, None);
                Err(refused(error))
            }
        }
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
