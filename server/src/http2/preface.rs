//! A timeout for the client's HTTP/2 preface (RFC 9113, section 3.4): hyper waits for it without a limit, and begins its
//! keepalive only after it. Of a peer that nobody knows yet, a timeout for its first call with a token too.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::http2::admission::{Admission, Admitted};
use crate::identity::Identity;

pub(super) const PREFACE_BYTES: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

/// From the preface to a call that says whose connection it is.
const FIRST_CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// How a connection that is pending becomes one that is served.
pub(crate) struct PendingAdmission {
    /// Cancelled when it is displaced by others.
    pub(crate) displaced: CancellationToken,
    /// Whose connection it is; `None`: its first call says that.
    pub(crate) identity: Option<Identity>,
    pub(crate) admission: Admission,
}

/// A connection that fails if the preface does not arrive in time, or there is no permit for it then. Only counts bytes: hyper
/// checks their content.
pub(crate) struct PrefaceTimeout<S> {
    io: S,
    /// `None`: it is admitted.
    waits: Option<PrefaceWait>,
    admission: Admission,
}

struct PrefaceWait {
    /// Bytes of the preface still missing.
    left: usize,
    time: Pin<Box<Sleep>>,
    displaced: Pin<Box<WaitForCancellationFutureOwned>>,
    identity: Option<Identity>,
}

impl<S> PrefaceTimeout<S> {
    pub(crate) fn new(io: S, timeout: Duration, pending: PendingAdmission) -> Self {
        let waits = PrefaceWait {
            left: PREFACE_BYTES,
            time: Box::pin(tokio::time::sleep(timeout)),
            displaced: Box::pin(pending.displaced.cancelled_owned()),
            identity: pending.identity,
        };
        Self { io, waits: Some(waits), admission: pending.admission }
    }

    /// After so many bytes were read while waiting.
    ///
    /// # Errors
    /// The connection is to be closed.
    fn wait(&mut self, mut waits: PrefaceWait, read: usize, cx: &mut Context<'_>) -> io::Result<()> {
        let had_preface = waits.left == 0;
        waits.left = waits.left.saturating_sub(read);
        let has_preface = waits.left == 0;
        let admitted = match &waits.identity {
            Some(identity) if has_preface => self.admission.admit(identity),
            _ => self.admission.state(),
        };
        match admitted {
            Admitted::Yes => return Ok(()),
            Admitted::No => return Err(failure(ErrorKind::QuotaExceeded, "too many connections, or refused calls")),
            Admitted::NotYet => {}
        }
        if has_preface && !had_preface {
            waits.time.as_mut().reset(Instant::now() + FIRST_CALL_TIMEOUT);
        }
        if waits.displaced.as_mut().poll(cx).is_ready() {
            return Err(failure(
                ErrorKind::ConnectionAborted,
                "not admitted yet, dropped in favour of other connections",
            ));
        }
        if waits.time.as_mut().poll(cx).is_ready() {
            let what = if has_preface { "no call with a token in time" } else { "no HTTP/2 preface in time" };
            return Err(failure(ErrorKind::TimedOut, what));
        }
        self.waits = Some(waits);
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
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        if let Some(waits) = self.waits.take()
            && let Err(error) = self.wait(waits, buf.filled().len() - before, cx)
        {
            return Poll::Ready(Err(error));
        }
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
