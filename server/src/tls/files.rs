//! Certificates, keys and revocation lists in files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tracing::{info, warn};

use super::ca_names::Identities;
use super::certificate::Certificate;
use super::client_verifier::ClientVerifier;
use super::error::TlsError;
use super::revocation::Revocation;
use super::{Credentials, OwnCertificate, private_key, revocation};
use crate::reload::Source;

/// The configured files.
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    /// `None`: no client certificates are asked for.
    pub(crate) client_ca: Option<PathBuf>,
    pub(crate) client_crl: Option<PathBuf>,
    /// `None`: every CA may issue certificates for any name.
    pub(crate) identities: Option<Identities>,
    /// Callers need no certificate: they may have tokens.
    pub(crate) admits_without_certificate: bool,
}

impl Source for TlsFiles {
    type Loaded = Credentials;
    type Error = TlsError;
    const WHAT: &str = "certificates";

    fn files(&self) -> Vec<&Path> {
        let files = [&self.cert, &self.key].into_iter().chain(&self.client_ca).chain(&self.client_crl);
        files.map(PathBuf::as_path).chain(self.identities.iter().flat_map(Identities::files)).collect()
    }

    fn load(&self) -> Result<Credentials, TlsError> {
        let (clients, revocation) = match &self.client_ca {
            Some(path) => self.clients(path).map(|(clients, revocation)| (Some(Arc::new(clients)), revocation))?,
            None => (None, None),
        };
        let chain = certificates(&self.cert)?;
        let certificate = Certificate::first_of(&chain).map_err(|source| self.pair(source))?;
        if !certificate.is_for_servers {
            return Err(TlsError::NotForServer { cert: self.cert.clone() });
        }
        let key = private_key::read(&self.key)?;
        let own = OwnCertificate::new(certificate, chain, key, clients.as_ref()).map_err(|source| self.pair(source))?;
        Ok(Credentials { own: Some(own), clients, revocation })
    }

    fn log_loaded(credentials: &Credentials) {
        let revoked = credentials.revocation.as_ref().map(|revocation| revocation.revoked);
        if let Some(OwnCertificate { certificate, .. }) = &credentials.own {
            info!(
                subject = certificate.subject,
                serial = certificate.serial,
                not_after = certificate.not_after,
                revoked,
                "certificates loaded"
            );
        }
        if let Some(since) = credentials.revocation.as_ref().and_then(|revocation| revocation.outdated_since.as_ref()) {
            warn!(since, "a revocation list is out of date but still used: replace it by a newer one");
        }
    }
}

impl TlsFiles {
    /// The verifier for callers' certificates, with the CAs of `path`.
    fn clients(&self, path: &Path) -> Result<(ClientVerifier, Option<Revocation>), TlsError> {
        let cas = certificates(path)?;
        let (lists, revocation) = match &self.client_crl {
            Some(path) => revocation::read(path, &cas).map(|(lists, summary)| (lists, Some(summary)))?,
            None => (Vec::new(), None),
        };
        let chains = self.verifier(path, cas, lists)?;
        let load =
            |identities: &Identities| identities.load(|path| self.verifier(path, certificates(path)?, Vec::new()));
        let ca_names = self.identities.as_ref().map(load).transpose()?;
        let is_required = !self.admits_without_certificate;
        Ok((ClientVerifier { chains, svids: None, ca_names, is_required }, revocation))
    }

    /// Verifies against the CAs of this file. With revocation lists, a certificate that none of them covers is refused.
    fn verifier(
        &self,
        path: &Path,
        cas: Vec<CertificateDer<'static>>,
        lists: Vec<CertificateRevocationListDer<'static>>,
    ) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        let failed = |source| TlsError::Ca { path: path.to_owned(), source };
        let roots = roots(path, cas)?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).with_crls(lists).build();
        verifier.map_err(|error| match (&self.client_crl, error) {
            (Some(path), VerifierBuilderError::InvalidCrl(source)) => {
                TlsError::Revocation { path: path.clone(), source: rustls::Error::from(source).into() }
            }
            (_, source) => failed(source.into()),
        })
    }

    fn pair(&self, source: rustls::Error) -> TlsError {
        TlsError::pair(&self.cert, &self.key, source)
    }
}

/// The CAs of a file, as those that are trusted.
///
/// # Errors
/// One of them cannot be used.
pub(crate) fn roots(path: &Path, cas: Vec<CertificateDer<'static>>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in cas {
        roots.add(certificate).map_err(|source| TlsError::Ca { path: path.to_owned(), source: source.into() })?;
    }
    Ok(roots)
}

/// Reads certificates (PEM), at least one.
///
/// # Errors
/// There is none, or the file cannot be read.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    const WHAT: &str = "certificate";
    let read = |error| TlsError::unreadable(WHAT, path, error);
    let certificates: Vec<_> =
        CertificateDer::pem_file_iter(path).map_err(read)?.collect::<Result<_, _>>().map_err(read)?;
    if certificates.is_empty() {
        return Err(TlsError::Empty { what: WHAT, path: path.to_owned() });
    }
    Ok(certificates)
}
