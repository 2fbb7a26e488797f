//! Checks that the certificate of an open connection is still valid.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::CertificateError;
use rustls::pki_types::UnixTime;
use telexec_executor::ExecutorError;
use tracing::info;

use crate::reload::Changes;
use crate::tls::ca_names::reason;
use crate::tls::peer_certificate::PeerCertificate;
use crate::tls::{Credentials, Tls};

/// A caller's certificate, verified again when the agent's files have changed or a certificate has expired, in the same way
/// as in a handshake: an open connection must not be worth more than a new one.
pub(crate) struct ClientCertCheck {
    tls: Tls,
    certificate: PeerCertificate,
    last: Mutex<Verification>,
}

/// The result of the last verification.
struct Verification {
    by: Arc<Credentials>,
    /// The last second for which it is valid; `None`: it does not depend on time.
    until: Option<u64>,
    /// The error is worded for the caller.
    result: Result<(), String>,
}

impl ClientCertCheck {
    /// For a certificate that these credentials accepted in a handshake begun at `since`: parts of its chain may have expired
    /// during the handshake.
    pub(crate) fn new(tls: Tls, by: Arc<Credentials>, certificate: PeerCertificate, since: UnixTime) -> Self {
        let last = Verification { by, until: certificate.next_end(since), result: Ok(()) };
        Self { tls, certificate, last: Mutex::new(last) }
    }

    pub(crate) fn certificate(&self) -> &PeerCertificate {
        &self.certificate
    }

    /// Called before each call, and during it after each change.
    ///
    /// # Errors
    /// [`ExecutorError::Unauthenticated`].
    pub(crate) fn check(&self) -> Result<(), ExecutorError> {
        self.result().map_err(|reason| ExecutorError::Unauthenticated { reason })
    }

    /// Changes of the agent's files from now on.
    pub(crate) fn changes(&self) -> Changes<Credentials> {
        self.tls.changes()
    }

    /// When a certificate may expire next, as far as the last check knows; `None`: never.
    pub(crate) fn end(&self) -> Option<SystemTime> {
        let until = self.last.lock().unwrap_or_else(PoisonError::into_inner).until?;
        UNIX_EPOCH.checked_add(Duration::from_secs(until.saturating_add(1)))
    }

    fn result(&self) -> Result<(), String> {
        let (credentials, now) = (self.tls.current(), UnixTime::now());
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let in_time = last.until.is_none_or(|until| now.as_secs() <= until);
        if in_time && Arc::ptr_eq(&last.by, &credentials) {
            return last.result.clone();
        }
        let result = match &credentials.clients {
            Some(clients) => clients.verify_again(&self.certificate, now).map_err(|error| refusal(&error)),
            // files are reloaded, but which ones there are does not change
            None => Err("the agent accepts no client certificates any more".to_owned()),
        };
        if let Err(refusal) = &result
            && last.result.is_ok()
        {
            info!(identity = %self.certificate.identity, reason = refusal, "refusing the calls of an open connection");
        }
        *last = Verification { by: credentials, until: self.certificate.next_end(now), result: result.clone() };
        result
    }
}

impl fmt::Debug for ClientCertCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCertCheck").finish_non_exhaustive()
    }
}

fn refusal(error: &rustls::Error) -> String {
    use CertificateError::{Expired, ExpiredContext, Revoked};
    match error {
        rustls::Error::InvalidCertificate(Revoked) => {
            "the certificate of this connection has been revoked: connect with another".into()
        }
        rustls::Error::InvalidCertificate(Expired | ExpiredContext { .. }) => {
            "the certificate of this connection has expired: connect with a new one".into()
        }
        error => format!("the certificate of this connection is not accepted any more: {}", reason(error)),
    }
}
