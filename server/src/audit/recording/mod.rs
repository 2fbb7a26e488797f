//! Recordings of executions: their input and output with timing, as asciicast v2 in a directory beside the audit log.
//!
//! `cast` makes the lines, `file` and `directory` are what is on disk, and what it may take, `writer` is the thread that does each
//! `job`, and `closer` closes files. `one` is the recording of one execution, `shared` how that waits for the thread. The end of an execution in the audit log
//! has the digest of its file.

mod cast;
mod closer;
mod config;
mod directory;
mod file;
mod job;
mod one;
mod shared;
mod writer;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};

use telexec_engine::boot_time;
use telexec_executor::TerminalSize;
use time::OffsetDateTime;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

use self::cast::Event;
pub(super) use self::cast::{About, Header};
use self::closer::Closer;
pub use self::config::RecordingsConfig;
use self::directory::Directory;
pub(super) use self::directory::{SUFFIX, of_log, open};
pub(super) use self::file::Recorded;
use self::job::{Create, Job};
pub(super) use self::one::{Continuation, Recording};
use self::shared::{NO_ANSWER, Shared, Thread};
use self::writer::{Settings, Writer};
use super::config::{AuditConfig, WhenFull};
use super::{MAX_WAITING, WRITE_TIMEOUT};
use crate::timestamp::rfc3339;

/// What a resumed recording says to who plays it.
const RESUMED: &str = "the agent was restarted: the last input and output before this may be missing";

/// Makes recordings; clones share the thread that writes them.
#[derive(Clone)]
pub(super) struct Recordings {
    queue: Sender<Job>,
    /// Of recordings to be created.
    slots: Arc<Semaphore>,
    numbers: Arc<AtomicU64>,
    /// What cannot be recorded does not run.
    is_strict: bool,
    /// Bytes of all that are there.
    total: Arc<AtomicU64>,
    thread: Arc<Thread>,
}

/// How recordings go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordingsReport {
    /// Of all that are there.
    pub(crate) bytes: u64,
    /// Those that are incomplete, since the agent started.
    pub(crate) incomplete: u64,
}

impl Recordings {
    /// Those of the log at `path`.
    ///
    /// # Errors
    /// There are no more threads.
    pub(super) fn start(config: &AuditConfig, path: &Path) -> io::Result<Self> {
        let (total, thread, (queue, jobs)) = (Arc::default(), Arc::<Thread>::default(), mpsc::channel());
        let directory = Directory::new(of_log(path), config.recordings.clone(), Arc::clone(&total));
        let RecordingsConfig { max_bytes, hidden_input, .. } = config.recordings;
        let settings = Settings { max_bytes, hidden_input, sync: config.sync };
        let writer = Writer::new(directory, settings, Closer::start(config.sync)?, Arc::clone(&thread));
        std::thread::Builder::new().name("recordings".into()).spawn(move || writer.run(&jobs))?;
        // there may be very many
        let (found, path) = (queue.clone(), of_log(path));
        let find = move || drop(found.send(Job::Found(directory::entries(&path))));
        std::thread::Builder::new().name("recordings-find".into()).spawn(find)?;
        let (slots, is_strict) = (Arc::new(Semaphore::new(MAX_WAITING)), config.when_full == WhenFull::Refuse);
        Ok(Self { queue, slots, numbers: Arc::default(), is_strict, total, thread })
    }

    /// Begins a recording.
    ///
    /// # Errors
    /// Why it cannot be begun.
    pub(super) async fn create(&self, about: About, size: Option<TerminalSize>) -> Result<Recording, String> {
        let until = Instant::now() + WRITE_TIMEOUT;
        let no_answer = || NO_ANSWER.to_owned();
        let slot = timeout_at(until, Arc::clone(&self.slots).acquire_owned()).await.map_err(|_| no_answer())?;
        let slot = slot.map_err(|_| no_answer())?;
        let now = OffsetDateTime::now_utc();
        let time = rfc3339(now).replace(['-', ':'], "");
        let file = format!("{time}-{}{SUFFIX}", about.execution_id);
        let timestamp = u64::try_from(now.unix_timestamp()).unwrap_or_default();
        let (shared, begun) = (self.shared(file), boot_time());
        let (reply, answer) = oneshot::channel();
        let create = Create { shared: Arc::clone(&shared), about: about.clone(), size, timestamp, reply, slot };
        // dropped before its execution runs, it is discarded
        let recording = Recording::new(self.queue.clone(), shared, about, begun, size);
        let _ = self.queue.send(Job::Create(Box::new(create)));
        match timeout_at(until, answer).await {
            Ok(Ok(created)) => created.map(|()| recording),
            Ok(Err(_)) => Err("a fault of the agent".to_owned()),
            Err(_) => Err(no_answer()),
        }
    }

    /// Resumes one that an earlier agent has begun.
    pub(super) fn resume(&self, Continuation { file, about, begun }: Continuation) -> Recording {
        let shared = self.shared(file);
        let _ = self.queue.send(Job::Resume(Arc::clone(&shared), Box::new(about.clone())));
        let recording = Recording::new(self.queue.clone(), shared, about, begun, None);
        recording.begin();
        recording.add(Event::Marker(RESUMED.to_owned()));
        recording
    }

    /// All that were to be resumed are.
    pub(super) fn resumed(&self) {
        let _ = self.queue.send(Job::Clean);
    }

    fn shared(&self, file: String) -> Arc<Shared> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        Arc::new(Shared::new(number, file, self.is_strict, Arc::clone(&self.thread)))
    }

    /// Waits until all is written, up to [`WRITE_TIMEOUT`].
    pub(super) async fn close(&self) {
        let (reply, closed) = oneshot::channel();
        let _ = self.queue.send(Job::Close(reply));
        if tokio::time::timeout(WRITE_TIMEOUT, closed).await.is_err() {
            tracing::warn!("recordings may be incomplete: the disk does not answer");
        }
    }

    pub(super) fn report(&self) -> RecordingsReport {
        RecordingsReport { bytes: self.total.load(Ordering::Relaxed), incomplete: self.thread.failures() }
    }
}
