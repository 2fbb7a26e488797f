//! The thread that writes: off the runtime's threads, since a disk may take its time.

mod watch;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tracing::{info, warn};

pub(super) use self::watch::Watch;
use super::log::{Log, UnusableTail};
use super::record::{Body, Record};

/// So many are written before those who wait for them are told, and before the disk is waited for.
const BATCH: usize = 256;
/// The log says no more often that nothing can be written.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(60);
/// Ends of commands wait for room on the disk, so many of them.
const MAX_WAITING: usize = 8192;

/// What the thread is asked for.
pub(super) enum Job {
    /// A start, which somebody waits for.
    Start(Box<Start>),
    /// Anything else.
    Record(Box<Record>, Option<OwnedSemaphorePermit>),
    /// The file may have been moved away.
    Reopen,
    /// It was taken for stuck: that is over when it comes to this.
    Revive,
    /// All that came before is to be written; nothing follows that matters.
    Close(oneshot::Sender<()>),
}

/// A start, and who is told that it is written.
pub(super) struct Start {
    pub(super) record: Record,
    pub(super) watch: Watch,
    pub(super) reply: oneshot::Sender<StartOutcome>,
    /// A place in the queue.
    pub(super) slot: OwnedSemaphorePermit,
}

/// A start that was written, or was not.
pub(super) type StartOutcome = (Watch, Result<(), String>);

/// What the thread and those who ask it share.
#[derive(Debug, Default)]
pub(super) struct State {
    /// It was waited for in vain, and has done nothing since.
    pub(super) is_stuck: AtomicBool,
    /// Records that were not even given to it, and are not told of yet.
    pub(super) lost: AtomicU64,
    /// All records that are missing, of this agent.
    pub(super) missing: AtomicU64,
    /// Something could not be written, and nothing was since.
    pub(super) fails: AtomicBool,
}

impl State {
    /// A record is not even given to it.
    pub(super) fn lose(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
        self.missing.fetch_add(1, Ordering::Relaxed);
    }
}

/// Writes what comes.
pub(super) struct Writer {
    log: Log,
    /// What this agent calls itself.
    agent: String,
    state: Arc<State>,
    /// Records that could not be written since the last one that was.
    dropped: u64,
    /// Ends that could not be written yet.
    waiting: VecDeque<Record>,
    /// When it was said last that something could not be written, and whether its end is to be said too.
    warned: Option<Instant>,
    is_warned: bool,
}

impl Writer {
    pub(super) fn new(log: Log, agent: String, state: Arc<State>) -> Self {
        Self { log, agent, state, dropped: 0, waiting: VecDeque::new(), warned: None, is_warned: false }
    }

    /// Begins with what is known of the log and the agent.
    pub(super) fn open(&mut self, aside: Option<UnusableTail>, containment: &'static str) {
        if let Some(UnusableTail { path, bytes }) = aside {
            let path = path.display().to_string();
            warn!(path, bytes, "unusable log tail moved aside");
            self.keep(Record::new(Body::Recovered { set_aside: path, bytes }));
        }
        let version = env!("CARGO_PKG_VERSION");
        self.keep(Record::new(Body::Opened { version, pid: std::process::id(), containment }));
    }

    /// Writes until nobody can ask any more.
    pub(super) fn run(mut self, mut queue: mpsc::UnboundedReceiver<Job>) {
        let mut jobs = Vec::new();
        while queue.blocking_recv_many(&mut jobs, BATCH) > 0 {
            let (mut begun, mut closed) = (Vec::new(), Vec::new());
            for job in jobs.drain(..) {
                match job {
                    Job::Start(start) => begun.extend(self.start(*start)),
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
            for (reply, (watch, written)) in begun {
                // whoever is gone drops its watch, which says so
                let _ = reply.send((watch, written.and(synced.clone())));
            }
            self.state.is_stuck.store(false, Ordering::Relaxed);
            for reply in closed {
                let _ = reply.send(());
            }
        }
    }

    fn start(&mut self, start: Start) -> Option<(oneshot::Sender<StartOutcome>, StartOutcome)> {
        let Start { record, mut watch, reply, slot: _slot } = start;
        if reply.is_closed() {
            // nobody waits any more
            return None;
        }
        let written = self.write(&record).map(|seq| watch.begin(seq)).inspect_err(|_| self.drop_one());
        Some((reply, (watch, written)))
    }

    /// Writes a record now, or later, or counts it.
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

    /// Writes a record after those that wait.
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
        Ok(seq)
    }

    /// Says so, once. Returns why.
    fn failed(&mut self, error: &io::Error) -> String {
        let is_new = !self.state.fails.swap(true, Ordering::Relaxed);
        // on a disk that is nearly full short records come and long ones do not
        if is_new && self.warned.is_none_or(|when| when.elapsed() > BETWEEN_WARNINGS) {
            warn!(%error, "the audit log cannot be written");
            (self.warned, self.is_warned) = (Some(Instant::now()), true);
        }
        error.to_string()
    }

    fn reopen(&mut self) {
        match self.log.reopen() {
            Ok(true) => info!("the audit log goes on in a new file"),
            Ok(false) => {}
            Err(error) => warn!(%error, "the audit log goes on in the file that was moved away"),
        }
    }
}
