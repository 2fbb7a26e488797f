//! Parsing of certificates, and the agent's own.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::CertificateError;
use rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::tls::TlsError;

/// The agent's own certificate is due for renewal this long before its end, or in the last quarter of its life if that is shorter.
const RENEWAL_SECONDS: u64 = 7 * 24 * 60 * 60;

/// The agent's own certificate: the fields that are logged, and its expiry.
pub(crate) struct Certificate {
    pub(crate) subject: String,
    pub(crate) serial: String,
    pub(crate) not_after: String,
    /// Whether callers accept it as an agent's: its extended key usage, if it has one, includes servers.
    pub(crate) is_for_servers: bool,
    begin: u64,
    end: u64,
}

/// How close a certificate is to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    Far,
    Near,
    Past,
}

impl Certificate {
    /// The leaf of a chain.
    pub(crate) fn first_of(chain: &[CertificateDer<'_>]) -> Result<Self, rustls::Error> {
        let malformed = rustls::Error::InvalidCertificate(CertificateError::BadEncoding);
        let certificate = chain.first().and_then(parse).ok_or(malformed)?;
        Ok(Self {
            subject: certificate.subject().to_string(),
            serial: certificate.raw_serial_as_string(),
            not_after: certificate.validity().not_after.to_string(),
            is_for_servers: is_for_servers(&certificate),
            begin: u64::try_from(certificate.validity().not_before.timestamp()).unwrap_or(0),
            end: end(&certificate),
        })
    }

    /// The same, with a name that says more.
    pub(crate) fn with_subject(self, subject: String) -> Self {
        Self { subject, ..self }
    }

    /// Its last second.
    pub(crate) fn end(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.end)
    }

    /// # Errors
    /// [`TlsError::Expired`]. `path` is its file.
    pub(crate) fn check_expiry(&self, path: &Path) -> Result<(), TlsError> {
        match self.expiry(UnixTime::now()) {
            Expiry::Past => Err(TlsError::Expired { cert: path.to_owned(), not_after: self.not_after.clone() }),
            Expiry::Far | Expiry::Near => Ok(()),
        }
    }

    pub(crate) fn expiry(&self, now: UnixTime) -> Expiry {
        let renewal = RENEWAL_SECONDS.min(self.end.saturating_sub(self.begin) / 4);
        match now.as_secs() {
            now if now > self.end => Expiry::Past,
            now if now.saturating_add(renewal) > self.end => Expiry::Near,
            _ => Expiry::Far,
        }
    }
}

/// `None`: malformed.
pub(crate) fn parse<'a>(der: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    X509Certificate::from_der(der).ok().map(|(_, certificate)| certificate)
}

fn is_for_servers(certificate: &X509Certificate<'_>) -> bool {
    let usage = certificate.extended_key_usage();
    usage.is_ok_and(|usage| usage.is_none_or(|usage| usage.value.server_auth))
}

/// Its last second, since the epoch.
pub(super) fn end(certificate: &X509Certificate<'_>) -> u64 {
    u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_week_or_quarter_is_near() {
        let certificate = |begin| Certificate {
            subject: String::new(),
            serial: String::new(),
            not_after: String::new(),
            is_for_servers: true,
            begin,
            end: 10_000_000,
        };
        let at = |second| certificate(0).expiry(UnixTime::since_unix_epoch(Duration::from_secs(second)));
        let of_an_hour =
            |second| certificate(10_000_000 - 3600).expiry(UnixTime::since_unix_epoch(Duration::from_secs(second)));
        assert_eq!([of_an_hour(10_000_000 - 900), of_an_hour(10_000_000 - 899)], [Expiry::Far, Expiry::Near]);
        let near = 10_000_000 - RENEWAL_SECONDS;
        assert_eq!([at(near), at(near + 1)], [Expiry::Far, Expiry::Near]);
        assert_eq!([at(10_000_000), at(10_000_001)], [Expiry::Near, Expiry::Past]);
    }
}
