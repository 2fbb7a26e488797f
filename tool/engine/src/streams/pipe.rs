//! This side's end of a pipe whose other end a command has.
//!
//! Who writes to a pipe, or reads from it, holds its lock meanwhile, and may do so for as long as it likes: a page of its memory
//! that is to be copied may come from a file system that does not answer, or from userfaultfd(2). So whatever takes that lock is
//! done by threads that may wait: reading, writing, splice(2), FIONREAD, F_SETPIPE_SZ and close(2). Waiting for an event and
//! poll(2) do not.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use tokio::sync::oneshot;

use crate::workers::Workers;

/// Threads that may wait for the commands of one engine: as many as they hold up, which is at most two for each pipe.
#[derive(Clone)]
pub(crate) struct PipeThreads(Workers);

impl PipeThreads {
    /// # Errors
    /// There can be no thread.
    pub(crate) fn new() -> io::Result<Self> {
        Workers::new("pipe", 1, usize::MAX).map(Self)
    }
}

/// An end of a pipe, which reading and writing do not wait for. Dropping it closes it.
pub(crate) struct PipeEnd {
    /// Until it is dropped.
    file: Option<OwnedFd>,
    threads: PipeThreads,
}

impl PipeEnd {
    /// # Errors
    /// None are known.
    pub(crate) fn new(file: OwnedFd, threads: &PipeThreads) -> io::Result<Self> {
        fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::NONBLOCK)?;
        Ok(Self { file: Some(file), threads: threads.clone() })
    }

    /// Which of these events there are now, and whether the other end is closed.
    pub(crate) fn events(&self, events: PollFlags) -> io::Result<PollFlags> {
        let mut asked = [PollFd::new(self, events)];
        poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        let [answer] = asked;
        Ok(answer.revents())
    }

    /// Has done what may take the lock of the pipe.
    pub(crate) fn begin<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> oneshot::Receiver<T> {
        self.threads.0.spawn("", work)
    }

    /// Does what may take the lock of the pipe. If this is dropped, it is done nevertheless if it has begun.
    ///
    /// # Errors
    /// Its own.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.threads.0.run("", work).await.map_err(io::Error::other)?
    }
}

impl Drop for PipeEnd {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.threads.0.post("", move || drop(file));
        }
    }
}

impl AsFd for PipeEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // it is taken only by drop
        self.file.as_ref().map_or(rustix::stdio::stdin(), OwnedFd::as_fd)
    }
}

impl AsRawFd for PipeEnd {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
