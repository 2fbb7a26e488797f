//! Sends the records of the audit log to a syslog server, while it is written.
//!
//! One thread follows the files. Syslog has no acknowledgements, so a record counts as delivered once the connection has lived
//! for some time after it was sent, longer than the kernel would keep a connection to a machine that acknowledges nothing; or
//! once the server has closed the connection in answer to its end. What was sent after that is sent again over the next
//! connection: records arrive at least once, and their numbers show which are the same. The last number is in a file beside the
//! log, for the next agent.

mod config;
mod connection;
mod follower;
mod message;

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tracing::{info, warn};

pub use self::config::SyslogConfig;
use self::connection::{Connection, SEND_TIMEOUT};
use self::follower::Follower;
use super::files;
use crate::hostname::hostname;

/// Between attempts to connect.
const MIN_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(30);
/// Until a connection on which nothing happens is looked at.
const IDLE: Duration = Duration::from_secs(5);
/// Between two writes of the file with the number of the last record that was delivered.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// After a record was sent: longer than the kernel waits for its acknowledgement.
const DELIVERED_AFTER: Duration = SEND_TIMEOUT.saturating_add(Duration::from_secs(5));

/// What the thread is told.
enum Message {
    /// There are new records.
    Written,
    /// Send what is left, then reply.
    Close(oneshot::Sender<()>),
}

/// How it goes, for metrics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SyslogReport {
    /// There is a connection.
    pub(crate) is_connected: bool,
    /// Records that are not known to have been delivered.
    pub(crate) pending: u64,
    /// Records that were removed with their file before they could be sent.
    pub(crate) lost: u64,
}

/// The same, as the thread keeps it.
#[derive(Debug, Default)]
struct Status {
    is_connected: AtomicBool,
    /// The number of the last record that was delivered.
    delivered: AtomicU64,
    lost: AtomicU64,
}

/// The thread, for others; clones share it.
#[derive(Clone, Debug)]
pub(super) struct Syslog {
    messages: Sender<Message>,
    /// It was told of new records, and has not looked at them.
    is_told: Arc<AtomicBool>,
    status: Arc<Status>,
}

impl Syslog {
    /// Starts the thread, for the log at `path`, whose last record has the number `last`.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn start(config: SyslogConfig, path: &Path, last: u64) -> io::Result<Self> {
        let state = files::syslog_name(path);
        let delivered = read_state(&state).unwrap_or_else(|error| {
            warn!(%error, "cannot read how much of the audit log was sent to syslog: sending all of it");
            0
        });
        // of a log that is not there any more
        let delivered = if delivered > last { 0 } else { delivered };
        let status = Arc::new(Status { delivered: delivered.into(), ..Status::default() });
        let (messages, received) = channel();
        let is_told = Arc::new(AtomicBool::new(false));
        let sender = SyslogSender {
            config,
            state,
            host: hostname(),
            follower: Follower::new(path.to_owned(), delivered.saturating_add(1)),
            sent: VecDeque::new(),
            delivered,
            status: Arc::clone(&status),
            is_told: Arc::clone(&is_told),
            saved_at: None,
            is_saved: true,
            has_failed: false,
        };
        std::thread::Builder::new().name("audit-syslog".into()).spawn(move || sender.run(&received))?;
        Ok(Self { messages, is_told, status })
    }

    /// There are new records.
    pub(super) fn written(&self) {
        if !self.is_told.swap(true, Ordering::AcqRel) {
            let _ = self.messages.send(Message::Written);
        }
    }

    /// How it goes, for a log whose last record has the number `last`.
    pub(super) fn report(&self, last: u64) -> SyslogReport {
        SyslogReport {
            is_connected: self.status.is_connected.load(Ordering::Relaxed),
            pending: last.saturating_sub(self.status.delivered.load(Ordering::Relaxed)),
            lost: self.status.lost.load(Ordering::Relaxed),
        }
    }

    /// Sends what is left. Returns when that is delivered, or cannot be now: then the next agent sends it.
    pub(super) async fn close(&self) {
        let (reply, closed) = oneshot::channel();
        let _ = self.messages.send(Message::Close(reply));
        let _ = closed.await;
    }
}

/// The thread.
struct SyslogSender {
    config: SyslogConfig,
    /// The file with the number of the last record that was delivered.
    state: PathBuf,
    host: String,
    follower: Follower,
    /// What was sent, by the last number, and when.
    sent: VecDeque<(Instant, u64)>,
    delivered: u64,
    status: Arc<Status>,
    is_told: Arc<AtomicBool>,
    /// When that file was written last; `None`: never.
    saved_at: Option<Instant>,
    is_saved: bool,
    /// It was logged that records cannot be sent.
    has_failed: bool,
}

