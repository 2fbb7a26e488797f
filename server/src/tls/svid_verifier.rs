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
use tracing::{info, warn};

use crate::identity::Identity;
use crate::identity::patterns::NamePatterns;
use crate::tls::certificate::parse;

/// Of trust domains, in the log.
const MAX_NAMES: usize = 20;

/// Accepts the SVIDs of callers.
#[derive(Debug)]
pub(crate) struct SvidVerifier {
    domains: BTreeMap<TrustDomain, Arc<dyn ClientCertVerifier>>,
    callers: NamePatterns,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Why an SVID is refused, whatever its chain.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error(transparent)]
    NotSvid(#[from] NotSvid),
    #[error("its SPIFFE ID is not written as {0}")]
    OtherSpelling(SpiffeId),
    #[error("the trust domain of {0} is not federated with the agent's")]
    Foreign(SpiffeId),
    #[error("{0} is not among the callers in [spiffe] of the agent's configuration")]
    NotCaller(SpiffeId),
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
        let domains: BTreeMap<_, _> = bundles.domains().filter_map(verifier).collect();
        Self { domains, callers, algorithms }
    }

    /// Logs the trust domains of these bundles.
    pub(super) fn log_loaded(&self, bundles: &TrustBundles) {
        info!(trust_domains = names(self.domains.keys()), "trust bundles loaded");
        let unusable = names(bundles.domains().filter(|domain| !self.domains.contains_key(domain)));
        if !unusable.is_empty() {
            warn!(
                trust_domains = unusable,
                "trust bundles without a usable CA: refusing callers of these trust domains"
            );
        }
    }

    /// Whether it is an SVID of a caller, apart from its chain. Returns the verifier for that.
    ///
    /// # Errors
    /// It is not.
    pub(super) fn check(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Result<&Arc<dyn ClientCertVerifier>, rustls::Error> {
        let refused = |error| CertificateError::Other(OtherError(Arc::new(error)));
        Ok(self.domain_of(end_entity, intermediates).map_err(refused)?)
    }

    fn domain_of(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Result<&Arc<dyn ClientCertVerifier>, Refused> {
        let id = spiffe_id(end_entity, intermediates)?;
        let Some(domain) = self.domains.get(id.trust_domain()) else { return Err(Refused::Foreign(id)) };
        // as which it would be known: an ID may be written in other ways
        let identity = parse(end_entity).and_then(|certificate| Identity::from_certificate(&certificate));
        let name = id.to_string();
        match identity {
            Some(identity) if identity.as_str() == name => {}
            _ => return Err(Refused::OtherSpelling(id)),
        }
        if self.callers.contain(&name) { Ok(domain) } else { Err(Refused::NotCaller(id)) }
    }
}

/// For the log: the first of them.
fn names<'a>(domains: impl Iterator<Item = &'a TrustDomain>) -> String {
    let mut domains = domains.map(TrustDomain::as_str);
    let first = domains.by_ref().take(MAX_NAMES).collect::<Vec<_>>().join(" ");
    match domains.count() {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

impl ClientCertVerifier for SvidVerifier {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check(end_entity, intermediates)?.verify_client_cert(end_entity, intermediates, now)
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
