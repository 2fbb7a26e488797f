//! Descriptors that came from an agent. Closing one may take as long as others like: a socket may linger (socket(7)), a file
//! system may not answer, and a command may hold the lock of its pipe.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::net::sockopt::set_socket_linger;
use telexec_spawn::elastic_pool::ElasticPool;

/// By which they are closed; until there are threads, by whoever drops them.
static CLOSERS: OnceLock<ElasticPool> = OnceLock::new();

/// Those that are to be closed, until a thread is woken for all of them.
static DROPPED: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// How many there are, also of those that are to be closed.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A descriptor. Dropping it closes it: in a keeper by a thread, soon.
#[derive(Debug)]
pub struct Given(Option<OwnedFd>);

/// From now on threads close them. If there can be none now, call this again.
///
/// # Errors
/// There can be no threads.
pub(crate) fn close_by_thread() -> io::Result<()> {
    if CLOSERS.get().is_none() {
        let _ = CLOSERS.set(ElasticPool::new("closer", 1)?);
    }
    Ok(())
}

/// Has threads close those that were dropped.
pub(crate) fn close_dropped() {
    let Some(closers) = CLOSERS.get() else { return };
    let dropped = std::mem::take(&mut *DROPPED.lock().unwrap_or_else(PoisonError::into_inner));
    if !dropped.is_empty() {
        closers.run_all(dropped.into_iter().map(|file| move || close(file)));
    }
}

/// How many are open.
pub(crate) fn count() -> usize {
    COUNT.load(Ordering::Acquire)
}

fn close(file: OwnedFd) {
    // of what is no socket this is an error
    let _ = set_socket_linger(&file, None);
    drop(file);
    // after close(2) has returned: what is not counted any more holds up nothing
    COUNT.fetch_sub(1, Ordering::Release);
}

impl From<OwnedFd> for Given {
    fn from(file: OwnedFd) -> Self {
        COUNT.fetch_add(1, Ordering::Relaxed);
        Self(Some(file))
    }
}

impl Given {
    /// As any other descriptor, for who trusts the agent.
    pub fn into_inner(mut self) -> Option<OwnedFd> {
        COUNT.fetch_sub(1, Ordering::Relaxed);
        self.0.take()
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        match (self.0.take(), CLOSERS.get()) {
            (Some(file), Some(_)) => DROPPED.lock().unwrap_or_else(PoisonError::into_inner).push(file),
            (Some(file), None) => close(file),
            (None, _) => {}
        }
    }
}

impl AsFd for Given {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // it is taken only with the value
        self.0.as_ref().map_or(rustix::stdio::stdin(), OwnedFd::as_fd)
    }
}

impl AsRawFd for Given {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
