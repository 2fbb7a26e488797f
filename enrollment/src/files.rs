//! Files that are written as a whole: after a crash each is the old one or the new one.

use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use tempfile::NamedTempFile;

/// The mode of keys, and of what only their owner needs.
pub const SECRET: u32 = 0o600;
/// The mode of certificates and revocation lists.
pub const PUBLIC: u32 = 0o644;

/// Writes a file, or replaces it.
///
/// # Errors
/// It cannot be written; an existing one is unchanged.
pub fn replace(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    place(path, mode, text, true)
}

/// Writes a file that must not exist, not even as a link.
///
/// # Errors
/// It exists, or cannot be written.
pub fn create(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    place(path, mode, text, false)
}

/// Makes a directory that only its owner can enter, unless it exists.
///
/// # Errors
/// It cannot be made.
pub fn make_directory(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// Renames a file within its directory, for good.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::rename(from, to)?;
    File::open(parent(to))?.sync_all()
}

fn place(path: &Path, mode: u32, text: &str, replace: bool) -> io::Result<()> {
    let mut file = NamedTempFile::with_prefix_in(".telexec-", parent(path))?;
    file.as_file().set_permissions(Permissions::from_mode(mode))?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    let placed = if replace { file.persist(path) } else { file.persist_noclobber(path) };
    placed.map_err(|error| error.error)?;
    File::open(parent(path))?.sync_all()
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
