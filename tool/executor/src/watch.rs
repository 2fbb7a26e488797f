//! Following the changes of files.

use std::pin::Pin;

use futures_util::Stream;

use crate::{ExecutorError, FilePath};

/// What is told of a file or a directory that is watched. It ends with an error only, [`ExecutorError::File`] if what is
/// watched is gone. Dropping it ends the watch.
pub type WatchedFiles = Pin<Box<dyn Stream<Item = Result<Watched, ExecutorError>> + Send>>;

/// Something that is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// Something has changed.
    Event(FileEvent),
    /// More has changed than was read in time, and some of it is lost: look again at all that is watched. Nothing is missed
    /// after this.
    Lost,
}

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEvent {
    /// Which one.
    pub change: FileChange,
    /// Begins with the path that is watched.
    pub path: FilePath,
}

/// What has happened to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileChange {
    /// It was made, or got this name.
    Created,
    /// Its content was changed.
    Written,
    /// It was removed.
    Removed,
    /// It has this name no more. If the new one is watched too, that is [`Created`](Self::Created).
    Renamed,
    /// Its mode, owner, times or number of links were changed.
    AttributesChanged,
}
