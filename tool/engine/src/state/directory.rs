//! The directory of one engine in its state directory.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tempfile::TempDir;
use tracing::warn;

use super::disk::{DISK_TIMEOUT, Disk};
use super::notes::Notes;
use super::{engine_file, own_directory, temporary_directory};
use crate::lock::lock;
use crate::wait::RETRY_DELAY;

/// What the names of engines' directories begin with.
pub(crate) const DIRECTORY_PREFIX: &str = "spool-";
/// A file in the state directory that only this user can open: anyone who can open a file can lock it.
pub(crate) const LOCK: &str = "lock";

/// The directory of one engine. It is removed with the last owner, unless it is left to the next engine.
pub(crate) struct EngineDirectory {
    disk: Disk,
    state_dir: PathBuf,
    path: PathBuf,
    /// The next engine is to have the files.
    is_left: AtomicBool,
    /// Locked while its engine lives: a directory that is not locked is a dead engine's.
    lock: Mutex<File>,
    notes: Arc<Notes>,
    /// Removes the state directory with this one, if it is a temporary one.
    temporary: Option<TempDir>,
}

/// The directories that dead engines have left; no other engine takes them while this is not dropped.
pub(crate) struct Earlier {
    pub(crate) directories: Vec<PathBuf>,
    _all: File,
}

impl EngineDirectory {
    /// A new one, below the state directory or a temporary one, and those of earlier engines there. Blocks.
    ///
    /// # Errors
    /// The directory cannot be made or used.
    pub(crate) fn new(disk: Disk, state_dir: Option<&Path>) -> io::Result<(Arc<Self>, Earlier)> {
        let temporary = if state_dir.is_none() { Some(temporary_directory()?) } else { None };
        let state_dir = match (state_dir, &temporary) {
            (Some(path), _) => own_directory(path)?,
            (None, Some(temporary)) => temporary.path().to_owned(),
            (None, None) => return Err(io::ErrorKind::NotFound.into()),
        };
        let all = lock_all(&state_dir)?;
        let directories = abandoned(&state_dir)?;
        let path = tempfile::Builder::new().prefix(DIRECTORY_PREFIX).tempdir_in(&state_dir)?;
        let lock = Mutex::new(lock_directory(path.path())?);
        let path = path.keep();
        let notes = Arc::new(Notes::new(path.clone()));
        let is_left = AtomicBool::new(false);
        let this = Arc::new(Self { disk, state_dir, path, is_left, lock, notes, temporary });
        Ok((this, Earlier { directories, _all: all }))
    }

    /// Leaves the files to the next engine, with what the handover has written beside them.
    pub(crate) fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
    }

    /// It is this engine's own again.
    pub(crate) fn keep(&self) {
        self.is_left.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Relaxed)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// The state directory is removed with the engine.
    pub(crate) fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }

    /// For everything that blocks on the state directory.
    pub(crate) fn disk(&self) -> &Disk {
        &self.disk
    }

    /// What is written again with the directory.
    pub(crate) fn notes(&self) -> &Arc<Notes> {
        &self.notes
    }

    /// Makes the directory again, if it was removed. Blocks.
    ///
    /// # Errors
    /// It cannot be made, or is another's now.
    pub(crate) fn recreate(&self) -> io::Result<()> {
        self.try_recreate().map_err(|error| {
            io::Error::new(error.kind(), format!("{}, where output is kept: {error}", self.path.display()))
        })
    }

    fn try_recreate(&self) -> io::Result<()> {
        let mut lock = lock(&self.lock);
        let held = lock.metadata()?;
        match fs::metadata(&self.path) {
            Ok(there) if (there.dev(), there.ino()) == (held.dev(), held.ino()) => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let _all = lock_all(&own_directory(&self.state_dir)?)?;
        match DirBuilder::new().mode(0o700).create(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => *lock = lock_directory(&own_directory(&self.path)?)?,
        }
        warn!(path = %self.path.display(), "the state directory was removed, and is made again: output that was kept in it is lost");
        self.notes.rewrite();
        Ok(())
    }

    /// Removes all files. Blocks on the file system.
    pub(crate) fn remove(&self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

impl Drop for EngineDirectory {
    fn drop(&mut self) {
        if self.is_left() {
            return;
        }
        let (directory, temporary) = (self.path.clone(), self.temporary.take());
        let remove = move || {
            let _ = fs::remove_dir_all(directory);
            drop(temporary);
        };
        // waited for, since this process may end now
        let _ = self.disk.run_blocking(DISK_TIMEOUT, remove);
    }
}

/// While the file is open, no other engine takes a directory that is being made for an abandoned one.
pub(crate) fn lock_all(state_dir: &Path) -> io::Result<File> {
    let all = open_lock(state_dir)?;
    flock(&all, FlockOperation::LockExclusive)?;
    Ok(all)
}

/// The same, by who does not wait longer than this for others. Blocks.
///
/// # Errors
/// Another engine holds it.
pub(crate) fn lock_all_within(state_dir: &Path, limit: Duration) -> io::Result<File> {
    let all = open_lock(state_dir)?;
    let until = Instant::now() + limit;
    loop {
        match flock(&all, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(RETRY_DELAY),
            locked => return locked.map(|()| all).map_err(io::Error::from),
        }
    }
}

fn open_lock(state_dir: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).write(true).mode(0o600).open(state_dir.join(LOCK))
}

/// The same, if it is not locked.
///
/// # Errors
/// Another engine holds it, or there is none.
pub(crate) fn try_lock_all(state_dir: &Path) -> io::Result<File> {
    let all = File::options().write(true).open(state_dir.join(LOCK))?;
    flock(&all, FlockOperation::NonBlockingLockExclusive)?;
    Ok(all)
}

pub(crate) fn lock_directory(directory: &Path) -> io::Result<File> {
    let lock = File::open(directory)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    Ok(lock)
}

/// Directories of engines that do not live any more.
pub(crate) fn abandoned(state_dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(state_dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(DIRECTORY_PREFIX)
            && let Ok(directory) = File::open(entry.path())
            && (flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok()
                || engine_file::has_ended(&entry.path()))
        {
            found.push(entry.path());
        }
    }
    Ok(found)
}
