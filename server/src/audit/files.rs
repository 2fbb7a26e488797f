//! The files of a log: the current one, and the rotated ones.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};
use time::OffsetDateTime;
use tracing::warn;

/// The name of a rotated file: the number of its first line keeps them in order.
pub(super) fn rotated_name(path: &Path, first: u64) -> PathBuf {
    with_suffix(path, &format!("{first:012}"))
}

/// The rotated files with the numbers of their first lines, oldest first.
///
/// # Errors
/// The directory cannot be read.
pub(super) fn rotated(path: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return Ok(Vec::new()) };
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let of_it = entry.file_name();
        let digits = of_it.as_encoded_bytes().strip_prefix(name.as_encoded_bytes());
        let digits = digits.and_then(|rest| rest.strip_prefix(b".")).filter(|digits| digits.len() >= 12);
        let digits = digits.filter(|digits| digits.iter().all(u8::is_ascii_digit));
        if let Some(first) = digits.and_then(|digits| str::from_utf8(digits).ok()?.parse().ok()) {
            found.push((first, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

/// The age of the last write to each file of the log, oldest file first.
///
/// # Errors
/// They cannot be listed.
pub(super) fn ages(path: &Path) -> io::Result<Vec<Duration>> {
    let all = rotated(path)?.into_iter().map(|(_, path)| path).chain([path.to_owned()]);
    // negative after the clock was set back
    all.map(|path| Ok(std::fs::metadata(path)?.modified()?.elapsed().unwrap_or_default())).collect()
}

/// The file of the HMAC key.
pub(super) fn key_name(path: &Path) -> PathBuf {
    with_suffix(path, "key")
}

/// The file with the number of the last record that was delivered by this protocol.
pub(super) fn shipped_name(path: &Path, protocol: &str) -> PathBuf {
    with_suffix(path, protocol)
}

/// A name for an unusable tail.
pub(super) fn aside_name(path: &Path) -> PathBuf {
    with_suffix(path, &format!("aside.{}", OffsetDateTime::now_utc().unix_timestamp_nanos()))
}

pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".");
    name.push(suffix);
    name.into()
}

/// Opens the file for appending, or creates it with mode 0600.
///
/// # Errors
/// It cannot be opened, or is not a file of this user.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).map_err(io::Error::other)?;
    let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it exists, but is not a file of the agent's user"));
    }
    if metadata.mode() & 0o777 != 0o600 {
        file.set_permissions(PermissionsExt::from_mode(0o600))?;
    }
    Ok(file)
}

/// Creates an empty file that is to replace the log; returns its name as well.
///
/// # Errors
/// It cannot be created.
pub(super) fn new(path: &Path) -> io::Result<(PathBuf, File)> {
    let name = with_suffix(path, "new");
    let file = open(&name)?;
    // left by an agent that was killed here; it is empty
    if file.metadata()?.len() > 0 {
        return Err(io::Error::other(format!("{} is not empty", name.display())));
    }
    Ok((name, file))
}

/// Gives a file a second name (a hard link), or renames it where the file system has no hard links.
///
/// # Errors
/// Another file has that name, or neither is possible.
pub(super) fn also_name(path: &Path, name: &Path) -> io::Result<()> {
    if let Ok(there) = name.symlink_metadata() {
        let file = path.symlink_metadata()?;
        // left by an agent that was killed here
        return match (there.dev(), there.ino()) == (file.dev(), file.ino()) {
            true => Ok(()),
            false => Err(io::Error::other(format!("{} is there already", name.display()))),
        };
    }
    std::fs::hard_link(path, name).or_else(|_| std::fs::rename(path, name))
}

/// Waits until the directory is on disk too.
///
/// # Errors
/// They may not be.
pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// Locks the log against other agents while the returned file is open. A separate lock file, since the log itself is
/// replaced.
///
/// # Errors
/// Another agent holds the lock.
pub(super) fn lock(path: &Path) -> io::Result<File> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    if std::fs::metadata(directory)?.mode() & 0o022 != 0 {
        warn!(directory = %directory.display(), "other users can write to the directory of an audit log, and could remove it");
    }
    let lock = open(&with_suffix(path, "lock"))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
        rustix::io::Errno::WOULDBLOCK => {
            io::Error::other("another agent writes to it, perhaps one that is shutting down: wait for its end, or use a separate file or directory for each agent")
        }
        error => error.into(),
    })?;
    Ok(lock)
}
