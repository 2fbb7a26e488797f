//! Sends the records of the audit log elsewhere, while it is written: to a syslog server, to an OpenTelemetry collector.
//!
//! For each destination one thread follows the files. Where one does not acknowledge records, or a connection is lost, they are sent
//! again, in order; `seq` shows duplicates. The last one that was delivered is in a file beside the log, for the next agent.

mod config;
mod explanation;
#[cfg(feature = "otlp")]
mod otlp;
mod state;
mod syslog;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use telexec_executor::text::error_chain;
use tokio::sync::oneshot;
use tracing::{info, warn};

pub use self::config::DestinationConfig;
pub(crate) use self::config::Protocol;
use self::explanation::explain;
use self::state::{Delivered, StateFile};
use super::files;
use super::follower::{Follower, Line};

/// Between attempts to connect.
const MIN_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(10);

/// What the thread is asked for.
enum Request {
    /// Send the new records.
    Send,
    /// Send what is left, then reply.
    Close(oneshot::Sender<()>),
}

/// How it goes, for metrics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShippingReport {
    pub(crate) protocol: Protocol,
    /// Records cannot be sent now.
    pub(crate) failing: bool,
    /// Records that are not known to have been delivered.
    pub(crate) pending: u64,
    /// Records that were removed with their file before they were sent, or were rejected.
    pub(crate) lost: u64,
}

/// The same, as the thread keeps it.
#[derive(Debug, Default)]
struct Status {
    failing: AtomicBool,
    /// The number of the last record that was delivered.
    delivered: AtomicU64,
    lost: AtomicU64,
}

/// A handle to the thread of one destination; clones share it.
#[derive(Clone, Debug)]
pub(super) struct Shipper {
    protocol: Protocol,
    requests: Sender<Request>,
    /// It was asked to send, and has not looked for new records since.
    is_asked: Arc<AtomicBool>,
    status: Arc<Status>,
}

/// A way to send records.
trait Destination: Send {
    /// Sends the records that there are, and for some time those that come. Returns whether there were any: without, it does not
    /// connect.
    ///
    /// # Errors
    /// What was sent is not known to have been delivered.
    fn send_all(&mut self, unsent: &mut Unsent, requests: &mut Requests<'_>) -> io::Result<bool>;

    /// Sending has failed, and is tried again.
    fn failed(&mut self, _unsent: &mut Unsent) {}
}

impl Shipper {
    /// Starts the thread, for the log at `path`, whose last record has the number `last`.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn start(protocol: Protocol, config: DestinationConfig, path: &Path, last: u64) -> io::Result<Self> {
        let status = Arc::new(Status::default());
        let is_asked = Arc::new(AtomicBool::new(false));
        let shared = (Arc::clone(&status), Arc::clone(&is_asked));
        let unsent = Unsent::new(protocol, config.address.clone(), path, last, shared);
        let destination: Box<dyn Destination> = match protocol {
            Protocol::Syslog => Box::new(syslog::Syslog::new(config)),
            #[cfg(feature = "otlp")]
            Protocol::Otlp => Box::new(otlp::Otlp::new(config)),
            #[cfg(not(feature = "otlp"))]
            Protocol::Otlp => return Err(io::ErrorKind::Unsupported.into()),
        };
        let (requests, received) = channel();
        let thread = std::thread::Builder::new().name(format!("audit-{}", protocol.key()));
        thread.spawn(move || run(destination, unsent, &received))?;
        Ok(Self { protocol, requests, is_asked, status })
    }

    /// There are new records.
    pub(super) fn written(&self) {
        if !self.is_asked.swap(true, Ordering::AcqRel) {
            let _ = self.requests.send(Request::Send);
        }
    }

    /// How it goes, for a log whose last record has the number `last`.
    pub(super) fn report(&self, last: u64) -> ShippingReport {
        ShippingReport {
            protocol: self.protocol,
            failing: self.status.failing.load(Ordering::Relaxed),
            pending: last.saturating_sub(self.status.delivered.load(Ordering::Relaxed)),
            lost: self.status.lost.load(Ordering::Relaxed),
        }
    }

    /// Sends what is left. Returns when that is delivered, or cannot be now: then the next agent sends it.
    pub(super) async fn close(&self) {
        let (reply, closed) = oneshot::channel();
        let _ = self.requests.send(Request::Close(reply));
        let _ = closed.await;
    }
}

/// The thread.
fn run(mut destination: Box<dyn Destination>, mut unsent: Unsent, received: &Receiver<Request>) {
    let mut requests = Requests { received, closing: None };
    while requests.closing.is_none() {
        let sent = destination.send_all(&mut unsent, &mut requests);
        if let Err(error) = &sent {
            unsent.failed(error);
            destination.failed(&mut unsent);
        }
        match sent {
            _ if requests.closing.is_some() => {}
            // there may be more
            Ok(true) => {}
            // until there is something new
            Ok(false) => requests.wait_for_next(None),
            Err(_) => requests.pause(unsent.next_retry()),
        }
    }
    if let Some(Some(reply)) = requests.closing.take() {
        requests.closing = Some(None);
        // if it fails, the next agent sends them
        let _ = destination.send_all(&mut unsent, &mut requests);
        unsent.save();
        // it may be that nobody waits any more
        let _ = reply.send(());
    }
}

/// What the thread is asked for.
struct Requests<'a> {
    received: &'a Receiver<Request>,
    /// `None`: it is not asked to close; `Some(None)`: and nobody waits for that.
    closing: Option<Option<oneshot::Sender<()>>>,
}

