//! Requests that the draft does not have: those of OpenSSH, and two of later drafts.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;

use nix::unistd::User;
use rustix::fs::{OFlags, StatVfs, StatVfsMountFlags, copy_file_range, fstat, fstatvfs, fsync};
use rustix::io::{Errno, fcntl_dupfd_cloexec, pread, pwrite, retry_on_intr};
use rustix::process::{getcwd, getuid};
use telexec_executor::FileOperation;

use super::answers::Packet;
use super::attributes::Attributes;
use super::handles::Open;
use super::session::{Refusal, Session};
use super::wire::{Fields, MAX_DATA, MAX_PACKET, Status, answer};
use super::{Access, Gate};
use crate::place::{Links, Place};
use crate::session::failure;

/// Their names and versions.
pub(crate) const EXTENSIONS: [(&str, &str); 11] = [
    ("posix-rename@openssh.com", "1"),
    ("statvfs@openssh.com", "2"),
    ("fstatvfs@openssh.com", "2"),
    ("hardlink@openssh.com", "1"),
    ("fsync@openssh.com", "1"),
    ("lsetstat@openssh.com", "1"),
    ("limits@openssh.com", "1"),
    ("expand-path@openssh.com", "1"),
    ("copy-data", "1"),
    ("home-directory", "1"),
    ("users-groups-by-id@openssh.com", "1"),
];

const NO_SUCH_USER: Refusal = Refusal::Status(Status::NoSuchFile, "no such user");
/// What is copied at a time where the kernel does not copy.
const PIECE_BYTES: usize = 256 * 1024;
/// And where it does: between two of them the process can be stopped.
const RANGE_BYTES: u64 = 64 * 1024 * 1024;

