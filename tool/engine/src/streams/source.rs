//! Where a command's output is read: a pipe or a terminal.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rustix::io::ioctl_fionread;
use rustix::pipe::fcntl_setpipe_size;
use telexec_executor::OutputStream;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::set_nonblocking;
use super::terminal::Terminal;
use crate::process::control;
use crate::state::checkpoint::Checkpoint;

/// The most that is read and delivered in one piece: larger chunks leave the processor's caches before they are sent.
pub(crate) const CHUNK_BYTES: usize = 64 * 1024;
/// The most that a terminal gives at once: see N_TTY_BUF_SIZE in the kernel's n_tty.c.
const TERMINAL_BYTES: usize = 4096;
/// A pipe that holds this much, or is to take it at once, is busy: most of the default size.
pub(super) const BUSY_BYTES: usize = 32 * 1024;
/// What a busy pipe is enlarged to; see pipe(7).
pub(super) const BUSY_PIPE_BYTES: usize = 256 * 1024;

/// Where output comes from.
pub(crate) enum Source {
    Pipe(Pipe),
    /// Standard output alone.
    Terminal(Arc<Terminal>, Option<Relay>),
}

/// A pipe, which `gushes` if the last chunk was as long as chunks are.
pub(crate) struct Pipe {
    file: AsyncFd<OwnedFd>,
    enlarged: bool,
    gushes: bool,
    /// Where what is read is kept for the next agent.
    kept: Option<(Arc<Checkpoint>, OutputStream)>,
}

/// By which the output of a terminal comes into a file: splice(2) needs a pipe.
pub(crate) struct Relay {
    pub(super) read: OwnedFd,
    pub(super) write: OwnedFd,
    pub(super) checkpoint: Arc<Checkpoint>,
    /// An earlier agent may have left something in it.
    is_new: AtomicBool,
}

impl Relay {
    pub(crate) fn new(read: OwnedFd, write: OwnedFd, checkpoint: Arc<Checkpoint>) -> Self {
        Self { read, write, checkpoint, is_new: AtomicBool::new(true) }
    }

    /// Asked until there is nothing: then nothing stays in it.
    pub(super) fn has_left(&self) -> bool {
        let has_left = self.is_new.load(Ordering::Relaxed) && ioctl_fionread(&self.read).unwrap_or(0) > 0;
        self.is_new.store(has_left, Ordering::Relaxed);
        has_left
    }
}

impl Source {
    /// # Errors
    /// The runtime cannot watch another descriptor.
    pub(crate) fn pipe(file: OwnedFd, kept: Option<(Arc<Checkpoint>, OutputStream)>) -> io::Result<Self> {
        set_nonblocking(&file)?;
        Ok(Self::Pipe(Pipe { file: control::watch(file)?, enlarged: false, gushes: false, kept }))
    }

    pub(crate) async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Pipe(pipe) => pipe.file.readable().await.map(|mut ready| ready.retain_ready()),
            Self::Terminal(_, Some(relay)) if relay.has_left() => Ok(()),
            Self::Terminal(terminal, _) => terminal.readable().await,
        }
    }

    /// From now on a terminal ends when the last process has closed it.
    pub(crate) fn close_peer(&self) {
        if let Self::Terminal(terminal, _) = self {
            terminal.close_peer();
        }
    }

    /// How many bytes can be read now; of a terminal that is not known.
    pub(crate) fn ready(&self) -> u64 {
        match self {
            Self::Pipe(pipe) => ioctl_fionread(pipe.file.get_ref()).unwrap_or(0),
            Self::Terminal(..) => 0,
        }
    }

    /// Reads what is available, into a buffer of about that size; empty: the end. What is `wanted` is kept for the next agent,
    /// if there is to be one, up to that many bytes.
    pub(crate) fn read(&mut self, wanted: Option<usize>) -> io::Result<Bytes> {
        let ready = match self {
            // asking takes the pipe's lock from its writers
            Self::Pipe(Pipe { gushes: true, .. }) => CHUNK_BYTES,
            _ => usize::try_from(self.ready()).unwrap_or(0),
        };
        match self {
            Self::Pipe(pipe) => pipe.read(ready, wanted),
            Self::Terminal(terminal, relay) => match relay.as_ref().zip(wanted) {
                Some((relay, wanted)) => terminal.try_relay(relay, wanted.min(TERMINAL_BYTES)),
                None => {
                    let mut chunk = Vec::with_capacity(TERMINAL_BYTES);
                    match relay.as_ref().filter(|relay| relay.has_left()) {
                        Some(relay) => rustix::io::read(&relay.read, rustix::buffer::spare_capacity(&mut chunk))?,
                        None => terminal.try_read(&mut chunk)?,
                    };
                    // it is usually a few characters
                    Ok(Bytes::copy_from_slice(&chunk))
                }
            },
        }
    }
}

impl Pipe {
    fn read(&mut self, ready: usize, wanted: Option<usize>) -> io::Result<Bytes> {
        if ready >= BUSY_BYTES && !self.enlarged {
            // best effort: the pipes of a user are limited together
            let _ = fcntl_setpipe_size(self.file.get_ref(), BUSY_PIPE_BYTES);
            self.enlarged = true;
        }
        let most = ready.clamp(64, CHUNK_BYTES);
        let chunk = match self.kept.as_ref().zip(wanted) {
            Some(((checkpoint, stream), wanted)) => {
                let most = most.min(wanted);
                self.file.try_io(Interest::READABLE, |file| checkpoint.take(*stream, file.as_fd(), most))?
            }
            None => {
                let mut chunk = Vec::with_capacity(most);
                self.file.try_io(Interest::READABLE, |file| {
                    Ok(rustix::io::read(file, rustix::buffer::spare_capacity(&mut chunk))?)
                })?;
                // so that much memory does not hold little
                if chunk.len() < most / 2 { Bytes::copy_from_slice(&chunk) } else { chunk.into() }
            }
        };
        self.gushes = chunk.len() == CHUNK_BYTES;
        Ok(chunk)
    }
}

/// Reads and discards what survivors still write, so that writing does not end them; returns when none holds the pipe.
pub(crate) async fn discard(mut source: Source) {
    while source.readable().await.is_ok() {
        match source.read(None) {
            Ok(chunk) if chunk.is_empty() => return,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
            // a flood that is not read need not cost a processor
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}
