//! One engine's own part of a hierarchy: a directory, below which each of its executions has one.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, chmod, chmodat, flock, fstat, openat, unlinkat,
};
use rustix::io::Errno;
use tracing::warn;

use crate::lock::lock;
use crate::process::table;

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

    /// A new cgroup.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn add_leaf(&self) -> io::Result<Directory> {
        // a name of this engine's own making: a request's id never becomes a path
        let path = self.path.join(self.next.fetch_add(1, Ordering::Relaxed).to_string());
        match fs::create_dir(&path) {
            // a tool that removes empty cgroups has removed it
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.restore()?;
                fs::create_dir(&path)?;
            }
            created => created?,
        }
        Ok(Directory { path, is_inherited: false, is_reserved: true })
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
    for entry in fs::read_dir(tree)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            leaves.push(entry.path());
        }
    }
    Ok(leaves)
}

/// The cgroup of one execution. Dropping it removes it, and those that its processes made, if no process is in them.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// The directory that it is in is of a dead engine: it is removed with the last one.
    is_inherited: bool,
    /// No process of an execution is in it; but one may be that a keeper has made for it.
    is_reserved: bool,
}

/// How long such a process may take to end: far longer than it does.
const RESERVED_TIMEOUT: Duration = Duration::from_millis(100);

impl Directory {
    /// One that a dead engine has left.
    pub(super) fn abandoned(path: PathBuf) -> Self {
        Self { path, is_inherited: false, is_reserved: false }
    }

    /// One of an execution that goes on, while its engine is dead.
    pub(super) fn inherited(path: PathBuf) -> Self {
        Self { path, is_inherited: true, is_reserved: false }
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
        write(&self.path, name, value)
    }

    /// Reads one of its files.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn read(&self, name: &str) -> io::Result<String> {
        io::read_to_string(self.file(name, OFlags::RDONLY)?)
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
        pids(&self.path)
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
        if let Some(tree) = self.path.parent().filter(|_| self.is_inherited) {
            let _ = try_remove(tree);
        }
    }
}

/// Writes a file of a cgroup.
///
/// # Errors
/// There is none, or it does not take this value.
pub(super) fn write(cgroup: &Path, name: &str, value: &str) -> io::Result<()> {
    File::from(open(&cgroup.join(name), OFlags::WRONLY)?).write_all(value.as_bytes())
}

/// Opens a cgroup, or a file of one, also if a command of this user has closed it to its user.
fn open(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let open = || rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty());
    match open() {
        Err(Errno::ACCESS) => {
            let_in(path)?;
            Ok(open()?)
        }
        opened => Ok(opened?),
    }
}

/// Gives this user, the owner, access again.
fn let_in(path: &Path) -> io::Result<()> {
    match (chmod(path, Mode::RWXU), path.parent()) {
        // its parent is closed too
        (Err(Errno::ACCESS), Some(parent)) => {
            let_in(parent)?;
            Ok(chmod(path, Mode::RWXU)?)
        }
        (changed, _) => Ok(changed?),
    }
}

/// Reads a file of a cgroup.
fn read_at(cgroup: BorrowedFd<'_>, name: &str) -> io::Result<String> {
    let mut text = String::new();
    File::from(open_at(cgroup, name, OFlags::RDONLY)?).read_to_string(&mut text)?;
    Ok(text)
}

/// Writes a file of a cgroup.
pub(super) fn write_at(cgroup: BorrowedFd<'_>, name: &str, value: &str) -> io::Result<()> {
    File::from(open_at(cgroup, name, OFlags::WRONLY)?).write_all(value.as_bytes())
}

/// Opens what is in a cgroup, also if a command of this user has closed it to its user.
fn open_at(cgroup: BorrowedFd<'_>, name: impl rustix::path::Arg + Copy, flags: OFlags) -> io::Result<OwnedFd> {
    let open = || openat(cgroup, name, flags | OFlags::CLOEXEC, Mode::empty());
    match open() {
        Err(Errno::ACCESS) => {
            chmodat(cgroup, name, Mode::RWXU, AtFlags::empty())?;
            Ok(open()?)
        }
        opened => Ok(opened?),
    }
}

