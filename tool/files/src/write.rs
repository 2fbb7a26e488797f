//! Writing a file: all of it under its name, or nothing.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;

use aws_lc_rs::digest::{Context, SHA256};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Uid, fchmod, fchown, fstat, fsync, linkat, openat,
};
use rustix::io::Errno;
use rustix::process::umask;
use telexec_executor::FileOperation;

use crate::message::{Access, Outcome, WriteTask, Written};
use crate::place::{Links, Place};
use crate::read::errno;
use crate::session::{Piece, Refusal, Session, failure};
use crate::sparse::digest_zeros;
use crate::temporary_name::TemporaryName;

/// The mode of a file that is new, less the umask.
const NEW_FILE: Mode = Mode::from_raw_mode(0o644);
const EXECUTABLE: Mode = Mode::from_raw_mode(0o111);
const WRITTEN: OFlags = OFlags::WRONLY.union(OFlags::CLOEXEC);

/// Receives a file: its data, then the end. After a refusal what still comes of it is left to be skipped.
pub(crate) fn write<I: Read, O: Write>(session: &mut Session<I, O>, task: &WriteTask) -> Result<Outcome, Refusal> {
    let cannot_open = failure(FileOperation::Open, &task.path);
    let cannot_write = failure(FileOperation::Write, &task.path);
    let find = if task.make_parents { Place::to_be_made } else { Place::of };
    let mut place = find(&task.path, Links::Follow).map_err(&cannot_open)?;
    session.permitted(Access::Write, &place)?;
    place.make_parents().map_err(&cannot_open)?;
    let replaced = replaced(&place, task.exclusive).map_err(&cannot_open)?;
    let mut draft = Draft::new(&place).map_err(&cannot_open)?;

    let mut digest = Context::new(&SHA256);
    while let Some(piece) = session.piece()? {
        draft.write(&piece, &mut digest).map_err(|error| cannot_write(errno(&error)))?;
    }
    let sha256 = digest.finish().as_ref().to_vec();
    if !task.sha256.is_empty() && task.sha256 != sha256 {
        return Ok(Outcome::Written(Written { info: None, sha256, is_other: true }));
    }
    draft.like(replaced.as_ref(), task).map_err(&cannot_write)?;
    draft.complete(!task.is_synced_later).map_err(|error| cannot_write(errno(&error)))?;
    if task.is_synced_later {
        session.unsynced.add(&place).map_err(&cannot_write)?;
    }
    let stat = draft.publish(task).map_err(failure(FileOperation::Rename, &task.path))?;
    let info = session.describe(&task.path, &stat, None);
    Ok(Outcome::Written(Written { info: Some(info), sha256, is_other: false }))
}

/// The file that is to be replaced, if there is one and that may be.
fn replaced(place: &Place, exclusive: bool) -> Result<Option<Stat>, Errno> {
    let stat = match place.stat() {
        Err(Errno::NOENT) => return Ok(None),
        stat => stat?,
    };
    match FileType::from_raw_mode(stat.st_mode) {
        _ if exclusive => Err(Errno::EXIST),
        FileType::RegularFile => Ok(Some(stat)),
        FileType::Directory => Err(Errno::ISDIR),
        // a link that has come meanwhile
        FileType::Symlink => Err(Errno::LOOP),
        _ => Err(Errno::INVAL),
    }
}

/// A file that is not complete. Dropping it leaves nothing.
struct Draft<'place> {
    place: &'place Place,
    file: File,
    /// Its name meanwhile; `None`: it has none, so that nothing is left of it whatever happens.
    name: Option<TemporaryName>,
}

