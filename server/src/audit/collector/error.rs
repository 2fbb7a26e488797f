//! Why records are not stored.

use std::io;
use std::path::{Path, PathBuf};

/// Records are not stored.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    /// The request is no `ExportLogsServiceRequest`.
    #[error("the request is no ExportLogsServiceRequest")]
    Malformed,
    /// There is no room for them.
    #[error("{0}")]
    Full(&'static str),
    /// A file or directory cannot be used.
    #[error("cannot use {path}")]
    File {
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl StoreError {
    pub(super) fn file(path: &Path, source: io::Error) -> Self {
        Self::File { path: path.to_owned(), source }
    }
}