/// Removes a cgroup and those below it, the deepest first.
///
/// # Errors
/// A process is in one of them.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let began = Instant::now();
    loop {
        match try_remove(path) {
            // Version 1 does not show processes that are ending, but counts them until they have left. And another
            // thread may be about to remove what is below.
            Err(error) if is_busy(&error) && began.elapsed() < LEAVE_TIMEOUT && is_left(path) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            result => return result,
        }
    }
}

/// Otherwise it is not this user's to remove.
fn is_busy(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::DirectoryNotEmpty)
}

/// How long the last processes of a cgroup may take to leave it: far longer than they do.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

fn try_remove(path: &Path) -> io::Result<()> {
    // most have none below
    match fs::remove_dir(path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(_) => {}
    }
    walk(path, |_| Ok(()), |parent, name| Ok(unlinkat(parent, name, AtFlags::REMOVEDIR)?))?;
    fs::remove_dir(path)
}

/// No process is visible in a cgroup and those below it, but for such as are ending.
fn is_left(path: &Path) -> bool {
    let stays = |pid: &i32| {
        let process = table::read(*pid).ok().flatten();
        process.is_some_and(|process| !process.zombie && !process.exiting)
    };
    match pids(path) {
        Ok(pids) => !pids.iter().any(stays),
        // another thread has removed one of them, perhaps while it was read
        Err(error) => error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV),
    }
}

/// The processes in a cgroup and in all below it.
///
/// # Errors
/// As [`Directory::pids`].
pub(super) fn pids(path: &Path) -> io::Result<Vec<i32>> {
    let mut pids = Vec::new();
    let mut note = |cgroup: BorrowedFd<'_>| {
        let text = match read_at(cgroup, "cgroup.procs") {
            // a threaded one, see cgroups(7); the file is there, but only threads are listed
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                let threads = read_at(cgroup, "cgroup.threads")?;
                pids.extend(numbers(&threads).filter_map(table::of_thread));
                return Ok(());
            }
            text => text?,
        };
        pids.extend(numbers(&text));
        Ok(())
    };
    walk(path, &mut note, |_, _| Ok(()))?;
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

/// The number on the line that begins with `key`.
pub(super) fn number(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
    value.trim().parse().ok()
}

fn numbers(lines: &str) -> impl Iterator<Item = i32> {
    lines.lines().filter_map(|line| line.parse().ok())
}

/// Goes through a directory and all below it: `enter` sees each before those below it, `leave` each but the first after
/// them, by its parent and its name.
///
/// A command may have made more levels than a path or the descriptors of this process can name: so only one is open.
fn walk(
    path: &Path,
    mut enter: impl FnMut(BorrowedFd<'_>) -> io::Result<()>,
    mut leave: impl FnMut(BorrowedFd<'_>, &CStr) -> io::Result<()>,
) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut current = open(path, flags)?;
    enter(current.as_fd())?;
    let mut levels = vec![(c"".to_owned(), below(&current)?)];
    while let Some((_, children)) = levels.last_mut() {
        match children.pop() {
            Some(child) => {
                current = open_at(current.as_fd(), child.as_c_str(), flags)?;
                enter(current.as_fd())?;
                levels.push((child, below(&current)?));
            }
            None if levels.len() == 1 => return Ok(()),
            None => {
                current = openat(&current, c"..", flags, Mode::empty())?;
                let (name, _) = levels.pop().unwrap_or_default();
                leave(current.as_fd(), &name)?;
            }
        }
    }
    Ok(())
}

/// The directories in a directory.
fn below(directory: &OwnedFd) -> io::Result<Vec<CString>> {
    // each of them counts as a link, and most have none: that saves reading all names
    if fstat(directory)?.st_nlink == 2 {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if entry.file_type() == FileType::Directory && !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_deeper_than_any_path_are_walked_and_removed() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("root");
        fs::create_dir(&root).unwrap();
        let mut current = File::open(&root).unwrap().into();
        for _ in 0..100 {
            let name = "x".repeat(200);
            rustix::fs::mkdirat(&current, "side", Mode::RWXU).unwrap();
            rustix::fs::mkdirat(&current, &name, Mode::RWXU).unwrap();
            current = openat(&current, &name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
        let mut count = 0;
        let count_all = |_: BorrowedFd<'_>| {
            count += 1;
            Ok(())
        };
        walk(&root, count_all, |_, _| Ok(())).unwrap();
        assert_eq!(count, 201);
        remove(&root).unwrap();
        assert!(!root.exists());
    }

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
