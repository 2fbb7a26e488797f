//! Where a command's output is read: a pipe or a terminal.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rustix::event::PollFlags;
use rustix::io::ioctl_fionread;
use rustix::pipe::fcntl_setpipe_size;
use telexec_executor::OutputStream;
use tokio::io::unix::AsyncFd;

use super::end::StreamEnd;
use super::read_ahead::ReadAhead;
use super::terminal::Terminal;
use crate::process::control;
use crate::state::checkpoint::Checkpoint;

/// The most that is delivered in one piece: larger chunks leave the processor's caches before they are sent.
pub(crate) const CHUNK_BYTES: usize = 64 * 1024;
/// The most that is read at once, or moved to where it is kept, by a thread that has to be woken for it.
const MOVED_BYTES: usize = 4 * CHUNK_BYTES;
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

/// The pipe of one stream, which an event is awaited of.
pub(crate) struct Pipe(AsyncFd<Arc<OutputPipe>>);

/// The same for who reads it.
pub(crate) struct OutputPipe {
    end: StreamEnd,
    enlarged: AtomicBool,
    /// At least a chunk was read at once.
    gushes: AtomicBool,
    /// What was read, and is not kept.
    ahead: ReadAhead,
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
    pub(crate) fn pipe(end: StreamEnd, kept: Option<(Arc<Checkpoint>, OutputStream)>) -> io::Result<Self> {
        let [enlarged, gushes] = [false; 2].map(AtomicBool::new);
        let ahead = ReadAhead::default();
        Ok(Self::Pipe(Pipe(control::watch(Arc::new(OutputPipe { end, enlarged, gushes, ahead, kept }))?)))
    }

    /// Waits until there is something to read, or to take of what was read.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Pipe(Pipe(pipe)) if pipe.get_ref().ahead.readable().await => Ok(()),
            Self::Pipe(Pipe(pipe)) => pipe.readable().await.map(|mut ready| ready.retain_ready()),
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

    /// How many bytes can be read now, if that is known: not of a terminal.
    pub(crate) async fn ready(&self) -> u64 {
        match self {
            Self::Pipe(pipe) => pipe.ready().await,
            Self::Terminal(..) => 0,
        }
    }

    /// Whether something was read that is not kept, and can be taken.
    pub(crate) fn has_read(&self) -> bool {
        matches!(self, Self::Pipe(Pipe(pipe)) if pipe.get_ref().ahead.has_chunks())
    }

    /// Takes what was read so far, and is not kept.
    pub(crate) fn take_read(&self) -> Vec<Bytes> {
        match self {
            Self::Pipe(Pipe(pipe)) => pipe.get_ref().ahead.take_now(),
            Self::Terminal(..) => Vec::new(),
        }
    }

    /// Reads what is available, in chunks; none: the end. What is `wanted` is kept for the next agent, if there is to be one, up
    /// to that many bytes. If this is dropped, what is not kept comes with the next read, or with `take_read`.
    ///
    /// # Errors
    /// `WouldBlock`: nothing is available.
    pub(crate) async fn read(&self, wanted: Option<usize>) -> io::Result<Vec<Bytes>> {
        match self {
            Self::Pipe(pipe) => pipe.read(wanted).await,
            Self::Terminal(terminal, relay) => match relay.as_ref().zip(wanted) {
                Some((relay, wanted)) => terminal.try_relay(relay, wanted.min(TERMINAL_BYTES)),
                None => {
                    let mut chunk = Vec::with_capacity(TERMINAL_BYTES);
                    match relay.as_ref().filter(|relay| relay.has_left()) {
                        Some(relay) => rustix::io::read(&relay.read, rustix::buffer::spare_capacity(&mut chunk))?,
                        None => terminal.try_read(&mut chunk)?,
                    };
                    // it is usually a few characters
                    Ok(chunks(Bytes::copy_from_slice(&chunk)))
                }
            },
        }
    }
}

impl Pipe {
    async fn ready(&self) -> u64 {
        let pipe = Arc::clone(self.0.get_ref());
        let read = pipe.ahead.length().await;
        let left = match pipe.end.events(PollFlags::IN) {
            Ok(events) if !events.contains(PollFlags::IN) => 0,
            _ => self.0.get_ref().end.run(move || Ok(ioctl_fionread(&pipe.end)?)).await.unwrap_or(0),
        };
        read.saturating_add(left)
    }

