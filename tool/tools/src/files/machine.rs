//! What the tools for files share: whose files, and what is known of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use telexec_executor::{ExecutorError, FileErrorKind, FileInfo, FileRange, FileTarget, Files};
use tokio::sync::{Mutex as AsyncMutex, MutexGuard as AsyncGuard};

use super::seen::{Seen, Version};
use crate::ToolFailure;
use crate::failure::Failure;

/// What models are used to.
const DEFAULT_OUTPUT_CHARACTERS: usize = 30_000;
const MIN_OUTPUT_CHARACTERS: usize = 1_000;

pub(super) struct Machine {
    pub(super) files: Arc<dyn Files>,
    pub(super) user: Option<String>,
    pub(super) directory: Option<String>,
    /// The most that an answer has, in characters.
    pub(super) limit: usize,
    seen: Mutex<Seen>,
    /// Held from the look at a file to its change, so that no call changes what another has looked at.
    writing: AsyncMutex<()>,
}

impl Machine {
    pub(super) fn new(files: Arc<dyn Files>) -> Self {
        Self {
            files,
            user: None,
            directory: None,
            limit: DEFAULT_OUTPUT_CHARACTERS,
            seen: Mutex::default(),
            writing: AsyncMutex::default(),
        }
    }

    pub(super) fn limit_output(&mut self, characters: usize) {
        self.limit = characters.max(MIN_OUTPUT_CHARACTERS);
    }

    /// The file of a call's `path`. `~` is the home directory, where a relative path begins anyway, unless configured
    /// otherwise.
    pub(super) fn target(&self, tool: &str, path: &str) -> Result<FileTarget, Failure> {
        let path = match (path, path.strip_prefix("~/"), &self.directory) {
            ("", ..) => return Err(Failure::invalid_input(tool, "path: is empty")),
            (path, ..) if path.contains('\0') => return Err(Failure::invalid_input(tool, "path: has a NUL byte")),
            ("~", ..) | (_, Some(""), _) => ".".to_owned(),
            (".", _, Some(directory)) => directory.clone(),
            (_, Some(below), _) => below.trim_start_matches('/').to_owned(),
            (path, None, Some(directory)) if !path.starts_with('/') => format!("{directory}/{path}"),
            (path, None, _) => path.to_owned(),
        };
        Ok(FileTarget { user: self.user.clone(), ..FileTarget::new(path) })
    }

    /// The file behind this path now; `None`: there is none.
    pub(super) async fn look(&self, file: &FileTarget) -> Result<Option<FileInfo>, ExecutorError> {
        // opening it follows symbolic links, as writing it will
        match self.files.read(file.clone(), FileRange { length: 1, ..FileRange::default() }).await {
            Ok(mut content) => {
                // to its end, so that it is no read that was given up
                while content.pieces.next().await.transpose()?.is_some() {}
                Ok(Some(content.info))
            }
            Err(ExecutorError::File(error)) if error.kind() == FileErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Keeps other calls from changing files.
    pub(super) async fn writing(&self) -> AsyncGuard<'_, ()> {
        self.writing.lock().await
    }

    /// The caller knows the file as it is now.
    pub(super) fn remember(&self, file: &FileTarget, version: Version) {
        self.seen().remember(file.path.clone(), version);
    }

    /// Refuses if the caller knows another version of the file.
    pub(super) fn check_unchanged(&self, file: &FileTarget, now: &Version) -> Result<(), Failure> {
        match self.seen().get(&file.path) {
            Some(known) if !known.is_same(now) => Err(changed(file, "has changed since it was read")),
            _ => Ok(()),
        }
    }

    /// Whether the caller has read or written the file.
    pub(super) fn knows(&self, file: &FileTarget) -> bool {
        self.seen().get(&file.path).is_some()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `file_changed`: nothing was written.
pub(super) fn changed(file: &FileTarget, what: &str) -> Failure {
    let message = format!("{} {what}; nothing was written", file.path);
    ToolFailure::new("file_changed", message).with_hint("read it again").into()
}
