//! Unix sockets, for callers on this machine.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tokio::net::UnixListener;

use super::{Accepted, BindError, ListenAddress, Remote};
use crate::config::SocketMode;
use crate::identity::source::Source;

pub(crate) struct Unix {
    socket: UnixListener,
    path: PathBuf,
}

/// The file of a socket. Dropping this removes it, unless it is inherited.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    id: FileId,
    is_inherited: bool,
}

/// A file on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    fn of(path: &Path) -> io::Result<Self> {
        let found = std::fs::symlink_metadata(path)?;
        Ok(Self { device: found.dev(), inode: found.ino() })
    }
}

impl SocketFile {
    pub(super) fn inherited(path: PathBuf, id: FileId) -> Self {
        Self { path, id, is_inherited: true }
    }

    pub(super) fn id(&self) -> FileId {
        self.id
    }

    /// Nobody has removed or replaced it.
    pub(super) fn is_there(&self) -> bool {
        FileId::of(&self.path).is_ok_and(|found| found == self.id)
    }

    pub(super) fn remove(&self) {
        if self.is_there() {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// # Errors
    /// This process is not its owner.
    pub(super) fn set_mode(&self, mode: SocketMode) -> io::Result<()> {
        std::fs::set_permissions(&self.path, std::fs::Permissions::from_mode(mode.0))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !self.is_inherited {
            self.remove();
        }
    }
}

/// Binds a socket, and makes its directory, if that is missing.
///
/// # Errors
/// See [`BindError`].
pub(super) fn bind(listen: &ListenAddress, path: &Path, mode: SocketMode) -> Result<(OwnedFd, SocketFile), BindError> {
    let io = |source| BindError::Io { listen: listen.clone(), source };
    remove_stale(path).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse(listen.clone()),
        _ => io(error),
    })?;
    make_directory(listen, path)?;
    let socket = std::os::unix::net::UnixListener::bind(path).map_err(io)?;
    let id = FileId::of(path).map_err(io)?;
    let file = SocketFile { path: path.to_owned(), id, is_inherited: false };
    // until then others can connect, but are refused by their credentials or the policy
    file.set_mode(mode).map_err(io)?;
    Ok((socket.into(), file))
}

impl Unix {
    pub(super) fn new(socket: std::os::unix::net::UnixListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let path = socket.local_addr()?.as_pathname().map_or_else(|| "/unnamed".into(), Path::to_owned);
        Ok(Self { socket: UnixListener::from_std(socket)?, path })
    }

    pub(super) fn address(&self) -> ListenAddress {
        ListenAddress::Unix(self.path.clone())
    }

    pub(super) async fn accept(&self) -> io::Result<(Accepted, Remote)> {
        let (stream, _) = self.socket.accept().await?;
        let source = Source::of_user(stream.peer_cred().ok().as_ref());
        Ok((Accepted::Unix(stream), Remote { address: self.address().to_string(), source }))
    }
}

/// Makes the directory of a socket, for the agent's user alone.
fn make_directory(listen: &ListenAddress, path: &Path) -> Result<(), BindError> {
    let Some(directory) = path.parent().filter(|directory| !directory.exists()) else { return Ok(()) };
    let made = std::fs::DirBuilder::new().mode(0o700).create(directory);
    made.map_err(|source| BindError::Directory { listen: listen.clone(), source })
}

/// Removes a socket file that no process listens on.
fn remove_stale(path: &Path) -> io::Result<()> {
    if !check(path)? {
        return Ok(());
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ => Err(io::ErrorKind::AddrInUse.into()),
    }
}

/// Whether there is a socket.
///
/// # Errors
/// There is another file.
pub(super) fn check(path: &Path) -> io::Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => Ok(true),
        Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path exists, but is not a socket")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
