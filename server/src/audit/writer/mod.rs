//! The writer thread: off the runtime's threads, since disks may block.

mod execution_recorder;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tracing::{info, warn};

pub(super) use self::execution_recorder::ExecutionRecorder;
use super::log::{Log, UnusableTail};
use super::record::{Body, Record};
use super::shipping::Shipper;

/// Records written per sync, after which those who wait for them get their reply.
const MAX_BATCH: usize = 256;
/// Between two warnings that the log cannot be written.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);
/// Records of ends that are kept until they can be written.
const MAX_WAITING: usize = 8192;

/// A job for the thread.
pub(super) enum Job {
    /// The record of a start, which the caller waits for.
    Start(Box<Start>),
    /// A record that its caller waits for, and where the result goes.
    Awaited(Box<Record>, OwnedSemaphorePermit, oneshot::Sender<Result<(), String>>),
    /// Anything else.
    Record(Box<Record>, Option<OwnedSemaphorePermit>),
    /// Check whether the file was moved away.
    Reopen,
    /// Clears `is_stuck` once the thread gets here.
    Revive,
    /// Write the last record, then reply.
    Close(oneshot::Sender<()>),
}

/// The record of a start, and where the result goes.
pub(super) struct Start {
    pub(super) record: Record,
    pub(super) recorder: ExecutionRecorder,
    pub(super) reply: oneshot::Sender<StartOutcome>,
    /// A slot in the queue.
    pub(super) slot: OwnedSemaphorePermit,
}

/// Whether the start was written.
pub(super) type StartOutcome = (ExecutionRecorder, Result<(), String>);

/// State shared with the thread.
#[derive(Debug, Default)]
pub(super) struct State {
    /// A wait for it timed out, and it has done nothing since.
    pub(super) is_stuck: AtomicBool,
    /// Records that were never queued, and that no record mentions yet.
    pub(super) lost: AtomicU64,
    /// All records missing since the agent started.
    pub(super) missing: AtomicU64,
    /// The last write failed.
    pub(super) fails: AtomicBool,
    /// The number of the last record.
    pub(super) last: AtomicU64,
}

impl State {
    /// Counts a record that is not queued.
    pub(super) fn lose(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
        self.missing.fetch_add(1, Ordering::Relaxed);
    }
}

/// Writes the records of the queue.
pub(super) struct Writer {
    log: Log,
    /// Is told of new records.
    pub(super) shippers: Vec<Shipper>,
    /// The name of this agent in records.
    agent: String,
    state: Arc<State>,
    /// Records that could not be written since the last one that was.
    dropped: u64,
    /// Ends that could not be written yet.
    waiting: VecDeque<Record>,
    /// When the last warning was logged, and whether its end is still to be logged.
    warned: Option<Instant>,
    is_warned: bool,
}

impl Writer {
    pub(super) fn new(log: Log, agent: String, state: Arc<State>) -> Self {
        state.last.store(log.last().seq, Ordering::Relaxed);
        Self {
            log,
            shippers: Vec::new(),
            agent,
            state,
            dropped: 0,
            waiting: VecDeque::new(),
            warned: None,
            is_warned: false,
        }
    }

    /// Writes the first records: what was recovered, and the agent's version.
    pub(super) fn open(&mut self, aside: Option<UnusableTail>, containment: &'static str) {
        if let Some(UnusableTail { path, bytes }) = aside {
            let path = path.display().to_string();
            warn!(path, bytes, "unusable log tail moved aside");
            self.keep(Record::new(Body::Recovered { set_aside: path, bytes }));
        }
        let version = env!("CARGO_PKG_VERSION");
        self.keep(Record::new(Body::Opened { version, pid: std::process::id(), containment }));
    }

