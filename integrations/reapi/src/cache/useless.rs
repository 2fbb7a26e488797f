//! Files of a target's cache that are to go.

use std::time::Duration;

use telexec_executor::{FileTarget, Files};
use tracing::warn;

use super::Cache;
use crate::sftp::{Sftp, SftpError};

/// By then a session that was dropped has done what it was asked before.
const LAST_REQUESTS: Duration = Duration::from_secs(1);

/// Files that are to go: those that are not complete, until they have another name, and those that are forgotten. Dropping it
/// removes them, a little later.
pub(super) struct Useless<'a> {
    pub(super) cache: &'a Cache,
    pub(super) paths: Vec<String>,
}

impl Useless<'_> {
    /// Removes them now.
    ///
    /// # Errors
    /// The session has ended.
    pub(super) async fn remove(mut self, sftp: &Sftp) -> Result<(), SftpError> {
        let mut replies = Vec::with_capacity(self.paths.len());
        for path in &self.paths {
            replies.push(sftp.remove(path).await);
        }
        for (path, reply) in self.paths.iter().zip(replies) {
            match reply.done().await {
                Err(error) if error.is_not_found() => {}
                // such as one that somebody has made immutable: no other file has its name
                Err(error) if error.is_refusal() => warn!(path, %error, "cannot remove a blob"),
                removed => removed?,
            }
        }
        self.paths.clear();
        Ok(())
    }
}

impl Drop for Useless<'_> {
    fn drop(&mut self) {
        let (files, paths) = (self.cache.files.clone(), std::mem::take(&mut self.paths));
        if paths.is_empty() {
            return;
        }
        tokio::spawn(async move {
            tokio::time::sleep(LAST_REQUESTS).await;
            for path in paths {
                // what is still there then goes when the cache is opened again
                let _ = files.remove(FileTarget::new(path), false).await;
            }
        });
    }
}
