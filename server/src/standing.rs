//! Whether the certificate that a connection began with still counts.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::CertificateError;
use rustls::pki_types::{CertificateDer, UnixTime};
use tonic::Status;
use tracing::info;

use crate::certificate::next_end;
use crate::identity::Identity;
use crate::tls::{Credentials, Tls};

/// A caller's certificate, judged again when the agent's files have changed or a certificate has expired: by what
/// handshakes are judged by, so that an open connection is worth no more than a new one.
pub(crate) struct Standing {
    tls: Tls,
    chain: Vec<CertificateDer<'static>>,
    judgement: Mutex<Judgement>,
}

/// What holds as long as nothing changes.
struct Judgement {
    by: Arc<Credentials>,
    /// The last second for which it holds; `None`: time changes nothing.
    until: Option<u64>,
    verdict: Result<(), Status>,
}

impl Standing {
    /// Of a caller whose chain was accepted by these credentials, in a handshake that began at `since`: a part of the
    /// chain may have expired in the course of it.
    pub(crate) fn new(tls: Tls, by: Arc<Credentials>, chain: Vec<CertificateDer<'static>>, since: UnixTime) -> Self {
        let judgement = Judgement { by, until: next_end(&chain, since), verdict: Ok(()) };
        Self { tls, chain, judgement: Mutex::new(judgement) }
    }

    /// Asked before each call.
    ///
    /// # Errors
    /// What the caller is told.
    pub(crate) fn check(&self, identity: &Identity) -> Result<(), Status> {
        let (credentials, now) = (self.tls.current(), UnixTime::now());
        let mut judgement = self.judgement.lock().unwrap_or_else(PoisonError::into_inner);
        let in_time = judgement.until.is_none_or(|until| now.as_secs() <= until);
        if in_time && Arc::ptr_eq(&judgement.by, &credentials) {
            return judgement.verdict.clone();
        }
        let verdict = self.judge(&credentials, now);
        if let Err(refusal) = &verdict
            && judgement.verdict.is_ok()
        {
            info!(%identity, reason = refusal.message(), "refuses the calls of an open connection");
        }
        *judgement = Judgement { by: credentials, until: next_end(&self.chain, now), verdict: verdict.clone() };
        verdict
    }

    fn judge(&self, credentials: &Credentials, now: UnixTime) -> Result<(), Status> {
        let verdict = match self.chain.split_first() {
            Some((own, others)) => credentials.clients.verify_client_cert(own, others, now).map(drop),
            None => Err(rustls::Error::NoCertificatesPresented),
        };
        verdict.map_err(|error| Status::unauthenticated(refusal(&error)))
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
        error => format!("the certificate of this connection is not accepted any more: {error}"),
    }
}
