//! Carries the bytes of one connection, both ways, until both are closed.

use std::io;
use std::sync::Arc;

use futures_util::StreamExt;
use telexec_executor::{ExecutorError, InvalidCommand};
use telexec_proto::convert::{ForwardFailure, ForwardStep, error_to_status, forward_failure_to_status};
use telexec_proto::pieces::Pieces;
use telexec_proto::v1::connect_request::Step as Request;
use telexec_proto::v1::connect_response::Step as Answer;
use telexec_proto::v1::{ConnectRequest, ConnectResponse};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};

use super::passage::Passage;
use super::socket::Socket;
use crate::call::deadline::Deadline;
use crate::call::status::invalid;
use crate::request_memory::Reservation;

/// Answers to the caller; dropping the receiver resets the connection.
pub(super) type Answers = mpsc::Sender<Result<ConnectResponse, Status>>;

/// A connection, and the call that it is carried by.
pub(super) struct Relay {
    pub(super) passage: Passage,
    pub(super) requests: Streaming<ConnectRequest>,
    pub(super) reservation: Arc<Reservation>,
    pub(super) answers: Answers,
    pub(super) deadline: Deadline,
    pub(super) closing: CancellationToken,
}

/// How a connection ends.
enum End {
    /// Both directions were closed.
    Closed,
    /// The other side did it.
    Reset(io::Error),
    /// The caller did it, or is gone.
    Cancelled,
    /// The caller's fault.
    Invalid(Status),
    Deadline(Status),
    Refused(ExecutorError),
    Shutdown,
}

impl End {
    /// Requests that cannot be read: the caller cancelled the call or lost its connection, or they are malformed.
    fn of_requests(status: Status) -> Self {
        match status.code() {
            Code::Cancelled | Code::Unknown | Code::Unavailable => Self::Cancelled,
            _ => Self::Invalid(status),
        }
    }
}

impl Relay {
    /// Returns when the connection is closed and the caller was told.
    pub(super) async fn run(mut self, mut socket: Socket) {
        let (passage, answers) = (&self.passage, &self.answers);
        let carried = async {
            let caller = Caller { requests: &mut self.requests, reservation: &self.reservation, answers, passage };
            match &mut socket {
                Socket::Tcp(stream) => {
                    let (reader, writer) = stream.split();
                    carry(reader, writer, caller).await
                }
                Socket::Unix(stream) => {
                    let (reader, writer) = stream.split();
                    carry(reader, writer, caller).await
                }
                Socket::Passed(stream) => {
                    let (reader, writer) = stream.split();
                    carry(reader, writer, caller).await
                }
            }
        };
        let end = tokio::select! {
            biased;
            refused = passage.permission.ended() => End::Refused(refused),
            () = self.closing.cancelled() => End::Shutdown,
            late = self.deadline.passed() => End::Deadline(late),
            () = answers.closed() => End::Cancelled,
            end = carried => end,
        };
        match end {
            End::Closed => drop(socket),
            _ => socket.reset(),
        }
        let address = self.passage.used.endpoint.to_string();
        let (cause, failure, status) = end.told(&address);
        self.passage.end(cause, failure.as_ref().map(|failure| failure.errno.as_str()));
        if let Some(status) = status {
            // the caller may read it later, or never
            let _ = self.answers.send(Err(status)).await;
        }
    }
}

impl End {
    /// The cause in words, the failure of the system and the status.
    fn told(self, address: &str) -> (&'static str, Option<ForwardFailure>, Option<Status>) {
        match self {
            Self::Closed => ("closed", None, None),
            Self::Reset(error) => {
                let failure = ForwardFailure::new(ForwardStep::Carry, address, &error);
                let status = forward_failure_to_status(&failure);
                ("reset", Some(failure), Some(status))
            }
            Self::Cancelled => ("cancelled", None, None),
            Self::Invalid(status) => ("invalid", None, Some(status)),
            Self::Deadline(status) => ("deadline_exceeded", None, Some(status)),
            Self::Refused(refused) => ("refused", None, Some(error_to_status(&refused))),
            Self::Shutdown => ("agent_shutdown", None, Some(error_to_status(&ExecutorError::ShuttingDown))),
        }
    }
}

/// The caller's side.
struct Caller<'a> {
    requests: &'a mut Streaming<ConnectRequest>,
    reservation: &'a Reservation,
    answers: &'a Answers,
    passage: &'a Passage,
}

async fn carry(reader: impl AsyncRead + Unpin, mut writer: impl AsyncWrite + Unpin, caller: Caller<'_>) -> End {
    let Caller { requests, reservation, answers, passage } = caller;
    let forth = async {
        match write(requests, reservation, passage, &mut writer).await {
            Ok(()) => Ok(None),
            // what the other side has sent before it stopped reading is still to be read
            Err(Stopped::Write(error)) => Ok(Some(error)),
            Err(Stopped::Call(end)) => Err(end),
        }
    };
    match tokio::try_join!(forth, read(reader, answers, passage)) {
        Ok((None, ())) => End::Closed,
        Ok((Some(error), ())) => End::Reset(error),
        Err(end) => end,
    }
}

enum Stopped {
    /// The other side reads no more.
    Write(io::Error),
    Call(End),
}

/// Until the caller has closed its direction. While the other side does not read, no more requests are read.
async fn write(
    requests: &mut Streaming<ConnectRequest>,
    reservation: &Reservation,
    passage: &Passage,
    writer: &mut (impl AsyncWrite + Unpin),
) -> Result<(), Stopped> {
    while let Some(request) = requests.next().await {
        match request.map_err(|status| Stopped::Call(End::of_requests(status)))?.step {
            Some(Request::Data(data)) => {
                writer.write_all(&data).await.map_err(Stopped::Write)?;
                passage.received(data.len());
            }
            Some(Request::CloseWrite(true)) => return writer.shutdown().await.map_err(Stopped::Write),
            Some(Request::CloseWrite(false)) => {}
            Some(Request::Dial(_)) | None => {
                let malformed = InvalidCommand::new("step", "must be data or close_write, after dial");
                return Err(Stopped::Call(End::Invalid(invalid(malformed))));
            }
        }
        reservation.release();
    }
    let status = Status::invalid_argument("the requests ended without close_write");
    Err(Stopped::Call(End::Invalid(status)))
}

/// Until the other side has closed its direction. While the caller does not read, no more is read.
async fn read(mut reader: impl AsyncRead + Unpin, answers: &Answers, passage: &Passage) -> Result<(), End> {
    let mut pieces = Pieces::default();
    loop {
        let length = reader.read_buf(pieces.room()).await.map_err(End::Reset)?;
        if length == 0 {
            return answer(answers, Answer::ClosedWrite(true)).await;
        }
        answer(answers, Answer::Data(pieces.take())).await?;
        passage.sent(length);
    }
}

async fn answer(answers: &Answers, step: Answer) -> Result<(), End> {
    answers.send(Ok(ConnectResponse { step: Some(step) })).await.map_err(|_| End::Cancelled)
}
