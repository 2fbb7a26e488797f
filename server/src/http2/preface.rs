//! A timeout for the client's HTTP/2 preface (RFC 9113, section 3.4): hyper waits for it without a limit, and begins its
//! keepalive only after it. Of a connection that is nobody's after it, little more is read.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::http2::admission::{Admission, Admitted};
use crate::identity::Identity;

pub(super) const PREFACE_BYTES: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

/// So much is read of a connection while it is nobody's: room for the headers of calls, and not for their messages, which
/// count towards nobody's memory.
const MAX_PENDING_BYTES: usize = 64 * 1024;

/// How a connection that is pending becomes one that is served.
pub(crate) struct PendingAdmission {
    /// Cancelled when it is displaced by others.
    pub(crate) displaced: CancellationToken,
    /// Whose connection it is; `None`: a call says that.
    pub(crate) identity: Option<Identity>,
    pub(crate) admission: Admission,
}

/// A connection that fails if the preface does not arrive in time, or there is no permit for it then. Only counts bytes: hyper
/// checks their content.
pub(crate) struct PrefaceTimeout<S> {
    io: S,
    state: State,
    admission: Admission,
}

enum State {
    /// The preface has not arrived.
    Waiting(PrefaceWait),
    /// It is nobody's, and so much was read.
    Pending(usize),
    Open,
}

struct PrefaceWait {
    /// Bytes that were read.
    read: usize,
    time: Pin<Box<Sleep>>,
    displaced: Pin<Box<WaitForCancellationFutureOwned>>,
    identity: Option<Identity>,
}

impl<S> PrefaceTimeout<S> {
    pub(crate) fn new(io: S, timeout: Duration, pending: &PendingAdmission) -> Self {
        let waits = PrefaceWait {
            read: 0,
            time: Box::pin(tokio::time::sleep(timeout)),
            displaced: Box::pin(pending.displaced.clone().cancelled_owned()),
            identity: pending.identity.clone(),
        };
        Self { io, state: State::Waiting(waits), admission: pending.admission.clone() }
    }

    /// After so many bytes were read.
    ///
    /// # Errors
    /// The connection is to be closed.
    fn after_read(&mut self, read: usize, cx: &mut Context<'_>) -> io::Result<()> {
        match &mut self.state {
            State::Open => {}
            State::Pending(before) => *before += read,
            State::Waiting(waits) => {
                waits.read += read;
                if waits.read < PREFACE_BYTES {
                    return waits.check(cx);
                }
                match &waits.identity {
                    Some(identity) if self.admission.admit(identity) == Admitted::Yes => self.state = State::Open,
                    Some(_) => return Err(failure(ErrorKind::QuotaExceeded, "too many connections")),
                    None => self.state = State::Pending(waits.read),
                }
            }
        }
        Ok(())
    }

    /// Waits if it is nobody's and has sent too much for that.
    fn poll_may_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.state {
            State::Pending(read) => match self.admission.poll(cx) {
                Admitted::Yes => self.state = State::Open,
                Admitted::NotYet if read < MAX_PENDING_BYTES => {}
                // woken when it is admitted; otherwise it is closed soon
                Admitted::NotYet | Admitted::No => {
                    self.admission.fill();
                    return Poll::Pending;
                }
            },
            State::Waiting(_) | State::Open => {}
        }
        Poll::Ready(Ok(()))
    }
}

impl PrefaceWait {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.displaced.as_mut().poll(cx).is_ready() {
            return Err(failure(
                ErrorKind::ConnectionAborted,
                "no HTTP/2 preface yet, dropped in favour of other connections",
            ));
        }
        if self.time.as_mut().poll(cx).is_ready() {
            return Err(failure(ErrorKind::TimedOut, "no HTTP/2 preface in time"));
        }
        Ok(())
    }
}

impl<S> Drop for PrefaceTimeout<S> {
    fn drop(&mut self) {
        self.admission.close();
    }
}

fn failure(kind: ErrorKind, text: &str) -> io::Error {
    io::Error::new(kind, text)
}

impl<S: AsyncRead + Unpin> AsyncRead for PrefaceTimeout<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_may_read(cx))?;
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        self.after_read(buf.filled().len() - before, cx)?;
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PrefaceTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