impl<O: Write, G: Gate> Session<'_, O, G> {
    pub(crate) fn extended(&mut self, id: u32, mut fields: Fields<'_>) -> Result<(), Refusal> {
        match fields.string()? {
            b"posix-rename@openssh.com" => self.posix_rename(id, fields),
            b"statvfs@openssh.com" => self.file_system(id, fields),
            b"fstatvfs@openssh.com" => self.file_system_open(id, fields),
            b"hardlink@openssh.com" => self.hard_link(id, fields),
            b"fsync@openssh.com" => self.sync(id, fields),
            b"lsetstat@openssh.com" => self.change_link(id, fields),
            b"limits@openssh.com" => self.limits(id),
            b"expand-path@openssh.com" => self.expand(id, fields),
            b"copy-data" => self.copy(id, fields),
            b"home-directory" => self.home(id, fields),
            b"users-groups-by-id@openssh.com" => self.names_of_ids(id, fields),
            _ => Err(Refusal::Status(Status::Unsupported, "an extension that was not announced")),
        }
    }

    fn file_system(&mut self, id: u32, mut fields: Fields<'_>) -> Result<(), Refusal> {
        let path = fields.string()?;
        let failed = failure(FileOperation::Open, path);
        let place = Place::of(path, Links::Follow).map_err(&failed)?;
        self.permitted(Access::List, &place)?;
        let stat = place.open(OFlags::PATH).and_then(fstatvfs).map_err(&failed)?;
        self.answer_file_system(id, &stat)
    }

    fn file_system_open(&mut self, id: u32, mut fields: Fields<'_>) -> Result<(), Refusal> {
        let stat = match self.handles.get(fields.string()?)? {
            Open::File(file) => fstatvfs(&file.file).map_err(failure(FileOperation::Open, &file.path))?,
            Open::Directory(open) => open.directory.statvfs().map_err(failure(FileOperation::Open, &open.path))?,
        };
        self.answer_file_system(id, &stat)
    }

    fn answer_file_system(&mut self, id: u32, stat: &StatVfs) -> Result<(), Refusal> {
        let flags = [(StatVfsMountFlags::RDONLY, 1), (StatVfsMountFlags::NOSUID, 2)];
        let flags = flags.into_iter().filter(|(flag, _)| stat.f_flag.contains(*flag)).map(|(_, bit)| bit).sum();
        let numbers = [
            stat.f_bsize,
            stat.f_frsize,
            stat.f_blocks,
            stat.f_bfree,
            stat.f_bavail,
            stat.f_files,
            stat.f_ffree,
            stat.f_favail,
            stat.f_fsid,
            flags,
            stat.f_namemax,
        ];
        Ok(self.answers.send(numbers.into_iter().fold(Packet::new(answer::EXTENDED, id), Packet::u64))?)
    }

    fn sync(&mut self, id: u32, mut fields: Fields<'_>) -> Result<(), Refusal> {
        let file = self.handles.file(fields.string()?)?;
        retry_on_intr(|| fsync(&file.file)).map_err(failure(FileOperation::Write, &file.path))?;
        Ok(self.answers.done(id)?)
    }

    /// Of a symbolic link itself.
    fn change_link(&mut self, id: u32, mut fields: Fields<'_>) -> Result<(), Refusal> {
        let (path, attributes) = (fields.string()?, Attributes::of(&mut fields)?);
        if attributes.size.is_some() {
            return Err(Refusal::Status(Status::BadMessage, "a symbolic link has no size to be set"));
        }
        let place = Place::of(path, Links::Keep).map_err(failure(FileOperation::Write, path))?;
        self.set(id, path, &place, &attributes)
    }

    fn limits(&mut self, id: u32) -> Result<(), Refusal> {
        let numbers = [u64::from(MAX_PACKET), u64::from(MAX_DATA), u64::from(MAX_DATA), self.handles.most()];
        Ok(self.answers.send(numbers.into_iter().fold(Packet::new(answer::EXTENDED, id), Packet::u64))?)
    }

    /// A path that may begin with `~` or `~user`; the home directory is the one where relative paths begin.
    fn expand(&mut self, id: u32, mut fields: Fields<'_>) -> Result<(), Refusal> {
        let path = fields.string()?;
        match path.strip_prefix(b"~") {
            None if path.is_empty() => self.resolve(id, b"."),
            None => self.resolve(id, path),
            Some(rest) => {
                let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
                let (user, below) = rest.split_at(end);
                let home = if user.is_empty() { b".".to_vec() } else { home_of(user)? };
                self.resolve(id, &[&home, below].concat())
            }
        }
    }

    /// Of this user, or of the one that the process is.
    fn home(&mut self, id: u32, mut fields: Fields<'_>) -> Result<(), Refusal> {
        let home = match fields.string()? {
            b"" => own_home()?,
            user => home_of(user)?,
        };
        Ok(self.answers.name(id, &home)?)
    }

    /// An empty name where there is none.
    fn names_of_ids(&mut self, id: u32, mut fields: Fields<'_>) -> Result<(), Refusal> {
        let (mut users, mut groups) = (Fields::of(fields.string()?), Fields::of(fields.string()?));
        let (mut user_names, mut group_names) = (Strings::default(), Strings::default());
        while !users.is_empty() {
            user_names.add(self.names.user_name(users.u32()?).unwrap_or_default())?;
        }
        while !groups.is_empty() {
            group_names.add(self.names.group_name(groups.u32()?).unwrap_or_default())?;
        }
        Ok(self.answers.send(Packet::new(answer::EXTENDED, id).string(&user_names.0).string(&group_names.0))?)
    }

    fn copy(&mut self, id: u32, mut fields: Fields<'_>) -> Result<(), Refusal> {
        let (source, from, length) = (fields.string()?, fields.u64()?, fields.u64()?);
        let (destination, to) = (fields.string()?, fields.u64()?);
        let failed = |error: Errno, path: &[u8]| Refusal::from(failure(FileOperation::Write, path)(error));
        let (is_same, read) = {
            let read = self.handles.file(source)?;
            let stat = fstat(&read.file).map_err(|error| failed(error, &read.path))?;
            let file = fcntl_dupfd_cloexec(&read.file, 0).map_err(|error| failed(error, &read.path))?;
            let write = self.handles.file(destination)?;
            let other = fstat(&write.file).map_err(|error| failed(error, &write.path))?;
            ((stat.st_dev, stat.st_ino) == (other.st_dev, other.st_ino), file)
        };
        if is_same {
            return Err(Refusal::Status(Status::Failure, "a file cannot be copied into itself"));
        }
        let write = self.handles.file(destination)?;
        let until_end = length == 0;
        let mut copy = Copy { from, to, left: if until_end { u64::MAX } else { length }, copied: 0 };
        let done = copy.run(&read, &write.file, write.appends);
        write.written += copy.copied;
        let done = done.map_err(|error| failed(error, &write.path));
        self.handles.file(source)?.read += copy.copied;
        done?;
        match until_end || copy.left == 0 {
            true => Ok(self.answers.done(id)?),
            false => Err(Refusal::Status(Status::Eof, "the file ends before that")),
        }
    }
}

