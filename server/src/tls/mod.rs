//! TLS 1.3 and 1.2, mutual unless callers may have tokens instead: loads the configured files into what handshakes need.

pub(crate) mod ca_names;
pub(crate) mod certificate;
pub(crate) mod client_cert_check;
pub(crate) mod client_verifier;
pub(crate) mod expiry;
pub(crate) mod peer_certificate;
pub(crate) mod presented;
pub(crate) mod private_key;
mod revocation;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, pem};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tracing::{info, warn};

use crate::reload::{Source, Watched};
use crate::tls::ca_names::Identities;
use crate::tls::certificate::Certificate;
use crate::tls::client_verifier::ClientVerifier;
use crate::tls::revocation::Revocation;

/// Certificates, a key or revocation lists that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or is not PEM.
    #[error("cannot read a {what} from {path}")]
    Read {
        /// The expected content.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file contains nothing of the expected kind.
    #[error("{path} contains no PEM {what}")]
    Empty {
        /// The expected content.
        what: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// A CA certificate cannot be used.
    #[error("{path} contains a CA certificate that cannot be used")]
    Ca {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A revocation list cannot be used.
    #[error("{path} contains a revocation list that cannot be used")]
    Revocation {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Without a list of its own, all certificates of a CA would be refused.
    #[error("{path} contains no revocation list signed by {ca}: add one, even if it lists nothing")]
    Unlisted {
        /// The file of the lists.
        path: PathBuf,
        /// The name of the CA.
        ca: String,
    },
    /// The private key is accessible to others than the agent's user and root.
    #[error(
        "others may use the private key {path} (mode {mode:o}): run chmod 600 {path}, or with agent_user chown root:GROUP and chmod 640, GROUP being its group"
    )]
    Exposed {
        /// The key's file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Callers would refuse the certificate.
    #[error("the certificate {cert} is not for a server (extended key usage serverAuth): an agent needs one that is")]
    NotForServer {
        /// The certificate's file.
        cert: PathBuf,
    },
    /// Callers refuse the certificate.
    #[error("the certificate {cert} expired on {not_after}: renew it")]
    Expired {
        /// The certificate's file.
        cert: PathBuf,
        /// Its last second.
        not_after: String,
    },
    /// They are not a pair.
    #[error("the key {key} does not belong to the certificate {cert}")]
    KeyMismatch {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// The certificate or the key cannot be used.
    #[error("the certificate {cert} and the key {key} cannot be used together")]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The cause.
        source: rustls::Error,
    },
}

impl TlsError {
    fn unreadable(what: &'static str, path: &Path, error: pem::Error) -> Self {
        // its text for these would say no more than that it is one
        let source = match error {
            pem::Error::Io(error) => error.into(),
            error => error.into(),
        };
        Self::Read { what, path: path.to_owned(), source }
    }

    /// Why the certificate and the key of these files cannot be used.
    pub(crate) fn pair(cert: &Path, key: &Path, source: rustls::Error) -> Self {
        let (cert, key) = (cert.to_owned(), key.to_owned());
        match source {
            rustls::Error::InconsistentKeys(_) => Self::KeyMismatch { cert, key },
            source => Self::Pair { cert, key, source },
        }
    }
}

/// The current credentials.
pub(crate) type Tls = Watched<TlsFiles>;

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

/// The agent's certificate, and the verifier for those of callers.
pub(crate) struct Credentials {
    /// The configuration of handshakes.
    pub(crate) server: Arc<ServerConfig>,
    /// Verifies callers' certificates; `None`: none are asked for.
    pub(crate) clients: Option<Arc<ClientVerifier>>,
    /// The agent's own certificate.
    pub(crate) certificate: Certificate,
    pub(crate) revocation: Option<Revocation>,
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
        let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|source| self.pair(source))?;
        let builder = match &clients {
            Some(clients) => builder.with_client_cert_verifier(Arc::clone(clients) as _),
            None => builder.with_no_client_auth(),
        };
        let mut server = builder.with_single_cert(chain, key).map_err(|source| self.pair(source))?;
        server.alpn_protocols = vec![b"h2".to_vec()];
        // a resumed session would outlive a change of certificates
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        Ok(Credentials { server: Arc::new(server), clients, certificate, revocation })
    }

    fn log_loaded(credentials: &Credentials) {
        let certificate = &credentials.certificate;
        let revoked = credentials.revocation.as_ref().map(|revocation| revocation.revoked);
        info!(
            subject = certificate.subject,
            serial = certificate.serial,
            not_after = certificate.not_after,
            revoked,
            "certificates loaded"
        );
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
        Ok((ClientVerifier { chains, ca_names, is_required }, revocation))
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
