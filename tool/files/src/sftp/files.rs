//! Open files.

use std::io::Write;
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use rustix::io::{Errno, pread, pwrite, retry_on_intr};
use telexec_executor::FileOperation;

use super::attributes::{Attributes, Target};
use super::handles::{Open, OpenFile};
use super::session::{Refusal, Session};
use super::wire::{Fields, Status, open};
use super::{Access, Gate};
use crate::place::{Links, Place};
use crate::session::failure;

impl<O: Write, G: Gate> Session<'_, O, G> {
    pub(crate) fn open(&mut self, id: u32, mut fields: Fields<'_>) -> Result<(), Refusal> {
        let (path, how, attributes) = (fields.string()?, fields.u32()?, Attributes::of(&mut fields)?);
        self.handles.has_room()?;
        let cannot_open = failure(FileOperation::Open, path);
        let is = |flag: u32| how & flag != 0;
        // what is to be new is no link either
        let links = if is(open::CREATE) && is(open::EXCLUSIVE) { Links::Keep } else { Links::Follow };
        let place = Place::of(path, links).map_err(&cannot_open)?;
        let may_change = is(open::WRITE | open::CREATE | open::TRUNCATE);
        if is(open::READ) || !may_change {
            self.permitted(Access::Read, &place)?;
        }
        if may_change {
            self.permitted(Access::Write, &place)?;
        }
        // no file has a name with a slash at its end
        let how = if path.ends_with(b"/") { how & !open::CREATE } else { how };
        let file = open_file(&place, open_flags(how), attributes.mode_or(0o666)).map_err(&cannot_open)?;
        let (path, appends) = (place.real(), is(open::APPEND));
        let file = OpenFile { file, path, may_change, appends, read: 0, written: 0 };
        let handle = self.handles.add(Open::File(file));
        Ok(self.answers.handle(id, handle)?)
    }

    pub(crate) fn close(&mut self, id: u32, mut fields: Fields<'_>) -> Result<(), Refusal> {
        let open = self.handles.remove(fields.string()?)?;
        self.tell(&open)?;
        if let Open::File(OpenFile { file, path, .. }) = open {
            // a file system of another machine may say only now that there was no room
            let closed = nix::unistd::close(file).map_err(|error| Errno::from_raw_os_error(error as i32));
            closed.map_err(failure(FileOperation::Write, &path))?;
        }
        Ok(self.answers.done(id)?)
    }

    pub(crate) fn read(&mut self, id: u32, mut fields: Fields<'_>) -> Result<(), Refusal> {
        let (file, offset, length) = (self.handles.file(fields.string()?)?, fields.u64()?, fields.u32()?);
        let read = self.answers.data(id, length, |room| {
            let read = retry_on_intr(|| pread(&file.file, &mut *room, offset));
            read.map_err(|error| Refusal::from(failure(FileOperation::Read, &file.path)(error)))
        })?;
        if read == 0 && length > 0 {
            return Err(Refusal::Status(Status::Eof, "end of file"));
        }
        file.read += read as u64;
        Ok(())
    }

    pub(crate) fn write(&mut self, id: u32, mut fields: Fields<'_>) -> Result<(), Refusal> {
        let (file, mut offset, mut data) = (self.handles.file(fields.string()?)?, fields.u64()?, fields.string()?);
        while !data.is_empty() {
            let written = retry_on_intr(|| pwrite(&file.file, data, offset));
            let written = written.map_err(failure(FileOperation::Write, &file.path))?;
            file.written += written as u64;
            offset = offset.saturating_add(written as u64);
            data = data.get(written..).unwrap_or_default();
        }
        Ok(self.answers.done(id)?)
    }

    pub(crate) fn stat_open(&mut self, id: u32, mut fields: Fields<'_>) -> Result<(), Refusal> {
        let stat = match self.handles.get(fields.string()?)? {
            Open::File(file) => fstat(&file.file).map_err(failure(FileOperation::Open, &file.path))?,
            Open::Directory(open) => open.directory.stat().map_err(failure(FileOperation::Open, &open.path))?,
        };
        Ok(self.answers.attributes(id, &Attributes::from(&stat))?)
    }

    pub(crate) fn change_open(&mut self, id: u32, mut fields: Fields<'_>) -> Result<(), Refusal> {
        let (handle, attributes) = (fields.string()?, Attributes::of(&mut fields)?);
        let file = self.handles.file(handle)?;
        if !file.may_change {
            let path = file.path.clone();
            self.permitted_path(Access::Write, path)?;
        }
        let file = self.handles.file(handle)?;
        file.may_change = true;
        attributes.set(&Target::Open(&file.file)).map_err(failure(FileOperation::Write, &file.path))?;
        Ok(self.answers.done(id)?)
    }
}

fn open_flags(how: u32) -> OFlags {
    let access = match (how & open::READ != 0, how & open::WRITE != 0) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        (_, false) => OFlags::RDONLY,
    };
    let others = [
        (open::APPEND, OFlags::APPEND),
        (open::CREATE, OFlags::CREATE),
        (open::TRUNCATE, OFlags::TRUNC),
        (open::EXCLUSIVE, OFlags::EXCL),
    ];
    others.into_iter().filter(|(flag, _)| how & flag != 0).fold(access, |flags, (_, flag)| flags | flag)
}

fn open_file(place: &Place, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
    let open = |flags| openat(place.directory(), place.name(), flags, mode);
    match open(flags | OFlags::NONBLOCK) {
        // somebody has a lease of it, and is told to give it up: fcntl(2)
        Err(Errno::AGAIN) if is_regular(place) => open(flags),
        opened => opened,
    }
}

fn is_regular(place: &Place) -> bool {
    place.stat().is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}
