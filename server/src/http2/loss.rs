//! Whether a call ends since its connection is lost, rather than by a cancel: HTTP/2 drops both alike.

use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::body::{self, Body, SizeHint};
use telexec_engine::ConnectionState;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::http2::connection::{KEEPALIVE_INTERVAL, MAX_STREAMS};
use crate::http2::preface::PREFACE_BYTES;

/// A cancel was read just before it takes effect. A peer that was not heard from for this long has sent none: its connection
/// has failed the keepalive. Any time between the milliseconds of a cancel and the 25 s that the keepalive waits for an
/// answer tells the two apart.
const SILENCE: Duration = Duration::from_secs(5);
/// A live peer answers the keepalive before that.
const LIVE: Duration = KEEPALIVE_INTERVAL.saturating_mul(2);
/// The first bit of a stream identifier.
const RESERVED: u32 = 1 << 31;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
/// Of GOAWAY the last stream and the error code are read too.
const HEADER_BYTES: usize = 9;
const GOAWAY_BYTES: usize = HEADER_BYTES + 8;
const NO_ERROR: [u8; 4] = [0; 4];

/// What is known of a connection.
pub(crate) struct Link {
    since: Instant,
    /// Its end or an error was seen.
    is_over: AtomicBool,
    /// Milliseconds after `since` when the peer was last heard from.
    heard: AtomicU64,
    frames: Mutex<Frames>,
}

impl Link {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            since: Instant::now(),
            is_over: AtomicBool::new(false),
            heard: AtomicU64::new(0),
            frames: Mutex::default(),
        })
    }

    /// The stream of a call that begins now: they begin in the order of their headers.
    pub(crate) fn next_stream(&self) -> u32 {
        self.frames().opened.pop_front().unwrap_or_default()
    }

    /// Whether the call of this stream, which ends now, does so because the connection is lost.
    fn is_lost(&self, stream: u32) -> bool {
        let is_over = self.is_over.load(Ordering::Acquire) || self.silence() > SILENCE;
        let frames = self.frames();
        (is_over || frames.has_failed) && !frames.has_cancelled(stream)
    }

    /// Whether nothing speaks for a loss of the connection.
    pub(crate) fn is_live(&self) -> bool {
        !self.is_over.load(Ordering::Acquire) && self.silence() <= LIVE && !self.frames().has_failed
    }

    /// For how long nothing was heard from the peer.
    fn silence(&self) -> Duration {
        let heard = Duration::from_millis(self.heard.load(Ordering::Acquire));
        self.since.elapsed().saturating_sub(heard)
    }

    fn frames(&self) -> MutexGuard<'_, Frames> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, result: &io::Result<()>, bytes: &[u8]) {
        match result {
            Ok(()) if !bytes.is_empty() => {
                self.frames().read(bytes);
                let heard = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
                self.heard.store(heard, Ordering::Release);
            }
            _ => self.is_over.store(true, Ordering::Release),
        }
    }

    fn wrote(&self, result: &io::Result<usize>, bufs: &[IoSlice<'_>]) {
        match result {
            Ok(written) => self.frames().wrote(bufs, *written),
            Err(_) => self.is_over.store(true, Ordering::Release),
        }
    }
}

/// The frames of the peer, by their headers (RFC 9113, section 4.1): a peer that goes on purpose resets its streams, or
/// sends GOAWAY without an error, and its end may be read together with that.
struct Frames {
    received: Scanner,
    sent: Scanner,
    has_said_goodbye: bool,
    /// Its GOAWAY had an error.
    has_failed: bool,
    /// The last stream that was opened.
    last: u32,
    /// Those whose calls have not begun.
    opened: VecDeque<u32>,
    /// Those that were reset last.
    reset: VecDeque<u32>,
}

impl Default for Frames {
    fn default() -> Self {
        Self {
            received: Scanner { skip: PREFACE_BYTES, ..Scanner::default() },
            sent: Scanner::default(),
            has_said_goodbye: false,
            has_failed: false,
            last: 0,
            opened: VecDeque::new(),
            reset: VecDeque::new(),
        }
    }
}

impl Frames {
    fn read(&mut self, mut bytes: &[u8]) {
        while let Some(frame) = self.received.next(&mut bytes) {
            match frame.kind {
                // others are trailers
                HEADERS if frame.stream > self.last => {
                    self.last = frame.stream;
                    remember(&mut self.opened, frame.stream);
                }
                RST_STREAM => remember(&mut self.reset, frame.stream),
                GOAWAY if frame.has_no_error => self.has_said_goodbye = true,
                GOAWAY => self.has_failed = true,
                _ => {}
            }
        }
    }

