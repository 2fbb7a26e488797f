//! The SPIFFE ID of a peer.

use rustls::pki_types::CertificateDer;
use spiffe::SpiffeId;
use spiffe::cert::error::CertificateError;
use spiffe::cert::spiffe_id_from_der;
use x509_parser::extensions::KeyUsage;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Why a certificate is not the X.509-SVID of a workload.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotSvid {
    /// It does not have exactly one URI, a valid SPIFFE ID.
    #[error("the certificate has no usable SPIFFE ID")]
    NoSpiffeId(#[from] CertificateError),
    /// It names a trust domain.
    #[error("{0} is the SPIFFE ID of a trust domain, not of a workload in it")]
    TrustDomain(SpiffeId),
    /// It is malformed.
    #[error("the certificate is malformed")]
    Malformed,
    /// It may issue certificates.
    #[error("the certificate of {0} is a CA certificate")]
    Ca(SpiffeId),
    /// It was presented with a certificate whose key usage lacks keyCertSign.
    #[error("a certificate in the chain of {0} is not for issuing certificates (key usage)")]
    Intermediate(SpiffeId),
    /// Its key usage lacks digitalSignature.
    #[error("the certificate of {0} is not for digital signatures (key usage)")]
    KeyUsage(SpiffeId),
}

/// The SPIFFE ID in a peer's certificate, which was presented with these CA certificates (X.509-SVID, section 5.2). Its chain has to be
/// verified as well, with the trust bundle of the ID's trust domain.
///
/// # Errors
/// It is not the X.509-SVID of a workload.
pub fn spiffe_id(certificate: &CertificateDer<'_>, intermediates: &[CertificateDer<'_>]) -> Result<SpiffeId, NotSvid> {
    let id = spiffe_id_from_der(certificate)?;
    if id.path().is_empty() {
        return Err(NotSvid::TrustDomain(id));
    }
    let leaf = Usage::of(certificate)?;
    if leaf.is_ca || leaf.signs_certificates || leaf.signs_crls {
        return Err(NotSvid::Ca(id));
    }
    if !leaf.signs {
        return Err(NotSvid::KeyUsage(id));
    }
    for intermediate in intermediates {
        if !Usage::of(intermediate)?.signs_certificates {
            return Err(NotSvid::Intermediate(id));
        }
    }
    Ok(id)
}

/// What a certificate is for.
struct Usage {
    is_ca: bool,
    signs: bool,
    signs_certificates: bool,
    signs_crls: bool,
}

impl Usage {
    fn of(certificate: &CertificateDer<'_>) -> Result<Self, NotSvid> {
        let (_, certificate) = X509Certificate::from_der(certificate).map_err(|_| NotSvid::Malformed)?;
        let constraints = certificate.basic_constraints().map_err(|_| NotSvid::Malformed)?;
        let usage = certificate.key_usage().map_err(|_| NotSvid::Malformed)?.map(|usage| usage.value);
        Ok(Self {
            is_ca: constraints.is_some_and(|constraints| constraints.value.ca),
            signs: usage.is_some_and(KeyUsage::digital_signature),
            signs_certificates: usage.is_some_and(KeyUsage::key_cert_sign),
            signs_crls: usage.is_some_and(KeyUsage::crl_sign),
        })
    }
}
