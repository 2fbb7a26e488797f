//! A timeout for the client's HTTP/2 preface (RFC 9113, section 3.4): hyper waits for it without a limit, and begins its
//! keepalive only after it.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::listen::connection_limiter::ConnectionPermit;

pub(super) const PREFACE_BYTES: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

/// How a connection that is pending becomes one that is served.
pub(crate) struct PendingAdmission {
    /// Cancelled when it is displaced by others.
    pub(crate) displaced: CancellationToken,
    /// `None`: too many connections.
    pub(crate) acquire_permit: Box<dyn FnOnce() -> Option<ConnectionPermit> + Send>,
}

/// A connection that fails if the preface does not arrive in time, or there is no permit for it then. Only counts bytes: hyper
/// checks their content.
pub(crate) struct PrefaceTimeout<S> {
    io: S,
    /// `None`: the preface has arrived.
    waits: Option<PrefaceWait>,
    permit: Option<ConnectionPermit>,
}

struct PrefaceWait {
    /// Bytes of the preface still missing.
    left: usize,
    time: Pin<Box<Sleep>>,
    displaced: Pin<Box<WaitForCancellationFutureOwned>>,
    acquire_permit: Box<dyn FnOnce() -> Option<ConnectionPermit> + Send>,
}

impl<S> PrefaceTimeout<S> {
    pub(crate) fn new(io: S, timeout: Duration, admission: PendingAdmission) -> Self {
        let waits = PrefaceWait {
            left: PREFACE_BYTES,
            time: Box::pin(tokio::time::sleep(timeout)),
            displaced: Box::pin(admission.displaced.cancelled_owned()),
            acquire_permit: admission.acquire_permit,
        };
        Self { io, waits: Some(waits), permit: None }
    }

    /// After so many bytes were read while waiting.
    ///
    /// # Errors
    /// The connection is to be closed.
    fn wait(&mut self, mut waits: PrefaceWait, read: usize, cx: &mut Context<'_>) -> io::Result<()> {
        waits.left = waits.left.saturating_sub(read);
        if waits.left == 0 {
            self.permit = (waits.acquire_permit)();
            return self
                .permit
                .as_ref()
                .map(drop)
                .ok_or_else(|| failure(ErrorKind::QuotaExceeded, "too many connections"));
        }
        if waits.displaced.as_mut().poll(cx).is_ready() {
            return Err(failure(
                ErrorKind::ConnectionAborted,
                "no HTTP/2 preface yet, dropped in favour of other connections",
            ));
        }
        if waits.time.as_mut().poll(cx).is_ready() {
            return Err(failure(ErrorKind::TimedOut, "no HTTP/2 preface in time"));
        }
        self.waits = Some(waits);
        Ok(())
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
