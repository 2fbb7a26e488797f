//! Which children of this process are the engine's own. Whatever else ends as a child of an agent is a stranger: an
//! orphan that was given to it.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use rustix::process::Pid;

use super::{process, processes};

/// Of all engines of this process, since a process has one set of children.
static OWN: LazyLock<Mutex<HashMap<u64, Arc<AtomicI32>>>> = LazyLock::new(Mutex::default);
static NEXT: AtomicU64 = AtomicU64::new(0);

fn own() -> MutexGuard<'static, HashMap<u64, Arc<AtomicI32>>> {
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A child of the engine, from before it exists until it is reaped. Dropping it gives the child up: it is a stranger then.
pub(super) struct OwnChild {
    key: u64,
    /// 0 until it exists.
    pid: Arc<AtomicI32>,
}

impl OwnChild {
    /// A child that is about to be made.
    pub(super) fn expect() -> Self {
        let (key, pid) = (NEXT.fetch_add(1, Ordering::Relaxed), Arc::new(AtomicI32::new(0)));
        own().insert(key, Arc::clone(&pid));
        Self { key, pid }
    }

    /// Where the child notes its id before it does anything else.
    pub(super) fn note(&self) -> &AtomicI32 {
        &self.pid
    }

    /// Takes the child from the process table, waiting for its end if need be.
    pub(super) fn reap(self) {
        let pid = Pid::from_raw(self.pid.load(Ordering::Acquire));
        // its id may be given to a stranger as soon as it is reaped
        drop(self);
        if let Some(pid) = pid {
            // it cannot fail but by someone else's having reaped it
            let _ = process::reap(pid);
        }
    }
}

impl Drop for OwnChild {
    fn drop(&mut self) {
        own().remove(&self.key);
    }
}

/// Takes ended strangers from the process table. False: an own child that has ended and is not reaped hides more.
pub(super) fn reap_strangers() -> bool {
    while let Ok(Some(pid)) = process::any_ended() {
        if is_own(pid) {
            return false;
        }
        let _ = process::reap(pid);
    }
    true
}

/// Takes ended strangers from the process table, also those that own children hide.
///
/// # Errors
/// /proc cannot be read.
pub(super) fn reap_hidden_strangers() -> io::Result<()> {
    let this = i32::try_from(std::process::id()).unwrap_or(0);
    for pid in processes::listed()? {
        let ended = processes::read(pid)?.is_some_and(|process| process.parent == this && process.zombie);
        if let Some(pid) = Pid::from_raw(pid).filter(|pid| ended && !is_own(*pid)) {
            let _ = process::reap(pid);
        }
    }
    Ok(())
}

/// How many there are.
#[cfg(test)]
pub(super) fn known() -> usize {
    own().len()
}

fn is_own(pid: Pid) -> bool {
    own().values().any(|own| own.load(Ordering::Acquire) == pid.as_raw_nonzero().get())
}
