//! Requests, answers and questions, as they go over the pipes. Paths are bytes.

use std::time::{Duration, SystemTime};

pub use crate::search::message::{Found, Malformed, SearchTask, Searched};
pub use crate::watch::message::{Events, WatchTask};
use telexec_executor::{FileError, FileInfo, FileOperation, FilePath, FileType};

/// What is to be done with a file.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    /// Whether the process is to ask before it touches the file.
    #[prost(bool, tag = "1")]
    pub asks: bool,
    /// What.
    #[prost(oneof = "Task", tags = "2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13")]
    pub task: Option<Task>,
    /// Whether it is also to ask about what a directory contains that is moved or removed.
    #[prost(bool, tag = "14")]
    pub asks_below: bool,
}

/// What is to be done.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Task {
    /// Answered by the information, data and the end.
    #[prost(message, tag = "2")]
    Read(ReadTask),
    /// Followed by data and the end; answered at the end.
    #[prost(message, tag = "3")]
    Write(WriteTask),
    /// Information about a file.
    #[prost(bytes, tag = "4")]
    Info(Vec<u8>),
    /// A page of a directory.
    #[prost(message, tag = "5")]
    List(ListTask),
    /// Makes a directory.
    #[prost(message, tag = "6")]
    MakeDirectory(MakeDirectoryTask),
    /// Renames.
    #[prost(message, tag = "7")]
    Move(MoveTask),
    /// Removes.
    #[prost(message, tag = "8")]
    Remove(RemoveTask),
    /// Makes a symbolic link.
    #[prost(message, tag = "9")]
    MakeLink(MakeLinkTask),
    /// Answered when all that was written is on the disk.
    #[prost(message, tag = "10")]
    Sync(Done),
    /// An SFTP session: data both ways until the end, which is answered.
    #[prost(message, tag = "11")]
    Sftp(Done),
    /// Answered when nothing is missed any more, and by what changes, until the input ends.
    #[prost(message, tag = "12")]
    Watch(WatchTask),
    /// Answered by what is found, and the end.
    #[prost(message, tag = "13")]
    Search(SearchTask),
}

/// Reads a regular file.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReadTask {
    /// Which.
    #[prost(bytes = "vec", tag = "1")]
    pub path: Vec<u8>,
    /// From here on.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
    /// At most so many bytes; 0: to the end.
    #[prost(uint64, tag = "3")]
    pub length: u64,
    /// Holes are sent as such.
    #[prost(bool, tag = "4")]
    pub holes: bool,
    /// The SHA-256 of all before `offset`; empty: anything.
    #[prost(bytes = "vec", tag = "5")]
    pub prefix_sha256: Vec<u8>,
}

/// Writes a regular file: all of it or nothing.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WriteTask {
    /// Which. A symbolic link is followed.
    #[prost(bytes = "vec", tag = "1")]
    pub path: Vec<u8>,
    /// Its permission bits; absent: those of the file that is replaced, or 0644 less the umask.
    #[prost(uint32, optional, tag = "2")]
    pub mode: Option<u32>,
    /// Makes the directories that it is in.
    #[prost(bool, tag = "3")]
    pub make_parents: bool,
    /// Fails if there is one.
    #[prost(bool, tag = "4")]
    pub exclusive: bool,
    /// The SHA-256 that it must have; empty: any.
    #[prost(bytes = "vec", tag = "5")]
    pub sha256: Vec<u8>,
    /// It need not be on the disk before the next [`Task::Sync`].
    #[prost(bool, tag = "6")]
    pub is_synced_later: bool,
    /// The permission bits of the file that this is a copy of.
    #[prost(uint32, optional, tag = "7")]
    pub source_mode: Option<u32>,
}

/// Lists a directory, by the bytes of the names.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListTask {
    /// Which.
    #[prost(bytes = "vec", tag = "1")]
    pub path: Vec<u8>,
    /// Names after this one.
    #[prost(bytes = "vec", tag = "2")]
    pub after: Vec<u8>,
    /// At most so many.
    #[prost(uint32, tag = "3")]
    pub limit: u32,
}