    /// Writes until the queue is closed.
    pub(super) fn run(mut self, mut queue: mpsc::UnboundedReceiver<Job>) {
        let mut jobs = Vec::new();
        while queue.blocking_recv_many(&mut jobs, MAX_BATCH) > 0 {
            let (mut begun, mut awaited, mut closed) = (Vec::new(), Vec::new(), Vec::new());
            for job in jobs.drain(..) {
                match job {
                    Job::Start(start) => begun.extend(self.start(*start)),
                    // otherwise the caller waits no more
                    Job::Awaited(record, _slot, reply) if !reply.is_closed() => {
                        awaited.push((reply, self.write(&record).map(drop).inspect_err(|_| self.drop_one())));
                    }
                    Job::Awaited(..) => {}
                    Job::Record(record, _slot) => self.keep(*record),
                    Job::Reopen => self.reopen(),
                    Job::Revive => {}
                    Job::Close(reply) => {
                        self.keep(Record::new(Body::Closed {}));
                        closed.push(reply);
                    }
                }
            }
            let synced = self.log.sync().map_err(|error| self.failed(&error));
            for (reply, (recorder, written)) in begun {
                // if the caller is gone, dropping the recorder records that
                let _ = reply.send((recorder, written.and(synced.clone())));
            }
            for (reply, written) in awaited {
                let _ = reply.send(written.and(synced.clone()));
            }
            self.state.is_stuck.store(false, Ordering::Relaxed);
            self.shippers.iter().for_each(Shipper::written);
            for reply in closed {
                let _ = reply.send(());
            }
        }
    }

    fn start(&mut self, start: Start) -> Option<(oneshot::Sender<StartOutcome>, StartOutcome)> {
        let Start { record, mut recorder, reply, slot: _slot } = start;
        if reply.is_closed() {
            // the caller waits no more
            return None;
        }
        let written = self.write(&record).inspect_err(|_| self.drop_one());
        let written = written.map(|_| recorder.begin(self.log.last()));
        Some((reply, (recorder, written)))
    }

    /// Writes a record now or later, or counts it as dropped.
    fn keep(&mut self, record: Record) {
        if self.write(&record).is_ok() {
            return;
        }
        match record.is_end() && self.waiting.len() < MAX_WAITING {
            true => self.waiting.push_back(record),
            false => self.drop_one(),
        }
    }

    fn drop_one(&mut self) {
        self.dropped += 1;
        self.state.missing.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes a record after the waiting ones.
    fn write(&mut self, record: &Record) -> Result<u64, String> {
        while let Some(waiting) = self.waiting.pop_front() {
            if let Err(error) = self.append(&waiting) {
                self.waiting.push_front(waiting);
                return Err(self.failed(&error));
            }
        }
        let seq = self.append(record).map_err(|error| self.failed(&error))?;
        self.state.fails.store(false, Ordering::Relaxed);
        if std::mem::take(&mut self.is_warned) {
            info!("the audit log can be written again");
        }
        Ok(seq)
    }

    fn append(&mut self, record: &Record) -> io::Result<u64> {
        self.dropped += self.state.lost.swap(0, Ordering::Relaxed);
        let seq = self.log.append(|seq, prev| record.text(seq, prev, &self.agent, self.dropped))?;
        self.dropped = 0;
        self.state.last.store(seq, Ordering::Relaxed);
        Ok(seq)
    }

    /// The number of the last record.
    pub(super) fn last(&self) -> u64 {
        self.state.last.load(Ordering::Relaxed)
    }

    /// Logs the error, once. Returns its text.
    fn failed(&mut self, error: &io::Error) -> String {
        let is_new = !self.state.fails.swap(true, Ordering::Relaxed);
        // on a nearly full disk short records succeed and long ones fail
        if is_new && self.warned.is_none_or(|when| when.elapsed() > WARNING_INTERVAL) {
            warn!(%error, "the audit log cannot be written");
            (self.warned, self.is_warned) = (Some(Instant::now()), true);
        }
        error.to_string()
    }

    fn reopen(&mut self) {
        match self.log.reopen() {
            Ok(true) => info!("the audit log continues in a new file"),
            Ok(false) => {}
            Err(error) => warn!(%error, "the audit log continues in the file that was moved away"),
        }
    }
}
