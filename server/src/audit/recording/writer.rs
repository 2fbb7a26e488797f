//! The thread that writes all recordings: off the runtime's threads, since disks may block.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tracing::warn;

use super::cast::{About, Encoder, Event, Header};
use super::closer::{Close, Closer};
use super::directory::Directory;
use super::file::{CastFile, Recorded};
use super::job::{Create, Finish, Job};
use super::shared::{Shared, Thread};

/// Jobs that are done before what they add is written.
const MAX_BATCH: usize = 256;
/// How often those that are too old are removed.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(3600);

/// How files are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// The most that one takes.
    pub(super) max_bytes: u64,
    /// Show hidden input as it is.
    pub(super) hidden_input: bool,
    /// Wait until files are on disk when they are closed.
    pub(super) sync: bool,
}

/// A recording that is being written.
struct Open {
    shared: Arc<Shared>,
    /// `None`: it could not be resumed.
    file: Option<CastFile>,
    /// An earlier agent has begun it.
    is_resumed: bool,
    /// Its end is written.
    is_closed: bool,
    /// Events that are not written.
    events: u64,
    /// When the last of them happened.
    at: Duration,
}

impl Open {
    fn new(shared: Arc<Shared>, file: Option<CastFile>, is_resumed: bool) -> Self {
        Self { shared, file, is_resumed, is_closed: false, events: 0, at: Duration::ZERO }
    }

    fn add(&mut self, at: Duration, event: &Event, max_bytes: u64) -> io::Result<()> {
        (self.events, self.at) = (self.events + 1, at);
        match &mut self.file {
            Some(file) if !self.is_closed => file.add(at, event, max_bytes),
            _ => Ok(()),
        }
    }

    /// Writes what is pending, if there is room for it.
    fn write(&mut self, directory: &mut Directory) -> io::Result<()> {
        let Some(file) = self.file.as_mut().filter(|_| !self.is_closed) else { return Ok(()) };
        directory.reserve(&self.shared.file, file.length())?;
        file.flush()
    }

    /// Ends it before its execution has ended.
    fn fail(&mut self, error: &io::Error, directory: &mut Directory) {
        let reason = error.to_string();
        self.shared.fail(&reason);
        let Some(file) = self.file.as_mut().filter(|_| !self.is_closed) else { return };
        self.is_closed = true;
        file.drop_pending();
        // there may be no room for that either
        let _ = file.end(self.at, &reason).and_then(|()| file.flush());
        directory.grown(&self.shared.file, file.length());
    }
}

/// What the thread has.
pub(super) struct Writer {
    directory: Directory,
    settings: Settings,
    open: HashMap<u64, Open>,
    /// Those with events that are not written.
    dirty: Vec<u64>,
    /// Those that are begun once it is known what is there; `None`: it is.
    waiting: Option<Vec<Create>>,
    /// Closes files where that takes long.
    closer: Closer,
    thread: Arc<Thread>,
    /// When what is too old is removed.
    cleans_at: Instant,
}

impl Writer {
    pub(super) fn new(directory: Directory, settings: Settings, closer: Closer, thread: Arc<Thread>) -> Self {
        let (open, dirty, waiting) = (HashMap::new(), Vec::new(), Some(Vec::new()));
        Self { directory, settings, open, dirty, waiting, closer, thread, cleans_at: Instant::now() + CLEANUP_INTERVAL }
    }

