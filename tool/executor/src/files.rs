//! The files of a machine, as a caller uses them.

use std::fmt;
use std::pin::Pin;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;

use crate::{ExecutionId, ExecutorError, FileInfo, FilePath, FoundFiles, SearchQuery, WatchedFiles};

/// Somewhere files can be read and written, by a process of the user that each call names.
///
/// Dropping the future of a call ends it; a file that was being written is as it was before.
#[async_trait]
pub trait Files: Send + Sync {
    /// Opens a regular file for reading. A symbolic link is followed.
    ///
    /// # Errors
    /// [`ExecutorError::File`], or the machine could not be asked.
    async fn read(&self, file: FileTarget, range: FileRange) -> Result<FileContent, ExecutorError>;

    /// Writes a regular file, of all that `content` has: whoever opens it finds the old file or the new one.
    ///
    /// # Errors
    /// [`ExecutorError::File`], [`ExecutorError::Corrupted`], an error of `content`, or the machine could not be asked.
    async fn write(
        &self,
        file: FileTarget,
        options: WriteOptions,
        content: FilePieces,
    ) -> Result<WrittenFile, ExecutorError>;

    /// How much of an upload has arrived.
    ///
    /// # Errors
    /// [`ExecutorError::NoUpload`], or the machine could not be asked.
    async fn upload(&self, id: &ExecutionId) -> Result<u64, ExecutorError>;

    /// Describes a file; of a symbolic link, the link itself.
    ///
    /// # Errors
    /// [`ExecutorError::File`], or the machine could not be asked.
    async fn info(&self, file: FileTarget) -> Result<FileInfo, ExecutorError>;

    /// A page of a directory, in the order of the names' bytes. The paths are names.
    ///
    /// # Errors
    /// [`ExecutorError::File`]; [`ExecutorError::Invalid`] for a page token that this machine did not make; or it could
    /// not be asked.
    async fn list(&self, directory: FileTarget, query: DirectoryQuery) -> Result<DirectoryPage, ExecutorError>;

    /// Finds files below a directory, or lines in them: whatever `query` says. What is denied, unreadable or no text is left
    /// out, and counted at the end.
    ///
    /// # Errors
    /// [`ExecutorError::Invalid`] for a pattern that does not compile, in its field `glob` or `regex`;
    /// [`ExecutorError::File`] if the directory itself cannot be read; or the machine could not be asked.
    async fn search(&self, directory: FileTarget, query: SearchQuery) -> Result<FoundFiles, ExecutorError>;

    /// Watches a file, or a directory and its entries; with `recursive` also the directories below it that the user may
    /// read. No change after this returns is missed. What a new directory already contains is reported as created.
    ///
    /// # Errors
    /// [`ExecutorError::File`], also if there are too many directories; or the machine could not be asked.
    async fn watch(&self, file: FileTarget, recursive: bool) -> Result<WatchedFiles, ExecutorError>;

    /// Makes a directory. With `make_parents` also those that it is in, and it may exist.
    ///
    /// # Errors
    /// [`ExecutorError::File`], or the machine could not be asked.
    async fn make_directory(
        &self,
        directory: FileTarget,
        mode: Option<u32>,
        make_parents: bool,
    ) -> Result<(), ExecutorError>;

    /// Renames a file or a directory, on the same file system: rename(2).
    ///
    /// # Errors
    /// [`ExecutorError::File`], or the machine could not be asked.
    async fn rename(&self, file: FileTarget, destination: FilePath, replace: bool) -> Result<(), ExecutorError>;

    /// Removes a file, a symbolic link, or a directory; with `recursive` one that is not empty.
    ///
    /// # Errors
    /// [`ExecutorError::File`], or the machine could not be asked. What fails in the middle of a directory leaves the rest.
    async fn remove(&self, file: FileTarget, recursive: bool) -> Result<(), ExecutorError>;
}

/// A file, and the user who opens it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileTarget {
    /// Where it is. A relative path begins where a command of the user starts.
    pub path: FilePath,
    /// The name of the user; `None`: the default user of the machine's executor.
    pub user: Option<String>,
}

impl FileTarget {
    /// This path, for the default user.
    pub fn new(path: impl Into<Vec<u8>>) -> Self {
        Self { path: FilePath::new(path), user: None }
    }
}

/// Which part of a file to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileRange {
    /// From this byte on.
    pub offset: u64,
    /// At most so many bytes; 0: to the end.
    pub length: u64,
    /// Holes are to be [`FilePiece::Hole`], not zeros.
    pub holes: bool,
    /// The SHA-256 of all before `offset`, as the caller has it: [`ExecutorError::Corrupted`], and nothing is read, if the
    /// file has something else there. `None`: not compared.
    pub prefix_sha256: Option<[u8; 32]>,
}

/// How to write a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Its permission bits; `None`: those of the file that is replaced, or 0644 less the umask.
    pub mode: Option<u32>,
    /// The permission bits of the file that this is a copy of: a new file has them, less the umask; one that is replaced
    /// keeps its own, and is executable for whoever may read it if the source is executable. Not with `mode`.
    pub source_mode: Option<u32>,
    /// Makes the directories that it is in.
    pub make_parents: bool,
    /// Fails if there is one.
    pub exclusive: bool,
    /// What it must have; `None`: anything.
    pub sha256: Option<[u8; 32]>,
    /// Names an upload that may be continued, and where the content continues it; `None`: it is lost with its call.
    pub upload: Option<(ExecutionId, u64)>,
}

/// Which part of a directory to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryQuery {
    /// The most to return; 0 and more than 1,000: 1,000.
    pub page_size: u32,
    /// [`DirectoryPage::next_page_token`] of the page before; empty: the first page.
    pub page_token: String,
}

/// Some entries of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryPage {
    /// Without `.` and `..`.
    pub entries: Vec<FileInfo>,
    /// For the next page; empty: this was the last.
    pub next_page_token: String,
}

/// A file that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenFile {
    /// As it is now.
    pub info: FileInfo,
    /// Of its content.
    pub sha256: [u8; 32],
}

/// A piece of a file's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilePiece {
    /// Some bytes.
    Data(Bytes),
    /// So many zeros, which take no room on the disk.
    Hole(u64),
    /// The last one, of what was read: its SHA-256. Not to be written.
    End {
        /// Of all pieces, holes included.
        sha256: [u8; 32],
    },
}

/// The content of a file, in order.
pub type FilePieces = Pin<Box<dyn Stream<Item = Result<FilePiece, ExecutorError>> + Send>>;

/// A file that was opened for reading.
pub struct FileContent {
    /// As it was when it was opened.
    pub info: FileInfo,
    /// Ends with [`FilePiece::End`], or an error. Dropping it closes the file.
    pub pieces: FilePieces,
}

impl fmt::Debug for FileContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileContent").field("info", &self.info).finish_non_exhaustive()
    }
}