/// Makes a directory.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MakeDirectoryTask {
    /// Which.
    #[prost(bytes = "vec", tag = "1")]
    pub path: Vec<u8>,
    /// Its permission bits; absent: 0777 less the umask.
    #[prost(uint32, optional, tag = "2")]
    pub mode: Option<u32>,
    /// Makes the directories that it is in; it may exist itself.
    #[prost(bool, tag = "3")]
    pub make_parents: bool,
}

/// Renames a file or a directory, on the same file system.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MoveTask {
    /// From.
    #[prost(bytes = "vec", tag = "1")]
    pub source: Vec<u8>,
    /// To.
    #[prost(bytes = "vec", tag = "2")]
    pub destination: Vec<u8>,
    /// Whatever has that name is replaced.
    #[prost(bool, tag = "3")]
    pub replace: bool,
}

/// Removes a file, or a directory.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RemoveTask {
    /// Which.
    #[prost(bytes = "vec", tag = "1")]
    pub path: Vec<u8>,
    /// A directory with all that is in it.
    #[prost(bool, tag = "2")]
    pub recursive: bool,
}

/// Makes a symbolic link; what has that name is replaced, unless it is a directory.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MakeLinkTask {
    /// Which.
    #[prost(bytes = "vec", tag = "1")]
    pub path: Vec<u8>,
    /// Where it is to point.
    #[prost(bytes = "vec", tag = "2")]
    pub target: Vec<u8>,
}

/// Asked before a file is touched. The answer is a verdict.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Question {
    /// What for.
    #[prost(enumeration = "Access", tag = "1")]
    pub access: i32,
    /// The path that it really has, without symbolic links.
    #[prost(bytes = "vec", tag = "2")]
    pub path: Vec<u8>,
    /// It is another one of the same request: what is permitted is not recorded again.
    #[prost(bool, tag = "3")]
    pub is_part: bool,
}

/// What a question is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Access {
    /// Its content, and information about it.
    Read = 0,
    /// To make, change or remove it.
    Write = 1,
    /// Names in a directory, and information about a file.
    List = 2,
    /// Changes of a file, or of the names in a directory and of what they name.
    Watch = 3,
}

/// A file of an SFTP session was closed.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Report {
    /// The path that it really had.
    #[prost(bytes = "vec", tag = "1")]
    pub path: Vec<u8>,
    /// Read from it.
    #[prost(uint64, tag = "2")]
    pub bytes_read: u64,
    /// Written to it.
    #[prost(uint64, tag = "3")]
    pub bytes_written: u64,
}

/// What came of a request, or a part of that.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Answer {
    /// What.
    #[prost(oneof = "Outcome", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12")]
    pub outcome: Option<Outcome>,
}

/// What came of a request.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Outcome {
    /// Of a read, before the data; of an information request.
    #[prost(message, tag = "1")]
    Info(Info),
    /// Of a read, after the data.
    #[prost(message, tag = "2")]
    Read(Digest),
    /// Of a write.
    #[prost(message, tag = "3")]
    Written(Written),
    /// Of a list.
    #[prost(message, tag = "4")]
    Listed(Listed),
    /// Of the others: it is done.
    #[prost(message, tag = "5")]
    Done(Done),
    /// The system refused.
    #[prost(message, tag = "6")]
    Failed(Failed),
    /// It was asked, and the verdict was no: which path.
    #[prost(bytes, tag = "7")]
    Denied(Vec<u8>),
    /// Of a watch: from now on nothing is missed.
    #[prost(message, tag = "8")]
    Watching(Done),
    /// Of a watch, after that.
    #[prost(message, tag = "9")]
    Events(Events),
    /// Of a search, several times.
    #[prost(message, tag = "10")]
    Found(Found),
    /// Of a search, after that.
    #[prost(message, tag = "11")]
    Searched(Searched),
    /// Of a search whose pattern is none: nothing was looked at.
    #[prost(message, tag = "12")]
    Malformed(Malformed),
}