    /// Works until there is nobody to give it jobs.
    pub(super) fn run(mut self, jobs: &Receiver<Job>) {
        loop {
            if self.cleans_at <= Instant::now() {
                self.clean();
            }
            match jobs.recv_timeout(self.cleans_at.saturating_duration_since(Instant::now())) {
                Ok(first) => {
                    let mut closed = Vec::new();
                    for job in std::iter::once(first).chain(jobs.try_iter().take(MAX_BATCH)) {
                        closed.extend(self.work(job));
                    }
                    self.flush();
                    closed.into_iter().for_each(|reply| self.closer.reply(reply));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn clean(&mut self) {
        self.directory.clean();
        self.cleans_at = Instant::now() + CLEANUP_INTERVAL;
    }

    fn work(&mut self, job: Job) -> Option<oneshot::Sender<()>> {
        self.thread.works();
        match job {
            Job::Create(create) => match &mut self.waiting {
                Some(waiting) => waiting.push(*create),
                None => self.create(*create),
            },
            Job::Found(entries) => {
                self.directory.found(entries);
                self.waiting.take().into_iter().flatten().for_each(|create| self.create(create));
            }
            Job::Resume(shared, about) => self.resume(shared, &about),
            Job::Clean => self.clean(),
            Job::Event(number, at, event) => self.add(number, at, &event),
            Job::Finish(finish) => self.finish(finish),
            Job::Discard(number) => self.discard(number),
            Job::Close(reply) => return Some(reply),
        }
        None
    }

    fn create(&mut self, Create { shared, about, size, timestamp, reply, slot: _slot }: Create) {
        if reply.is_closed() {
            // the caller waits no more
            return;
        }
        let encoder = Encoder::new(about.terminal, self.settings.hidden_input);
        let identity = about.identity.clone();
        let header = Header::new(about, size, timestamp).to_line();
        let created = header.and_then(|header| {
            let file = self.directory.create(&shared.file, &identity)?;
            let mut file = CastFile::new(file, encoder, header);
            let written = file.flush();
            if written.is_err() {
                self.directory.remove(&shared.file);
            }
            written.map(|()| file)
        });
        let number = shared.number;
        let answer = created.map_err(|error| error.to_string()).map(|file| {
            self.open.insert(number, Open::new(shared, Some(file), false));
        });
        // dropped there, it is discarded
        let _ = reply.send(answer);
    }

    fn resume(&mut self, shared: Arc<Shared>, about: &About) {
        let encoder = Encoder::new(about.terminal, self.settings.hidden_input);
        let reopened = self.directory.reopen(&shared.file, &about.identity);
        let resumed = reopened.and_then(|file| CastFile::resume(file, encoder, || self.thread.works()));
        let mut open = Open::new(Arc::clone(&shared), None, true);
        match resumed {
            Ok((file, end)) => {
                self.directory.grown(&shared.file, file.length());
                (open.file, open.is_closed) = (Some(file), end.is_some());
                end.iter().for_each(|reason| shared.fail(reason));
            }
            Err(error) => shared.fail(&format!("it cannot be continued: {error}")),
        }
        self.open.insert(shared.number, open);
    }

    fn add(&mut self, number: u64, at: Duration, event: &Event) {
        let Some(open) = self.open.get_mut(&number) else { return };
        if self.dirty.last() != Some(&number) {
            self.dirty.push(number);
        }
        if let Err(error) = open.add(at, event, self.settings.max_bytes) {
            // what there is room for
            let written = open.write(&mut self.directory);
            open.fail(&written.err().unwrap_or(error), &mut self.directory);
        }
    }

    /// Writes all that is pending.
    fn flush(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.sort_unstable();
        dirty.dedup();
        dirty.iter().for_each(|number| self.write(*number));
        dirty.clear();
        self.dirty = dirty;
    }

    /// Writes what is pending of one.
    fn write(&mut self, number: u64) {
        let Some(open) = self.open.get_mut(&number) else { return };
        if let Err(error) = open.write(&mut self.directory) {
            open.fail(&error, &mut self.directory);
        }
        open.shared.wrote(std::mem::take(&mut open.events));
        self.thread.works();
    }

    fn finish(&mut self, Finish { number, at, then }: Finish) {
        self.write(number);
        let Some(mut open) = self.open.remove(&number) else { return };
        open.at = at;
        let rest = match &mut open.file {
            // that of an execution that was no longer waited for
            _ if open.shared.has_failed() => Err(io::Error::other(open.shared.reason().unwrap_or_default())),
            Some(file) => file.finish(at),
            None => Ok(()),
        };
        if let Err(error) = rest {
            open.fail(&error, &mut self.directory);
        }
        let Open { shared, file, is_resumed: continued, .. } = open;
        let (bytes, sha256) = file.as_ref().map(CastFile::digest).unwrap_or_default();
        if file.is_some() {
            self.directory.grown(&shared.file, bytes);
        }
        self.directory.closed(&shared.file);
        let recorded = Recorded { file: shared.file.clone(), bytes, sha256, error: shared.reason(), continued };
        let file = file.filter(|_| self.settings.sync).map(CastFile::into_file);
        self.closer.close(Close { file, recorded, then });
    }

    fn discard(&mut self, number: u64) {
        if let Some(Open { shared, .. }) = self.open.remove(&number) {
            self.directory.remove(&shared.file);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            warn!("nothing is recorded any more, by a fault of the agent");
            self.open.values().for_each(|open| open.shared.fail("a fault of the agent"));
        }
    }
}
