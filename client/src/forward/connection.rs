//! One forwarded connection.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::Stream;
use telexec_proto::pieces::{MAX_PIECE_BYTES, Pieces};
use telexec_proto::v1::connect_request::Step as Request;
use telexec_proto::v1::connect_response::Step as Answer;
use telexec_proto::v1::{ConnectRequest, ConnectResponse};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::PollSender;
use tonic::Streaming;

use super::pool::Place;
use super::{Endpoint, ForwardError, following, unexpected};
use crate::error;

/// How long the rest is sent after the side here has stopped reading.
const LINGER: Duration = Duration::from_secs(1);
/// How long the end is awaited of a connection that was closed, and dropped without [`Connection::finish`].
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection from or to the agent's machine. Shutting it down closes the direction from here, and the other stays
/// open.
///
/// Dropped before both directions are closed it is reset.
#[derive(Debug)]
pub struct Connection {
    /// `None`: this direction is closed.
    requests: Option<PollSender<ConnectRequest>>,
    /// `None`: taken, to await the end.
    answers: Option<Streaming<ConnectResponse>>,
    unread: Bytes,
    /// The other direction is closed.
    is_ended: bool,
    peer: Option<Endpoint>,
    endpoint: Arc<str>,
    place: Option<Place>,
}

impl Connection {
    pub(super) fn new(
        requests: mpsc::Sender<ConnectRequest>,
        answers: Streaming<ConnectResponse>,
        peer: Option<Endpoint>,
        endpoint: Arc<str>,
        place: Place,
    ) -> Self {
        Self {
            requests: Some(PollSender::new(requests)),
            answers: Some(answers),
            unread: Bytes::new(),
            is_ended: false,
            peer,
            endpoint,
            place: Some(place),
        }
    }

    /// The address that was reached, or where an accepted connection is from; `None`: a Unix socket.
    pub fn peer(&self) -> Option<&Endpoint> {
        self.peer.as_ref()
    }

    /// Waits until all was delivered, after both directions were closed.
    ///
    /// # Errors
    /// The connection was reset.
    pub async fn finish(mut self) -> Result<(), ForwardError> {
        let Some(answers) = self.answers.take() else { return Ok(()) };
        end(answers).await.map_err(|status| following(status, &self.endpoint))
    }

    /// Carries bytes from `reader` and to `writer` until both directions are closed, and all was delivered.
    ///
    /// # Errors
    /// One side was reset, and so is the other: of a TCP connection here the caller has to see to that.
    pub async fn join(
        mut self,
        reader: impl AsyncRead + Unpin,
        mut writer: impl AsyncWrite + Unpin,
    ) -> Result<(), ForwardError> {
        let requests = self.requests.take().and_then(|requests| requests.get_ref().cloned());
        let Some(mut answers) = self.answers.take() else { return Ok(()) };
        writer.write_all(&std::mem::take(&mut self.unread)).await.map_err(ForwardError::Here)?;
        if self.is_ended {
            writer.shutdown().await.map_err(ForwardError::Here)?;
        }
        let forth = async {
            match requests {
                Some(requests) => send(reader, requests).await,
                None => Ok(()),
            }
        };
        let back = async {
            let written = write(&mut answers, &mut writer, &mut self.is_ended).await;
            match written.map_err(|status| following(status, &self.endpoint))? {
                None if !self.is_ended => Err(unexplained(&self.endpoint)),
                written => Ok(written),
            }
        };
        let written = {
            let (mut forth, mut back) = (pin!(forth), pin!(back));
            tokio::select! {
                biased;
                written = &mut back => match written? {
                    // the call is over, whatever is read here
                    None => return Ok(()),
                    written => {
                        forth.await?;
                        written
                    }
                },
                sent = &mut forth => {
                    sent?;
                    back.await?
                }
            }
        };
        match written {
            None => Ok(()),
            Some(error) => {
                // what was sent before is to arrive, as it does with TCP
                let _ = timeout(LINGER, end(answers)).await;
                Err(ForwardError::Here(error))
            }
        }
    }
}

