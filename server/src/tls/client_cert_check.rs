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

/// A connection is replaced this long before its certificate expires, or in the last tenth of the rest of its life.
const RETIREMENT_SECONDS: u64 = 30;

/// A caller's certificate, verified again when the agent's files have changed or a certificate has expired, in the same way
/// as in a handshake: an open connection must not be worth more than a new one.
pub(crate) struct ClientCertCheck {
    tls: Tls,
    certificate: PeerCertificate,
    /// When the handshake began, since the epoch.
    since: u64,
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
        Self { tls, certificate, since: since.as_secs(), last: Mutex::new(last) }
    }

    pub(crate) fn certificate(&self) -> &PeerCertificate {
        &self.certificate
    }

    /// Called before each call.
    ///
    /// # Errors
    /// [`ExecutorError::Unauthenticated`].
    pub(crate) fn check_new_call(&self) -> Result<(), ExecutorError> {
        self.check_at(UnixTime::now())
    }

    /// Called during a call after each change. Once an SVID has expired its CA may be replaced as well, as CAs are after a while.
    ///
    /// # Errors
    /// [`ExecutorError::Unauthenticated`].
    pub(crate) fn check_open_call(&self) -> Result<(), ExecutorError> {
        let (now, expiry) = (UnixTime::now(), self.certificate.end());
        match self.tls.call_grace() {
            None => self.check_at(now),
            Some(grace) if now.as_secs() > expiry.saturating_add(grace.as_secs()) => {
                let reason = "the certificate of this call has expired: call again with a new one".to_owned();
                Err(ExecutorError::Unauthenticated { reason })
            }
            Some(_) => match &self.tls.current().clients {
                Some(clients) if now.as_secs() > expiry => {
                    let known = clients.verify_expired(&self.certificate);
                    known.map_err(|error| ExecutorError::Unauthenticated { reason: refusal(&error) })
                }
                Some(_) => self.check_at(now),
                // what the CAs are now is not known
                None => Ok(()),
            },
        }
    }

    /// Changes of the agent's files from now on.
    pub(crate) fn changes(&self) -> Changes<Credentials> {
        self.tls.changes()
    }

    /// When time alone may end an open call, by the last check; `None`: never.
    pub(crate) fn end(&self) -> Option<SystemTime> {
        let until = match self.tls.call_grace() {
            None => self.last.lock().unwrap_or_else(PoisonError::into_inner).until?,
            Some(grace) => self.certificate.end().saturating_add(grace.as_secs()),
        };
        at(until.saturating_add(1))
    }

    /// When the peer is to make another connection, with the SVID that has replaced this one by then; `None`: it keeps this one.
    pub(crate) fn retirement(&self) -> Option<SystemTime> {
        self.tls.call_grace()?;
        at(retirement(self.since, self.certificate.end()))
    }

    fn check_at(&self, now: UnixTime) -> Result<(), ExecutorError> {
        self.result(now).map_err(|reason| ExecutorError::Unauthenticated { reason })
    }

    fn result(&self, now: UnixTime) -> Result<(), String> {
        let credentials = self.tls.current();
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

/// When a connection is replaced that was made at `since`, and whose certificate expires at `expiry`.
fn retirement(since: u64, expiry: u64) -> u64 {
    expiry.saturating_sub(RETIREMENT_SECONDS.min(expiry.saturating_sub(since) / 10))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_replaced_shortly_before_its_certificate_expires() {
        assert_eq!(retirement(0, 3600), 3570);
        assert_eq!(retirement(3500, 3600), 3590);
        // one that was made at the end
        assert_eq!(retirement(3595, 3600), 3600);
        assert_eq!(retirement(3700, 3600), 3600);
    }
}
