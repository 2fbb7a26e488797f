//! What goes to a command's standard input, where the next agent is to continue that.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::Bytes;
use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};
use rustix::pipe::{SpliceFlags, splice};

use super::memory_file::{GATHERED_BYTES, punch, read_exact, write_all};

/// The most that goes to a command at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// The most that a pipe has.
pub(crate) const MAX_PIPE_BYTES: usize = 1 << 20;

/// The input of a command: its bytes go from this file to the pipe by splice(2), and the position in the
/// file, which all who have it share, says how much the command has got.
pub(crate) struct InputFile {
    file: OwnedFd,
}

impl InputFile {
    /// With what the command starts with.
    ///
    /// # Errors
    /// There are no descriptors, or there is no memory.
    pub(crate) fn new(first: &[u8]) -> io::Result<Self> {
        let file = memfd_create("telexec-input", MemfdFlags::CLOEXEC)?;
        write_all(&file, first, 0)?;
        Ok(Self { file })
    }

    /// One of an earlier agent.
    pub(crate) fn open(file: OwnedFd) -> Self {
        Self { file }
    }

    /// How much the command has got.
    ///
    /// # Errors
    /// None are known.
    pub(crate) fn sent(&self) -> io::Result<u64> {
        Ok(seek(&self.file, SeekFrom::Current(0))?)
    }

    /// Of what the command starts with, which is so long, that which comes after `sent`.
    ///
    /// # Errors
    /// It is not whole.
    pub(crate) fn left(&self, first: u64, sent: u64) -> io::Result<Bytes> {
        let left = usize::try_from(first.saturating_sub(sent)).unwrap_or(0);
        read_exact(&self.file, sent, left).map(Bytes::from)
    }

    /// Sends some of these bytes, which come after what was sent before; returns how many.
    ///
    /// # Errors
    /// `WouldBlock`: there is no room in the pipe; or the command reads no more.
    pub(crate) fn send(&self, pipe: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.sent()?;
        let bytes = bytes.get(..CHUNK_BYTES).unwrap_or(bytes);
        write_all(&self.file, bytes, sent)?;
        let more = splice(&self.file, None, pipe, None, bytes.len(), SpliceFlags::NONBLOCK)?;
        if more == 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let now = sent + more as u64;
        // what may be in the pipe is the file's memory
        if now / GATHERED_BYTES > sent / GATHERED_BYTES {
            punch(&self.file, 0, now.saturating_sub(MAX_PIPE_BYTES as u64));
        }
        Ok(more)
    }
}

impl AsFd for InputFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
