//! Verifies callers' X.509-SVIDs: each with the trust bundle of its trust domain, and that it is one of a caller.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, SignatureScheme};
use telexec_spiffe::{NotSvid, SpiffeId, TrustBundles, TrustDomain, spiffe_id};

use crate::identity::Identity;
use crate::identity::patterns::NamePatterns;
use crate::tls::certificate::parse;

/// Accepts the SVIDs of callers.
#[derive(Debug)]
pub(super) struct SvidVerifier {
    domains: BTreeMap<TrustDomain, Arc<dyn ClientCertVerifier>>,
    callers: NamePatterns,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Why an SVID is refused, whatever its chain.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("it is no X.509-SVID: {0}")]
    NotSvid(#[from] NotSvid),
    #[error("the trust domain of {0} is not federated with the agent's")]
    Foreign(SpiffeId),
    #[error("{0} is not among the callers in [spiffe] of the agent's configuration")]
    NoCaller(SpiffeId),
}

impl SvidVerifier {
    /// Trust domains without a usable CA are left out.
    pub(super) fn new(bundles: &TrustBundles, callers: NamePatterns) -> Self {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let algorithms = provider.signature_verification_algorithms;
        let verifier = |domain: &TrustDomain| {
            let roots = Arc::new(bundles.roots(domain)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
            Some((domain.clone(), verifier.ok()?))
        };
        Self { domains: bundles.domains().filter_map(verifier).collect(), callers, algorithms }
    }

    fn domain_of(&self, end_entity: &CertificateDer<'_>) -> Result<&Arc<dyn ClientCertVerifier>, Refused> {
        let id = spiffe_id(end_entity)?;
        let Some(domain) = self.domains.get(id.trust_domain()) else { return Err(Refused::Foreign(id)) };
        // as which it would be known: an ID may be written in other ways
        let identity = parse(end_entity).and_then(|certificate| Identity::from_certificate(&certificate));
        let name = id.to_string();
        let is_caller = identity.is_some_and(|identity| identity.as_str() == name) && self.callers.contain(&name);
        if is_caller { Ok(domain) } else { Err(Refused::NoCaller(id)) }
    }
}

impl ClientCertVerifier for SvidVerifier {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let refused = |error| CertificateError::Other(OtherError(Arc::new(error)));
        let domain = self.domain_of(end_entity).map_err(refused)?;
        domain.verify_client_cert(end_entity, intermediates, now)
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // a process has one identity, whatever the agent trusts
        &[]
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
