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
    /// The last second for which the chain of the handshake is valid; `None`: it does not depend on time.
    expiry: Option<u64>,
    /// When the handshake began, since the epoch.
    since: u64,
    last: Mutex<Verification>,
}

/// A connection is replaced this long before its certificate expires, or in the last tenth of the rest of its life.
const RETIREMENT_SECONDS: u64 = 30;

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
        let expiry = certificate.next_end(since);
        let last = Verification { by, until: expiry, result: Ok(()) };
        Self { tls, certificate, expiry, since: since.as_secs(), last: Mutex::new(last) }
    }

    pub(crate) fn certificate(&self) -> &PeerCertificate {
        &self.certificate
    }

    /// Called before each call.
    ///
    /// # Errors
    /// [`ExecutorError::Unauthenticated`].
    pub(crate) fn check_new_call(&self) -> Result<(), ExecutorError> {
        self.result().map_err(|reason| ExecutorError::Unauthenticated { reason })
    }

    /// Called during a call after each change. Once the certificate has expired its CA may be replaced as well, as CAs are after a while.
    ///
    /// # Errors
    /// [`ExecutorError::Unauthenticated`].
    pub(crate) fn check_open_call(&self) -> Result<(), ExecutorError> {
        let grace = self.tls.call_grace().as_secs();
        let now = UnixTime::now().as_secs();
        match self.expiry {
            _ if grace == 0 => self.check_new_call(),
            Some(expiry) if now > expiry.saturating_add(grace) => {
                let reason = "the certificate of this call has expired: call again with a new one".to_owned();
                Err(ExecutorError::Unauthenticated { reason })
            }
            Some(expiry) if now > expiry => Ok(()),
            // what the CAs are now is not known
            _ if self.tls.current().clients.is_none() => Ok(()),
            _ => self.check_new_call(),
        }
    }

    /// Changes of the agent's files from now on.
    pub(crate) fn changes(&self) -> Changes<Credentials> {
        self.tls.changes()
    }

    /// When an open call may have to end for the time, as far as the last check knows; `None`: never.
    pub(crate) fn end(&self) -> Option<SystemTime> {
        let grace = self.tls.call_grace().as_secs();
        let until = match grace {
            0 => self.last.lock().unwrap_or_else(PoisonError::into_inner).until,
            grace => self.expiry.map(|expiry| expiry.saturating_add(grace)),
        };
        at(until?.saturating_add(1))
    }

    /// When the peer is to make another connection, with the certificate that has replaced this one by then; `None`: it keeps this one.
    pub(crate) fn retirement(&self) -> Option<SystemTime> {
        let expiry = self.expiry.filter(|_| self.tls.rotates())?;
        at(expiry.saturating_sub(RETIREMENT_SECONDS.min(expiry.saturating_sub(self.since) / 10)))
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
            None => Err("the agent has no trust bundle at present, so it cannot verify the certificate".to_owned()),
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

fn at(seconds: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
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
