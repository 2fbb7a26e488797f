//! The thread that writes all recordings: off the runtime's threads, since disks may block.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use telexec_executor::TerminalSize;
use tokio::sync::oneshot;
use tracing::warn;

use super::cast::{About, Encoder, Event, Header};
use super::directory::Directory;
use super::file::{CastFile, Recorded};
use super::shared::Shared;

/// Jobs that are done before what they add is written.
const MAX_BATCH: usize = 256;
/// What a file gathers at most before it is written.
const MAX_PENDING: u64 = 1024 * 1024;
/// How often those that are too old are looked for.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(3600);

/// A job for the thread.
pub(super) enum Job {
    Create(Box<Create>),
    /// Continue what an earlier agent has begun.
    Resume(Arc<Shared>, Box<About>),
    /// What happened this long after the start.
    Event(u64, Duration, Event),
    /// Close the file after this time, and give its totals to this.
    Finish(u64, Duration, Box<dyn FnOnce(Recorded) + Send>),
    /// Remove the file: nothing ran.
    Discard(u64),
    /// Write everything, then reply.
    Close(oneshot::Sender<()>),
}

/// A recording to be created.
pub(super) struct Create {
    pub(super) shared: Arc<Shared>,
    pub(super) about: About,
    pub(super) size: Option<TerminalSize>,
    /// In seconds since 1970.
    pub(super) timestamp: u64,
    pub(super) reply: oneshot::Sender<Result<(), String>>,
}

/// A recording that is being written.
struct Open {
    shared: Arc<Shared>,
    identity: String,
    /// `None`: it is written no further.
    file: Option<CastFile>,
    /// Bytes of events that are not written.
    taken: usize,
    /// When the last of them happened.
    at: Duration,
}

/// What the thread has.
pub(super) struct Writer {
    directory: Directory,
    max_bytes: u64,
    hidden_input: bool,
    open: HashMap<u64, Open>,
    /// Those with lines that are not written.
    dirty: Vec<u64>,
}

impl Writer {
    pub(super) fn new(directory: Directory, max_bytes: u64, hidden_input: bool) -> Self {
        Self { directory, max_bytes, hidden_input, open: HashMap::new(), dirty: Vec::new() }
    }

    /// Works until there is nobody to give it jobs.
    pub(super) fn run(mut self, jobs: &Receiver<Job>) {
        loop {
            match jobs.recv_timeout(CLEANUP_INTERVAL) {
                Ok(first) => {
                    let mut closed: Vec<oneshot::Sender<()>> = Vec::new();
                    for job in std::iter::once(first).chain(jobs.try_iter().take(MAX_BATCH)) {
                        closed.extend(self.work(job));
                    }
                    self.flush();
                    for reply in closed {
                        let _ = reply.send(());
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.directory.refresh(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn work(&mut self, job: Job) -> Option<oneshot::Sender<()>> {
        match job {
            Job::Create(create) => self.create(*create),
            Job::Resume(shared, about) => self.resume(shared, &about),
            Job::Event(number, at, event) => self.add(number, at, &event),
            Job::Finish(number, at, then) => self.finish(number, at, then),
            Job::Discard(number) => self.discard(number),
            Job::Close(reply) => return Some(reply),
        }
        None
    }

    fn create(&mut self, Create { shared, about, size, timestamp, reply }: Create) {
        if reply.is_closed() {
            // the caller waits no more
            return;
        }
        let encoder = Encoder::new(about.terminal, self.hidden_input);
        let identity = about.identity.clone();
        let header = Header::new(about, size, timestamp);
        let created = header.to_line().and_then(|header| {
            let file = self.directory.create(&shared.file, &identity)?;
            let mut file = CastFile::new(file, encoder, header);
            let flushed = file.flush();
            if flushed.is_err() {
                self.directory.remove(&shared.file);
            }
            flushed.map(|()| file)
        });
        let number = shared.number;
        let answer = created.map_err(|error| error.to_string()).map(|file| {
            let open = Open { shared, identity, file: Some(file), taken: 0, at: Duration::ZERO };
            self.open.insert(number, open);
        });
        if reply.send(answer).is_err() {
            self.discard(number);
        }
    }

    fn resume(&mut self, shared: Arc<Shared>, about: &About) {
        let encoder = Encoder::new(about.terminal, self.hidden_input);
        let resumed = self.directory.reopen(&shared.file).and_then(|file| CastFile::resume(file, encoder));
        let file = match resumed {
            Ok(file) => {
                self.directory.grown(&shared.file, file.length());
                Some(file)
            }
            Err(error) => {
                shared.fail(&format!("it cannot be continued: {error}"));
                None
            }
        };
        let identity = about.identity.clone();
        self.open.insert(shared.number, Open { shared, identity, file, taken: 0, at: Duration::ZERO });
    }

    fn add(&mut self, number: u64, at: Duration, event: &Event) {
        let Some(open) = self.open.get_mut(&number) else { return };
        open.taken += event.cost();
        open.at = at;
        let added = open.file.as_mut().map_or(Ok(()), |file| file.add(at, event, self.max_bytes));
        if self.dirty.last() != Some(&number) {
            self.dirty.push(number);
        }
        if let Err(error) = added {
            self.write(number);
            self.fail(number, &error);
        } else if self
            .open
            .get(&number)
            .and_then(|open| open.file.as_ref())
            .is_some_and(|file| file.pending() >= MAX_PENDING)
        {
            self.write(number);
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
        let written = match &mut open.file {
            Some(file) => {
                let room = self.directory.check_room(&open.identity, file.pending());
                room.and_then(|()| file.flush()).map(|()| self.directory.grown(&open.shared.file, file.length()))
            }
            None => Ok(()),
        };
        open.shared.took(std::mem::take(&mut open.taken));
        if let Err(error) = written {
            self.fail(number, &error);
        }
    }

    /// Ends a recording before its execution has ended.
    fn fail(&mut self, number: u64, error: &io::Error) {
        let Some(open) = self.open.get_mut(&number) else { return };
        let reason = error.to_string();
        warn!(file = open.shared.file, reason, "a recording is incomplete");
        if let Some(mut file) = open.file.take() {
            file.drop_pending();
            let marker = Event::Marker(format!("the recording ends here: {reason}"));
            // there may be no room for that either
            let _ = file.add(open.at, &marker, u64::MAX).and_then(|()| file.flush());
            self.directory.grown(&open.shared.file, file.length());
        }
        open.shared.fail(&reason);
    }

    fn finish(&mut self, number: u64, at: Duration, then: Box<dyn FnOnce(Recorded) + Send>) {
        self.write(number);
        if let Some(file) = self.open.get_mut(&number).and_then(|open| open.file.as_mut())
            && let Err(error) = file.finish(at)
        {
            self.fail(number, &error);
        }
        let Some(Open { shared, file, .. }) = self.open.remove(&number) else { return };
        let totals = file.map(|file| file.digest());
        if let Some((bytes, _)) = &totals {
            self.directory.grown(&shared.file, *bytes);
        }
        self.directory.closed(&shared.file);
        let (bytes, sha256) = totals.unzip();
        let bytes = bytes.unwrap_or_default();
        then(Recorded { file: shared.file.clone(), bytes, sha256, error: shared.reason() });
    }

    fn discard(&mut self, number: u64) {
        if let Some(Open { shared, .. }) = self.open.remove(&number) {
            self.directory.remove(&shared.file);
        }
    }
}
