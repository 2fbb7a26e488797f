//! The SPIFFE ID of a peer.

use rustls::pki_types::CertificateDer;
use spiffe::SpiffeId;
use spiffe::cert::error::CertificateError;
use spiffe::cert::spiffe_id_from_der;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Why a certificate is no X.509-SVID of a process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotSvid {
    /// It has no SPIFFE ID that may be used.
    #[error("the certificate has no SPIFFE ID: {0}")]
    NoSpiffeId(#[from] CertificateError),
    /// It names a trust domain.
    #[error("{0} is the SPIFFE ID of a trust domain, not of a process in it")]
    TrustDomain(SpiffeId),
    /// It is malformed.
    #[error("the certificate is malformed")]
    Malformed,
    /// It may issue certificates.
    #[error("the certificate of {0} is one of a CA")]
    Ca(SpiffeId),
    /// It is not for signatures, as those of handshakes.
    #[error("the certificate of {0} is not for digital signatures (key usage)")]
    KeyUsage(SpiffeId),
}

/// The SPIFFE ID of a peer's certificate (X.509-SVID, section 5.2). Its chain has to be verified as well, with the trust bundle of the ID's
/// trust domain.
///
/// # Errors
/// It is none of a process.
pub fn spiffe_id(certificate: &CertificateDer<'_>) -> Result<SpiffeId, NotSvid> {
    let id = spiffe_id_from_der(certificate)?;
    if id.path().is_empty() {
        return Err(NotSvid::TrustDomain(id));
    }
    let (_, certificate) = X509Certificate::from_der(certificate).map_err(|_| NotSvid::Malformed)?;
    if certificate.basic_constraints().map_err(|_| NotSvid::Malformed)?.is_some_and(|constraints| constraints.value.ca)
    {
        return Err(NotSvid::Ca(id));
    }
    match certificate.key_usage().map_err(|_| NotSvid::Malformed)? {
        Some(usage) if usage.value.key_cert_sign() || usage.value.crl_sign() => Err(NotSvid::Ca(id)),
        Some(usage) if usage.value.digital_signature() => Ok(id),
        _ => Err(NotSvid::KeyUsage(id)),
    }
}
