//! Where a command's output is read: a pipe or a terminal.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustix::io::ioctl_fionread;
use rustix::pipe::fcntl_setpipe_size;
use tokio::net::unix::pipe;

use super::terminal::Terminal;

/// The most that is read and delivered in one piece: larger chunks leave the processor's caches before they are sent.
pub(crate) const CHUNK_BYTES: usize = 64 * 1024;
/// The most that a terminal gives at once: see N_TTY_BUF_SIZE in the kernel's n_tty.c.
const TERMINAL_BYTES: usize = 4096;
/// A pipe that holds this much, or is to take it at once, is busy: most of the default size.
pub(super) const BUSY_BYTES: usize = 32 * 1024;
/// What a busy pipe is enlarged to; see pipe(7).
pub(super) const BUSY_PIPE_BYTES: usize = 256 * 1024;

/// Where output comes from. A pipe `gushes` if the last chunk was as long as chunks are.
pub(crate) enum Source {
    Pipe { pipe: pipe::Receiver, enlarged: bool, gushes: bool },
    Terminal(Arc<Terminal>),
}

impl Source {
    /// # Errors
    /// The runtime cannot watch another descriptor.
    pub(crate) fn pipe(file: OwnedFd) -> std::io::Result<Self> {
        Ok(Self::Pipe { pipe: pipe::Receiver::from_owned_fd(file)?, enlarged: false, gushes: false })
    }

    pub(crate) async fn readable(&self) -> std::io::Result<()> {
        match self {
            Self::Pipe { pipe, .. } => pipe.readable().await,
            Self::Terminal(terminal) => terminal.readable().await,
        }
    }

    /// From now on a terminal ends when the last process has closed it.
    pub(crate) fn close_peer(&self) {
        if let Self::Terminal(terminal) = self {
            terminal.close_peer();
        }
    }

    /// How many bytes can be read now; of a terminal that is not known.
    pub(crate) fn ready(&self) -> u64 {
        match self {
            Self::Pipe { pipe, .. } => ioctl_fionread(pipe).unwrap_or(0),
            Self::Terminal(_) => 0,
        }
    }

    /// Reads what is available, into a buffer of about that size; empty: the end.
    pub(crate) fn read(&mut self) -> std::io::Result<Bytes> {
        let ready = match self {
            // asking takes the pipe's lock from its writers
            Self::Pipe { gushes: true, .. } => CHUNK_BYTES,
            _ => usize::try_from(self.ready()).unwrap_or(0),
        };
        match self {
            Self::Pipe { pipe, enlarged, gushes } => {
                if ready >= BUSY_BYTES && !*enlarged {
                    // best effort: the pipes of a user are limited together
                    let _ = fcntl_setpipe_size(&*pipe, BUSY_PIPE_BYTES);
                    *enlarged = true;
                }
                let mut chunk = BytesMut::with_capacity(ready.clamp(64, CHUNK_BYTES));
                pipe.try_read_buf(&mut chunk)?;
                *gushes = chunk.len() == CHUNK_BYTES;
                match chunk.len() < ready.min(CHUNK_BYTES) / 2 {
                    true => Ok(Bytes::copy_from_slice(&chunk)),
                    false => Ok(chunk.freeze()),
                }
            }
            Self::Terminal(terminal) => {
                let mut chunk = Vec::with_capacity(TERMINAL_BYTES);
                terminal.try_read(&mut chunk)?;
                // it is usually a few characters
                Ok(Bytes::copy_from_slice(&chunk))
            }
        }
    }
}

/// Reads and discards what survivors still write, so that writing does not end them; returns when none holds the pipe.
pub(crate) async fn discard(mut source: Source) {
    while source.readable().await.is_ok() {
        match source.read() {
            Ok(chunk) if chunk.is_empty() => return,
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return,
            // a flood that is not read need not cost a processor
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}
