//! Coalesces writes: the headers of a request and its message come from two tasks, and are sent in one piece.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Delays writes by one turn of the scheduler, so that HTTP/2 can add frames of other tasks. The agent is then woken once, not
/// twice.
pub(crate) struct Gathered<S, G> {
    io: S,
    /// Reports with its drop that `io` is closed: dropped after it.
    _guard: G,
    /// The turn is over, and the gathered bytes are being written.
    goes_out: bool,
}

impl<S, G> Gathered<S, G> {
    pub(crate) fn new(io: S, guard: G) -> Self {
        Self { io, _guard: guard, goes_out: false }
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.goes_out {
            return Poll::Ready(());
        }
        self.goes_out = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin, G: Unpin> AsyncRead for Gathered<S, G> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin, G: Unpin> AsyncWrite for Gathered<S, G> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_turn(cx));
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_turn(cx));
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // flushed after all short writes, and after each long piece: the next write waits again
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        self.goes_out = false;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
