//! Carrying output from the pipes, or the terminal, to the transcript: exact bytes, in order, as they arrive.
//!
//! A pipe is read only when there is room in the transcript, so what cannot be delivered yet, apart from a few chunks, stays in the
//! pipe and slows the command down: memory is bounded, whatever it prints.

use std::io;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use telexec_executor::{OutputStream, StreamTotals};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::transcript::Transcript;
use crate::lock::lock;
use crate::observer::Observers;
use crate::streams::source::{CHUNK_BYTES, Source};

/// A chunk of less is small.
const SMALL_BYTES: usize = 4096;
/// Small chunks in a row are read no more often than this: a flood of tiny HTTP/2 frames would end a connection.
const SMALL_INTERVAL: Duration = Duration::from_millis(1);
/// But this many may come at once: HTTP/2's implementations forgive a hundred.
const SMALL_BURST: u32 = 16;
/// After the exit, while a survivor holds a pipe: how long it may be quiet before reading stops.
const TAIL_IDLE_TIMEOUT: Duration = Duration::from_millis(50);
/// After the exit, while a survivor holds a pipe: how long it is read at the most.
const TAIL_TIMEOUT: Duration = Duration::from_millis(500);

/// A command that holds up who reads one of its streams holds up who reads the other for no longer.
const TURN_TIMEOUT: Duration = Duration::from_secs(1);
/// After the exit: how long what is read at once may take.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Both output streams of one execution.
pub(crate) struct Pump<'a> {
    /// Gets the output.
    pub(crate) transcript: &'a Transcript,
    /// Gets what the transcript gets, and what is dropped.
    pub(crate) observers: &'a Observers,
    /// For each stream: what follows is dropped. 0: unlimited.
    pub(crate) max_output_bytes: u64,
    /// A caller gets a frame for each chunk, so too many small ones are kept apart.
    pub(crate) is_paced: bool,
    /// Cancelled when no more output is to be waited for.
    pub(crate) exited: &'a CancellationToken,
    /// Cancelled when the reader is no longer waited for: what it has not taken is dropped.
    pub(crate) abandoned: &'a CancellationToken,
    /// What was read.
    pub(crate) totals: &'a Totals,
    /// Of the stream whose output is awaited, or on its way to the transcript; true: one is still being read, and is not
    /// waited for any more.
    pub(crate) turn: tokio::sync::Mutex<bool>,
}

/// True: what has it is not waited for any more.
type Turn<'a> = tokio::sync::MutexGuard<'a, bool>;

/// What was read of standard output and standard error so far. It is right even if the pump is dropped early: a stream
/// is incomplete until its end was read, and a chunk counts as dropped until it was added.
pub(crate) struct Totals([Mutex<StreamTotals>; 2]);

impl Totals {
    pub(crate) fn new() -> Self {
        Self([(); 2].map(|()| Mutex::new(StreamTotals { incomplete: true, ..StreamTotals::default() })))
    }

    /// Of an execution that was followed so far by an earlier agent: what it has kept of each stream, and what it has not.
    pub(crate) fn restored(kept: [u64; 2], unkept: [u64; 2]) -> Self {
        let totals = |(kept, dropped_bytes): (u64, u64)| {
            Mutex::new(StreamTotals { bytes: kept.saturating_add(dropped_bytes), dropped_bytes, incomplete: true })
        };
        let ([stdout, stderr], [stdout_unkept, stderr_unkept]) = (kept, unkept);
        Self([(stdout, stdout_unkept), (stderr, stderr_unkept)].map(totals))
    }

    /// Of one stream.
    pub(crate) fn of(&self, stream: OutputStream) -> StreamTotals {
        *self.lock(stream)
    }

    fn lock(&self, stream: OutputStream) -> MutexGuard<'_, StreamTotals> {
        let [stdout, stderr] = &self.0;
        let totals = match stream {
            OutputStream::Stdout => stdout,
            OutputStream::Stderr => stderr,
        };
        lock(totals)
    }
}

