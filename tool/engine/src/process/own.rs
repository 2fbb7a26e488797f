//! The main process of an execution: a child of this process, or of its keeper.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::process::Pid;
use tokio::io::unix::AsyncFd;

use super::children::{DirectCanceller, DirectChild};
use super::control::{self, Ended};
use super::keeper::{HeldState, Kept};
use super::kept_child::KeptChild;

/// A child of the engine, from before it exists until it is reaped. Dropping it gives the child up: nobody asks for its exit
/// status any more.
pub(crate) enum OwnChild {
    /// Of this process.
    Direct(DirectChild),
    /// Of the keeper.
    Kept(KeptHandle),
}

/// A child of the keeper. Dropping it gives the child up, which is reaped once it has ended; but not one of an earlier agent
/// that nobody has claimed.
pub(crate) struct KeptHandle {
    kept: Arc<Kept>,
    child: Arc<KeptChild>,
    is_claimed: bool,
}

impl KeptHandle {
    /// A child that is about to be made.
    pub(crate) fn expect(kept: &Arc<Kept>) -> Self {
        Self { kept: Arc::clone(kept), child: kept.expect(), is_claimed: true }
    }

    /// One that an earlier agent has left.
    pub(crate) fn of(kept: &Arc<Kept>, child: Arc<KeptChild>) -> Self {
        Self { kept: Arc::clone(kept), child, is_claimed: false }
    }

    /// This agent continues it.
    pub(crate) fn claim(&mut self) {
        self.is_claimed = true;
    }

    pub(crate) fn child(&self) -> &Arc<KeptChild> {
        &self.child
    }

    /// What the keeper holds for it.
    pub(crate) fn held(&self) -> HeldState {
        HeldState::new(&self.kept, &self.child)
    }
}

impl Drop for KeptHandle {
    fn drop(&mut self) {
        if self.is_claimed {
            self.kept.release(&self.child);
        }
    }
}

impl OwnChild {
    /// Ends it from elsewhere while it is being made.
    pub(crate) fn canceller(&self) -> Canceller {
        match self {
            Self::Direct(child) => Canceller::Direct(child.canceller()),
            Self::Kept(handle) => Canceller::Kept(Arc::clone(&handle.kept), Arc::clone(&handle.child)),
        }
    }

    /// It may outlive its call, and the agent.
    pub(crate) fn outlives(&self) {
        match self {
            Self::Direct(_) => {}
            Self::Kept(handle) => handle.kept.outlives(&handle.child),
        }
    }

    /// Takes the child, which has ended, from the process table: now, or as soon as that can be done.
    pub(crate) fn reap(self) {
        match self {
            Self::Direct(child) => child.reap(),
            Self::Kept(handle) => drop(handle),
        }
    }

    /// The same, while the keeper is to hold what it has of it for longer.
    pub(crate) fn reap_and_hold(self) -> Option<KeptHandle> {
        match self {
            Self::Direct(child) => {
                child.reap();
                None
            }
            Self::Kept(handle) => {
                handle.kept.reap(&handle.child);
                Some(handle)
            }
        }
    }
}

/// Ends a child that may be held up on its way to its program.
pub(crate) enum Canceller {
    Direct(DirectCanceller),
    Kept(Arc<Kept>, Arc<KeptChild>),
}

impl Canceller {
    /// Keeps the child from executing its program, or kills it. One that is just being made may only be held up, and a keeper
    /// that has no room may miss this: repeat it until the start has returned.
    pub(crate) fn cancel(&self) {
        match self {
            Self::Direct(child) => child.cancel(),
            Self::Kept(kept, child) => kept.cancel(child),
        }
    }
}

/// The end of a main process that runs, where it is to be seen.
pub(crate) enum EndSource {
    /// The process.
    Pidfd(Pid, OwnedFd),
    /// The keeper.
    Kept(Arc<KeptChild>),
}

/// The same, for the runtime.
pub(crate) enum End {
    Pidfd(Pid, AsyncFd<OwnedFd>),
    Kept(Arc<KeptChild>),
}

impl EndSource {
    /// # Errors
    /// The runtime cannot watch another descriptor.
    pub(crate) fn watch(self) -> io::Result<End> {
        Ok(match self {
            Self::Pidfd(pid, pidfd) => End::Pidfd(pid, control::watch(pidfd)?),
            Self::Kept(child) => End::Kept(child),
        })
    }
}

impl End {
    /// Waits until it has ended; it is not reaped, so its id stays its own.
    pub(crate) async fn reached(&self) {
        match self {
            Self::Pidfd(_, pidfd) => control::ended(pidfd).await,
            Self::Kept(child) => child.ended().await,
        }
    }

    /// How it has ended.
    ///
    /// # Errors
    /// `WouldBlock` if it has not, or a debugger has not seen its end; ECHILD if someone else in this process has reaped it.
    pub(crate) fn status(&self) -> io::Result<Ended> {
        match self {
            Self::Pidfd(pid, _) => control::exit_status(*pid),
            Self::Kept(child) => child.exit_status(),
        }
    }
}
