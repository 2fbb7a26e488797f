//! Making directories, moving and removing.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{
    AtFlags, FileType, Mode, RenameFlags, chmodat, mkdirat, renameat, renameat_with, symlinkat, unlinkat,
};
use rustix::io::Errno;
use telexec_executor::FileOperation;

use crate::message::{Access, Done, MakeDirectoryTask, MakeLinkTask, MoveTask, Outcome, RemoveTask};
use crate::place::{Links, Place};
use crate::remove::remove_all;
use crate::session::{Refusal, Session, failure};
use crate::temporary_name::TemporaryName;

/// As mkdir(1).
pub(crate) fn make_directory<I: Read, O: Write>(
    session: &mut Session<I, O>,
    task: &MakeDirectoryTask,
) -> Result<Outcome, Refusal> {
    let failed = failure(FileOperation::MakeDirectory, &task.path);
    let find = if task.make_parents { Place::to_be_made } else { Place::of };
    let mut place = find(&task.path, Links::Keep).map_err(&failed)?;
    session.permitted(Access::Write, &place)?;
    place.make_parents().map_err(&failed)?;
    match mkdirat(place.directory(), place.name(), Mode::from_raw_mode(0o777)) {
        Err(Errno::EXIST) if task.make_parents && is_directory(&place) => return Ok(Outcome::Done(Done {})),
        made => made.map_err(&failed)?,
    }
    // unlike that of mkdir, not less the umask
    if let Some(mode) = task.mode {
        let mode = Mode::from_raw_mode(mode & 0o7777);
        chmodat(place.directory(), place.name(), mode, AtFlags::empty()).map_err(&failed)?;
    }
    Ok(Outcome::Done(Done {}))
}

fn is_directory(place: &Place) -> bool {
    place.stat().is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Whether it is the root directory of this process, whatever its path is.
fn is_root(place: &Place) -> bool {
    let key = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
    place.stat().ok().map(key) == rustix::fs::stat("/").ok().map(key)
}

/// As ln(1) with `-s`, `-n` and `-f`.
pub(crate) fn make_link<I: Read, O: Write>(
    session: &mut Session<I, O>,
    task: &MakeLinkTask,
) -> Result<Outcome, Refusal> {
    let failed = failure(FileOperation::MakeLink, &task.path);
    let place = Place::of(&task.path, Links::Keep).map_err(&failed)?;
    session.permitted(Access::Write, &place)?;
    let target = OsStr::from_bytes(&task.target);
    let made = match symlinkat(target, place.directory(), place.name()) {
        Err(Errno::EXIST) if !is_directory(&place) => replace_by_link(&place, target),
        made => made,
    };
    made.map_err(failed)?;
    Ok(Outcome::Done(Done {}))
}

fn replace_by_link(place: &Place, target: &OsStr) -> Result<(), Errno> {
    let directory = place.directory();
    let (meanwhile, ()) = TemporaryName::make(directory, |meanwhile| symlinkat(target, directory, meanwhile))?;
    meanwhile.rename(directory, place.name(), RenameFlags::empty())
}

/// As rename(2).
pub(crate) fn rename<I: Read, O: Write>(session: &mut Session<I, O>, task: &MoveTask) -> Result<Outcome, Refusal> {
    let failed = failure(FileOperation::Rename, &task.source);
    let from = Place::of(&task.source, Links::Keep).map_err(&failed)?;
    let to_failed = failure(FileOperation::Rename, &task.destination);
    let to = Place::of(&task.destination, Links::Keep).map_err(&to_failed)?;
    session.permitted(Access::Write, &from)?;
    session.permitted(Access::Write, &to)?;
    // under its new path other rules are for it
    let (source, destination) = (from.real(), to.real());
    let accesses = [(Access::Read, &*source), (Access::Write, &*source), (Access::Write, &*destination)];
    session.permitted_whole(&from, &accesses)?;
    let (old, new) = ((from.directory(), from.name()), (to.directory(), to.name()));
    match task.replace {
        true => renameat(old.0, old.1, new.0, new.1).map_err(&failed)?,
        false => renameat_with(old.0, old.1, new.0, new.1, RenameFlags::NOREPLACE).map_err(|error| match error {
            Errno::EXIST => to_failed(error),
            error => failed(error),
        })?,
    }
    Ok(Outcome::Done(Done {}))
}

/// As rm(1). A symbolic link is removed itself.
pub(crate) fn remove<I: Read, O: Write>(session: &mut Session<I, O>, task: &RemoveTask) -> Result<Outcome, Refusal> {
    let failed = failure(FileOperation::Remove, &task.path);
    let place = Place::of(&task.path, Links::Keep).map_err(&failed)?;
    session.permitted(Access::Write, &place)?;
    match is_directory(&place) {
        false => unlinkat(place.directory(), place.name(), AtFlags::empty()).map_err(failed)?,
        // as rmdir(2) says of it; with all that is below it, it is never meant
        true if is_root(&place) => return Err(failed(Errno::BUSY).into()),
        true if task.recursive => {
            session.permitted_whole(&place, &[(Access::Write, &place.real())])?;
            remove_all(&place).map_err(|unremoved| unremoved.below(&task.path))?;
        }
        true => unlinkat(place.directory(), place.name(), AtFlags::REMOVEDIR).map_err(failed)?,
    }
    Ok(Outcome::Done(Done {}))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// No test removes it, in case that this one should fail.
    #[test]
    fn the_root_directory_is_known_by_any_name() {
        let directory = tempfile::tempdir().unwrap();
        let up = directory.path().join("../../../../../../../..");
        for root in ["/", "//", "/.", "/..", up.to_str().unwrap()] {
            assert!(is_root(&Place::of(root.as_bytes(), Links::Keep).unwrap()), "{root}");
        }
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/", &link).unwrap();
        // which is removed itself
        for other in [directory.path(), &link, Path::new("/nothing")] {
            assert!(!is_root(&Place::of(other.to_str().unwrap().as_bytes(), Links::Keep).unwrap()), "{other:?}");
        }
    }
}
