//! Files here that arrive in pieces, and get their names when they are complete.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::LazyLock;

use aws_lc_rs::digest::{Context, SHA256};
use rustix::fs::{FlockOperation, flock};
use telexec_executor::{FileInfo, FilePiece, FileRange};
use tempfile::NamedTempFile;
use tokio::sync::mpsc;

use super::local_file::{MAX_WAITING, digest, digest_zeros, sha256};

/// Less is copied again rather than kept.
pub(super) const RESUMED_BYTES: u64 = 1024 * 1024;

/// A file that is being written, in the directory of its name. Dropped before it is [published](Self::publish), it leaves
/// nothing, unless it is [resumable](Self::resumable) and large.
pub(super) struct Draft {
    file: NamedTempFile,
    segment: Segment,
    is_resumable: bool,
}

/// What becomes of a symbolic link with the name of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Links {
    /// What it leads to is replaced.
    Follow,
    /// It is replaced itself.
    Replace,
}

/// The permissions of a file that is complete.
#[derive(Clone, Copy)]
pub(super) enum NewMode {
    As(u32),
    /// A new file has those of its source, less the umask; one that is replaced keeps its own, and is executable for
    /// whoever may read it if its source is executable.
    Like(u32),
}

/// What comes of a file.
pub(super) enum Received {
    /// The pieces of another call begin.
    Begin(FileInfo),
    Piece(FilePiece),
}

/// What one call sends of a file, compared with the SHA-256 at its end.
pub(super) struct Segment(Context);

impl Default for Segment {
    fn default() -> Self {
        Self(Context::new(&SHA256))
    }
}

impl Segment {
    /// # Errors
    /// It is not what was sent.
    pub(super) fn add(&mut self, received: &Received) -> io::Result<()> {
        match received {
            Received::Begin(_) => *self = Self::default(),
            Received::Piece(FilePiece::Data(data)) => self.0.update(data),
            Received::Piece(FilePiece::Hole(length)) => digest_zeros(&mut self.0, *length),
            Received::Piece(FilePiece::End { sha256: sent }) => {
                if sha256(std::mem::take(self).0) != *sent {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "the SHA-256 is not that of the source"));
                }
            }
        }
        Ok(())
    }
}

impl Draft {
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        let file = tempfile::Builder::new().prefix(".telexec-").tempfile_in(directory(path))?;
        Ok(Self { file, segment: Segment::default(), is_resumable: false })
    }

    /// One that has the beginning of the same copy, if that was interrupted, and that another one finds again. `copy` is
    /// what makes them the same.
    pub(super) fn resumable(path: &Path, copy: &[&[u8]]) -> io::Result<Self> {
        let name = path.file_name().unwrap_or_default().as_bytes();
        let hash: String =
            digest(&[copy, &[name]].concat().join(&0)).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let part = tempfile::Builder::new()
            .prefix(&format!(".telexec-part-{hash}"))
            .rand_bytes(0)
            .make_in(directory(path), open_part);
        match part {
            Ok(part) => Self::from_part(part),
            // another copy has it, or another user
            Err(_) => Self::new(path),
        }
    }

    fn from_part(part: NamedTempFile<File>) -> io::Result<Self> {
        let mut this = Self { file: part, segment: Segment::default(), is_resumable: true };
        let kept = this.file.as_file_mut().seek(SeekFrom::End(0))?;
        this.keep_from(kept);
        Ok(this)
    }

    /// What is to come of the source. The position to write at is where that begins.
    pub(super) fn missing(&mut self) -> io::Result<FileRange> {
        let mut file = self.file.as_file();
        file.rewind()?;
        let mut digest = Context::new(&SHA256);
        let mut buffer = vec![0; 256 * 1024];
        let mut offset = 0;
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => {
                    digest.update(buffer.get(..read).unwrap_or_default());
                    offset += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let prefix_sha256 = (offset > 0).then(|| sha256(digest));
        Ok(FileRange { offset, length: 0, holes: true, prefix_sha256 })
    }

    /// Begins anew.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        self.file.as_file().set_len(0)?;
        self.file.rewind()?;
        self.keep_from(0);
        Ok(())
    }

    /// Leaves nothing.
    pub(super) fn discard(mut self) {
        self.file.disable_cleanup(false);
    }

    fn keep_from(&mut self, position: u64) {
        self.file.disable_cleanup(self.is_resumable && position >= RESUMED_BYTES);
    }

    pub(super) fn write(&mut self, received: &Received) -> io::Result<()> {
        match received {
            Received::Piece(FilePiece::Data(data)) => self.file.write_all(data)?,
            Received::Piece(FilePiece::Hole(length)) => {
                let length = i64::try_from(*length).map_err(io::Error::other)?;
                let end = self.file.seek(SeekFrom::Current(length))?;
                self.file.as_file().set_len(end)?;
            }
            Received::Piece(FilePiece::End { .. }) | Received::Begin(_) => return self.segment.add(received),
        }
        self.segment.add(received)?;
        let position = self.file.stream_position()?;
        self.keep_from(position);
        Ok(())
    }

    /// Gives it its name and permissions.
    pub(super) fn publish(mut self, path: &Path, permissions: NewMode, links: Links) -> io::Result<()> {
        self.file.disable_cleanup(false);
        let length = self.file.stream_position()?;
        self.file.as_file().set_len(length)?;
        let replaced = replaced(path, links)?;
        let mode = match (permissions, replaced.map(|replaced| replaced.permissions().mode() & 0o777)) {
            (NewMode::As(mode), _) => mode,
            (NewMode::Like(source), Some(kept)) if source & 0o111 != 0 => kept | (kept & 0o444) >> 2,
            (NewMode::Like(_), Some(kept)) => kept,
            (NewMode::Like(source), None) => source & 0o777 & !umask(),
        };
        self.file.as_file().set_permissions(Permissions::from_mode(mode))?;
        let followed = (links == Links::Follow).then(|| std::fs::canonicalize(path).ok()).flatten();
        let path = followed.unwrap_or_else(|| path.to_owned());
        self.file.persist(path).map(drop).map_err(|failed| failed.error)
    }
}

