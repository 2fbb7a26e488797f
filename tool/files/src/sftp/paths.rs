//! Requests that name a file.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{
    AtFlags, FileType, RenameFlags, linkat, mkdirat, readlinkat, renameat, renameat_with, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use telexec_executor::FileOperation;

use super::attributes::{Attributes, Target};
use super::session::{Refusal, Session};
use super::wire::Fields;
use super::{Access, Gate};
use crate::place::{Links, Place};
use crate::session::failure;

impl<O: Write, G: Gate> Session<'_, O, G> {
    pub(crate) fn stat(&mut self, id: u32, mut fields: Fields<'_>, links: Links) -> Result<(), Refusal> {
        let path = fields.string()?;
        let failed = failure(FileOperation::Open, path);
        let place = Place::of(path, links).map_err(&failed)?;
        self.permitted(Access::List, &place)?;
        let stat = place.stat().map_err(&failed)?;
        Ok(self.answers.attributes(id, &Attributes::from(&stat))?)
    }

    /// Of what a symbolic link points to.
    pub(crate) fn change(&mut self, id: u32, mut fields: Fields<'_>) -> Result<(), Refusal> {
        let (path, attributes) = (fields.string()?, Attributes::of(&mut fields)?);
        let place = Place::of(path, Links::Follow).map_err(failure(FileOperation::Write, path))?;
        self.set(id, path, &place, &attributes)
    }

    pub(crate) fn set(&mut self, id: u32, path: &[u8], place: &Place, attributes: &Attributes) -> Result<(), Refusal> {
        self.permitted(Access::Write, place)?;
        attributes.set(&Target::Named(place)).map_err(failure(FileOperation::Write, path))?;
        Ok(self.answers.done(id)?)
    }

    pub(crate) fn remove(&mut self, id: u32, fields: Fields<'_>) -> Result<(), Refusal> {
        self.unlink(id, fields, AtFlags::empty())
    }

    pub(crate) fn remove_directory(&mut self, id: u32, fields: Fields<'_>) -> Result<(), Refusal> {
        self.unlink(id, fields, AtFlags::REMOVEDIR)
    }

    fn unlink(&mut self, id: u32, mut fields: Fields<'_>, flags: AtFlags) -> Result<(), Refusal> {
        let path = fields.string()?;
        let failed = failure(FileOperation::Remove, path);
        let place = entry(path).map_err(&failed)?;
        self.permitted(Access::Write, &place)?;
        unlinkat(place.directory(), place.name(), flags).map_err(&failed)?;
        Ok(self.answers.done(id)?)
    }

    pub(crate) fn make_directory(&mut self, id: u32, mut fields: Fields<'_>) -> Result<(), Refusal> {
        let (path, attributes) = (fields.string()?, Attributes::of(&mut fields)?);
        let failed = failure(FileOperation::MakeDirectory, path);
        let place = entry(path).map_err(&failed)?;
        self.permitted(Access::Write, &place)?;
        mkdirat(place.directory(), place.name(), attributes.mode_or(0o777)).map_err(&failed)?;
        Ok(self.answers.done(id)?)
    }

    /// Never asks the gate: see the module.
    pub(crate) fn real_path(&mut self, id: u32, mut fields: Fields<'_>) -> Result<(), Refusal> {
        let path = fields.string()?;
        let path = if path.is_empty() { b"." } else { path };
        self.resolve(id, path)
    }

    pub(crate) fn resolve(&mut self, id: u32, path: &[u8]) -> Result<(), Refusal> {
        let place = Place::of(without_slashes(path), Links::Follow).map_err(failure(FileOperation::Open, path))?;
        Ok(self.answers.name(id, &place.real())?)
    }

    /// Replaces nothing.
    pub(crate) fn rename(&mut self, id: u32, fields: Fields<'_>) -> Result<(), Refusal> {
        self.rename_by(id, fields, |from, to| {
            let (old, new) = ((from.directory(), from.name()), (to.directory(), to.name()));
            match renameat_with(old.0, old.1, new.0, new.1, RenameFlags::NOREPLACE) {
                // the file system cannot do that at once: rename(2)
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => rename_in_steps(from, to),
                renamed => renamed,
            }
        })
    }

    /// Replaces what there is.
    pub(crate) fn posix_rename(&mut self, id: u32, fields: Fields<'_>) -> Result<(), Refusal> {
        self.rename_by(id, fields, |from, to| renameat(from.directory(), from.name(), to.directory(), to.name()))
    }

    fn rename_by(
        &mut self,
        id: u32,
        mut fields: Fields<'_>,
        rename: impl FnOnce(&Place, &Place) -> Result<(), Errno>,
    ) -> Result<(), Refusal> {
        let (source, destination) = (fields.string()?, fields.string()?);
        let failed = failure(FileOperation::Rename, source);
        let to_failed = failure(FileOperation::Rename, destination);
        let (from, to) = (entry(source).map_err(&failed)?, entry(destination).map_err(&to_failed)?);
        self.permitted(Access::Write, &from)?;
        self.permitted(Access::Write, &to)?;
        self.permitted_move(&from, &to)?;
        rename(&from, &to).map_err(|error| if error == Errno::EXIST { to_failed(error) } else { failed(error) })?;
        Ok(self.answers.done(id)?)
    }

    /// A link itself gets the second name: link(2) of Linux.
    pub(crate) fn hard_link(&mut self, id: u32, mut fields: Fields<'_>) -> Result<(), Refusal> {
        let (source, destination) = (fields.string()?, fields.string()?);
        let failed = failure(FileOperation::MakeLink, destination);
        let (from, to) =
            (entry(source).map_err(failure(FileOperation::Open, source))?, entry(destination).map_err(&failed)?);
        // who may write to the one can write to the other
        self.permitted(Access::Read, &from)?;
        self.permitted(Access::Write, &from)?;
        self.permitted(Access::Write, &to)?;
        linkat(from.directory(), from.name(), to.directory(), to.name(), AtFlags::empty()).map_err(&failed)?;
        Ok(self.answers.done(id)?)
    }

    pub(crate) fn read_link(&mut self, id: u32, mut fields: Fields<'_>) -> Result<(), Refusal> {
        let path = fields.string()?;
        let failed = failure(FileOperation::Open, path);
        let place = Place::of(path, Links::Keep).map_err(&failed)?;
        self.permitted(Access::List, &place)?;
        let target = readlinkat(place.directory(), place.name(), Vec::new()).map_err(&failed)?;
        Ok(self.answers.name(id, target.as_bytes())?)
    }

    /// The target comes first, unlike in the draft: as in OpenSSH, and so in all clients.
    pub(crate) fn make_link(&mut self, id: u32, mut fields: Fields<'_>) -> Result<(), Refusal> {
        let (target, path) = (fields.string()?, fields.string()?);
        let failed = failure(FileOperation::MakeLink, path);
        let place = entry(path).map_err(&failed)?;
        self.permitted(Access::Write, &place)?;
        symlinkat(OsStr::from_bytes(target), place.directory(), place.name()).map_err(&failed)?;
        Ok(self.answers.done(id)?)
    }
}

