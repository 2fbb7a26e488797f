//! Files of a machine: what is known of one, and what can go wrong with one.

use std::borrow::Cow;
use std::fmt;
use std::time::SystemTime;

use crate::errno::{self, EACCES, EDQUOT, EEXIST, EFBIG, EINVAL, EMFILE, ENOENT, ENOSPC, ENOTDIR, EPERM, EROFS};
use crate::text::printable;

/// A path on the machine: any bytes but NUL. A relative one begins at the home directory of the user.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilePath(Vec<u8>);

impl FilePath {
    /// The path of these bytes, which may not be checked yet.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its bytes, as text where they are UTF-8.
    ///
    /// # Errors
    /// They are not; the bytes themselves.
    pub fn into_text(self) -> Result<String, Vec<u8>> {
        String::from_utf8(self.0).map_err(std::string::FromUtf8Error::into_bytes)
    }
}

/// On one line; bytes that are not UTF-8 become U+FFFD.
impl fmt::Display for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&String::from_utf8_lossy(&self.0)))
    }
}

/// What a file is: inode(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A Unix socket.
    Socket,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
}

impl FileType {
    /// Its name, such as `character_device`; of a regular file `file`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Regular => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
            Self::CharacterDevice => "character_device",
            Self::BlockDevice => "block_device",
        }
    }
}

/// What is known of a file: stat(2), of a symbolic link that of the link itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Where it is, as asked for.
    pub path: FilePath,
    /// What it is.
    pub kind: FileType,
    /// In bytes.
    pub size: u64,
    /// The permission bits, with set-user-ID, set-group-ID and sticky: 0 to 0o7777.
    pub mode: u32,
    /// The name of its owner, or the number where it has no name.
    pub owner: String,
    /// The name of its group, or the number where it has no name.
    pub group: String,
    /// When its content was changed last.
    pub modify_time: SystemTime,
    /// Where a symbolic link points; `None`: it is none.
    pub link_target: Option<FilePath>,
}

/// What could not be done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOperation {
    /// To find or open it.
    Open,
    /// To read it, or a directory.
    Read,
    /// To write it.
    Write,
    /// To make a directory.
    MakeDirectory,
    /// To make a link: a symbolic one or, by SFTP, a hard one.
    MakeLink,
    /// To give it its name.
    Rename,
    /// To remove it.
    Remove,
    /// To follow its changes.
    Watch,
}

impl FileOperation {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Open,
        Self::Read,
        Self::Write,
        Self::MakeDirectory,
        Self::MakeLink,
        Self::Rename,
        Self::Remove,
        Self::Watch,
    ];

    /// Its name, such as `make_directory`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Read => "read",
            Self::Write => "write",
            Self::MakeDirectory => "make_directory",
            Self::MakeLink => "make_link",
            Self::Rename => "rename",
            Self::Remove => "remove",
            Self::Watch => "watch",
        }
    }

    /// As it reads after "cannot" and before the path.
    fn action(self) -> &'static str {
        match self {
            Self::MakeDirectory => "make directory",
            Self::MakeLink => "make link",
            other => other.as_str(),
        }
    }
}

/// Something that could not be done with a file. Nothing was changed, unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {} {path}: {}", operation.action(), reason(*operation, *errno))]
pub struct FileError {
    /// What was to be done.
    pub operation: FileOperation,
    /// With which file.
    pub path: FilePath,
    /// The system's error number, as Linux counts them.
    pub errno: i32,
}

/// What a limit of inotify(7) is called otherwise would mislead.
fn reason(operation: FileOperation, errno: i32) -> Cow<'static, str> {
    match (operation, errno) {
        (FileOperation::Watch, ENOSPC) => "too many directories, or fs.inotify.max_user_watches is used up".into(),
        (FileOperation::Watch, EMFILE) => "fs.inotify.max_user_instances is used up".into(),
        // what is opened, read and written is a file
        (FileOperation::Open | FileOperation::Read | FileOperation::Write, EINVAL) => "not a regular file".into(),
        _ => errno::text(errno).into(),
    }
}

/// What an error means to a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileErrorKind {
    /// There is no such file or directory.
    NotFound,
    /// There is one already.
    AlreadyExists,
    /// The run-as user may not do that.
    AccessDenied,
    /// The disk, a quota or the largest size of a file is used up.
    Full,
    /// The file is not of the type, or not in the state, that this needs.
    WrongState,
}

impl FileError {
    /// What it means to the caller.
    pub fn kind(&self) -> FileErrorKind {
        match self.errno {
            // the user's limits of inotify(7)
            EMFILE if self.operation == FileOperation::Watch => FileErrorKind::Full,
            ENOENT | ENOTDIR => FileErrorKind::NotFound,
            EEXIST => FileErrorKind::AlreadyExists,
            EACCES | EPERM | EROFS => FileErrorKind::AccessDenied,
            ENOSPC | EDQUOT | EFBIG => FileErrorKind::Full,
            _ => FileErrorKind::WrongState,
        }
    }

    /// The operation with this name.
    pub fn operation_from_name(name: &str) -> Option<FileOperation> {
        FileOperation::ALL.into_iter().find(|operation| operation.as_str() == name)
    }

    /// The error number with this name (or this text as a number), as Linux counts them.
    pub fn errno_from_name(name: &str) -> Option<i32> {
        errno::from_name(name)
    }

    /// The name of the error number, such as `ENOENT`; the number itself if it has no common name.
    pub fn errno_name(&self) -> Cow<'static, str> {
        errno::name(self.errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_watches_are_called_so() {
        let error = |operation, errno| FileError { operation, path: FilePath::new("/x"), errno };
        for (errno, limit) in [(ENOSPC, "max_user_watches"), (EMFILE, "max_user_instances")] {
            let watch = error(FileOperation::Watch, errno);
            assert_eq!(watch.kind(), FileErrorKind::Full);
            assert!(watch.to_string().contains(limit), "{watch}");
        }
        assert_eq!(error(FileOperation::Open, EMFILE).kind(), FileErrorKind::WrongState);
        assert_eq!(error(FileOperation::Write, ENOSPC).to_string(), "cannot write /x: no space left on device");
    }

    #[test]
    fn a_full_disk_and_a_full_quota_are_one_kind() {
        for errno in [ENOSPC, EDQUOT, EFBIG] {
            let error = FileError { operation: FileOperation::Write, path: FilePath::new("/x"), errno };
            assert_eq!(error.kind(), FileErrorKind::Full, "{error}");
        }
    }
}
