//! The directories and files of cgroups, however their commands have nested or closed them.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, chmod, chmodat, fstat, openat, unlinkat};
use rustix::io::Errno;

use crate::process::table;

/// Writes a file of a cgroup.
///
/// # Errors
/// There is none, or it does not take this value.
pub(super) fn write(cgroup: &Path, name: &str, value: &str) -> io::Result<()> {
    File::from(open(&cgroup.join(name), OFlags::WRONLY)?).write_all(value.as_bytes())
}

/// Opens a cgroup, or a file of one, also if a command of this user has closed it to its user.
pub(super) fn open(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
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
    read_text(&File::from(open_at(cgroup, name, OFlags::RDONLY)?))
}

/// Reads a file whose length the kernel does not know: without the fstat(2) and lseek(2) of `File::read_to_string`.
pub(super) fn read_text(file: &File) -> io::Result<String> {
    let mut text = String::with_capacity(512);
    file.take(u64::MAX).read_to_string(&mut text)?;
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
            // thread may be about to remove what is below, or have removed what was to be entered next.
            Err(error) if is_passing(&error) && began.elapsed() < LEAVE_TIMEOUT && is_left(path) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            result => return result,
        }
    }
}

/// Otherwise it is not this user's to remove.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::DirectoryNotEmpty) || is_gone(error)
}

/// A cgroup, or one below it, was removed.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

/// How long the last processes of a cgroup may take to leave it: far longer than they do.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) fn try_remove(path: &Path) -> io::Result<()> {
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
        Err(error) => is_gone(&error),
    }
}

/// The processes in a cgroup and in all below it.
///
/// # Errors
/// They cannot be read now, for want of descriptors or memory, or since cgroups were removed meanwhile.
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

/// Goes through a directory and all below it, but for what only root may enter: `enter` sees each before those below it, `leave`
/// each but the first after them, by its parent and its name.
///
/// A command may have made more levels than a path or the descriptors of this process can name: so only one is open.
pub(super) fn walk(
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
                let Some(next) = unless_closed(open_at(current.as_fd(), child.as_c_str(), flags))? else { continue };
                let Some(children) = unless_closed(below(&next))? else { continue };
                current = next;
                unless_closed(enter(current.as_fd()))?;
                levels.push((child, children));
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

/// `None`: a command of root has closed it to this process, which is another user's. What ends all in a cgroup does not need to look
/// into it.
fn unless_closed<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        result => result.map(Some),
    }
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
    use std::path::PathBuf;

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
    fn a_directory_is_removed_while_other_threads_remove_what_is_in_it() {
        let place = tempfile::tempdir().unwrap();
        for _ in 0..100 {
            let root = place.path().join("root");
            let leaves: Vec<PathBuf> = (0..20).map(|number| root.join(number.to_string())).collect();
            leaves.iter().for_each(|leaf| fs::create_dir_all(leaf).unwrap());
            let others = std::thread::spawn(move || leaves.iter().for_each(|leaf| drop(remove(leaf))));
            remove(&root).unwrap();
            others.join().unwrap();
        }
    }
}
