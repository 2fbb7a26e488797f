//! Listing a directory.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, OFlags, readlinkat, statat};
use rustix::io::Errno;
use telexec_executor::FileOperation;

use crate::message::{Access, ListTask, Listed, Outcome};
use crate::place::{Links, Place};
use crate::session::{Refusal, Session, failure};

/// A page, in the order of the names' bytes. Names that come or go between two pages may be missing; no other is.
pub(crate) fn list<I: Read, O: Write>(session: &mut Session<I, O>, task: &ListTask) -> Result<Outcome, Refusal> {
    let cannot_open = failure(FileOperation::Open, &task.path);
    let place = Place::of(&task.path, Links::Follow).map_err(&cannot_open)?;
    session.permitted(Access::List, &place)?;
    let directory = place.open(OFlags::RDONLY | OFlags::DIRECTORY).map_err(&cannot_open)?;
    let (names, has_more) =
        names(&directory, &task.after, task.limit as usize).map_err(failure(FileOperation::Read, &task.path))?;
    let mut entries = Vec::with_capacity(names.len());
    for name in names {
        let path = OsStr::from_bytes(&name);
        // what is gone by now is not listed
        if let Ok(stat) = statat(&directory, path, AtFlags::SYMLINK_NOFOLLOW) {
            let target = readlinkat(&directory, path, Vec::new()).ok().map(std::ffi::CString::into_bytes);
            entries.push(session.describe(&name, &stat, target));
        }
    }
    Ok(Outcome::Listed(Listed { entries, has_more }))
}

/// The first names after this one, and whether there are more.
pub(crate) fn names(
    directory: &std::os::fd::OwnedFd,
    after: &[u8],
    limit: usize,
) -> Result<(BTreeSet<Vec<u8>>, bool), Errno> {
    let mut names = BTreeSet::new();
    let mut has_more = false;
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if matches!(&name[..], b"." | b"..") || name[..] <= *after {
            continue;
        }
        names.insert(name);
        if names.len() > limit {
            names.pop_last();
            has_more = true;
        }
    }
    Ok((names, has_more))
}