    async fn read(&self, wanted: Option<usize>) -> io::Result<Vec<Bytes>> {
        let pipe = self.0.get_ref();
        if pipe.ahead.is_busy() {
            return pipe.ahead.take().await;
        }
        let mut guard = self.0.readable().await?;
        let mut events = pipe.end.events(PollFlags::IN)?;
        if events == PollFlags::HUP {
            // the kernel looks for output before it looks for writers: the last one may have written between
            events = pipe.end.events(PollFlags::IN)?;
        }
        let read = if events.contains(PollFlags::IN) {
            let reader = Arc::clone(pipe);
            match pipe.kept.clone().zip(wanted) {
                Some(((checkpoint, stream), wanted)) => {
                    let keep = move || Ok((reader.keep(&checkpoint, stream, wanted)?, checkpoint));
                    let kept = pipe.end.run(keep).await;
                    // no lock of a command's is needed for that
                    kept.and_then(|(kept, checkpoint)| checkpoint.read(kept, CHUNK_BYTES))
                }
                None => {
                    let count = pipe.chunks_at_once(wanted);
                    pipe.ahead.begin(count);
                    drop(pipe.end.begin(move || reader.read(count)));
                    pipe.ahead.take().await
                }
            }
        } else if events.is_empty() {
            Err(io::ErrorKind::WouldBlock.into())
        } else {
            // nobody can write any more
            Ok(Vec::new())
        };
        if read.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            guard.clear_ready();
        }
        read
    }
}

impl OutputPipe {
    /// Several, as far as they are wanted, where there is always more: handing over each one costs as much as reading it.
    fn chunks_at_once(&self, wanted: Option<usize>) -> usize {
        match wanted {
            Some(wanted) if self.gushes.load(Ordering::Relaxed) => (wanted.min(MOVED_BYTES) / CHUNK_BYTES).max(1),
            _ => 1,
        }
    }

    /// Reads so many chunks, as far as they are there.
    fn read(&self, count: usize) {
        // only what is in the pipe is worth waiting for its lock
        let is_empty = || self.end.events(PollFlags::IN).map(|events| !events.contains(PollFlags::IN));
        self.ahead.fill(
            count,
            |number| if number > 0 && is_empty()? { Ok(Bytes::new()) } else { self.read_chunk(number == 0) },
        );
    }

    /// Up to a chunk.
    fn read_chunk(&self, is_first: bool) -> io::Result<Bytes> {
        let most = self.ready(CHUNK_BYTES)?;
        let mut chunk = Vec::with_capacity(most);
        rustix::io::read(&self.end, rustix::buffer::spare_capacity(&mut chunk))?;
        if is_first {
            self.gushes.store(chunk.len() == CHUNK_BYTES, Ordering::Relaxed);
        }
        // so that much memory does not hold little
        Ok(if chunk.len() < most / 2 { Bytes::copy_from_slice(&chunk) } else { chunk.into() })
    }

    /// Moves it to where it is kept, as far as it is wanted.
    fn keep(&self, checkpoint: &Checkpoint, stream: OutputStream, wanted: usize) -> io::Result<Range<u64>> {
        let most = self.ready(MOVED_BYTES)?.min(wanted);
        let kept = checkpoint.take(stream, self.end.as_fd(), most)?;
        self.gushes.store(kept.end - kept.start >= CHUNK_BYTES as u64, Ordering::Relaxed);
        Ok(kept)
    }

    /// How much to read at once, up to `most`: about what there is.
    fn ready(&self, most: usize) -> io::Result<usize> {
        let ready = match self.gushes.load(Ordering::Relaxed) {
            // asking takes the pipe's lock from its writers
            true => most,
            false => usize::try_from(ioctl_fionread(&self.end)?).unwrap_or(usize::MAX),
        };
        if ready >= BUSY_BYTES && !self.enlarged.swap(true, Ordering::Relaxed) {
            // best effort: the pipes of a user are limited together
            let _ = fcntl_setpipe_size(&self.end, BUSY_PIPE_BYTES);
        }
        Ok(ready.clamp(64, most))
    }
}

impl AsFd for OutputPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

impl AsRawFd for OutputPipe {
    fn as_raw_fd(&self) -> RawFd {
        self.end.as_raw_fd()
    }
}

/// Of what was read at once; none: the end.
fn chunks(chunk: Bytes) -> Vec<Bytes> {
    if chunk.is_empty() { Vec::new() } else { vec![chunk] }
}

/// Reads and discards what survivors still write, so that writing does not end them; returns when none holds the pipe.
pub(crate) async fn discard(source: Source) {
    while source.readable().await.is_ok() {
        match source.read(None).await {
            Ok(chunks) if chunks.is_empty() => return,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
            // a flood that is not read need not cost a processor
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}
