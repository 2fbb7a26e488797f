//! Recordings of executions: what they are sent and what they write, in time, as asciicast v2 in the directory `recordings`
//! beside the audit log.
//!
//! `cast` makes the lines, `file` and `directory` are what is on disk, and what it may take, `writer` is the thread that
//! writes, `shared` how an execution waits for that. The end of an execution in the audit log has the digest of its file.

mod cast;
mod config;
mod directory;
mod file;
mod shared;
mod writer;

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use telexec_engine::{ObservedTerminal, boot_time};
use telexec_executor::{OutputStream, TerminalSize};
use time::OffsetDateTime;
use tokio::sync::oneshot;

use self::cast::Event;
pub(super) use self::cast::{About, Header};
pub use self::config::RecordingsConfig;
use self::directory::Directory;
pub(super) use self::directory::{of_log, open};
pub(super) use self::file::Recorded;
use self::shared::Shared;
use self::writer::{Create, Job, Writer};
use super::WRITE_TIMEOUT;
use super::timestamp::rfc3339;

/// What a resumed recording says to who plays it.
const RESUMED: &str = "the agent was restarted: what was sent and written meanwhile may be missing";

/// Makes recordings; clones share the thread that writes them.
#[derive(Clone)]
pub(super) struct Recordings {
    queue: Sender<Job>,
    numbers: Arc<AtomicU64>,
    /// What cannot be recorded does not run.
    is_strict: bool,
    /// Bytes of all that are there.
    total: Arc<AtomicU64>,
    /// Those that are incomplete, since the agent started.
    failures: Arc<AtomicU64>,
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
    pub(super) fn start(config: RecordingsConfig, path: &Path, is_strict: bool) -> io::Result<Self> {
        let [total, failures] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let (queue, jobs) = mpsc::channel();
        let (directory, of_directory) = (of_log(path), Arc::clone(&total));
        let work = move || {
            let (max_bytes, hidden_input) = (config.max_bytes, config.hidden_input);
            Writer::new(Directory::new(directory, config, of_directory), max_bytes, hidden_input).run(&jobs);
        };
        std::thread::Builder::new().name("recordings".into()).spawn(work)?;
        Ok(Self { queue, numbers: Arc::default(), is_strict, total, failures })
    }

    /// Begins a recording.
    ///
    /// # Errors
    /// Why it cannot be begun.
    pub(super) async fn create(&self, about: About, size: Option<TerminalSize>) -> Result<Recording, String> {
        let now = OffsetDateTime::now_utc();
        let time = rfc3339(now).replace(['-', ':'], "");
        let file = format!("{time}-{}{}", about.execution_id, directory::SUFFIX);
        let timestamp = u64::try_from(now.unix_timestamp()).unwrap_or_default();
        let recording = self.recording(file, about.clone(), boot_time(), size);
        let shared = Arc::clone(&recording.shared);
        let (reply, answer) = oneshot::channel();
        let create = Create { shared, about, size, timestamp, reply };
        let _ = self.queue.send(Job::Create(Box::new(create)));
        match tokio::time::timeout(WRITE_TIMEOUT, answer).await {
            Ok(Ok(created)) => created.map(|()| recording),
            Ok(Err(_)) => Err("it cannot be written".to_owned()),
            Err(_) => Err("the disk does not answer".to_owned()),
        }
    }

    /// Resumes one that an earlier agent has begun.
    pub(super) fn resume(&self, Continuation { file, about, begun }: Continuation) -> Recording {
        let recording = self.recording(file, about.clone(), begun, None);
        let _ = self.queue.send(Job::Resume(Arc::clone(&recording.shared), Box::new(about)));
        recording.add(Event::Marker(RESUMED.to_owned()));
        recording
    }

    fn recording(&self, file: String, about: About, begun: Duration, size: Option<TerminalSize>) -> Recording {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        Recording {
            queue: self.queue.clone(),
            shared: Arc::new(Shared::new(number, file, Arc::clone(&self.failures))),
            about,
            begun,
            is_strict: self.is_strict,
            terminal: OnceLock::new(),
            size: Mutex::new(size),
        }
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
        let [bytes, incomplete] = [&self.total, &self.failures].map(|count| count.load(Ordering::Relaxed));
        RecordingsReport { bytes, incomplete }
    }
}

/// What the next agent needs to continue a recording.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Continuation {
    file: String,
    about: About,
    /// By [`boot_time`].
    begun: Duration,
}

/// The recording of one execution.
pub(super) struct Recording {
    queue: Sender<Job>,
    shared: Arc<Shared>,
    about: About,
    /// By [`boot_time`].
    begun: Duration,
    is_strict: bool,
    terminal: OnceLock<ObservedTerminal>,
    /// Of the terminal, as recorded.
    size: Mutex<Option<TerminalSize>>,
}

impl Recording {
    /// The name of its file.
    pub(super) fn file(&self) -> &str {
        &self.shared.file
    }

    pub(super) fn continuation(&self) -> Continuation {
        Continuation { file: self.file().to_owned(), about: self.about.clone(), begun: self.begun }
    }

    /// Its execution has this terminal.
    pub(super) fn set_terminal(&self, terminal: ObservedTerminal) {
        let _ = self.terminal.set(terminal);
    }

    pub(super) fn output(&self, stream: OutputStream, data: &[u8]) {
        if self.shared.has_failed() {
            return;
        }
        self.add_size();
        self.add(Event::Output(stream, data.to_owned()));
    }

    pub(super) fn input(&self, data: &[u8], is_hidden: bool) {
        if self.shared.has_failed() {
            return;
        }
        self.add_size();
        self.add(Event::Input { data: data.to_owned(), is_hidden });
    }

    /// Records the size of the terminal if it is another one.
    fn add_size(&self) {
        let Some(size) = self.terminal.get().and_then(ObservedTerminal::size) else { return };
        let recorded = self.size.lock().unwrap_or_else(PoisonError::into_inner).replace(size);
        if recorded != Some(size) {
            self.add(Event::Resized(size));
        }
    }

    fn add(&self, event: Event) {
        self.shared.gave(event.cost());
        let _ = self.queue.send(Job::Event(self.shared.number, self.elapsed(), event));
    }

    fn elapsed(&self) -> Duration {
        boot_time().saturating_sub(self.begun)
    }

    /// See [`ExecutionObserver::room`](telexec_engine::ExecutionObserver::room).
    pub(super) fn room(&self) -> Option<Pin<Box<dyn Future<Output = ()> + Send + '_>>> {
        if self.shared.has_room() { None } else { Some(Box::pin(self.shared.room())) }
    }

    /// See [`ExecutionObserver::stop`](telexec_engine::ExecutionObserver::stop).
    pub(super) fn stop(&self) -> Option<Pin<Box<dyn Future<Output = ()> + Send + '_>>> {
        if self.is_strict { Some(Box::pin(self.shared.failed())) } else { None }
    }

    /// Closes the file, and gives its totals to `then`.
    pub(super) fn finish(self, then: impl FnOnce(Recorded) + Send + 'static) {
        let _ = self.queue.send(Job::Finish(self.shared.number, self.elapsed(), Box::new(then)));
    }

    /// Removes the file: nothing ran.
    pub(super) fn discard(self) {
        let _ = self.queue.send(Job::Discard(self.shared.number));
    }
}
