//! Removing a directory with all that it contains, however deep that is.
//!
//! Each directory is opened by its name in the one above, never through a link, so nothing outside is removed, whatever
//! others do meanwhile. Only the deepest ones are held open: one further up is found again as the parent of the one below,
//! and must be the one that it was.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, DirEntry, FileType, Mode, OFlags, fstat, openat, unlinkat};
use rustix::io::Errno;
use telexec_executor::{FileError, FileOperation};

use crate::place::{MAX_PATH_BYTES, Place};
use crate::search::below;
use crate::session::failure;

/// Directories that are held open.
const MAX_OPEN: usize = 32;
const READ: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What could not be removed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unremoved {
    /// Its path below the directory.
    pub(crate) path: Vec<u8>,
    /// Why.
    pub(crate) errno: Errno,
}

impl Unremoved {
    /// As an error of removing this directory. What has a longer path than the system takes is named by a directory above it.
    pub(crate) fn below(&self, directory: &[u8]) -> FileError {
        let path = if self.path.is_empty() { directory.to_vec() } else { below(directory, &self.path) };
        let named = match path.get(..=MAX_PATH_BYTES) {
            Some(longest) => longest.rsplitn(2, |byte| *byte == b'/').nth(1).unwrap_or_default(),
            None => &path,
        };
        failure(FileOperation::Remove, named)(self.errno)
    }
}

/// Removes it, up to the first thing that cannot be removed. What others remove meanwhile is as good.
///
/// # Errors
/// Of what could not be removed; `ENOENT` also for a directory that somebody moves away meanwhile.
pub(crate) fn remove_all(place: &Place) -> Result<(), Unremoved> {
    let mut removal = Removal { place, path: Vec::new(), above: Vec::new(), open: VecDeque::new() };
    removal.run().map_err(|errno| Unremoved { path: removal.path, errno })
}

struct Removal<'a> {
    place: &'a Place,
    /// What is being removed: names below the directory of the place, with a slash between them.
    path: Vec<u8>,
    /// Devices and inodes of the directories above those that are open.
    above: Vec<(u64, u64)>,
    open: VecDeque<Dir>,
}

