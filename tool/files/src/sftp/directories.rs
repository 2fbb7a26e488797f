//! Reading directories.

use std::io::Write;

use rustix::fs::{AtFlags, Dir, OFlags, statat};
use rustix::io::Errno;
use telexec_executor::FileOperation;

use super::answers::Packet;
use super::attributes::Attributes;
use super::handles::{Open, OpenDirectory};
use super::long_name::long_name;
use super::session::{Refusal, Session};
use super::wire::{Fields, Status, answer};
use super::{Access, Gate};
use crate::names::Names;
use crate::place::{Links, Place};
use crate::session::failure;

/// An answer is complete when it has so many bytes: each client takes packets of 34,000.
const ENOUGH_BYTES: usize = 32_000;

impl<O: Write, G: Gate> Session<'_, O, G> {
    pub(crate) fn open_directory(&mut self, id: u32, mut fields: Fields<'_>) -> Result<(), Refusal> {
        let path = fields.string()?;
        self.handles.has_room()?;
        let cannot_open = failure(FileOperation::Open, path);
        let place = Place::of(path, Links::Follow).map_err(&cannot_open)?;
        self.permitted(Access::List, &place)?;
        let opened = place.open(OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK);
        let directory = opened.and_then(Dir::new).map_err(&cannot_open)?;
        let handle = self.handles.add(Open::Directory(OpenDirectory { directory, path: place.real() }));
        Ok(self.answers.handle(id, handle)?)
    }

    /// The next names, with `.` and `..`.
    pub(crate) fn read_directory(&mut self, id: u32, mut fields: Fields<'_>) -> Result<(), Refusal> {
        let open = self.handles.directory(fields.string()?)?;
        let cannot_read = failure(FileOperation::Read, &open.path);
        let (mut entries, mut count) = (Vec::new(), 0);
        while entries.len() < ENOUGH_BYTES {
            match next(&mut open.directory, &mut self.names) {
                Ok(Some(entry)) => entries.extend_from_slice(&entry),
                Ok(None) if count == 0 => return Err(Refusal::Status(Status::Eof, "end of directory")),
                Ok(None) => break,
                Err(error) => return Err(cannot_read(error).into()),
            }
            count += 1;
        }
        Ok(self.answers.send(Packet::new(answer::NAME, id).u32(count).bytes(&entries))?)
    }
}

/// The next entry, as it goes over the wire.
fn next(directory: &mut Dir, names: &mut Names) -> Result<Option<Vec<u8>>, Errno> {
    while let Some(entry) = directory.read().transpose()? {
        let name = entry.file_name();
        let (attributes, long_name) = match statat(directory.fd()?, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => (Attributes::from(&stat), long_name(name.to_bytes(), &stat, names)),
            // gone by now
            Err(Errno::NOENT) => continue,
            // the names may be read, and no more
            Err(_) => (Attributes::default(), name.to_bytes().to_vec()),
        };
        let mut bytes = Vec::with_capacity(64 + name.count_bytes() + long_name.len());
        for string in [name.to_bytes(), &long_name] {
            bytes.extend_from_slice(&u32::try_from(string.len()).unwrap_or_default().to_be_bytes());
            bytes.extend_from_slice(string);
        }
        attributes.put(&mut bytes);
        return Ok(Some(bytes));
    }
    Ok(None)
}
