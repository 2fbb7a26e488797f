//! A connection that a process of another user has passed.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;

/// No call on it waits, whatever its mode: `O_NONBLOCK` is that of all who hold the connection, and a process of that user
/// which has got hold of it too could clear it, to stop a thread of the agent.
pub(super) struct PassedStream(UnixStream);

/// One direction.
pub(super) struct Half<'a>(&'a UnixStream);

impl PassedStream {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self(stream)
    }

    pub(super) fn split(&self) -> (Half<'_>, Half<'_>) {
        (Half(&self.0), Half(&self.0))
    }
}

impl AsyncRead for Half<'_> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            let room = into.initialize_unfilled();
            match self.0.try_io(Interest::READABLE, || Ok(recv(self.0, room, RecvFlags::DONTWAIT)?)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => {
                    let (_, length) = received?;
                    into.advance(length);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for Half<'_> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_io(Interest::WRITABLE, || Ok(send(self.0, data, flags)?)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // nothing is buffered here
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(shutdown(self.0, Shutdown::Write)?))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream as StdUnixStream;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;

    use super::*;

    /// On one thread, which would be stopped.
    #[tokio::test]
    async fn nothing_waits_where_another_holder_would_have_it_wait() {
        let (one, mut other) = StdUnixStream::pair().unwrap();
        one.set_nonblocking(true).unwrap();
        let held = one.try_clone().unwrap();
        let passed = PassedStream::new(UnixStream::from_std(one).unwrap());
        held.set_nonblocking(false).unwrap();
        let (mut reader, mut writer) = passed.split();
        let mut buffer = [0; 4];
        other.write_all(b"data").unwrap();
        reader.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"data");
        let short = Duration::from_millis(20);
        assert!(timeout(short, reader.read(&mut buffer)).await.is_err());
        assert!(timeout(short, writer.write_all(&vec![0; 8 * 1024 * 1024])).await.is_err());
        writer.shutdown().await.unwrap();
        drop(other);
        assert_eq!(reader.read(&mut buffer).await.unwrap_or(0), 0);
    }
}
