//! The cgroup of one execution.

use std::fs::{self, File};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::files::{self, number, open, remove, try_remove, walk};
use super::groups::Group;
use super::tree::is_tree;

/// The cgroup of one execution. Dropping it removes it, and those that its processes made, if no process is in them.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// The directories that it is in are of a dead engine: they are removed with the last one.
    is_inherited: bool,
    /// No process of an execution is in it; but one may be that a keeper has made for it.
    is_reserved: bool,
    /// The directory that it is in, which is removed after the last one. `None`: it stays as long as its engine.
    group: Option<Arc<Group>>,
}

/// How long such a process may take to end: far longer than it does.
const RESERVED_TIMEOUT: Duration = Duration::from_millis(100);

impl Directory {
    /// One that was made for an execution that is about to begin.
    pub(super) fn reserved(path: PathBuf, group: Option<Arc<Group>>) -> Self {
        Self { path, is_inherited: false, is_reserved: true, group }
    }

    /// One that a dead engine has left.
    pub(super) fn abandoned(path: PathBuf) -> Self {
        Self { path, is_inherited: false, is_reserved: false, group: None }
    }

    /// One of an execution that goes on, while its engine is dead.
    pub(super) fn inherited(path: PathBuf) -> Self {
        Self { path, is_inherited: true, is_reserved: false, group: None }
    }

    /// It is in this group.
    pub(super) fn is_in(&self, group: &Arc<Group>) -> bool {
        self.group.as_ref().is_some_and(|own| Arc::ptr_eq(own, group))
    }

    /// A process of an execution is in it from now on.
    pub(super) fn set_entered(&mut self) {
        self.is_reserved = false;
    }

    /// Ends what a keeper has made for it, and removes it.
    fn remove_reserved(&self) {
        let until = Instant::now() + RESERVED_TIMEOUT;
        loop {
            // the keeper may make it just now
            let _ = self.write("cgroup.kill", "1");
            if try_remove(&self.path).is_ok() || Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// It was removed: by a process that had left it, or by a tool that removes empty ones.
    pub(super) fn is_gone(&self) -> bool {
        !fs::exists(&self.path).unwrap_or(true)
    }

    /// Opens one of its files.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        Ok(open(&self.path.join(name), flags)?.into())
    }

    /// Writes one of its files.
    ///
    /// # Errors
    /// There is none, or it does not take this value.
    pub(super) fn write(&self, name: &str, value: &str) -> io::Result<()> {
        files::write(&self.path, name, value)
    }

    /// Reads one of its files.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn read(&self, name: &str) -> io::Result<String> {
        files::read_text(&self.file(name, OFlags::RDONLY)?)
    }

    /// The number on the line of one of its files that begins with `key`.
    pub(super) fn number(&self, name: &str, key: &str) -> Option<u64> {
        number(&self.read(name).ok()?, key)
    }

    /// The processes in it and in all below it.
    ///
    /// # Errors
    /// They cannot be read now, for want of descriptors or memory, or since cgroups were removed meanwhile.
    pub(super) fn pids(&self) -> io::Result<Vec<i32>> {
        files::pids(&self.path)
    }

    /// Does something in it and in all below it.
    ///
    /// # Errors
    /// Those of `work`, and as [`Directory::pids`].
    pub(super) fn each(&self, work: impl FnMut(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<()> {
        walk(&self.path, work, |_, _| Ok(()))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        match self.is_reserved {
            true if try_remove(&self.path).is_ok() => {}
            true if self.write("cgroup.kill", "1").is_ok() => self.remove_reserved(),
            true | false => drop(remove(&self.path)),
        }
        if let Some(tree) = self.path.ancestors().find(|path| self.is_inherited && is_tree(path)) {
            // with the groups in it
            let _ = try_remove(tree);
        }
    }
}
