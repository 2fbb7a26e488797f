//! SFTP sessions with one target, as one user: each is a process there, so they are used again.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use telexec_client::RemoteFiles;
use telexec_executor::ExecutorError;

use crate::sftp::Sftp;

/// Sessions that wait for an action.
pub(crate) struct Sessions {
    files: RemoteFiles,
    user: Option<String>,
    idle: Mutex<Vec<Sftp>>,
    most: usize,
}

impl Sessions {
    pub(crate) fn new(files: RemoteFiles, user: Option<String>, most: usize) -> Self {
        Self { files, user, idle: Mutex::default(), most }
    }

    /// One for the caller alone.
    ///
    /// # Errors
    /// The agent could not be asked.
    pub(crate) async fn take(self: &Arc<Self>) -> Result<Session, ExecutorError> {
        let idle = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.retain(Sftp::is_open);
            idle.pop()
        };
        let is_new = idle.is_none();
        let sftp = match idle {
            Some(sftp) => sftp,
            None => Sftp::begin(&self.files, self.user.clone()).await?,
        };
        Ok(Session { sessions: Arc::clone(self), sftp, is_new })
    }
}

/// A session that is in use. Dropping it ends it, so that nothing stays open of an action that was let go of.
pub(crate) struct Session {
    sessions: Arc<Sessions>,
    sftp: Sftp,
    /// It was not used before.
    pub(crate) is_new: bool,
}

impl Session {
    /// It has nothing open, and may be used again.
    pub(crate) fn give_back(self) {
        let mut idle = self.sessions.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < self.sessions.most {
            idle.push(self.sftp);
        }
    }
}

impl Deref for Session {
    type Target = Sftp;

    fn deref(&self) -> &Sftp {
        &self.sftp
    }
}
