//! Sends the records of the audit log to a syslog server, while it is written.
//!
//! One thread follows the files. Syslog has no acknowledgements, so a connection is closed some time after something was sent
//! over it, and its records count as delivered once the server has closed it in turn, after it has read them. If it has not, they
//! are sent again over the next connection, in order; `seq` shows duplicates. What a server loses later is not sent again. The last one that was delivered is in a file beside the log, for the next agent.

mod config;
mod connection;
mod follower;
mod message;
mod state;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use telexec_executor::text::error_chain;
use tokio::sync::oneshot;
use tracing::{info, warn};

pub use self::config::SyslogConfig;
use self::connection::Connection;
use self::follower::Follower;
use self::state::{Delivered, StateFile};
use super::files;
use crate::hostname::hostname;

/// Between attempts to connect.
const MIN_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(10);
/// From the first record that is sent over a connection to its end. After a failure it is closed at once, then after one second,
/// two, and so on: a proxy may close connections that are idle.
const MIN_CONNECTION_TIME: Duration = Duration::from_secs(1);
const MAX_CONNECTION_TIME: Duration = Duration::from_secs(20);

/// Of records that are sent at once after a failure: a slow server has to read them before it is given up.
const MIN_BATCH_BYTES: usize = 64 * 1024;

/// What the thread is asked for.
enum Request {
    /// Send the new records.
    Send,
    /// Send what is left, then reply.
    Close(oneshot::Sender<()>),
}

/// How it goes, for metrics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SyslogReport {
    /// Records cannot be sent now.
    pub(crate) failing: bool,
    /// Records that are not known to have been delivered.
    pub(crate) pending: u64,
    /// Records that were removed with their file before they were sent.
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

/// A handle to the thread; clones share it.
#[derive(Clone, Debug)]
pub(super) struct Syslog {
    requests: Sender<Request>,
    /// It was asked to send, and has not looked for new records since.
    is_asked: Arc<AtomicBool>,
    status: Arc<Status>,
}

