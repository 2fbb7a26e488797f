//! What a directory contains at all depths, for rules about files that move or go with it.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, statat};
use rustix::io::Errno;

use crate::place::Place;
use crate::search::below;

/// More are refused: each is decided about.
const MAX_NAMES: usize = 100_000;
/// The same of all their paths, which may be longer than any that the system takes.
const MAX_BYTES: usize = 64 * 1024 * 1024;
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The paths of all that is in this directory, below it, without following links. Anything else has none.
///
/// # Errors
/// A directory cannot be read; `E2BIG`: there is more than can be decided about.
pub(crate) fn paths_below(place: &Place) -> Result<Vec<Vec<u8>>, Errno> {
    let root = match openat(place.directory(), place.name(), DIRECTORY, Mode::empty()) {
        Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => return Ok(Vec::new()),
        root => root?,
    };
    let (mut found, mut bytes) = (Vec::new(), 0);
    let (mut waiting, mut last) = (vec![Vec::new()], (Vec::new(), open(&root, b"")?));
    while let Some(directory) = waiting.pop() {
        // mostly in the last one: from the outermost, one that is deep would be found slowly
        let opened = match directory.strip_prefix(&last.0[..]).filter(|rest| rest.starts_with(b"/")) {
            Some(rest) => open(&last.1, rest)?,
            None => open(&root, &directory)?,
        };
        last = (directory, opened);
        for entry in entries(&last.1)? {
            let (name, is_directory) = entry?;
            let path = below(&last.0, &name);
            bytes += path.len();
            if is_directory {
                waiting.push(path.clone());
            }
            found.push(path);
            if found.len() > MAX_NAMES || bytes > MAX_BYTES {
                return Err(Errno::TOOBIG);
            }
        }
    }
    Ok(found)
}

/// A directory below another, name by name.
fn open(root: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let mut directory = openat(root, ".", DIRECTORY, Mode::empty())?;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        directory = openat(&directory, OsStr::from_bytes(name), DIRECTORY, Mode::empty())?;
    }
    Ok(directory)
}

/// The names in a directory, and whether they are directories.
///
/// # Errors
/// It cannot be read.
pub(crate) fn entries(directory: &OwnedFd) -> Result<impl Iterator<Item = Result<(Vec<u8>, bool), Errno>>, Errno> {
    let read = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let names = Dir::new(openat(directory, ".", read, Mode::empty())?)?;
    Ok(names.filter_map(move |entry| {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => return Some(Err(error)),
        };
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            return None;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                let stat = statat(directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
                FileType::from_raw_mode(stat.st_mode)
            }
            kind => kind,
        };
        Some(Ok((name.to_vec(), kind == FileType::Directory)))
    }))
}