/// What has this name.
///
/// # Errors
/// It is something else than a file: a device, say, is not to be replaced by one.
pub(super) fn replaced(path: &Path, links: Links) -> io::Result<Option<Metadata>> {
    let found = match links {
        Links::Follow => path.metadata(),
        Links::Replace => path.symlink_metadata(),
    };
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Ok(found) if found.is_file() => Ok(Some(found)),
        Ok(found) if found.is_symlink() => Ok(None),
        Ok(found) if found.is_dir() => Err(io::Error::from_raw_os_error(rustix::io::Errno::ISDIR.raw_os_error())),
        Ok(_) => Err(io::Error::from_raw_os_error(rustix::io::Errno::INVAL.raw_os_error())),
        Err(error) => Err(error),
    }
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// # Errors
/// It cannot be opened, another copy writes it, or it may be somebody else's too.
fn open_part(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags((rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits().cast_signed())
        .open(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let (opened, named) = (file.metadata()?, path.symlink_metadata()?);
    // whoever had it may have given it another name before it was locked
    let is_same = (opened.dev(), opened.ino()) == (named.dev(), named.ino());
    let is_own = opened.uid() == rustix::process::geteuid().as_raw() && opened.mode() & 0o077 == 0;
    match is_same && is_own && opened.is_file() && opened.nlink() == 1 {
        true => Ok(file),
        false => Err(io::Error::other("it is not this user's alone")),
    }
}

/// It can only be read by setting it, which is done once: other threads make files meanwhile.
#[allow(clippy::useless_conversion, reason = "the type of a mode differs between systems")]
pub(super) fn umask() -> u32 {
    static UMASK: LazyLock<u32> = LazyLock::new(|| {
        let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        rustix::process::umask(mask);
        mask.as_raw_mode().into()
    });
    *UMASK
}

/// Writes to a draft on a thread of its own.
pub(super) struct Writer {
    pieces: mpsc::Sender<Received>,
    written: tokio::task::JoinHandle<io::Result<Draft>>,
}

impl Writer {
    pub(super) fn start(mut draft: Draft) -> Self {
        let (pieces, mut waiting) = mpsc::channel(MAX_WAITING);
        let written = tokio::task::spawn_blocking(move || {
            while let Some(received) = waiting.blocking_recv() {
                if let Err(error) = draft.write(&received) {
                    draft.discard();
                    return Err(error);
                }
            }
            Ok(draft)
        });
        Self { pieces, written }
    }

    /// Returns whether it is still written to.
    pub(super) async fn write(&self, received: Received) -> bool {
        self.pieces.send(received).await.is_ok()
    }

    /// The draft, once all was written.
    ///
    /// # Errors
    /// Something could not be written.
    pub(super) async fn finish(self) -> io::Result<Draft> {
        drop(self.pieces);
        self.written.await.map_err(io::Error::other)?
    }
}