impl Removal<'_> {
    fn run(&mut self) -> Result<(), Errno> {
        if let Some(root) = remove_or_open(self.place.directory(), self.place.name(), FileType::Directory)? {
            self.enter(root)?;
        }
        while let Some(directory) = self.open.back_mut() {
            match directory.read().transpose()? {
                Some(entry) => self.remove(&entry)?,
                None => self.leave()?,
            }
        }
        Ok(())
    }

    /// Removes an entry of the deepest directory. One that contains something is the deepest from now on.
    fn remove(&mut self, entry: &DirEntry) -> Result<(), Errno> {
        let name = entry.file_name().to_bytes();
        let (Some(directory), false) = (self.open.back(), matches!(name, b"." | b"..")) else { return Ok(()) };
        let above = self.path.len();
        if above > 0 {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
        match remove_or_open(directory.fd()?, OsStr::from_bytes(name), entry.file_type()) {
            Ok(Some(deeper)) => return self.enter(deeper),
            Ok(None) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        self.path.truncate(above);
        Ok(())
    }

    fn enter(&mut self, directory: OwnedFd) -> Result<(), Errno> {
        self.open.push_back(Dir::new(directory)?);
        if self.open.len() > MAX_OPEN
            && let Some(closed) = self.open.pop_front()
        {
            self.above.push(identity(closed.fd()?)?);
        }
        Ok(())
    }

    /// Removes the deepest directory, which is empty now.
    fn leave(&mut self) -> Result<(), Errno> {
        let Some(emptied) = self.open.pop_back() else { return Ok(()) };
        if self.open.is_empty()
            && let Some(expected) = self.above.pop()
        {
            self.open.push_back(Dir::new(parent(&emptied, expected)?)?);
        }
        let slash = self.path.iter().rposition(|byte| *byte == b'/');
        let removed = match self.open.back() {
            Some(above) => {
                let name = self.path.get(slash.map_or(0, |slash| slash + 1)..).unwrap_or_default();
                unlinkat(above.fd()?, OsStr::from_bytes(name), AtFlags::REMOVEDIR)
            }
            None => unlinkat(self.place.directory(), self.place.name(), AtFlags::REMOVEDIR),
        };
        match removed {
            Ok(()) | Err(Errno::NOENT) => self.path.truncate(slash.unwrap_or_default()),
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Removes what has this name, or opens it if it is a directory with something in it. What kind it is said to be need not be
/// true any more.
fn remove_or_open(directory: impl AsFd, name: &OsStr, kind: FileType) -> Result<Option<OwnedFd>, Errno> {
    if kind != FileType::Directory {
        match unlinkat(&directory, name, AtFlags::empty()) {
            Err(Errno::ISDIR) => {}
            removed => return removed.map(|()| None),
        }
    }
    match openat(&directory, name, READ, Mode::empty()) {
        Err(Errno::NOTDIR | Errno::LOOP) => unlinkat(&directory, name, AtFlags::empty()).map(|()| None),
        // an empty one need not be read
        Err(Errno::ACCESS) => unlinkat(&directory, name, AtFlags::REMOVEDIR).map(|()| None).or(Err(Errno::ACCESS)),
        opened => opened.map(Some),
    }
}

/// Opens the directory that another is in, which is this one unless somebody has moved that.
fn parent(directory: &Dir, expected: (u64, u64)) -> Result<OwnedFd, Errno> {
    let parent = openat(directory.fd()?, "..", READ, Mode::empty())?;
    if identity(&parent)? == expected { Ok(parent) } else { Err(Errno::NOENT) }
}

fn identity(directory: impl AsFd) -> Result<(u64, u64), Errno> {
    fstat(directory).map(|stat| (stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, create_dir, create_dir_all};
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use rustix::fs::{CWD, RenameFlags, mkdirat, renameat_with, symlinkat};
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;
    use crate::place::Links;

    fn remove(path: &Path) -> Result<(), Unremoved> {
        remove_all(&Place::of(path.as_os_str().as_bytes(), Links::Keep).unwrap())
    }

    /// Makes directories in one another, and whatever else is to be in each.
    fn make_deep(root: &Path, depth: usize, make: impl Fn(&OwnedFd, usize)) {
        create_dir(root).unwrap();
        let mut directory = openat(CWD, root, READ, Mode::empty()).unwrap();
        for level in 0..depth {
            make(&directory, level);
            mkdirat(&directory, "deeper", Mode::RWXU).unwrap();
            directory = openat(&directory, "deeper", READ, Mode::empty()).unwrap();
        }
    }

    #[test]
    fn no_depth_is_too_deep() {
        // as processes have it mostly
        let nofile = Rlimit { current: Some(1024), ..getrlimit(Resource::Nofile) };
        setrlimit(Resource::Nofile, nofile).unwrap();
        let scene = tempfile::tempdir().unwrap();
        let (root, outside) = (scene.path().join("root"), scene.path().join("outside"));
        create_dir_all(outside.join("kept")).unwrap();
        make_deep(&root, 10_000, |directory, level| {
            // before and after the next level, in whatever order they are read
            if level % 100 == 0 {
                symlinkat(&outside, directory, "a link").unwrap();
                for name in ["b", "c", "x", "y"] {
                    mkdirat(directory, name, Mode::RWXU).unwrap();
                    symlinkat("nowhere", openat(directory, name, READ, Mode::empty()).unwrap(), "link").unwrap();
                }
            }
        });
        assert_eq!(remove(&root), Ok(()));
        assert!(!root.exists() && outside.join("kept").exists());
    }

    /// Puts a link in the place of a directory and takes it away again, until it is over.
    fn swap(directory: &Path, link: &Path, outside: &Path, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Relaxed) {
            let _ = symlink(outside, link);
            for _ in 0..2 {
                let _ = renameat_with(CWD, link, CWD, directory, RenameFlags::EXCHANGE);
            }
            // what was swapped in was removed: this is the directory
            if link.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
                let _ = fs::remove_dir_all(link);
            }
        }
    }

    #[test]
    fn what_is_swapped_in_meanwhile_leads_nowhere() {
        let scene = tempfile::tempdir().unwrap();
        let (root, outside) = (scene.path().join("root"), scene.path().join("outside"));
        create_dir_all(outside.join("c/d")).unwrap();
        for name in ["kept", "c/kept", "c/d/kept"] {
            fs::write(outside.join(name), "").unwrap();
        }
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| swap(&root.join("a/b"), &scene.path().join("link"), &outside, &is_over));
            let end = Instant::now() + Duration::from_secs(2);
            while Instant::now() < end {
                let _ = create_dir_all(root.join("a/b/c/d"));
                let _ = remove(&root);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        for name in ["kept", "c/kept", "c/d/kept"] {
            assert!(outside.join(name).exists(), "{name}");
        }
    }

    #[test]
    fn a_directory_that_was_moved_is_not_left_for_another_one() {
        let scene = tempfile::tempdir().unwrap();
        create_dir_all(scene.path().join("a/b")).unwrap();
        let open = |name: &str| openat(CWD, scene.path().join(name), READ, Mode::empty()).unwrap();
        let (above, below) = (identity(open("a")).unwrap(), Dir::new(open("a/b")).unwrap());
        assert_eq!(identity(parent(&below, above).unwrap()), Ok(above));
        fs::rename(scene.path().join("a/b"), scene.path().join("b")).unwrap();
        assert_eq!(parent(&below, above).err(), Some(Errno::NOENT));
    }

    #[test]
    fn what_is_too_deep_is_named_by_a_directory_above_it() {
        let unremoved = |path: &str| Unremoved { path: path.into(), errno: Errno::ACCESS };
        let named = |path: &str| unremoved(path).below(b"/top").path.as_bytes().to_vec();
        assert_eq!(named(""), b"/top");
        assert_eq!(named("a/b"), b"/top/a/b");
        let deep = "abcd/".repeat(2000);
        assert_eq!(named(&deep), format!("/top/{}", &deep[..4089]).into_bytes());
        assert_eq!(named(&deep[..4090]), format!("/top/{}", &deep[..4090]).into_bytes());
    }
}
