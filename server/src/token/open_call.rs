//! The token of a call, while the call is open.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jsonwebtoken::jwk::Jwk;
use telexec_executor::ExecutorError;

use super::issuer::Issuer;
use super::key_set::KeySet;
use super::{LEEWAY_SECONDS, refused, seconds, unauthenticated};
use crate::identity::Identity;
use crate::reload::Changes;

/// Whom a token names.
pub(crate) struct Named {
    pub(crate) identity: Identity,
    /// For the policy, by claims.
    pub(crate) roles: Vec<String>,
    /// The claim `jti`.
    pub(crate) id: Option<String>,
    /// The last second of the token, since the epoch.
    pub(super) expiry: u64,
}

/// A token that was verified, and what it says of its caller.
pub(crate) struct Token {
    pub(super) issuer: Arc<Issuer>,
    pub(super) signed_by: Jwk,
    pub(crate) named: Named,
}

impl Token {
    /// The second in which it expires, since the epoch.
    pub(crate) fn expiry(&self) -> u64 {
        self.named.expiry
    }

    /// Whether another call may be made with it.
    ///
    /// # Errors
    /// [`ExecutorError::Unauthenticated`].
    pub(crate) fn check_new_call(&self) -> Result<(), ExecutorError> {
        if seconds(SystemTime::now()) > self.named.expiry.saturating_add(LEEWAY_SECONDS) {
            return Err(refused("it has expired"));
        }
        if !self.issuer.has_keys() {
            return Err(refused("the keys of its issuer are not known any more"));
        }
        self.check_key()
    }

    /// Whether a call that was made with it may go on. Once a token has expired its issuer may withdraw its key as well, as
    /// issuers do after a while.
    ///
    /// # Errors
    /// [`ExecutorError::Unauthenticated`].
    pub(crate) fn check_open_call(&self) -> Result<(), ExecutorError> {
        let now = seconds(SystemTime::now());
        if now > self.last_second() {
            return Err(unauthenticated("the token of this call has expired: call again with a new one"));
        }
        if now > self.named.expiry { Ok(()) } else { self.check_key() }
    }

    /// Whether its key is still one of its issuer.
    fn check_key(&self) -> Result<(), ExecutorError> {
        let is_known = self.issuer.last_keys().contains(&self.signed_by);
        is_known.then_some(()).ok_or_else(|| refused("its issuer has withdrawn the key that signed it"))
    }

    /// The last second of a call, since the epoch.
    fn last_second(&self) -> u64 {
        self.named.expiry.saturating_add(LEEWAY_SECONDS).saturating_add(self.issuer.call_grace.as_secs())
    }

    /// Changes of the issuer's keys from now on.
    pub(crate) fn key_changes(&self) -> Changes<KeySet> {
        self.issuer.key_changes()
    }

    /// When a call has to end; `None`: in no time that a clock shows.
    pub(crate) fn end(&self) -> Option<SystemTime> {
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(self.last_second().saturating_add(1)))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("identity", &self.named.identity).finish_non_exhaustive()
    }
}