/// Sends all that is read. While the agent takes no more, no more is read.
async fn send(mut reader: impl AsyncRead + Unpin, requests: mpsc::Sender<ConnectRequest>) -> Result<(), ForwardError> {
    let mut pieces = Pieces::default();
    loop {
        let length = reader.read_buf(pieces.room()).await.map_err(ForwardError::Here)?;
        let step = match length {
            0 => Request::CloseWrite(true),
            _ => Request::Data(pieces.take()),
        };
        if requests.send(ConnectRequest { step: Some(step) }).await.is_err() {
            // the answers say why
            return Ok(());
        }
        if length == 0 {
            return Ok(());
        }
    }
}

/// The call ended, but not as it does when both directions are closed.
fn unexplained(endpoint: &str) -> ForwardError {
    error::lost(endpoint, "the agent did not say how the connection ended").into()
}

/// Writes all that arrives, until the call has ended; returns early if the side here reads no more.
async fn write(
    answers: &mut Streaming<ConnectResponse>,
    writer: &mut (impl AsyncWrite + Unpin),
    is_ended: &mut bool,
) -> Result<Option<io::Error>, tonic::Status> {
    while let Some(answer) = answers.message().await? {
        let written = match answer.step {
            Some(Answer::Data(data)) => {
                async {
                    writer.write_all(&data).await?;
                    writer.flush().await
                }
                .await
            }
            Some(Answer::ClosedWrite(true)) => {
                *is_ended = true;
                writer.shutdown().await
            }
            Some(Answer::ClosedWrite(false) | Answer::Connected(_)) | None => Ok(()),
        };
        if let Err(error) = written {
            return Ok(Some(error));
        }
    }
    Ok(None)
}

/// The agent takes no more; its answers say why.
#[derive(Debug, thiserror::Error)]
#[error("the connection is closed")]
struct Gone;

/// Reads to the end.
async fn end(mut answers: Streaming<ConnectResponse>) -> Result<(), tonic::Status> {
    while answers.message().await?.is_some() {}
    Ok(())
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.unread.is_empty() && !this.is_ended {
            let Some(answers) = &mut this.answers else { return Poll::Ready(Ok(())) };
            let broken = |error| io::Error::new(io::ErrorKind::ConnectionReset, error);
            match ready!(Pin::new(answers).poll_next(cx)) {
                Some(Ok(answer)) => match answer.step {
                    Some(Answer::Data(data)) => this.unread = data,
                    Some(Answer::ClosedWrite(closed)) => this.is_ended = closed,
                    Some(Answer::Connected(_)) | None => {
                        return Poll::Ready(Err(broken(unexpected("a connection began twice"))));
                    }
                },
                Some(Err(status)) => return Poll::Ready(Err(broken(following(status, &this.endpoint)))),
                None => return Poll::Ready(Err(broken(unexplained(&this.endpoint)))),
            }
        }
        let piece = this.unread.split_to(this.unread.len().min(buf.remaining()));
        buf.put_slice(piece.chunk());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let gone = || io::Error::new(io::ErrorKind::BrokenPipe, Gone);
        let Some(requests) = &mut self.requests else { return Poll::Ready(Err(gone())) };
        ready!(requests.poll_reserve(cx)).map_err(|_| gone())?;
        let piece = data.get(..data.len().min(MAX_PIECE_BYTES)).unwrap_or_default();
        let step = Some(Request::Data(Bytes::copy_from_slice(piece)));
        requests.send_item(ConnectRequest { step }).map_err(|_| gone())?;
        Poll::Ready(Ok(piece.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let gone = || io::Error::new(io::ErrorKind::BrokenPipe, Gone);
        let Some(requests) = &mut self.requests else { return Poll::Ready(Ok(())) };
        ready!(requests.poll_reserve(cx)).map_err(|_| gone())?;
        requests.send_item(ConnectRequest { step: Some(Request::CloseWrite(true)) }).map_err(|_| gone())?;
        self.requests = None;
        Poll::Ready(Ok(()))
    }
}

impl Drop for Connection {
    /// What was written before both directions were closed may still be on its way.
    fn drop(&mut self) {
        let is_closed = self.requests.is_none() && self.is_ended && self.unread.is_empty();
        let Some(answers) = self.answers.take().filter(|_| is_closed) else { return };
        let place = self.place.take();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _ = timeout(CLOSE_TIMEOUT, end(answers)).await;
                drop(place);
            });
        }
    }
}
