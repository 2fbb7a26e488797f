//! What the Workload API issues.

use std::collections::BTreeMap;

use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use spiffe::{SpiffeId, TrustDomain, X509BundleSet, X509Svid};

/// An X.509-SVID with its private key, and the trust bundles that belong to it.
#[derive(Debug, PartialEq, Eq)]
pub struct X509Credentials {
    /// The SPIFFE ID in the SVID.
    pub id: SpiffeId,
    /// The SVID, then the CA certificates between it and the trust bundle.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its private key.
    pub key: PrivateKeyDer<'static>,
    /// Of its own trust domain, and of those that this one is federated with.
    pub bundles: TrustBundles,
}

/// For each trust domain, the CAs that issue its SVIDs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustBundles(BTreeMap<TrustDomain, Vec<CertificateDer<'static>>>);

impl X509Credentials {
    pub(crate) fn new(svid: &X509Svid, bundles: &X509BundleSet) -> Self {
        let der = |certificate: &spiffe::Certificate| CertificateDer::from(certificate.as_bytes().to_vec());
        Self {
            id: svid.spiffe_id().clone(),
            chain: svid.cert_chain().iter().map(der).collect(),
            key: PrivatePkcs8KeyDer::from(svid.private_key().as_bytes().to_vec()).into(),
            bundles: TrustBundles(
                bundles
                    .iter()
                    .map(|(domain, bundle)| (domain.clone(), bundle.authorities().iter().map(der).collect()))
                    .collect(),
            ),
        }
    }
}

impl TrustBundles {
    /// The CAs of a trust domain, less those that cannot be used; `None`: it is not known.
    pub fn roots(&self, domain: &TrustDomain) -> Option<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(self.0.get(domain)?.iter().cloned());
        Some(roots)
    }

    /// The trust domains that are known.
    pub fn domains(&self) -> impl Iterator<Item = &TrustDomain> {
        self.0.keys()
    }
}