impl SyslogSender {
    fn run(mut self, messages: &Receiver<Message>) {
        let mut retry = MIN_RETRY;
        loop {
            let failed = match Connection::open(&self.config) {
                Ok(connection) => match self.serve(connection, messages) {
                    Ok(reply) => return answer(reply),
                    Err(error) => {
                        retry = MIN_RETRY;
                        error
                    }
                },
                Err(error) => error,
            };
            self.status.is_connected.store(false, Ordering::Relaxed);
            if !std::mem::replace(&mut self.has_failed, true) {
                let address = &self.config.address;
                warn!(error = %failed, address, "the audit log cannot be sent to syslog: its records are sent later");
            }
            self.sent.clear();
            self.follower.seek(self.delivered.saturating_add(1));
            if let Some(reply) = asked_to_close(messages, retry) {
                return answer(reply);
            }
            retry = (retry * 2).min(MAX_RETRY);
        }
    }

    /// Sends records over this connection, until it is asked to close it.
    ///
    /// # Errors
    /// The connection is lost, or the log cannot be read.
    fn serve(&mut self, mut connection: Connection, messages: &Receiver<Message>) -> io::Result<oneshot::Sender<()>> {
        self.status.is_connected.store(true, Ordering::Relaxed);
        loop {
            connection.check()?;
            self.note_delivered();
            if self.saved_at.is_none_or(|at| at.elapsed() >= SAVE_INTERVAL) {
                self.save();
            }
            let waits = match self.send_next(&mut connection)? {
                true => Duration::ZERO,
                false => {
                    self.sent.front().map_or(IDLE, |(at, _)| DELIVERED_AFTER.saturating_sub(at.elapsed())).min(IDLE)
                }
            };
            match messages.recv_timeout(waits) {
                Ok(Message::Written) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Message::Close(reply)) => {
                    while self.send_next(&mut connection)? {}
                    // or else the next agent sends them again
                    if connection.close().is_ok() {
                        self.note_all_delivered();
                    }
                    self.save();
                    return Ok(reply);
                }
                Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("the agent has ended")),
            }
        }
    }

    /// Sends the next records. Returns whether there were any.
    fn send_next(&mut self, connection: &mut Connection) -> io::Result<bool> {
        self.is_told.store(false, Ordering::Release);
        let batch = self.follower.read()?;
        if batch.lost > 0 {
            self.status.lost.fetch_add(batch.lost, Ordering::Relaxed);
            warn!(
                records = batch.lost,
                "records of the audit log were removed before they were sent to syslog: increase audit.keep"
            );
        }
        let Some(last) = batch.lines.last().map(|line| line.seq) else { return Ok(false) };
        let mut frames = Vec::new();
        batch.lines.iter().for_each(|line| message::append(&mut frames, &self.host, line));
        connection.send(&frames)?;
        self.sent.push_back((Instant::now(), last));
        Ok(true)
    }

    fn note_delivered(&mut self) {
        let mut last = None;
        while let Some((_, seq)) = self.sent.pop_front_if(|(at, _)| at.elapsed() >= DELIVERED_AFTER) {
            last = Some(seq);
        }
        self.note(last);
    }

    fn note_all_delivered(&mut self) {
        let last = self.sent.drain(..).next_back().map(|(_, seq)| seq);
        self.note(last);
    }

    fn note(&mut self, last: Option<u64>) {
        let Some(seq) = last else { return };
        (self.delivered, self.is_saved) = (seq, false);
        // not before: a server may refuse this side's certificate after it has taken records
        if std::mem::take(&mut self.has_failed) {
            info!(address = self.config.address, "the audit log is sent to syslog again");
        }
        self.status.delivered.store(seq, Ordering::Relaxed);
    }

    fn save(&mut self) {
        if std::mem::replace(&mut self.is_saved, true) {
            return;
        }
        self.saved_at = Some(Instant::now());
        if let Err(error) = write_state(&self.state, self.delivered) {
            warn!(%error, "cannot note how much of the audit log was sent to syslog: the next agent sends it again");
        }
    }
}

/// Whoever has asked may not wait any more.
fn answer(reply: oneshot::Sender<()>) {
    let _ = reply.send(());
}

/// Waits; returns at once if it is asked to close.
fn asked_to_close(messages: &Receiver<Message>, delay: Duration) -> Option<oneshot::Sender<()>> {
    let until = Instant::now() + delay;
    loop {
        match messages.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Message::Close(reply)) => return Some(reply),
            Ok(Message::Written) => {}
            Err(RecvTimeoutError::Timeout) => return None,
            // nobody waits for a reply
            Err(RecvTimeoutError::Disconnected) => return Some(oneshot::channel().0),
        }
    }
}

fn read_state(path: &Path) -> io::Result<u64> {
    match std::fs::read_to_string(path) {
        Ok(text) => text.trim().parse().map_err(|_| io::Error::other(format!("{} is not a number", path.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

fn write_state(path: &Path, seq: u64) -> io::Result<()> {
    let new = path.with_extension("syslog.new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    writeln!(file, "{seq}")?;
    std::fs::rename(new, path)
}
