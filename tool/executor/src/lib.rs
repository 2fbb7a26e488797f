//! What it means to run a command, on any machine and by any executor.
//!
//! An [`Executor`] is somewhere commands can run: `LocalExecutor`, in the crate `telexec-engine`, is this machine;
//! `RemoteExecutor`, in the crate `telexec-client`, is a machine behind gRPC. Behaviour is added by wrapping one executor in
//! another ([`guard`], [`forward_executor!`]).
//!
//! This crate knows nothing of gRPC, and starts no process.

mod command;
mod errno;
mod error;
mod event;
mod executor;
mod file;
mod files;
#[doc(hidden)]
pub mod forward;
pub mod guard;
mod id;
mod search;
mod signal;
mod size;
pub mod text;
pub mod trace;
mod watch;

pub use command::{Command, CommandBuilder, Descendants, DuplicatePolicy, Fingerprint, OnDisconnect};
pub use command::{NAMED_COMMAND, Program, ResourceLimits, TerminalSize, USER_SHELL, asked_named_command};
pub use error::{ExecutorError, InvalidCommand, SpawnError, SpawnStage};
pub use event::{Event, ExitCause, Exited, Output, OutputStream, Started, StreamTotals, Usage};
pub use executor::{Attach, Execution, ExecutionInfo, ExecutionState, Executor, Input, ListPage, ListQuery};
pub use file::{FileError, FileErrorKind, FileInfo, FileOperation, FilePath, FileType};
pub use files::{
    DirectoryPage, DirectoryQuery, FileContent, FilePiece, FilePieces, FileRange, FileTarget, Files, WriteOptions,
    WrittenFile,
};
pub use id::ExecutionId;
pub use search::{FileMatches, Found, FoundFiles, MatchedLine, SearchQuery, SearchSummary};
pub use signal::Signal;
pub use size::parse_size;
pub use text::without_cut_character;
pub use trace::TraceContext;
pub use watch::{FileChange, FileEvent, Watched, WatchedFiles};
