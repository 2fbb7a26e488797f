//! Reading a file.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};

use aws_lc_rs::digest::{Context, SHA256};
use rustix::fs::{FileType, OFlags, fstat};
use rustix::io::Errno;
use telexec_executor::{FileError, FileOperation};

use crate::frame::Kind;
use crate::message::{Access, Digest, Outcome, ReadTask};
use crate::place::{Links, Place};
use crate::session::{Refusal, Session, failure};
use crate::sparse::{Stretch, digest_zeros, stretch};

const PIECE_BYTES: usize = 256 * 1024;

/// Sends a file: information, its data, its digest.
pub(crate) fn read<I: Read, O: Write>(session: &mut Session<I, O>, task: &ReadTask) -> Result<Outcome, Refusal> {
    let cannot_open = failure(FileOperation::Open, &task.path);
    let cannot_read = failure(FileOperation::Read, &task.path);
    let place = Place::of(&task.path, Links::Follow).map_err(&cannot_open)?;
    session.permitted(Access::Read, &place)?;
    // what is no regular file may have an effect when it is opened, or never come to an end
    regular(place.stat().map_err(&cannot_open)?.st_mode).map_err(&cannot_read)?;
    let file = place.open(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).map_err(&cannot_open)?;
    let stat = fstat(&file).map_err(&cannot_read)?;
    regular(stat.st_mode).map_err(&cannot_read)?;
    let mut file = File::from(file);
    let size = u64::try_from(stat.st_size).unwrap_or_default();
    if !task.prefix_sha256.is_empty() {
        let sha256 = digest(&mut file, task.offset, size).map_err(&cannot_read)?;
        if sha256 != task.prefix_sha256 {
            return Ok(Outcome::Read(Digest { sha256, is_other: true }));
        }
    }
    let info = session.describe(&task.path, &stat, None);
    // a short file goes with its information and its digest in one write
    session.queue_answer(Outcome::Info(info))?;

    let end = if task.length == 0 { u64::MAX } else { task.offset.saturating_add(task.length) };
    let mut sent = Sent { position: task.offset, digest: Context::new(&SHA256) };
    let mut buffer = vec![0; PIECE_BYTES];
    file.seek(SeekFrom::Start(task.offset)).map_err(|error| cannot_read(errno(&error)))?;
    while sent.position < end {
        let stretch = match task.holes {
            true => stretch(&file, sent.position, size).map_err(&cannot_read)?,
            false => Stretch::Data(u64::MAX),
        };
        match stretch {
            Stretch::Hole(until) => sent.hole(session, until.min(end))?,
            Stretch::Data(until) => {
                if !sent
                    .data(session, &mut file, &mut buffer, until.min(end))
                    .map_err(|error| error.with(&cannot_read))?
                {
                    break;
                }
            }
        }
    }
    Ok(Outcome::Read(Digest { sha256: sent.digest.finish().as_ref().to_vec(), is_other: false }))
}

/// The SHA-256 of the first bytes of a file; of fewer, if it ends before.
fn digest(file: &mut File, length: u64, size: u64) -> Result<Vec<u8>, Errno> {
    let mut digest = Context::new(&SHA256);
    let mut buffer = vec![0; PIECE_BYTES];
    let mut position = 0;
    while position < length {
        match stretch(file, position, size)? {
            Stretch::Hole(until) => {
                let until = until.min(length);
                digest_zeros(&mut digest, until - position);
                position = until;
            }
            Stretch::Data(until) => {
                let most = buffer.len().min(usize::try_from(until.min(length) - position).unwrap_or(usize::MAX));
                let piece = buffer.get_mut(..most).unwrap_or_default();
                match file.read(piece) {
                    Ok(0) => break,
                    Ok(read) => {
                        digest.update(piece.get(..read).unwrap_or_default());
                        position += read as u64;
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(errno(&error)),
                }
            }
        }
    }
    Ok(digest.finish().as_ref().to_vec())
}

/// What was sent of a file.
struct Sent {
    position: u64,
    digest: Context,
}

/// Why no more was sent.
enum Stopped {
    Read(Errno),
    Pipe(std::io::Error),
}

impl Stopped {
    fn with(self, cannot_read: impl Fn(Errno) -> FileError) -> Refusal {
        match self {
            Self::Read(error) => cannot_read(error).into(),
            Self::Pipe(error) => error.into(),
        }
    }
}

impl Sent {
    fn hole<I: Read, O: Write>(&mut self, session: &mut Session<I, O>, until: u64) -> std::io::Result<()> {
        let length = until.saturating_sub(self.position);
        // at once: its digest may take long
        session.queue(Kind::Hole, &length.to_be_bytes())?;
        session.flush()?;
        digest_zeros(&mut self.digest, length);
        self.position = until;
        Ok(())
    }

    /// Returns whether there may be more.
    fn data<I: Read, O: Write>(
        &mut self,
        session: &mut Session<I, O>,
        file: &mut File,
        buffer: &mut [u8],
        until: u64,
    ) -> Result<bool, Stopped> {
        while self.position < until {
            let most = buffer.len().min(usize::try_from(until - self.position).unwrap_or(usize::MAX));
            let read = match file.read(buffer.get_mut(..most).unwrap_or_default()) {
                Ok(0) => return Ok(false),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(Stopped::Read(errno(&error))),
            };
            let piece = buffer.get(..read).unwrap_or_default();
            self.digest.update(piece);
            self.position += read as u64;
            session.queue(Kind::Data, piece).map_err(Stopped::Pipe)?;
        }
        Ok(true)
    }
}

fn regular(mode: u32) -> Result<(), Errno> {
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Errno::ISDIR),
        _ => Err(Errno::INVAL),
    }
}

/// The system's number of an error.
pub(crate) fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