/// What has this name, a symbolic link itself. A slash at its end asks for a directory, and for no link to one.
fn entry(path: &[u8]) -> Result<Place, Errno> {
    let name = without_slashes(path);
    let place = Place::of(name, Links::Keep)?;
    let is_other = |mode: u32| FileType::from_raw_mode(mode) != FileType::Directory;
    match name.len() < path.len() && place.stat().is_ok_and(|stat| is_other(stat.st_mode)) {
        true => Err(Errno::NOTDIR),
        false => Ok(place),
    }
}

fn without_slashes(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').unwrap_or(0);
    path.get(..=end).unwrap_or(path)
}

/// A regular file never replaces another, whatever comes meanwhile; anything else does not replace what is there now.
pub(crate) fn rename_in_steps(from: &Place, to: &Place) -> Result<(), Errno> {
    if FileType::from_raw_mode(from.stat()?.st_mode) == FileType::RegularFile {
        linkat(from.directory(), from.name(), to.directory(), to.name(), AtFlags::empty())?;
        let removed = unlinkat(from.directory(), from.name(), AtFlags::empty());
        if removed.is_err() {
            let _ = unlinkat(to.directory(), to.name(), AtFlags::empty());
        }
        return removed;
    }
    match statat(to.directory(), to.name(), AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => renameat(from.directory(), from.name(), to.directory(), to.name()),
        Err(error) => Err(error),
        Ok(_) => Err(Errno::EXIST),
    }
}
