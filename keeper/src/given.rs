//! Descriptors that came from an agent. Closing one may take as long as others like: a socket may linger (socket(7)), a file
//! system may not answer, and a command may hold the lock of its pipe, which asking for its size takes too.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::net::sockopt::set_socket_linger;
use telexec_spawn::elastic_pool::ElasticPool;

use crate::capacity::Capacity;

/// Threads that close and enlarge them; until there are any, whoever drops them closes them.
static THREADS: OnceLock<ElasticPool> = OnceLock::new();

/// How many there are, also of those that are to be closed.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A descriptor. Dropping its last clone closes it: by a thread, in a keeper.
#[derive(Clone, Debug)]
pub struct Given(Arc<Inner>);

/// Both until it is dropped.
#[derive(Debug)]
struct Inner(Option<(OwnedFd, Capacity)>);

/// From now on threads close and enlarge them. If there can be none now, call this again.
///
/// # Errors
/// There can be no threads.
pub(crate) fn start_threads() -> io::Result<()> {
    if THREADS.get().is_none() {
        let _ = THREADS.set(ElasticPool::new("given", 1)?);
    }
    Ok(())
}

/// How many are open.
pub(crate) fn count() -> usize {
    COUNT.load(Ordering::Acquire)
}

fn close((file, capacity): (OwnedFd, Capacity)) {
    // of what is no socket this is an error
    let _ = set_socket_linger(&file, None);
    drop(file);
    drop(capacity);
    // after close(2) has returned: what is not counted any more holds up nothing
    COUNT.fetch_sub(1, Ordering::Release);
}

impl From<OwnedFd> for Given {
    fn from(file: OwnedFd) -> Self {
        COUNT.fetch_add(1, Ordering::Relaxed);
        Self(Arc::new(Inner(Some((file, Capacity::default())))))
    }
}

impl Given {
    /// Has a thread enlarge it, if it is the read end of a pipe that is filling. It stays open meanwhile, for as long as a command holds
    /// the pipe's lock.
    pub(crate) fn enlarge_if_filling(&self) {
        // without threads nothing is enlarged
        if let (Some((file, capacity)), Some(threads)) = (&self.0.0, THREADS.get())
            && capacity.claim(file)
        {
            let Self(inner) = self.clone();
            threads.run(move || inner.0.iter().for_each(|(file, capacity)| capacity.enlarge_if_filling(file)));
        }
    }

    /// As any other descriptor, for who trusts the agent. `None`: there are clones.
    pub fn into_inner(self) -> Option<OwnedFd> {
        let (file, _) = Arc::into_inner(self.0)?.0.take()?;
        COUNT.fetch_sub(1, Ordering::Relaxed);
        Some(file)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        match (self.0.take(), THREADS.get()) {
            (Some(file), Some(threads)) => threads.run(move || close(file)),
            (Some(file), None) => close(file),
            (None, _) => {}
        }
    }
}

impl AsFd for Given {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // it is taken only with the value
        self.0.0.as_ref().map_or(rustix::stdio::stdin(), |(file, _)| file.as_fd())
    }
}

impl AsRawFd for Given {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
