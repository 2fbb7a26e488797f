//! Descriptors that came from an agent. Closing one may take as long as the agent likes: a socket may linger (socket(7)), a
//! file system of its own may not answer.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

use rustix::net::sockopt::set_socket_linger;

/// To the thread that closes them, if there is one.
static CLOSER: OnceLock<Sender<OwnedFd>> = OnceLock::new();

/// How many there are, also of those that are to be closed.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A descriptor. Dropping it closes it: by a thread, where the agent is another user.
#[derive(Debug)]
pub struct Given(Option<OwnedFd>);

/// From now on a thread closes them. What holds it up holds up nothing else, but for what is to be closed after it.
///
/// # Errors
/// There can be no thread.
pub(crate) fn close_by_thread() -> io::Result<()> {
    let (sender, given) = channel();
    std::thread::Builder::new().name("closer".into()).spawn(move || given.into_iter().for_each(close))?;
    let _ = CLOSER.set(sender);
    Ok(())
}

/// How many are open.
pub(crate) fn count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

fn close(file: OwnedFd) {
    // of what is no socket this is an error
    let _ = set_socket_linger(&file, None);
    drop(file);
    COUNT.fetch_sub(1, Ordering::Relaxed);
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
        match (self.0.take(), CLOSER.get()) {
            (Some(file), Some(closer)) => drop(closer.send(file)),
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
