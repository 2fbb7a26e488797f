//! Descriptors that came from an agent. Closing one may take as long as the agent likes: a socket may linger (socket(7)), a
//! file system of its own may not answer.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

/// To the thread that closes them, if there is one.
static CLOSER: OnceLock<Sender<OwnedFd>> = OnceLock::new();

/// A descriptor. Dropping it closes it: by a thread, where the agent is another user.
#[derive(Debug)]
pub struct Given(Option<OwnedFd>);

/// From now on a thread closes them. What holds it up holds up nothing else, but for what is to be closed after it.
///
/// # Errors
/// There can be no thread.
pub(crate) fn close_by_thread() -> io::Result<()> {
    let (sender, given) = channel();
    std::thread::Builder::new().name("closer".into()).spawn(move || given.into_iter().for_each(drop))?;
    let _ = CLOSER.set(sender);
    Ok(())
}

impl From<OwnedFd> for Given {
    fn from(file: OwnedFd) -> Self {
        Self(Some(file))
    }
}

impl Given {
    /// As any other descriptor, for who trusts the agent.
    pub fn into_inner(mut self) -> Option<OwnedFd> {
        self.0.take()
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        if let (Some(file), Some(closer)) = (self.0.take(), CLOSER.get()) {
            let _ = closer.send(file);
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