/// A copy of a part of a file.
struct Copy {
    from: u64,
    to: u64,
    left: u64,
    copied: u64,
}

impl Copy {
    /// Until the end of the file that is read, or of the part.
    fn run(&mut self, read: &OwnedFd, write: &OwnedFd, appends: bool) -> Result<(), Errno> {
        let mut by_kernel = !appends;
        let mut buffer = Vec::new();
        while self.left > 0 {
            let copied = match by_kernel {
                true => match self.range(read, write) {
                    // between these it cannot; or files of /proc, which seem to be empty
                    Ok(0)
                    | Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::BADF | Errno::PERM) => {
                        by_kernel = false;
                        continue;
                    }
                    copied => copied?,
                },
                false => self.piece(read, write, &mut buffer)?,
            };
            if copied == 0 {
                break;
            }
            let copied = copied as u64;
            self.from = self.from.saturating_add(copied);
            self.to = self.to.saturating_add(copied);
            self.left -= copied;
            self.copied += copied;
        }
        Ok(())
    }

    fn range(&self, read: &OwnedFd, write: &OwnedFd) -> Result<usize, Errno> {
        let (mut from, mut to) = (self.from, self.to);
        let most = usize::try_from(self.left.min(RANGE_BYTES)).unwrap_or(PIECE_BYTES);
        retry_on_intr(|| copy_file_range(read, Some(&mut from), write, Some(&mut to), most))
    }

    fn piece(&self, read: &OwnedFd, write: &OwnedFd, buffer: &mut Vec<u8>) -> Result<usize, Errno> {
        buffer.resize(PIECE_BYTES, 0);
        let most = usize::try_from(self.left).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        let room = buffer.get_mut(..most).unwrap_or_default();
        let length = retry_on_intr(|| pread(read, &mut *room, self.from))?;
        let mut written = 0;
        while let Some(rest) = buffer.get(written..length).filter(|rest| !rest.is_empty()) {
            written += retry_on_intr(|| pwrite(write, rest, self.to.saturating_add(written as u64)))?;
        }
        Ok(length)
    }
}

/// Strings, one after another, as many as fit into an answer.
#[derive(Default)]
struct Strings(Vec<u8>);

impl Strings {
    fn add(&mut self, text: &str) -> Result<(), Refusal> {
        self.0.extend_from_slice(&u32::try_from(text.len()).unwrap_or_default().to_be_bytes());
        self.0.extend_from_slice(text.as_bytes());
        match self.0.len() < MAX_DATA as usize / 2 {
            true => Ok(()),
            false => Err(Refusal::Status(Status::Failure, "too many names at once: ask for fewer")),
        }
    }
}

fn own_home() -> Result<Vec<u8>, Refusal> {
    let user = User::from_uid(nix::unistd::Uid::from_raw(getuid().as_raw())).ok().flatten();
    match user {
        Some(user) => Ok(user.dir.into_os_string().into_vec()),
        // a user without an entry begins somewhere too
        None => Ok(getcwd(Vec::new()).map_err(failure(FileOperation::Open, b"."))?.into_bytes()),
    }
}

fn home_of(user: &[u8]) -> Result<Vec<u8>, Refusal> {
    let user = str::from_utf8(user).ok().and_then(|name| User::from_name(name).ok().flatten());
    Ok(user.ok_or(NO_SUCH_USER)?.dir.into_os_string().into_vec())
}
