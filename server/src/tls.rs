//! TLS with certificates on both sides (mTLS), versions 1.3 and 1.2.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, pem};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::private_key;

/// Certificates or a key that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or is not PEM.
    #[error("cannot read a {what} from {path}")]
    Read {
        /// What should be in it.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: pem::Error,
    },
    /// A file holds nothing of its kind.
    #[error("{path} holds no certificate")]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The authorities cannot be used.
    #[error("{path} holds an authority that cannot be used")]
    Authority {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Others than the agent's user and root can get at the private key.
    #[error("others may use the private key {path} (mode {mode:o}): run chmod 600 {path}")]
    Exposed {
        /// The key's file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The certificate and the key do not fit, or cannot be used.
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

/// What the agent shows, and whom it lets in.
pub(crate) fn server_config(cert: &Path, key: &Path, client_ca: &Path) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let authority = |source| TlsError::Authority { path: client_ca.to_owned(), source };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(client_ca)? {
        roots.add(certificate).map_err(|source| authority(source.into()))?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider))
        .build()
        .map_err(|source| authority(source.into()))?;
    let private_key = private_key::read(key)?;
    let pair = |source| TlsError::Pair { cert: cert.to_owned(), key: key.to_owned(), source };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(pair)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates(cert)?, private_key)
        .map_err(pair)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    // a resumed session would outlive a change of certificates
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    Ok(config)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = |source| TlsError::Read { what: "certificate", path: path.to_owned(), source };
    let certificates: Vec<_> =
        CertificateDer::pem_file_iter(path).map_err(read)?.collect::<Result<_, _>>().map_err(read)?;
    if certificates.is_empty() {
        return Err(TlsError::Empty { path: path.to_owned() });
    }
    Ok(certificates)
}
