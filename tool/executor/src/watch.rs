//! Watching files for changes.

use std::pin::Pin;

use futures_util::Stream;

use crate::{ExecutorError, FilePath};

/// The changes of a watched file or directory. It ends only with an error: [`ExecutorError::File`] once what is watched is
/// gone. Dropping it ends the watch.
pub type WatchedFiles = Pin<Box<dyn Stream<Item = Result<Watched, ExecutorError>> + Send>>;

/// An item of [`WatchedFiles`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// Something has changed.
    Event(FileEvent),
    /// Events were lost, since they were read too slowly: list everything again. No change after this is missed.
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
    /// Created, or renamed to this name.
    Created,
    /// Its content changed.
    Written,
    /// It was removed.
    Removed,
    /// Renamed away from this name. If the new one is watched, [`Created`](Self::Created) follows for it.
    Renamed,
    /// Its mode, owner, times or link count changed.
    AttributesChanged,
}
