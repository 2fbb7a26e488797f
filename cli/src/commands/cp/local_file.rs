//! Files here, read on threads of their own, with their SHA-256.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use aws_lc_rs::digest::{Context, SHA256};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use telexec_executor::{ExecutorError, FileError, FileOperation, FilePath, FilePiece, FilePieces};
use tokio::sync::{mpsc, oneshot};

const PIECE_BYTES: usize = 256 * 1024;
/// Pieces between the disk and the network.
pub(super) const MAX_WAITING: usize = 8;
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// An error of the system with a file here.
pub(super) fn here(operation: FileOperation, path: &Path, error: &io::Error) -> ExecutorError {
    let path = FilePath::new(path.as_os_str().as_encoded_bytes());
    match errno(error) {
        Some(errno) => FileError { operation, path, errno }.into(),
        None => ExecutorError::Internal(format!("cannot {} {path}: {error}", operation.as_str())),
    }
}

/// The number of an error, which may be wrapped in another with a path that is only of this program.
fn errno(error: &io::Error) -> Option<i32> {
    let cause = || std::error::Error::source(error.get_ref()?)?.downcast_ref::<io::Error>();
    error.raw_os_error().or_else(|| cause()?.raw_os_error())
}

/// The content of a file from a position on, and the SHA-256 of all of it, once all was read.
pub(super) fn read(path: &Path, file: File, offset: u64) -> (FilePieces, oneshot::Receiver<[u8; 32]>) {
    let (pieces, waiting) = mpsc::channel(MAX_WAITING);
    let (digest, digested) = oneshot::channel();
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || {
        let mut reader = Reader { file, digest: Context::new(&SHA256), pieces };
        match reader.all(offset) {
            Ok(true) => drop(digest.send(sha256(reader.digest))),
            // nobody wants it
            Ok(false) => {}
            Err(error) => {
                let _ = reader.pieces.blocking_send(Err(here(FileOperation::Read, &path, &error)));
            }
        }
    });
    (received(waiting), digested)
}

fn received(waiting: mpsc::Receiver<Result<FilePiece, ExecutorError>>) -> FilePieces {
    stream::unfold(waiting, async |mut waiting| {
        let piece = waiting.recv().await?;
        Some((piece, waiting))
    })
    .boxed()
}

/// The SHA-256 of these bytes.
pub(super) fn digest(data: &[u8]) -> [u8; 32] {
    let mut digest = Context::new(&SHA256);
    digest.update(data);
    sha256(digest)
}

pub(super) fn sha256(digest: Context) -> [u8; 32] {
    digest.finish().as_ref().try_into().unwrap_or_default()
}

struct Reader {
    file: File,
    digest: Context,
    pieces: mpsc::Sender<Result<FilePiece, ExecutorError>>,
}

impl Reader {
    /// Returns whether all was taken.
    fn all(&mut self, offset: u64) -> io::Result<bool> {
        let mut buffer = BytesMut::zeroed(PIECE_BYTES);
        let mut position = 0;
        while position < offset {
            let most = usize::try_from(offset - position).unwrap_or(usize::MAX).min(PIECE_BYTES);
            match self.file.read(buffer.get_mut(..most).unwrap_or_default())? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => {
                    self.digest.update(buffer.get(..read).unwrap_or_default());
                    position += read as u64;
                }
            }
        }
        loop {
            if let Some(end) = self.hole(position)? {
                digest_zeros(&mut self.digest, end - position);
                if !self.give(FilePiece::Hole(end - position)) {
                    return Ok(false);
                }
                position = end;
            }
            let mut piece = Vec::with_capacity(PIECE_BYTES);
            let read = match rustix::io::read(&self.file, rustix::buffer::spare_capacity(&mut piece)) {
                Err(rustix::io::Errno::INTR) => continue,
                read => read?,
            };
            if read == 0 {
                return Ok(true);
            }
            self.digest.update(&piece);
            position += read as u64;
            if !self.give(FilePiece::Data(piece.into())) {
                return Ok(false);
            }
        }
    }

    fn give(&self, piece: FilePiece) -> bool {
        self.pieces.blocking_send(Ok(piece)).is_ok()
    }

    /// Where the hole ends that is at this position, if there is one. Reading continues there.
    #[cfg(target_os = "linux")]
    fn hole(&mut self, position: u64) -> io::Result<Option<u64>> {
        use rustix::fs::{SeekFrom as Sparse, seek};
        use rustix::io::Errno;
        let size = self.file.metadata()?;
        if !size.is_file() {
            return Ok(None);
        }
        let found = match seek(&self.file, Sparse::Data(position)) {
            Ok(data) => (data > position).then_some(data),
            Err(Errno::NXIO) => (position < size.len()).then_some(size.len()),
            Err(_) => None,
        };
        self.file.seek(SeekFrom::Start(found.unwrap_or(position)))?;
        Ok(found)
    }

    #[cfg(not(target_os = "linux"))]
    fn hole(&mut self, _: u64) -> io::Result<Option<u64>> {
        Ok(None)
    }
}

pub(super) fn digest_zeros(digest: &mut Context, mut length: u64) {
    while length > 0 {
        let most = usize::try_from(length).unwrap_or(usize::MAX).min(ZEROS.len());
        digest.update(ZEROS.get(..most).unwrap_or_default());
        length -= most as u64;
    }
}

/// The bytes that a piece stands for.
pub(super) fn length(piece: &FilePiece) -> u64 {
    match piece {
        FilePiece::Data(data) => Bytes::len(data) as u64,
        FilePiece::Hole(length) => *length,
        FilePiece::End { .. } => 0,
    }
}