/// Of what was read.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Digest {
    /// SHA-256.
    #[prost(bytes = "vec", tag = "1")]
    pub sha256: Vec<u8>,
    /// It is of what comes before the data, and not what the caller said; nothing else comes.
    #[prost(bool, tag = "2")]
    pub is_other: bool,
}

/// What was written.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Written {
    /// The file.
    #[prost(message, optional, tag = "1")]
    pub info: Option<Info>,
    /// Its SHA-256.
    #[prost(bytes = "vec", tag = "2")]
    pub sha256: Vec<u8>,
    /// It is not what the caller said; nothing was changed.
    #[prost(bool, tag = "3")]
    pub is_other: bool,
}

/// A page of a directory.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Listed {
    /// Without `.` and `..`.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Info>,
    /// There are more after these.
    #[prost(bool, tag = "2")]
    pub has_more: bool,
}

/// Nothing more to say.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Done {}

/// What a [`FileError`] has.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Failed {
    /// The name of the operation.
    #[prost(string, tag = "1")]
    pub operation: String,
    /// The path, as asked for, or of what is below that.
    #[prost(bytes = "vec", tag = "2")]
    pub path: Vec<u8>,
    /// The error number.
    #[prost(int32, tag = "3")]
    pub errno: i32,
}

/// What a [`FileInfo`] has.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Info {
    /// Of a list: the name.
    #[prost(bytes = "vec", tag = "1")]
    pub path: Vec<u8>,
    /// Its type: the place in the order of [`FileType`].
    #[prost(uint32, tag = "2")]
    pub kind: u32,
    /// In bytes.
    #[prost(uint64, tag = "3")]
    pub size: u64,
    /// The permission bits.
    #[prost(uint32, tag = "4")]
    pub mode: u32,
    /// The owner's name.
    #[prost(string, tag = "5")]
    pub owner: String,
    /// The group's name.
    #[prost(string, tag = "6")]
    pub group: String,
    /// Seconds since 1970.
    #[prost(int64, tag = "7")]
    pub modify_seconds: i64,
    /// And nanoseconds.
    #[prost(uint32, tag = "8")]
    pub modify_nanos: u32,
    /// Where a symbolic link points.
    #[prost(bytes = "vec", optional, tag = "9")]
    pub link_target: Option<Vec<u8>>,
}

/// In the order of their numbers.
pub(crate) const TYPES: [FileType; 7] = [
    FileType::Regular,
    FileType::Directory,
    FileType::Symlink,
    FileType::Fifo,
    FileType::Socket,
    FileType::CharacterDevice,
    FileType::BlockDevice,
];

impl From<Info> for FileInfo {
    fn from(info: Info) -> Self {
        let seconds = Duration::from_secs(info.modify_seconds.unsigned_abs());
        let whole = match info.modify_seconds < 0 {
            true => SystemTime::UNIX_EPOCH.checked_sub(seconds),
            false => SystemTime::UNIX_EPOCH.checked_add(seconds),
        };
        let time = whole.and_then(|time| time.checked_add(Duration::from_nanos(info.modify_nanos.into())));
        Self {
            path: FilePath::new(info.path),
            kind: TYPES.get(info.kind as usize).copied().unwrap_or(FileType::Regular),
            size: info.size,
            mode: info.mode,
            owner: info.owner,
            group: info.group,
            modify_time: time.unwrap_or(SystemTime::UNIX_EPOCH),
            link_target: info.link_target.map(FilePath::new),
        }
    }
}

impl From<Failed> for FileError {
    fn from(failed: Failed) -> Self {
        Self {
            operation: FileError::operation_from_name(&failed.operation).unwrap_or(FileOperation::Open),
            path: FilePath::new(failed.path),
            errno: failed.errno,
        }
    }
}

impl From<FileError> for Failed {
    fn from(error: FileError) -> Self {
        Self {
            operation: error.operation.as_str().to_owned(),
            path: error.path.as_bytes().to_vec(),
            errno: error.errno,
        }
    }
}
