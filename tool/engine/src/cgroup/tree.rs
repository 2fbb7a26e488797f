//! One engine's own part of a hierarchy: a directory, below which each of its executions has one, in version 2 within that of its
//! identity.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tracing::warn;

use super::directory::Directory;
use super::files::{pids, remove, write};
use super::groups::is_group;
use crate::lock::lock;

/// The file that gives controllers of version 2 to the cgroups below.
pub(super) const SUBTREE: &str = "cgroup.subtree_control";

/// What the names of these directories begin with.
pub(super) const PREFIX: &str = "telexec.";

/// A directory for the cgroups of one engine. Dropping it removes it with all below that holds no process.
#[derive(Debug)]
pub(super) struct Tree {
    path: PathBuf,
    next: AtomicU64,
    held: Mutex<Held>,
    was_restored: AtomicBool,
}

/// What keeps it in use.
#[derive(Debug)]
struct Held {
    /// Locked for as long as its engine lives: a directory that is not locked is of a dead one. `None`: it was removed
    /// for good.
    lock: Option<File>,
    /// The controllers that those below it have, if it is of version 2.
    shared: Vec<String>,
}

/// How many directories of dead engines of the same process id may be in the way.
const MAX_TRIES: u64 = 1000;

impl Tree {
    /// A new one in this cgroup. What dead engines have left there is removed, unless processes are in it, or it is of an
    /// execution that goes on.
    ///
    /// # Errors
    /// None can be made, usually for want of permission.
    pub(super) fn new(base: &Path, inherited: &[PathBuf]) -> io::Result<Self> {
        static ENGINES: AtomicU64 = AtomicU64::new(0);
        remove_abandoned(base, inherited)?;
        for _ in 0..MAX_TRIES {
            let number = ENGINES.fetch_add(1, Ordering::Relaxed);
            let path = base.join(format!("{PREFIX}{}.{number}", std::process::id()));
            match fs::create_dir(&path).and_then(|()| try_lock(&path)) {
                Ok(Some(lock)) => {
                    let held = Mutex::new(Held { lock: Some(lock), shared: Vec::new() });
                    return Ok(Self { path, next: AtomicU64::new(0), held, was_restored: AtomicBool::new(false) });
                }
                // another engine took this one for a dead one's
                Ok(None) => {}
                // a dead engine of the same process id has left it
                Err(error) if matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        lock(&self.held)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives a controller of version 2 to the cgroups below it.
    ///
    /// # Errors
    /// It does not have that controller itself.
    pub(super) fn share(&self, controller: &str) -> io::Result<()> {
        write(&self.path, SUBTREE, &format!("+{controller}"))?;
        self.held().shared.push(controller.to_owned());
        Ok(())
    }

    /// Removes it now, unless processes are in it. None can be made in it from now on.
    pub(super) fn remove(&self) {
        self.held().lock = None;
        let _ = remove(&self.path);
    }

    /// It gives this controller to the cgroups below it.
    pub(super) fn shares(&self, controller: &str) -> bool {
        self.held().shared.iter().any(|shared| shared == controller)
    }

    /// Gives the same controllers to what is below this cgroup, which is in it.
    ///
    /// # Errors
    /// It was removed.
    pub(super) fn share_further(&self, cgroup: &Path) -> io::Result<()> {
        let shared = self.held().shared.iter().map(|controller| format!("+{controller}")).collect::<Vec<_>>();
        match shared.is_empty() {
            true => Ok(()),
            false => write(cgroup, SUBTREE, &shared.join(" ")),
        }
    }

    /// A new cgroup for an execution.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn add_leaf(&self) -> io::Result<Directory> {
        // a name of this engine's own making: a request's id never becomes a path
        let path = self.path.join(self.next.fetch_add(1, Ordering::Relaxed).to_string());
        self.make(&path)?;
        Ok(Directory::reserved(path, None))
    }

    /// Makes a cgroup in it.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn make(&self, path: &Path) -> io::Result<()> {
        match fs::create_dir(path) {
            // a tool that removes empty cgroups has removed it
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.restore()?;
                fs::create_dir(path)
            }
            created => created,
        }
    }

    /// It was made again since this was last asked: it has another inode.
    pub(super) fn was_restored(&self) -> bool {
        self.was_restored.swap(false, Ordering::Relaxed)
    }

    fn restore(&self) -> io::Result<()> {
        let mut held = self.held();
        if held.lock.is_none() {
            return Err(io::ErrorKind::NotFound.into());
        }
        match fs::create_dir(&self.path) {
            // another thread was faster
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            created => created?,
        }
        self.was_restored.store(true, Ordering::Relaxed);
        held.lock = try_lock(&self.path)?;
        held.shared.iter().try_for_each(|controller| write(&self.path, SUBTREE, &format!("+{controller}")))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.remove();
    }
}

/// The lock of a directory; `None`: someone else has it, or the directory was removed.
///
/// # Errors
/// It cannot be opened, or locked by anyone.
fn try_lock(path: &Path) -> io::Result<Option<File>> {
    let directory = File::open(path)?;
    match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) if path.exists() => Ok(Some(directory)),
        Ok(()) | Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn remove_abandoned(base: &Path, inherited: &[PathBuf]) -> io::Result<()> {
    for entry in fs::read_dir(base)? {
        let entry = entry?;
        if inherited.iter().any(|leaf| leaf.starts_with(entry.path())) {
            continue;
        }
        if entry.file_name().to_string_lossy().starts_with(PREFIX)
            && let Ok(Some(_lock)) = try_lock(&entry.path())
            && remove(&entry.path()).is_err()
            && pids(&entry.path()).is_ok_and(|pids| !pids.is_empty())
        {
            warn!(cgroup = %entry.path().display(), "an agent that has ended has left processes in a cgroup");
        }
    }
    Ok(())
}

/// The cgroups of executions in the directory of an engine.
///
/// # Errors
/// It cannot be read.
pub(super) fn leaves(tree: &Path) -> io::Result<Vec<PathBuf>> {
    let mut leaves = Vec::new();
    for path in below(tree)? {
        match is_group(&path) {
            true => leaves.extend(below(&path)?),
            false => leaves.push(path),
        }
    }
    Ok(leaves)
}

fn below(cgroup: &Path) -> io::Result<Vec<PathBuf>> {
    let mut below = Vec::new();
    for entry in fs::read_dir(cgroup)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            below.push(entry.path());
        }
    }
    Ok(below)
}

/// Whether this is the directory of an engine.
pub(super) fn is_tree(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dead_engine_left_is_removed_and_a_live_one_is_left_alone() {
        let base = tempfile::tempdir().unwrap();
        let dead = base.path().join(format!("{PREFIX}1.0"));
        fs::create_dir_all(dead.join("0/of a command")).unwrap();
        let live = Tree::new(base.path(), &[]).unwrap();
        assert!(!dead.exists());
        let other = Tree::new(base.path(), &[]).unwrap();
        let directory = live.add_leaf().unwrap();
        assert!(directory.path().exists() && other.path != live.path);
        drop((directory, live, other));
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    }
}
