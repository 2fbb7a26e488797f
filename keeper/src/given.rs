//! Descriptors that came from an agent. Closing one may take as long as the agent likes: a socket may linger (socket(7)), a
//! file system of its own may not answer.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::net::sockopt::set_socket_linger;

/// To the thread that closes them, where there is to be one.
static CLOSER: OnceLock<Sender<OwnedFd>> = OnceLock::new();
/// What the thread takes from, until there is one.
static QUEUE: Mutex<Option<Receiver<OwnedFd>>> = Mutex::new(None);

/// How many there are, also of those that are to be closed.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A descriptor. Dropping it closes it: by a thread, where the agent is another user.
#[derive(Debug)]
pub struct Given(Option<OwnedFd>);

/// From now on a thread closes them. What holds it up holds up nothing else, but for what is to be closed after it. If there can
/// be no thread now, they wait: call this again.
///
/// # Errors
/// There can be no thread.
pub(crate) fn close_by_thread() -> io::Result<()> {
    let mut queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
    CLOSER.get_or_init(|| {
        let (sender, given) = channel();
        *queue = Some(given);
        sender
    });
    if queue.is_none() {
        return Ok(());
    }
    let close_all = || {
        let given = QUEUE.lock().unwrap_or_else(PoisonError::into_inner).take();
        given.into_iter().flatten().for_each(close);
    };
    std::thread::Builder::new().name("closer".into()).spawn(close_all).map(drop)
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
        match (self.0.take(), CLOSER.get()) {
            (Some(file), Some(closer)) => {
                let _ = closer.send(file).map_err(|unsent| close(unsent.0));
            }
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
