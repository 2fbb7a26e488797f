//! This side's end of a stream of a command: of a pipe or a terminal.
//!
//! Who writes to a pipe, or reads from it, holds its lock meanwhile, and may do so for as long as it likes: by splice(2) from a
//! socket on which nothing arrives, or where a page of its memory comes from a file system that does not answer. So whatever takes
//! that lock is done by threads that may wait: reading, writing, splice(2), FIONREAD, F_SETPIPE_SZ and close(2). Waiting for an
//! event and poll(2) do not. Of a terminal the command can hold up tcgetattr(3) and close(2) alone.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use telexec_spawn::elastic_pool::ElasticPool;

use tokio::sync::oneshot;

/// Threads that may wait for the commands of one engine: one, and as many as these hold up, a few for each stream.
#[derive(Clone)]
pub(crate) struct StreamThreads(ElasticPool);

impl StreamThreads {
    /// # Errors
    /// There can be no thread.
    pub(crate) fn new() -> io::Result<Self> {
        // more only pass the data from one processor's cache to another's
        ElasticPool::new("stream", 1).map(Self)
    }
}

/// One end, at which reading and writing do not wait for data or room. Dropping it closes it.
pub(crate) struct StreamEnd {
    /// Until it is dropped.
    file: Option<OwnedFd>,
    threads: StreamThreads,
}

impl StreamEnd {
    /// # Errors
    /// None are known.
    pub(crate) fn new(file: OwnedFd, threads: &StreamThreads) -> io::Result<Self> {
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

    /// Begins what may wait for a lock.
    pub(crate) fn begin<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> oneshot::Receiver<T> {
        let (answer, answered) = oneshot::channel();
        self.threads.0.run(move || drop(answer.send(work())));
        answered
    }

    /// Does what may wait for a lock; also if this is dropped.
    ///
    /// # Errors
    /// Its own.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.begin(work).await.map_err(io::Error::other)?
    }
}

impl Drop for StreamEnd {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.threads.0.run(move || drop(file));
        }
    }
}

impl AsFd for StreamEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // it is taken only by drop
        self.file.as_ref().map_or(rustix::stdio::stdin(), OwnedFd::as_fd)
    }
}

impl AsRawFd for StreamEnd {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
