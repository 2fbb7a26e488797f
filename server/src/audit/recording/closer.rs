//! Closing files: where they are to be on disk then, that takes a thread of its own, so that it holds up nobody else's recording.

use std::fs::File;
use std::io;
use std::sync::mpsc::{self, Sender};

use tokio::sync::oneshot;

use super::file::Recorded;

/// A file to be closed, and who gets its totals.
pub(super) struct Close {
    /// `None`: it need not be on disk.
    pub(super) file: Option<File>,
    pub(super) recorded: Recorded,
    pub(super) then: Box<dyn FnOnce(Recorded) + Send>,
}

impl Close {
    fn run(self) {
        let Self { file, mut recorded, then } = self;
        if let Some(Err(error)) = file.map(|file| file.sync_data()) {
            recorded.error.get_or_insert(format!("it may not be on disk: {error}"));
        }
        then(recorded);
    }
}

/// What is done after all files that were closed before.
enum Job {
    Close(Box<Close>),
    Reply(oneshot::Sender<()>),
}

/// Closes files in their order.
pub(super) struct Closer(Option<Sender<Job>>);

impl Closer {
    /// With a thread, if files are to be on disk.
    ///
    /// # Errors
    /// There are no more threads.
    pub(super) fn start(sync: bool) -> io::Result<Self> {
        if !sync {
            return Ok(Self(None));
        }
        let (queue, jobs) = mpsc::channel();
        let work = move || {
            for job in jobs {
                match job {
                    Job::Close(close) => close.run(),
                    Job::Reply(reply) => drop(reply.send(())),
                }
            }
        };
        std::thread::Builder::new().name("recordings-sync".into()).spawn(work)?;
        Ok(Self(Some(queue)))
    }

    pub(super) fn close(&self, close: Close) {
        match &self.0 {
            Some(queue) => drop(queue.send(Job::Close(Box::new(close)))),
            None => close.run(),
        }
    }

    /// Replies once all is closed.
    pub(super) fn reply(&self, reply: oneshot::Sender<()>) {
        match &self.0 {
            Some(queue) => drop(queue.send(Job::Reply(reply))),
            None => drop(reply.send(())),
        }
    }
}
