//! TLS: both sides present a certificate, or this side sends tokens instead, and each trusts only the CAs it is configured with.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::Resumption;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::connector::greeting;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// What may wait to be written, encrypted: more than rustls allows by itself, so that a piece of a file goes at once.
const TLS_BUFFER_BYTES: usize = 256 * 1024;
/// For the agent's greeting; behind a proxy there may be none at all.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);

/// The CAs this side trusts, and its own certificate. The files are read for every connection, so renewals take effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// `None`: the agent learns from tokens who calls.
    pub certificate: Option<ClientCertificate>,
    /// PEM: the CAs for agents' certificates. No others are trusted.
    pub ca: PathBuf,
    /// The name to expect in the agent's certificate. Default: the target's host.
    pub server_name: Option<String>,
}

/// The files of a client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// PEM: the certificate, followed by intermediate ones.
    pub cert: PathBuf,
    /// PEM: its private key.
    pub key: PathBuf,
}

/// A file that cannot be used, and why.
pub(crate) type BadFile = (PathBuf, Source);

impl TlsOptions {
    /// These files, and the target's host as the agent's name.
    pub fn new(cert: impl Into<PathBuf>, key: impl Into<PathBuf>, ca: impl Into<PathBuf>) -> Self {
        let certificate = Some(ClientCertificate { cert: cert.into(), key: key.into() });
        Self { certificate, ca: ca.into(), server_name: None }
    }

    /// No client certificate, and the target's host as the agent's name: calls need an [`AccessToken`](crate::AccessToken).
    pub fn without_certificate(ca: impl Into<PathBuf>) -> Self {
        Self { certificate: None, ca: ca.into(), server_name: None }
    }

    /// Reads the files.
    pub(crate) fn load(&self) -> Result<Arc<ClientConfig>, BadFile> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.ca)? {
            roots.add(certificate).map_err(|error| (self.ca.clone(), error.into()))?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(|error| (self.ca.clone(), error.into()))?
            .with_root_certificates(roots);
        let mut config = match &self.certificate {
            Some(ClientCertificate { cert, key }) => {
                let chain = certificates(cert)?;
                let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| (key.clone(), pem_error(error)))?;
                builder.with_client_auth_cert(chain, secret).map_err(|error| (key.clone(), key_error(error)))?
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        // the configuration lives for one connection: there is nothing to resume
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }
}

/// Makes `stream` a TLS connection to `name`, and checks that the agent accepts this side's certificate.
pub(crate) async fn handshake(
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    stream: TcpStream,
) -> io::Result<TlsStream<TcpStream>> {
    let mut stream = TlsConnector::from(config).connect(name, stream).await?;
    stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER_BYTES));
    // In TLS 1.3 the client's handshake is complete before the agent has seen its certificate. Next is the agent's greeting,
    // or an alert. If anything was sent before, a reset could overtake that alert.
    greeting(&mut stream, GREETING_TIMEOUT).await?;
    Ok(stream)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, BadFile> {
    let bad = |source| (path.to_owned(), source);
    let found = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| bad(pem_error(error)))?;
    if found.is_empty() { Err(bad("it contains no PEM certificate".into())) } else { Ok(found) }
}

fn pem_error(error: pem::Error) -> Source {
    match error {
        pem::Error::Io(error) => error.into(),
        pem::Error::NoItemsFound => "it contains no PEM private key".into(),
        error => error.into(),
    }
}

fn key_error(error: rustls::Error) -> Source {
    match error {
        rustls::Error::InconsistentKeys(_) => "this key does not belong to the certificate".into(),
        error => error.into(),
    }
}
