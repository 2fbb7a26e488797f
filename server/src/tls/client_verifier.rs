//! Verifies callers' certificates: their chain, and that its CA may issue certificates for the name.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};

use crate::identity::Identity;
use crate::tls::ca_names::CaNames;
use crate::tls::certificate::parse;
use crate::tls::peer_certificate::PeerCertificate;
use crate::tls::presented;
use crate::tls::svid_verifier::SvidVerifier;

/// The verifier of handshakes, and of certificates on open connections.
#[derive(Debug)]
pub(crate) struct ClientVerifier {
    /// With the revocation lists.
    pub(crate) chains: Arc<dyn ClientCertVerifier>,
    /// `None`: callers' certificates need not be SVIDs.
    pub(crate) svids: Option<Arc<SvidVerifier>>,
    /// `None`: every CA may issue certificates for any name.
    pub(crate) ca_names: Option<CaNames>,
    /// Whether peers without a certificate are refused.
    pub(crate) is_required: bool,
}

impl ClientVerifier {
    /// Verifies a certificate as in a handshake.
    ///
    /// # Errors
    /// It is not accepted any more.
    pub(crate) fn verify_again(&self, peer: &PeerCertificate, now: UnixTime) -> Result<(), rustls::Error> {
        let PeerCertificate { der, intermediates, identity, .. } = peer;
        self.chains.verify_client_cert(der, intermediates, now)?;
        self.ca_names.as_ref().map_or(Ok(()), |ca_names| ca_names.check(Some(identity), der, intermediates, now))
    }

    /// Verifies what does not depend on the time and the CA, of a certificate that has expired.
    ///
    /// # Errors
    /// It is not accepted any more.
    pub(crate) fn verify_expired(&self, peer: &PeerCertificate) -> Result<(), rustls::Error> {
        self.svids.as_ref().map_or(Ok(()), |svids| svids.check(&peer.der, &peer.intermediates).map(drop))
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        presented::note(end_entity);
        let verified = self.chains.verify_client_cert(end_entity, intermediates, now)?;
        if let Some(ca_names) = &self.ca_names {
            // parsed again after the handshake: rustls takes nothing but the result from here
            let holder = parse(end_entity).and_then(|certificate| Identity::from_certificate(&certificate));
            ca_names.check(holder.as_ref(), end_entity, intermediates, now)?;
        }
        Ok(verified)
    }

    fn client_auth_mandatory(&self) -> bool {
        self.is_required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chains.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}
