//! Verifies that an agent has a certain SPIFFE ID, whatever its host.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme};
use telexec_spiffe::{NotSvid, SpiffeId, spiffe_id};

/// Accepts the X.509-SVID of one SPIFFE ID.
#[derive(Debug)]
pub(super) struct SpiffeIdVerifier {
    id: SpiffeId,
    /// The CAs of its trust domain.
    roots: RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
}

/// It is another one's, or no SVID.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("it is no X.509-SVID: {0}")]
    NotSvid(#[from] NotSvid),
    #[error("the agent is {found}, not {expected}")]
    Other { found: SpiffeId, expected: SpiffeId },
}

impl SpiffeIdVerifier {
    pub(super) fn new(id: SpiffeId, roots: RootCertStore) -> Self {
        Self { id, roots, algorithms: aws_lc_rs::default_provider().signature_verification_algorithms }
    }

    fn check_id(&self, end_entity: &CertificateDer<'_>) -> Result<(), Refused> {
        let found = spiffe_id(end_entity)?;
        if found == self.id { Ok(()) } else { Err(Refused::Other { found, expected: self.id.clone() }) }
    }
}

impl ServerCertVerifier for SpiffeIdVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, algorithms)?;
        self.check_id(end_entity).map_err(|error| CertificateError::Other(OtherError(Arc::new(error))))?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