impl Requests<'_> {
    /// Waits for a request, or for this long.
    fn wait_for_next(&mut self, wait: Option<Duration>) {
        let request = match wait {
            None => self.received.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(wait) => self.received.recv_timeout(wait),
        };
        self.closing = match request {
            Ok(Request::Close(reply)) => Some(Some(reply)),
            Err(RecvTimeoutError::Disconnected) => Some(None),
            Ok(Request::Send) | Err(RecvTimeoutError::Timeout) => None,
        };
    }

    /// Waits for this long, whatever is to be sent, or until it is asked to close.
    fn pause(&mut self, wait: Duration) {
        let until = Instant::now() + wait;
        loop {
            let rest = until.saturating_duration_since(Instant::now());
            self.wait_for_next(Some(rest));
            if self.closing.is_some() || rest.is_zero() {
                return;
            }
        }
    }
}

/// The records that are not known to have been delivered.
struct Unsent {
    protocol: Protocol,
    /// Of the destination, for the log.
    address: String,
    follower: Follower,
    state: StateFile,
    /// The last record that was delivered, or the one before the first that is to be.
    delivered: Delivered,
    /// The number of the record in the file.
    saved: Option<u64>,
    /// Until the next attempt, after the next one that fails.
    retry: Duration,
    /// Records were delivered since the last failure.
    is_working: bool,
    /// Of the last attempt, which is logged once.
    last_error: String,
    status: Arc<Status>,
    is_asked: Arc<AtomicBool>,
}

impl Unsent {
    fn new(
        protocol: Protocol,
        address: String,
        path: &Path,
        last: u64,
        (status, is_asked): (Arc<Status>, Arc<AtomicBool>),
    ) -> Self {
        let state = StateFile::new(files::shipped_name(path, protocol.key()), protocol);
        let known = state.read(path, last);
        let saved = known.as_ref().map(|delivered| delivered.seq);
        let delivered = known.unwrap_or_else(|| Delivered::before_first_of(path));
        status.delivered.store(delivered.seq, Ordering::Relaxed);
        let mut this = Self {
            protocol,
            address,
            follower: Follower::new(path.to_owned(), Some(delivered.seq + 1)),
            state,
            saved,
            delivered,
            retry: MIN_RETRY,
            is_working: false,
            last_error: String::new(),
            status,
            is_asked,
        };
        // what is removed before any of it is delivered is missing, too
        this.save();
        this
    }

    /// Counts records that will never be delivered.
    fn count_lost(&self, records: u64) {
        self.status.lost.fetch_add(records, Ordering::Relaxed);
    }

    /// The next records; none: there are none now.
    fn next_batch(&mut self) -> io::Result<Vec<Line>> {
        self.is_asked.store(false, Ordering::Release);
        let read = self.follower.read()?;
        if read.lost > 0 {
            self.count_lost(read.lost);
            let (records, to) = (read.lost, self.protocol);
            warn!(
                records,
                "records of the audit log were removed before they were known to be delivered to {to}: increase audit.keep"
            );
        }
        Ok(read.lines)
    }

    /// The next records; none: there are none until then, or none any more.
    fn wait_for_batch(&mut self, until: Instant, requests: &mut Requests<'_>) -> io::Result<Vec<Line>> {
        loop {
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Ok(Vec::new());
            }
            let batch = self.next_batch()?;
            if !batch.is_empty() || requests.closing.is_some() {
                return Ok(batch);
            }
            requests.wait_for_next(Some(rest));
        }
    }

    /// Reads at most so many bytes at once, from now on; more only for a longer line.
    fn set_limit(&mut self, bytes: usize) {
        self.follower.set_limit(bytes);
    }

    /// All records to this one were delivered.
    fn delivered(&mut self, last: Delivered) {
        self.retry = MIN_RETRY;
        self.last_error.clear();
        self.status.failing.store(false, Ordering::Relaxed);
        if !self.is_working {
            info!(address = self.address, "the audit log is sent to {}", self.protocol);
            self.is_working = true;
        }
        self.status.delivered.store(last.seq, Ordering::Relaxed);
        self.delivered = last;
    }

    /// Writes the last record that was delivered to the file, for the next agent.
    fn save(&mut self) {
        if self.saved == Some(self.delivered.seq) {
            return;
        }
        match self.state.write(&self.delivered) {
            Ok(()) => self.saved = Some(self.delivered.seq),
            Err(error) => {
                let to = self.protocol;
                warn!(%error, "cannot save how much of the audit log was sent to {to}: the next agent sends it again");
            }
        }
    }

    /// How long to wait after a failure: longer each time.
    fn next_retry(&mut self) -> Duration {
        let retry = self.retry;
        self.retry = (retry * 2).min(MAX_RETRY);
        retry
    }

    /// Goes back to the last record that was delivered.
    fn failed(&mut self, error: &io::Error) {
        self.status.failing.store(true, Ordering::Relaxed);
        self.is_working = false;
        let text = error_chain(error);
        let text = explain(&text, self.protocol).unwrap_or(text);
        if self.last_error != text {
            let (address, to) = (&self.address, self.protocol);
            warn!(error = text, address, "the audit log cannot be sent to {to}: its records are sent later");
            self.last_error = text;
        }
        self.save();
        self.follower.seek(self.delivered.seq + 1);
    }
}
