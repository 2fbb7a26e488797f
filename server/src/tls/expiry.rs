//! Warns before the agent's own certificate expires.

use std::sync::Arc;

use rustls::pki_types::UnixTime;
use tracing::warn;

use crate::reload::POLL_INTERVAL;
use crate::tls::certificate::Expiry;
use crate::tls::{OwnCertificate, Tls};

/// Logs once for each certificate that it is about to expire, and once that it has. Never returns.
pub(crate) async fn warn_of_expiry(tls: Tls) {
    let mut polls = tokio::time::interval(POLL_INTERVAL);
    let (mut seen, mut logged) = (tls.current(), Expiry::Far);
    loop {
        polls.tick().await;
        let credentials = tls.current();
        if !Arc::ptr_eq(&credentials, &seen) {
            (seen, logged) = (credentials, Expiry::Far);
        }
        let Some(OwnCertificate { certificate, .. }) = &seen.own else { continue };
        let expiry = certificate.expiry(UnixTime::now());
        let (subject, not_after) = (&certificate.subject, &certificate.not_after);
        match expiry {
            Expiry::Near if logged != expiry => {
                warn!(subject, not_after, "the agent's certificate expires soon")
            }
            Expiry::Past if logged != expiry => {
                warn!(subject, not_after, "the agent's certificate has expired: callers will refuse it");
            }
            _ => {}
        }
        logged = expiry;
    }
}