impl Syslog {
    /// Starts the thread, for the log at `path`, whose last record has the number `last`.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn start(config: SyslogConfig, path: &Path, last: u64) -> io::Result<Self> {
        let state = StateFile::new(files::syslog_name(path));
        let delivered = state.read(path, last);
        let status = Arc::new(Status::default());
        status.delivered.store(delivered.as_ref().map_or(0, |delivered| delivered.seq), Ordering::Relaxed);
        let (requests, received) = channel();
        let is_asked = Arc::new(AtomicBool::new(false));
        let sender = SyslogSender {
            config,
            state,
            host: hostname(),
            follower: Follower::new(path.to_owned(), delivered.as_ref().map(|delivered| delivered.seq + 1)),
            delivered,
            first: None,
            sent: None,
            connection_time: MIN_CONNECTION_TIME,
            retry: MIN_RETRY,
            last_error: String::new(),
            status: Arc::clone(&status),
            is_asked: Arc::clone(&is_asked),
        };
        std::thread::Builder::new().name("audit-syslog".into()).spawn(move || sender.run(&received))?;
        Ok(Self { requests, is_asked, status })
    }

    /// There are new records.
    pub(super) fn written(&self) {
        if !self.is_asked.swap(true, Ordering::AcqRel) {
            let _ = self.requests.send(Request::Send);
        }
    }

    /// How it goes, for a log whose last record has the number `last`.
    pub(super) fn report(&self, last: u64) -> SyslogReport {
        SyslogReport {
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
struct SyslogSender {
    config: SyslogConfig,
    state: StateFile,
    host: String,
    follower: Follower,
    /// The last record that was delivered; `None`: none is known.
    delivered: Option<Delivered>,
    /// Where to start again while nothing has been delivered.
    first: Option<u64>,
    /// The last record that was sent over the connection.
    sent: Option<Delivered>,
    connection_time: Duration,
    /// Until the next attempt to connect, after one that fails.
    retry: Duration,
    /// Of the last attempt, which is logged once.
    last_error: String,
    status: Arc<Status>,
    is_asked: Arc<AtomicBool>,
}

impl SyslogSender {
    fn run(mut self, requests: &Receiver<Request>) {
        let mut closing: Closing = None;
        while closing.is_none() {
            let sent = self.send_all(requests, &mut closing);
            if let Err(error) = &sent {
                self.failed(error);
            }
            if closing.is_none() {
                closing = match sent {
                    // there may be more
                    Ok(true) => None,
                    // until there is something new
                    Ok(false) => next_request(requests, None),
                    Err(_) => wait_to_retry(requests, self.retry),
                };
            }
        }
        if let Some(Some(reply)) = closing {
            // if it fails, the next agent sends them
            let _ = self.send_all(requests, &mut Some(None));
            // it may be that nobody waits any more
            let _ = reply.send(());
        }
    }

    /// Sends the records that there are, and for some time those that come, over one connection. Returns
    /// whether there were any: without, it does not connect.
    ///
    /// # Errors
    /// What was sent is not known to have been delivered.
    fn send_all(&mut self, requests: &Receiver<Request>, closing: &mut Closing) -> io::Result<bool> {
        let Some(mut batch) = self.next_batch()? else { return Ok(false) };
        let mut connection = Connection::open(&self.config)?;
        let until = Instant::now() + self.connection_time;
        loop {
            connection.check()?;
            connection.send(&batch.messages)?;
            self.sent = Some(batch.last);
            match self.wait_for_batch(until, requests, closing)? {
                Some(next) => batch = next,
                None => break,
            }
        }
        // a server that has already closed it did not read everything
        connection.check()?;
        connection.close()?;
        self.note_delivered();
        Ok(true)
    }

    /// The next records; `None`: there are none until then, or none any more.
    fn wait_for_batch(
        &mut self,
        until: Instant,
        requests: &Receiver<Request>,
        closing: &mut Closing,
    ) -> io::Result<Option<Outgoing>> {
        loop {
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Ok(None);
            }
            let batch = self.next_batch()?;
            if batch.is_some() || closing.is_some() {
                return Ok(batch);
            }
            *closing = next_request(requests, Some(rest));
        }
    }

    /// The next records; `None`: there are none now.
    fn next_batch(&mut self) -> io::Result<Option<Outgoing>> {
        self.is_asked.store(false, Ordering::Release);
        let read = self.follower.read()?;
        if read.lost > 0 {
            self.status.lost.fetch_add(read.lost, Ordering::Relaxed);
            let records = read.lost;
            warn!(
                records,
                "records of the audit log were removed before they were known to be delivered to syslog: increase audit.keep"
            );
        }
        let Some(last) = read.lines.last().map(Delivered::from) else { return Ok(None) };
        self.first = self.first.or(read.lines.first().map(|line| line.seq));
        let mut messages = Vec::new();
        read.lines.iter().for_each(|line| message::append(&mut messages, &self.host, line));
        Ok(Some(Outgoing { messages, last }))
    }

    fn note_delivered(&mut self) {
        let Some(sent) = self.sent.take() else { return };
        self.retry = MIN_RETRY;
        self.connection_time = (self.connection_time * 2).clamp(MIN_CONNECTION_TIME, MAX_CONNECTION_TIME);
        if self.connection_time == MAX_CONNECTION_TIME {
            self.follower.set_limit(usize::MAX);
        }
        self.last_error.clear();
        if self.status.failing.swap(false, Ordering::Relaxed) {
            info!(address = self.config.address, "the audit log is sent to syslog again");
        }
        self.status.delivered.store(sent.seq, Ordering::Relaxed);
        if let Err(error) = self.state.write(&sent) {
            warn!(%error, "cannot note how much of the audit log was sent to syslog: the next agent sends it again");
        }
        self.delivered = Some(sent);
    }

    /// Goes back to the last record that was delivered.
    fn failed(&mut self, error: &io::Error) {
        self.status.failing.store(true, Ordering::Relaxed);
        let text = error_chain(error);
        if self.last_error != text {
            let address = &self.config.address;
            warn!(error = text, address, "the audit log cannot be sent to syslog: its records are sent later");
            self.last_error = text;
        }
        self.retry = (self.retry * 2).min(MAX_RETRY);
        self.connection_time = Duration::ZERO;
        self.follower.set_limit(MIN_BATCH_BYTES);
        self.sent = None;
        self.follower.seek(self.delivered.as_ref().map(|delivered| delivered.seq + 1).or(self.first));
    }
}

/// Records, as they are sent.
struct Outgoing {
    messages: Vec<u8>,
    last: Delivered,
}

/// `None`: it is not asked to close; `Some(None)`: and nobody waits for that.
type Closing = Option<Option<oneshot::Sender<()>>>;

/// Waits for a request, or for this long. Returns whether it is one to close.
fn next_request(requests: &Receiver<Request>, wait: Option<Duration>) -> Closing {
    let request = match wait {
        None => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
        Some(wait) => requests.recv_timeout(wait),
    };
    match request {
        Ok(Request::Close(reply)) => Some(Some(reply)),
        Err(RecvTimeoutError::Disconnected) => Some(None),
        Ok(Request::Send) | Err(RecvTimeoutError::Timeout) => None,
    }
}

/// Waits for this long, whatever is to be sent. Returns whether it is asked to close.
fn wait_to_retry(requests: &Receiver<Request>, wait: Duration) -> Closing {
    let until = Instant::now() + wait;
    loop {
        let rest = until.saturating_duration_since(Instant::now());
        let closing = next_request(requests, Some(rest));
        if closing.is_some() || rest.is_zero() {
            return closing;
        }
    }
}
