//! The keys of an issuer, wherever they are from.

use std::sync::Arc;

use telexec_engine::Workers;

use super::key_set::{KeySet, KeysFile};
use super::published::PublishedKeys;
use crate::reload::{Changes, Reload, ReloadState, Source, Watched};

/// The keys of an issuer.
pub(super) enum Keys {
    /// In a file.
    File(Watched<KeysFile>),
    /// Where it publishes them.
    Published(Box<PublishedKeys>),
}

impl Keys {
    /// Those that may be used; fetched again before if `suffice` says that these do not.
    ///
    /// # Errors
    /// There are none, and why.
    pub(super) async fn get(&self, suffice: impl Fn(&KeySet) -> bool) -> Result<Arc<KeySet>, String> {
        match self {
            Self::File(file) => Ok(file.current()),
            Self::Published(published) => published.get(suffice).await,
        }
    }

    /// Whether there are any that may be used now.
    pub(super) fn are_known(&self) -> bool {
        match self {
            Self::File(_) => true,
            Self::Published(published) => published.current().is_ok(),
        }
    }

    /// The last that were known.
    pub(super) fn last(&self) -> Arc<KeySet> {
        match self {
            Self::File(file) => file.current(),
            Self::Published(published) => published.last(),
        }
    }

    /// Of their file; `None`: they are not in one.
    pub(super) fn reload_state(&self) -> Option<ReloadState> {
        match self {
            Self::File(file) => Some(file.state()),
            Self::Published(_) => None,
        }
    }

    pub(super) fn changes(&self) -> Changes<KeySet> {
        match self {
            Self::File(file) => file.changes(),
            Self::Published(published) => published.changes(),
        }
    }

    /// Keeps them current. Never returns.
    pub(super) async fn follow(&self, reload: Reload, workers: Workers) {
        match self {
            Self::File(file) => {
                KeysFile::log_loaded(&file.current());
                file.clone().follow(reload, workers).await;
            }
            Self::Published(published) => published.follow().await,
        }
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}
