//! Carrying output from the pipes, or the terminal, to the transcript: exact bytes, in order, as they arrive.
//!
//! A pipe is read only when there is room in the transcript, so what cannot be told yet stays in the pipe and slows the
//! command down: memory is bounded, whatever it prints.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rustix::io::ioctl_fionread;
use rustix::pipe::fcntl_setpipe_size;
use telexec_executor::{OutputStream, StreamTotals};
use tokio::net::unix::pipe;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::terminal::Terminal;
use super::transcript::Transcript;
use super::watch::Watcher;

/// The most that is read at once, and told in one piece: larger chunks leave the processor's caches before they are sent.
pub(super) const CHUNK_BYTES: usize = 64 * 1024;
/// The most that a terminal gives at once: see N_TTY_BUF_SIZE in the kernel's n_tty.c.
const TERMINAL_BYTES: usize = 4096;
/// A pipe that holds so much is busy: most of the default size.
const BUSY_BYTES: usize = 32 * 1024;
/// What a busy pipe is enlarged to; see pipe(7).
const BUSY_PIPE_BYTES: usize = 256 * 1024;
/// A chunk of less is small.
const SMALL_BYTES: usize = 4096;
/// Small chunks in a row are read no more often than this: a flood of tiny HTTP/2 frames would end a connection.
const SMALL_PAUSE: Duration = Duration::from_millis(1);
/// But so many may come at once: HTTP/2's implementations forgive a hundred.
const SMALL_BURST: u32 = 16;
/// After the exit, while a survivor holds a pipe: how long it may be quiet before reading stops.
const TAIL_QUIET: Duration = Duration::from_millis(50);
/// After the exit, while a survivor holds a pipe: how long it is read at the most.
const TAIL_LIMIT: Duration = Duration::from_millis(500);

/// Both output streams of one execution.
pub(super) struct Pump<'a> {
    /// Gets the output.
    pub(super) transcript: &'a Transcript,
    /// Is told what the transcript gets, and what is dropped.
    pub(super) watcher: Option<&'a dyn Watcher>,
    /// For each stream: what follows is dropped. 0: unlimited.
    pub(super) max_output_bytes: u64,
    /// Cancelled when no more output is to be waited for.
    pub(super) exited: &'a CancellationToken,
    /// Cancelled when the reader is no longer waited for: what it has not taken is dropped.
    pub(super) abandoned: &'a CancellationToken,
    /// What was read.
    pub(super) totals: &'a Totals,
}

/// What was read of standard output and standard error so far. Whatever becomes of the pump, it is right: a stream is
/// incomplete until its end was read, and a chunk is dropped until it was told.
pub(super) struct Totals([Mutex<StreamTotals>; 2]);

impl Totals {
    pub(super) fn new() -> Self {
        Self([(); 2].map(|()| Mutex::new(StreamTotals { incomplete: true, ..StreamTotals::default() })))
    }

    /// Of one stream.
    pub(super) fn of(&self, stream: OutputStream) -> StreamTotals {
        *self.lock(stream)
    }

    /// A panic while the lock was held leaves nothing half done here.
    fn lock(&self, stream: OutputStream) -> MutexGuard<'_, StreamTotals> {
        let [stdout, stderr] = &self.0;
        let totals = match stream {
            OutputStream::Stdout => stdout,
            OutputStream::Stderr => stderr,
        };
        totals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pump<'_> {
    /// Reads both streams until their ends, or, once `exited`, for a short bounded time. When both have output, the one
    /// that had it first is read first: the runtime wakes them in the order in which the kernel reports them (epoll(7)
    /// keeps a queue), and they are polled in the order in which they were woken.
    ///
    /// Returns what is left of those that are incomplete: closing that would break whoever still writes to it.
    pub(super) async fn run_both(&self, stdout: Source, stderr: Option<Source>) -> Vec<Source> {
        let streams = [(Some(stdout), OutputStream::Stdout), (stderr, OutputStream::Stderr)];
        let running: FuturesUnordered<_> =
            streams.into_iter().map(async |(source, stream)| self.run(source, stream).await).collect();
        running.filter_map(std::future::ready).collect().await
    }

    /// Reads one stream.
    async fn run(&self, source: Option<Source>, stream: OutputStream) -> Option<Source> {
        let Some(mut source) = source else {
            self.totals.lock(stream).incomplete = false;
            return None;
        };
        let mut tail: Option<Tail> = None;
        let mut pace = Pace::default();
        loop {
            let asked = Instant::now();
            let is_told = !self.is_over(stream) && self.transcript.room(self.abandoned).await;
            if let Some(tail) = &mut tail {
                tail.put_off(asked.elapsed());
            }
            pace.wait(self.exited).await;
            if !self.wait_readable(&source, &mut tail).await {
                return Some(source);
            }
            let chunk = match source.read() {
                Ok(chunk) if chunk.is_empty() => {
                    self.totals.lock(stream).incomplete = false;
                    return None;
                }
                Ok(chunk) => chunk,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
                Err(_) => return None,
            };
            pace.note(chunk.len());
            if let Some(tail) = &mut tail {
                tail.note(chunk.len());
            }
            self.tell(is_told, chunk, stream);
        }
    }

