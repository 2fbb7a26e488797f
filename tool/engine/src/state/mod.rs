//! What an engine keeps in its state directory: one directory for each engine, with the notes that it writes in case it
//! is killed.

pub(crate) mod checkpoint;
pub(crate) mod directory;
pub(crate) mod disk;
pub(crate) mod engine_file;
pub(crate) mod input_file;
pub(crate) mod journal;
mod memory_file;
pub(crate) mod notes;
pub(crate) mod serving;
pub(crate) mod sessions;

use std::io;
use std::path::{Path, PathBuf};

/// What the names of temporary directories begin with.
pub(crate) const TEMPORARY_PREFIX: &str = "telexec-";
/// What the names of the files begin with that shells report their directories in.
pub(crate) const REPORT_PREFIX: &str = "cwd-";
/// What the names of the files begin with that say which ids of dynamic users are free.
pub(crate) const DYNAMIC_USER_PREFIX: &str = "dynamic-user-";

pub(crate) fn temporary_directory() -> io::Result<tempfile::TempDir> {
    use std::os::unix::fs::PermissionsExt;

    tempfile::Builder::new().prefix(TEMPORARY_PREFIX).permissions(std::fs::Permissions::from_mode(0o700)).tempdir()
}

/// A directory of this user that no one else can write to. Made for this user alone if it is not there; one that was
/// made otherwise may be read by others.
pub(crate) fn own_directory(path: &Path) -> io::Result<PathBuf> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};

    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| {
        io::Error::new(error.kind(), format!("cannot create the directory {}: {error}", path.display()))
    })?;
    let metadata = std::fs::metadata(path)?;
    let (name, user, owner) = (path.display(), rustix::process::geteuid().as_raw(), metadata.uid());
    if metadata.is_dir() && owner != user {
        return Err(io::Error::other(format!("{name} belongs to uid {owner}, but this process runs as uid {user}")));
    }
    if !metadata.is_dir() || metadata.mode() & 0o022 != 0 {
        return Err(io::Error::other(format!("{name} must be a directory that no one else can write to")));
    }
    std::path::absolute(path)
}