impl<'place> Draft<'place> {
    fn new(place: &'place Place) -> Result<Self, Errno> {
        let directory = place.directory();
        let private = Mode::from_raw_mode(0o600);
        match openat(directory, ".", WRITTEN | OFlags::TMPFILE, private) {
            // the file system has no files without a name: open(2)
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
                let flags = WRITTEN | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
                let (name, file) = TemporaryName::make(directory, |name| openat(directory, name, flags, private))?;
                Ok(Self { place, file: file.into(), name: Some(name) })
            }
            file => Ok(Self { place, file: file?.into(), name: None }),
        }
    }

    /// Gives it the mode that was asked for, or that and the owner of the file which it replaces.
    fn like(&self, replaced: Option<&Stat>, task: &WriteTask) -> Result<(), Errno> {
        if let Some(replaced) = replaced {
            // only root may give files away: then it is the run-as user's
            let owner = (Uid::from_raw(replaced.st_uid), Gid::from_raw(replaced.st_gid));
            match fchown(&self.file, Some(owner.0), Some(owner.1)) {
                Err(Errno::PERM) => match fchown(&self.file, None, Some(owner.1)) {
                    Ok(()) | Err(Errno::PERM) => {}
                    Err(error) => return Err(error),
                },
                given => given?,
            }
        }
        let kept = replaced.map(|replaced| Mode::from_raw_mode(replaced.st_mode & 0o777));
        let asked = task.mode.map(|mode| Mode::from_raw_mode(mode & 0o7777));
        let source = task.source_mode.map(Mode::from_raw_mode);
        let new = source.unwrap_or(NEW_FILE).difference(current_umask());
        let added = match (kept, source) {
            (Some(kept), Some(source)) if source.intersects(EXECUTABLE) => executable(kept),
            _ => Mode::empty(),
        };
        fchmod(&self.file, asked.or(kept).unwrap_or(new).union(added))
    }

    fn write(&mut self, piece: &Piece<'_>, digest: &mut Context) -> io::Result<()> {
        match piece {
            Piece::Data(data) => {
                digest.update(data);
                self.file.write_all(data)
            }
            Piece::Hole(length) => {
                let too_large = || io::Error::from_raw_os_error(Errno::FBIG.raw_os_error());
                let offset = i64::try_from(*length).map_err(|_| too_large())?;
                // before its digest, which takes long: it may be larger than a file can be
                let end = self.file.seek(SeekFrom::Current(offset)).map_err(|_| too_large())?;
                self.file.set_len(end)?;
                digest_zeros(digest, *length);
                Ok(())
            }
        }
    }

    /// All of it was written: now it is as long as that, also if it ends with a hole.
    fn complete(&mut self, sync: bool) -> io::Result<()> {
        let length = self.file.stream_position()?;
        self.file.set_len(length)?;
        if sync { self.file.sync_all() } else { Ok(()) }
    }

    /// Gives it its name.
    fn publish(mut self, task: &WriteTask) -> Result<Stat, Errno> {
        let (directory, name) = (self.place.directory(), self.place.name());
        match self.name.take() {
            None if task.exclusive => self.link(name)?,
            None => {
                let (meanwhile, ()) = TemporaryName::make(directory, |meanwhile| self.link(meanwhile))?;
                meanwhile.rename(directory, name, RenameFlags::empty())?;
            }
            Some(meanwhile) if task.exclusive => meanwhile.rename(directory, name, RenameFlags::NOREPLACE)?,
            Some(meanwhile) => meanwhile.rename(directory, name, RenameFlags::empty())?,
        }
        // a directory that may not be read cannot be opened for that
        if !task.is_synced_later
            && let Ok(directory) = openat(directory, ".", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        {
            fsync(&directory)?;
        }
        fstat(&self.file)
    }

    fn link<P: rustix::path::Arg>(&self, name: P) -> Result<(), Errno> {
        let file = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        linkat(CWD, file, self.place.directory(), name, AtFlags::SYMLINK_FOLLOW)
    }
}

/// For whoever may read it.
fn executable(mode: Mode) -> Mode {
    Mode::from_raw_mode((mode.as_raw_mode() & 0o444) >> 2)
}

/// It can only be read by setting it; this process has one thread that makes files.
fn current_umask() -> Mode {
    let current = umask(Mode::empty());
    umask(current);
    current
}
