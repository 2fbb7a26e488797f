//! Verifies the X.509-SVID of an agent.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme};
use telexec_spiffe::{NotSvid, SpiffeId, TrustDomain, spiffe_id};

/// Accepts the SVIDs of one agent.
#[derive(Debug)]
pub(super) struct SvidVerifier {
    agent: Agent,
    /// The CAs of its trust domain.
    roots: RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Which agent is meant.
#[derive(Debug)]
pub(super) enum Agent {
    /// The one with this SPIFFE ID, whatever its host.
    Id(SpiffeId),
    /// The one with the name of the connection, in this trust domain.
    NamedIn(TrustDomain),
}

/// It is another agent's, or not an SVID.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error(transparent)]
    NotSvid(#[from] NotSvid),
    #[error("the agent is {found}, not {expected}")]
    Other { found: SpiffeId, expected: SpiffeId },
    #[error("the agent is {found}, not of the trust domain {expected}")]
    Foreign { found: SpiffeId, expected: TrustDomain },
}

impl SvidVerifier {
    pub(super) fn new(agent: Agent, roots: RootCertStore) -> Self {
        Self { agent, roots, algorithms: aws_lc_rs::default_provider().signature_verification_algorithms }
    }

    fn check_id(&self, end_entity: &CertificateDer<'_>, intermediates: &[CertificateDer<'_>]) -> Result<(), Refused> {
        let found = spiffe_id(end_entity, intermediates)?;
        match &self.agent {
            Agent::Id(id) if found != *id => Err(Refused::Other { found, expected: id.clone() }),
            Agent::NamedIn(domain) if !found.is_member_of(domain) => {
                Err(Refused::Foreign { found, expected: domain.clone() })
            }
            Agent::Id(_) | Agent::NamedIn(_) => Ok(()),
        }
    }
}

impl ServerCertVerifier for SvidVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, algorithms)?;
        self.check_id(end_entity, intermediates)
            .map_err(|error| CertificateError::Other(OtherError(Arc::new(error))))?;
        if let Agent::NamedIn(_) = self.agent {
            verify_server_name(&certificate, name)?;
        }
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
