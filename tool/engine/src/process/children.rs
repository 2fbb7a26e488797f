//! Which children of this process are the engine's own. Any other child of an agent is a stranger: an orphan
//! that was given to it.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use rustix::process::{Pid, Signal, kill_process};

use super::{control, table};
use crate::lock::lock;
use telexec_spawn::{PendingChild, exit};

/// Of all engines of this process, since a process has one set of children.
static OWN: LazyLock<Mutex<HashMap<u64, Arc<PendingChild>>>> = LazyLock::new(Mutex::default);
static NEXT: AtomicU64 = AtomicU64::new(0);
/// Those that have ended and cannot be reaped yet: the kernel reports such an end to a debugger first, see ptrace(2).
static LATER: Mutex<Vec<DirectChild>> = Mutex::new(Vec::new());

/// A child of this process, from before it exists until it is reaped. Dropping it gives the child up: it is a stranger
/// then.
pub(crate) struct DirectChild {
    key: u64,
    pending: Arc<PendingChild>,
}

impl DirectChild {
    /// A child that is about to be made.
    pub(crate) fn expect() -> Self {
        let (key, pending) = (NEXT.fetch_add(1, Ordering::Relaxed), Arc::new(PendingChild::default()));
        lock(&OWN).insert(key, Arc::clone(&pending));
        Self { key, pending }
    }

    /// Where it is noted once it is made.
    pub(crate) fn pending(&self) -> &PendingChild {
        &self.pending
    }

    /// Ends it from elsewhere while it is being made.
    pub(crate) fn canceller(&self) -> DirectCanceller {
        DirectCanceller { key: self.key, pending: Arc::clone(&self.pending) }
    }

    /// Takes the child, which has ended, from the process table: now, or as soon as that can be done.
    pub(crate) fn reap(self) {
        let mut later = lock(&LATER);
        later.push(self);
        later.retain(|child| !child.is_reaped());
    }

    /// The same, of a child that is about to end.
    pub(crate) fn reap_soon(self, pidfd: &OwnedFd) {
        control::wait_briefly(pidfd);
        self.reap();
    }

    fn is_reaped(&self) -> bool {
        // its id may be given to a stranger as soon as it is reaped: see `DirectCanceller::cancel`
        let mut own = lock(&OWN);
        let reaped = match self.pending.pid() {
            // it fails only if someone else has reaped it
            Some(pid) => exit::reap(pid).unwrap_or(true),
            None => true,
        };
        if reaped {
            own.remove(&self.key);
        }
        reaped
    }
}

impl Drop for DirectChild {
    fn drop(&mut self) {
        lock(&OWN).remove(&self.key);
    }
}

/// Ends a child that may be held up on its way to its program.
pub(crate) struct DirectCanceller {
    key: u64,
    pending: Arc<PendingChild>,
}

impl DirectCanceller {
    /// Keeps the child from executing its program, or kills it. One that is just being made may only be held up: repeat this
    /// until the start has returned.
    pub(crate) fn cancel(&self) {
        let own = lock(&OWN);
        // while it is there, its id is its own: it is reaped under this lock
        if let Some(pid) = self.pending.cancel()
            && own.contains_key(&self.key)
        {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Takes ended strangers from the process table. False: an own child that has ended and is not reaped hides more.
pub(crate) fn reap_strangers() -> bool {
    lock(&LATER).retain(|child| !child.is_reaped());
    while let Ok(Some(pid)) = exit::any_ended() {
        if is_own(pid) {
            return false;
        }
        let _ = exit::reap(pid);
    }
    true
}

/// Takes ended strangers from the process table, also those that own children hide.
///
/// # Errors
/// /proc cannot be read.
pub(crate) fn reap_hidden_strangers() -> io::Result<()> {
    let this = i32::try_from(std::process::id()).unwrap_or(0);
    for pid in table::listed()? {
        let ended = table::read(pid)?.is_some_and(|process| process.parent == this && process.zombie);
        if let Some(pid) = Pid::from_raw(pid).filter(|pid| ended && !is_own(*pid)) {
            let _ = exit::reap(pid);
        }
    }
    Ok(())
}

/// How many there are.
#[cfg(test)]
pub(crate) fn known() -> usize {
    lock(&OWN).len()
}

fn is_own(pid: Pid) -> bool {
    lock(&OWN).values().any(|own| own.pid() == Some(pid))
}