    /// What is answered before its call has begun was refused by HTTP/2 itself, as headers that are too long: no call will
    /// begin. The answer is written before the next call begins.
    fn wrote(&mut self, bufs: &[IoSlice<'_>], mut written: usize) {
        for buf in bufs {
            let mut bytes = buf.get(..written.min(buf.len())).unwrap_or_default();
            written -= bytes.len();
            while let Some(frame) = self.sent.next(&mut bytes) {
                if matches!(frame.kind, HEADERS | RST_STREAM) {
                    self.opened.retain(|stream| *stream != frame.stream);
                }
            }
        }
    }

    fn has_cancelled(&self, stream: u32) -> bool {
        self.has_said_goodbye || self.reset.contains(&stream)
    }
}

/// Finds the frames in the bytes of one direction.
#[derive(Default)]
struct Scanner {
    /// Bytes until the next header.
    skip: usize,
    header: [u8; GOAWAY_BYTES],
    /// How much of the header was read.
    read: usize,
}

struct Frame {
    kind: u8,
    stream: u32,
    /// Of GOAWAY.
    has_no_error: bool,
}

impl Scanner {
    /// The next frame whose header ends in these bytes, which are taken from them.
    fn next(&mut self, bytes: &mut &[u8]) -> Option<Frame> {
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            *bytes = bytes.get(skipped..).unwrap_or_default();
            let wanted = self.wanted();
            let missing = self.header.get_mut(self.read..wanted).unwrap_or_default();
            let taken = missing.len().min(bytes.len());
            let (header, rest) = bytes.split_at(taken);
            missing.iter_mut().zip(header).for_each(|(to, from)| *to = *from);
            self.read += taken;
            *bytes = rest;
            if self.read == self.wanted() {
                return Some(self.frame());
            }
        }
        None
    }

    /// How much of this frame is read.
    fn wanted(&self) -> usize {
        match self.header {
            [_, _, _, GOAWAY, ..] if self.read >= HEADER_BYTES => GOAWAY_BYTES,
            _ => HEADER_BYTES,
        }
    }

    fn frame(&mut self) -> Frame {
        let [high, middle, low, kind, _, stream @ .., _, _, _, _, _, _, _, _] = self.header;
        let length = u32::from_be_bytes([0, high, middle, low]) as usize;
        self.skip = length.saturating_sub(self.read - HEADER_BYTES);
        self.read = 0;
        let stream = u32::from_be_bytes(stream) & !RESERVED;
        Frame { kind, stream, has_no_error: self.header.ends_with(&NO_ERROR) }
    }
}

/// More are not remembered: there are no more calls at once.
fn remember(streams: &mut VecDeque<u32>, stream: u32) {
    if streams.len() >= MAX_STREAMS as usize {
        streams.pop_front();
    }
    streams.push_back(stream);
}

/// A connection that is observed.
pub(crate) struct Observed<S> {
    pub(crate) io: S,
    pub(crate) link: Arc<Link>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Observed<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = ready!(Pin::new(&mut self.io).poll_read(cx, buf));
        self.link.read(&result, buf.filled().get(before..).unwrap_or_default());
        Poll::Ready(result)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Observed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.io).poll_write(cx, buf));
        self.link.wrote(&result, &[IoSlice::new(buf)]);
        Poll::Ready(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, bufs));
        self.link.wrote(&result, bufs);
        Poll::Ready(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut self.io).poll_flush(cx));
        if result.is_err() {
            self.link.is_over.store(true, Ordering::Release);
        }
        Poll::Ready(result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Tells the engine whether the connection of a call is lost.
#[derive(Clone)]
pub(crate) struct LossReport {
    pub(crate) call: ConnectionState,
    pub(crate) link: Arc<Link>,
    pub(crate) stream: u32,
}

/// Something of a call that HTTP/2 may drop before its end: if the connection is lost then, that is reported before.
pub(crate) struct Reported<T> {
    inner: T,
    /// `None`: it has come to its end.
    report: Option<LossReport>,
}

impl<T> Reported<T> {
    pub(crate) fn new(inner: T, report: LossReport) -> Self {
        Self { inner, report: Some(report) }
    }
}

impl<T> Drop for Reported<T> {
    fn drop(&mut self) {
        // before `inner` is dropped
        if let Some(LossReport { call, link, stream }) = &self.report
            && link.is_lost(*stream)
        {
            call.set_lost();
        }
    }
}

impl<F: Future + Unpin> Future for Reported<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let output = ready!(Pin::new(&mut self.inner).poll(cx));
        self.report = None;
        Poll::Ready(output)
    }
}

impl<B: Body + Unpin> Body for Reported<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<body::Frame<Self::Data>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        if frame.is_none() || self.inner.is_end_stream() {
            self.report = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
