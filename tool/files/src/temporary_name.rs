//! Names that files have until they get their own. None is left behind by a process that gets SIGTERM.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use aws_lc_rs::rand;
use nix::sys::signal::{SigSet, Signal, raise};
use rustix::fs::{AtFlags, RenameFlags, renameat_with, unlinkat};
use rustix::io::Errno;

/// Enough to remove names.
const STACK_BYTES: usize = 64 * 1024;

/// Those that exist, with their directories.
static NAMES: Mutex<BTreeMap<String, OwnedFd>> = Mutex::new(BTreeMap::new());

/// The name of a file that is not complete. Dropping it removes that.
pub(crate) struct TemporaryName(String);

impl TemporaryName {
    /// Has a file made that nobody else can have named so.
    pub(crate) fn make<T>(
        directory: &OwnedFd,
        make: impl FnOnce(&str) -> Result<T, Errno>,
    ) -> Result<(Self, T), Errno> {
        let name = unused_name()?;
        let directory = rustix::io::fcntl_dupfd_cloexec(directory, 0)?;
        let mut names = names();
        let made = make(&name)?;
        names.insert(name.clone(), directory);
        Ok((Self(name), made))
    }

    /// Gives the file its own name.
    pub(crate) fn rename(self, directory: &OwnedFd, name: &std::ffi::OsStr, flags: RenameFlags) -> Result<(), Errno> {
        let mut names = names();
        let own = names.get(&self.0).ok_or(Errno::NOENT)?;
        renameat_with(own, &*self.0, directory, name, flags)?;
        names.remove(&self.0);
        Ok(())
    }
}

impl Drop for TemporaryName {
    fn drop(&mut self) {
        if let Some(directory) = names().remove(&self.0) {
            let _ = unlinkat(directory, &*self.0, AtFlags::empty());
        }
    }
}

/// Has SIGTERM remove what is not complete before it ends this process: a cancelled command gets that signal first. To be
/// called by a process before its other threads start. Where no thread can be started, the signal ends it as ever.
pub fn remove_temporary_names_on_sigterm() {
    let signals = SigSet::from(Signal::SIGTERM);
    if signals.thread_block().is_err() {
        return;
    }
    let wait = move || {
        while signals.wait().is_err() {}
        // nothing is made or renamed any more
        let names = names();
        for (name, directory) in names.iter() {
            let _ = unlinkat(directory, &**name, AtFlags::empty());
        }
        let _ = signals.thread_unblock();
        let _ = raise(Signal::SIGTERM);
    };
    if thread::Builder::new().stack_size(STACK_BYTES).spawn(wait).is_err() {
        let _ = signals.thread_unblock();
    }
}

fn unused_name() -> Result<String, Errno> {
    let mut random = [0; 16];
    rand::fill(&mut random).map_err(|_| Errno::IO)?;
    Ok(format!(".telexec-{:032x}", u128::from_ne_bytes(random)))
}

/// A panic while the lock was held leaves nothing half done here.
fn names() -> MutexGuard<'static, BTreeMap<String, OwnedFd>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}