    fn is_over(&self, stream: OutputStream) -> bool {
        self.max_output_bytes != 0 && self.totals.of(stream).bytes >= self.max_output_bytes
    }

    /// Counts a chunk, and adds what the limit leaves of it to the transcript.
    fn tell(&self, is_told: bool, mut chunk: Bytes, stream: OutputStream) {
        let length = chunk.len() as u64;
        let before = {
            let mut totals = self.totals.lock(stream);
            totals.bytes += length;
            totals.dropped_bytes += length;
            totals.bytes - length
        };
        if let Some(watcher) = self.watcher {
            watcher.output(stream, &chunk);
        }
        if self.max_output_bytes != 0 {
            let left = self.max_output_bytes.saturating_sub(before);
            chunk.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        }
        if !is_told {
            chunk.clear();
        }
        if !chunk.is_empty() {
            self.totals.lock(stream).dropped_bytes -= chunk.len() as u64;
            self.transcript.add(stream, chunk);
        }
    }

    /// False: the main process has exited, and enough was waited for those who still hold the pipe.
    async fn wait_readable(&self, source: &Source, tail: &mut Option<Tail>) -> bool {
        if tail.is_none() && !self.exited.is_cancelled() {
            tokio::select! {
                biased;
                ready = source.readable() => return ready.is_ok(),
                () = self.exited.cancelled() => {}
            }
        }
        let tail = tail.get_or_insert_with(|| {
            source.close_peer();
            Tail::new(source.ready())
        });
        match tail.patience() {
            None => source.readable().await.is_ok(),
            // asked first: a pipe that is never empty is always readable
            Some(until) if until <= Instant::now() => false,
            Some(until) => tokio::time::timeout_at(until, source.readable()).await.is_ok_and(|ready| ready.is_ok()),
        }
    }
}

/// Where output comes from. A pipe `gushes` if the last chunk was as long as chunks are.
pub(super) enum Source {
    Pipe { pipe: pipe::Receiver, enlarged: bool, gushes: bool },
    Terminal(Arc<Terminal>),
}

impl Source {
    /// # Errors
    /// The runtime cannot watch another descriptor.
    pub(super) fn pipe(file: OwnedFd) -> std::io::Result<Self> {
        Ok(Self::Pipe { pipe: pipe::Receiver::from_owned_fd(file)?, enlarged: false, gushes: false })
    }

    async fn readable(&self) -> std::io::Result<()> {
        match self {
            Self::Pipe { pipe, .. } => pipe.readable().await,
            Self::Terminal(terminal) => terminal.readable().await,
        }
    }

    /// From now on a terminal ends when the last process has closed it.
    fn close_peer(&self) {
        if let Self::Terminal(terminal) = self {
            terminal.close_peer();
        }
    }

    /// How many bytes can be read now; of a terminal that is not known.
    fn ready(&self) -> u64 {
        match self {
            Self::Pipe { pipe, .. } => ioctl_fionread(pipe).unwrap_or(0),
            Self::Terminal(_) => 0,
        }
    }

    /// Reads what is there, into a buffer of about that size; empty: the end.
    fn read(&mut self) -> std::io::Result<Bytes> {
        let ready = match self {
            // asking takes the pipe's lock from who writes
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
pub(super) async fn discard(mut source: Source) {
    while source.readable().await.is_ok() {
        match source.read() {
            Ok(chunk) if chunk.is_empty() => return,
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return,
            // whoever floods nobody need not cost a processor
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// What is read of a stream after the main process has exited.
struct Tail {
    /// What was in the pipe at the exit: the command itself wrote it, so it is read however long the reader takes.
    owed: u64,
    quiet_until: Instant,
    until: Instant,
}

impl Tail {
    fn new(owed: u64) -> Self {
        let now = Instant::now();
        Self { owed, quiet_until: now + TAIL_QUIET, until: now + TAIL_LIMIT }
    }

    fn note(&mut self, length: usize) {
        self.owed = self.owed.saturating_sub(length as u64);
        self.quiet_until = Instant::now() + TAIL_QUIET;
    }

    /// The reader took so long: that is not the survivors' time.
    fn put_off(&mut self, time: Duration) {
        self.quiet_until += time;
        self.until += time;
    }

    /// How long to wait for more; `None`: as long as it takes.
    fn patience(&self) -> Option<Instant> {
        (self.owed == 0).then(|| self.quiet_until.min(self.until))
    }
}

/// Keeps small chunks apart where there are too many, so that they gather in the pipe.
#[derive(Default)]
struct Pace {
    /// When all small chunks since the last large one would have been read, with a pause after each.
    paid: Option<Instant>,
}

impl Pace {
    fn note(&mut self, length: usize) {
        let now = Instant::now();
        let paid = self.paid.filter(|paid| *paid > now).unwrap_or(now);
        self.paid = (length < SMALL_BYTES).then(|| paid + SMALL_PAUSE);
    }

    async fn wait(&self, exited: &CancellationToken) {
        let Some(until) = self.paid.and_then(|paid| paid.checked_sub(SMALL_PAUSE * (SMALL_BURST - 1))) else { return };
        if until > Instant::now() && !exited.is_cancelled() {
            let _ = tokio::time::timeout_at(until, exited.cancelled()).await;
        }
    }
}