impl Pump<'_> {
    /// Reads both streams until their ends, or, once `exited`, for a short bounded time. When both have output, the one
    /// that had it first is read first: the runtime wakes them in the order in which the kernel reports them (epoll(7)
    /// keeps a queue), and they are polled in the order in which they were woken.
    ///
    /// Returns what is left of those that are incomplete: closing that would break those who still write to it.
    pub(crate) async fn run_both(&self, stdout: Source, stderr: Option<Source>) -> Vec<Source> {
        let streams = [(Some(stdout), OutputStream::Stdout), (stderr, OutputStream::Stderr)];
        let running: FuturesUnordered<_> =
            streams.into_iter().map(async |(source, stream)| self.run(source, stream).await).collect();
        running.filter_map(std::future::ready).collect().await
    }

    /// Reads one stream.
    async fn run(&self, source: Option<Source>, stream: OutputStream) -> Option<Source> {
        let Some(source) = source else {
            self.totals.lock(stream).incomplete = false;
            return None;
        };
        if self.read_to_end(&source, stream).await {
            return None;
        }
        // chunks that were read already are delivered, even if the next one is held up
        let read = source.take_read();
        if !read.is_empty() {
            let has_room = self.transcript.room_now() > 0 || !self.abandoned.is_cancelled();
            self.deliver(read, stream, has_room && !self.is_kept(), &mut None).await;
        }
        Some(source)
    }

    /// False: more may come, and is not waited for.
    async fn read_to_end(&self, source: &Source, stream: OutputStream) -> bool {
        let mut tail: Option<Tail> = None;
        let mut pace = Pace::default();
        loop {
            let asked = Instant::now();
            let room = if self.is_over(stream) { 0 } else { self.transcript.room(self.abandoned).await };
            let is_wanted = room > 0;
            if let Some(tail) = &mut tail {
                tail.extend(asked.elapsed());
            }
            pace.wait(self.exited).await;
            if !self.wait_readable(source, &mut tail).await {
                return false;
            }
            let wanted = is_wanted.then(|| self.left(stream).min(room));
            let Some((read, turn)) = self.read(source, wanted).await else { return false };
            let chunks = match read {
                Ok(chunks) if chunks.is_empty() => {
                    self.totals.lock(stream).incomplete = false;
                    return true;
                }
                Ok(chunks) => chunks,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(_) => return true,
            };
            if self.is_paced {
                pace.record(chunks.iter().map(Bytes::len).sum());
            }
            self.deliver(chunks, stream, is_wanted, &mut tail).await;
            drop(turn);
        }
    }

    /// Gives what was read to who gets it.
    async fn deliver(&self, chunks: Vec<Bytes>, stream: OutputStream, is_wanted: bool, tail: &mut Option<Tail>) {
        let length = chunks.iter().map(Bytes::len).sum();
        if let Some(tail) = tail {
            tail.record(length);
        }
        chunks.iter().for_each(|chunk| self.observers.output(stream, chunk));
        let asked = Instant::now();
        let is_safe = self.observers.safe().await;
        if let Some(tail) = tail {
            tail.extend(asked.elapsed());
        }
        if is_wanted && !is_safe {
            self.transcript.checkpoint().iter().for_each(|checkpoint| checkpoint.retract(length));
        }
        chunks.into_iter().for_each(|chunk| self.forward(is_wanted && is_safe, chunk, stream));
    }

    /// Reads in turn; `None`: it is not waited for any more.
    async fn read<'a>(
        &'a self,
        source: &Source,
        wanted: Option<usize>,
    ) -> Option<(io::Result<Vec<Bytes>>, Option<Turn<'a>>)> {
        let mut turn = self.turn().await;
        if turn.as_ref().is_some_and(|is_stuck| **is_stuck) {
            return None;
        }
        // the other stream may have taken the room meanwhile
        let wanted = wanted.map(|wanted| wanted.min(self.transcript.room_now().max(CHUNK_BYTES)));
        tokio::select! {
            biased;
            read = source.read(wanted) => Some((read, turn)),
            () = self.read_timeout() => {
                // whether the interrupted read is kept is unknown, and so is the order from here on
                if self.is_kept() && wanted.is_some() {
                    turn.iter_mut().for_each(|is_stuck| **is_stuck = true);
                }
                None
            }
        }
    }

    /// Waits until the other stream is read; `None`: the command holds that up.
    async fn turn(&self) -> Option<Turn<'_>> {
        if let Ok(turn) = self.turn.try_lock() {
            return Some(turn);
        }
        // what is kept for the next agent, and what readers get, are in the same order
        let turn = self.turn.lock();
        if self.is_kept() { Some(turn.await) } else { tokio::time::timeout(TURN_TIMEOUT, turn).await.ok() }
    }

    fn is_kept(&self) -> bool {
        self.transcript.checkpoint().is_some()
    }

    /// After the main process has exited, one that it has left may hold up who reads the pipe.
    async fn read_timeout(&self) {
        self.exited.cancelled().await;
        tokio::time::sleep(READ_TIMEOUT).await;
    }

    /// How much the limit leaves of a stream.
    fn left(&self, stream: OutputStream) -> usize {
        match self.max_output_bytes {
            0 => usize::MAX,
            most => usize::try_from(most.saturating_sub(self.totals.of(stream).bytes)).unwrap_or(usize::MAX),
        }
    }

    fn is_over(&self, stream: OutputStream) -> bool {
        self.max_output_bytes != 0 && self.totals.of(stream).bytes >= self.max_output_bytes
    }

    /// Counts a chunk, and adds what the limit leaves of it to the transcript.
    fn forward(&self, is_wanted: bool, mut chunk: Bytes, stream: OutputStream) {
        let length = chunk.len() as u64;
        let before = {
            let mut totals = self.totals.lock(stream);
            totals.bytes += length;
            totals.dropped_bytes += length;
            totals.bytes - length
        };
        if self.max_output_bytes != 0 {
            let left = self.max_output_bytes.saturating_sub(before);
            chunk.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        }
        if !is_wanted {
            chunk.clear();
        }
        let kept = chunk.len() as u64;
        if kept > 0 {
            self.totals.lock(stream).dropped_bytes -= kept;
            self.transcript.add(stream, chunk);
        }
        if kept < length
            && let Some(checkpoint) = self.transcript.checkpoint()
        {
            checkpoint.set_unkept(stream, self.totals.of(stream).dropped_bytes);
        }
    }

    /// False: the main process has exited, and its survivors were waited for long enough.
    async fn wait_readable(&self, source: &Source, tail: &mut Option<Tail>) -> bool {
        if tail.is_none() && !self.exited.is_cancelled() {
            tokio::select! {
                biased;
                ready = source.readable() => return ready.is_ok(),
                () = self.exited.cancelled() => {}
            }
        }
        if tail.is_none() && source.has_read() {
            return true;
        }
        if tail.is_none() {
            source.close_peer();
            let Ok(owed) = tokio::time::timeout(READ_TIMEOUT, source.ready()).await else { return false };
            *tail = Some(Tail::new(owed));
        }
        match tail.as_ref().and_then(Tail::deadline) {
            None => source.readable().await.is_ok(),
            // asked first: a pipe that is never empty is always readable
            Some(until) if until <= Instant::now() => false,
            Some(until) => tokio::time::timeout_at(until, source.readable()).await.is_ok_and(|ready| ready.is_ok()),
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
        Self { owed, quiet_until: now + TAIL_IDLE_TIMEOUT, until: now + TAIL_TIMEOUT }
    }

    fn record(&mut self, length: usize) {
        self.owed = self.owed.saturating_sub(length as u64);
        self.quiet_until = Instant::now() + TAIL_IDLE_TIMEOUT;
    }

    /// Adds the time that the reader took, which is not the survivors'.
    fn extend(&mut self, time: Duration) {
        self.quiet_until += time;
        self.until += time;
    }

    /// How long to wait for more; `None`: as long as it takes.
    fn deadline(&self) -> Option<Instant> {
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
    fn record(&mut self, length: usize) {
        let now = Instant::now();
        let paid = self.paid.filter(|paid| *paid > now).unwrap_or(now);
        self.paid = (length < SMALL_BYTES).then(|| paid + SMALL_INTERVAL);
    }

    async fn wait(&self, exited: &CancellationToken) {
        let Some(until) = self.paid.and_then(|paid| paid.checked_sub(SMALL_INTERVAL * (SMALL_BURST - 1))) else {
            return;
        };
        if until > Instant::now() && !exited.is_cancelled() {
            let _ = tokio::time::timeout_at(until, exited.cancelled()).await;
        }
    }
}
