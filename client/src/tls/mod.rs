//! TLS: both sides present a certificate, or this side sends tokens instead, and each trusts only the CAs it is configured with.

#[cfg(feature = "spiffe")]
mod svid_verifier;

#[cfg(feature = "spiffe")]
use std::fmt;
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

#[cfg(feature = "spiffe")]
use telexec_spiffe::{SpiffeId, TrustDomain, WorkloadApi, WorkloadApiError};

#[cfg(feature = "spiffe")]
use self::svid_verifier::{Agent, SvidVerifier};
use crate::connector::greeting;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// What may wait to be written, encrypted: more than rustls allows by itself, so that a piece of a file goes at once.
const TLS_BUFFER_BYTES: usize = 256 * 1024;
/// For the agent's greeting; behind a proxy there may be none at all.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);

/// The CAs this side trusts, and its own certificate. Both are read for every connection, so renewals take effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// Where they are from.
    pub credentials: TlsCredentials,
    /// The name to expect in the agent's certificate: a DNS name, an IP address, or with the feature `spiffe` a SPIFFE ID
    /// (`spiffe://example.org/agents/web-1`). `{host}` in it is replaced by the target's host. Default: the host.
    pub server_name: Option<String>,
}

/// Where certificates are from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsCredentials {
    /// Files.
    Files {
        /// `None`: the agent learns from tokens who calls.
        certificate: Option<ClientCertificate>,
        /// PEM: the CAs for agents' certificates. No others are trusted.
        ca: PathBuf,
    },
    /// The SPIFFE Workload API: an X.509-SVID for this side, and the trust bundles for agents' SVIDs. Agents in trust domains that
    /// this side's is federated with are known by SPIFFE IDs alone.
    #[cfg(feature = "spiffe")]
    Workload(WorkloadApi),
}

/// The files of a client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// PEM: the certificate, followed by intermediate ones.
    pub cert: PathBuf,
    /// PEM: its private key.
    pub key: PathBuf,
}

/// Why there are no credentials.
pub(crate) enum LoadError {
    /// A file cannot be used.
    File(PathBuf, Source),
    /// The Workload API issues none that can be used.
    #[cfg(feature = "spiffe")]
    Workload(Source),
    /// The Workload API cannot be asked now.
    #[cfg(feature = "spiffe")]
    NoWorkloadApi(Source),
    /// The name of the agent cannot be one, or no CA can vouch for it.
    Name(String),
}

/// What a handshake needs.
pub(crate) struct Handshake {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// This side's certificate and key.
type Own = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Verifies the agent's certificate.
enum Verifier {
    /// It is for the name.
    Name(RootCertStore),
    /// It is an SVID.
    #[cfg(feature = "spiffe")]
    Svid(SvidVerifier),
}

impl TlsOptions {
    /// These files, and the target's host as the agent's name.
    pub fn new(cert: impl Into<PathBuf>, key: impl Into<PathBuf>, ca: impl Into<PathBuf>) -> Self {
        let certificate = Some(ClientCertificate { cert: cert.into(), key: key.into() });
        Self { credentials: TlsCredentials::Files { certificate, ca: ca.into() }, server_name: None }
    }

    /// No client certificate, and the target's host as the agent's name: calls need an [`AccessToken`](crate::AccessToken).
    pub fn without_certificate(ca: impl Into<PathBuf>) -> Self {
        Self { credentials: TlsCredentials::Files { certificate: None, ca: ca.into() }, server_name: None }
    }

    /// Certificates from the SPIFFE Workload API; `server_name` should be the SPIFFE ID of the agent, unless its SVID has a DNS name.
    #[cfg(feature = "spiffe")]
    pub fn workload(api: WorkloadApi) -> Self {
        Self { credentials: TlsCredentials::Workload(api), server_name: None }
    }

    /// Reads what a handshake with the agent at `host` needs.
    pub(crate) async fn load(&self, host: &str) -> Result<Handshake, LoadError> {
        let expected = self.server_name.as_deref().map(|name| name.replace("{host}", host));
        let expected = expected.as_deref().unwrap_or(host);
        let is_id = expected.starts_with("spiffe://");
        let name = if is_id { host } else { expected };
        let unnamed = || LoadError::Name(format!("{name:?} cannot be the name in a certificate"));
        let name = ServerName::try_from(name.to_owned()).map_err(|_| unnamed())?;
        let (own, verifier) = match &self.credentials {
            TlsCredentials::Files { certificate, ca } => {
                let roots = roots(ca)?;
                let verifier = if is_id { Verifier::of_id(expected, |_| Ok(roots))? } else { Verifier::Name(roots) };
                (certificate.as_ref().map(ClientCertificate::load).transpose()?, verifier)
            }
            #[cfg(feature = "spiffe")]
            TlsCredentials::Workload(api) => {
                let issued = api.fetch().await.map_err(LoadError::of_workload_api)?;
                let domain = issued.id.trust_domain();
                let roots = |domain: &TrustDomain| {
                    let text = format!(
                        "there is no trust bundle of {domain}, the trust domain of the agent's SPIFFE ID: check server_name, or \
                         federate the registration entry of {} with it",
                        issued.id
                    );
                    issued.bundles.roots(domain).ok_or(LoadError::Name(text))
                };
                let verifier = match is_id {
                    true => Verifier::of_id(expected, |id| roots(id.trust_domain()))?,
                    false => Verifier::Svid(SvidVerifier::new(Agent::NamedIn(domain.clone()), roots(domain)?)),
                };
                (Some((issued.chain, issued.key)), verifier)
            }
        };
        Ok(Handshake { config: self.config(verifier, own)?, name })
    }

    fn config(&self, verifier: Verifier, own: Option<Own>) -> Result<Arc<ClientConfig>, LoadError> {
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(|error| self.unusable(error))?;
        let builder = match verifier {
            Verifier::Name(roots) => builder.with_root_certificates(roots),
            #[cfg(feature = "spiffe")]
            Verifier::Svid(verifier) => builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)),
        };
        let mut config = match own {
            Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(|error| self.unusable(error))?,
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        // the configuration lives for one connection: there is nothing to resume
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    /// The certificate or its key cannot be used.
    fn unusable(&self, error: rustls::Error) -> LoadError {
        match &self.credentials {
            TlsCredentials::Files { certificate, ca } => {
                let path = certificate.as_ref().map_or(ca, |certificate| &certificate.key);
                LoadError::File(path.clone(), key_error(error))
            }
            #[cfg(feature = "spiffe")]
            TlsCredentials::Workload(_) => LoadError::Workload(error.into()),
        }
    }
}

#[cfg(feature = "spiffe")]
impl LoadError {
    fn of_workload_api(error: WorkloadApiError) -> Self {
        match error.is_temporary() {
            true => Self::NoWorkloadApi(error.into()),
            false => Self::Workload(error.into()),
        }
    }
}

impl ClientCertificate {
    fn load(&self) -> Result<Own, LoadError> {
        let Self { cert, key } = self;
        let secret = PrivateKeyDer::from_pem_file(key);
        Ok((certificates(cert)?, secret.map_err(|error| LoadError::File(key.clone(), pem_error(error)))?))
    }
}

impl Verifier {
    /// Of an agent with this SPIFFE ID. `roots` are the CAs of its trust domain.
    #[cfg(feature = "spiffe")]
    fn of_id(id: &str, roots: impl FnOnce(&SpiffeId) -> Result<RootCertStore, LoadError>) -> Result<Self, LoadError> {
        let malformed = |reason: &dyn fmt::Display| {
            LoadError::Name(format!("{id:?} is not a SPIFFE ID: {reason}; the only placeholder is {{host}}"))
        };
        let id = SpiffeId::new(id).map_err(|error| malformed(&error))?;
        if id.path().is_empty() {
            return Err(malformed(&"it has no path"));
        }
        let roots = roots(&id)?;
        Ok(Self::Svid(SvidVerifier::new(Agent::Id(id), roots)))
    }

    #[cfg(not(feature = "spiffe"))]
    fn of_id(id: &str, _: impl FnOnce(&()) -> Result<RootCertStore, LoadError>) -> Result<Self, LoadError> {
        Err(LoadError::Name(format!("{id}: SPIFFE IDs need the feature `spiffe` of telexec-client")))
    }
}

/// Makes `stream` a TLS connection to `name`, and checks that the agent accepts this side's certificate.
pub(crate) async fn handshake(handshake: Handshake, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    let Handshake { config, name } = handshake;
    let mut stream = TlsConnector::from(config).connect(name, stream).await?;
    stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER_BYTES));
    // In TLS 1.3 the client's handshake is complete before the agent has seen its certificate. Next is the agent's greeting,
    // or an alert. If anything was sent before, a reset could overtake that alert.
    greeting(&mut stream, GREETING_TIMEOUT).await?;
    Ok(stream)
}

fn roots(ca: &Path) -> Result<RootCertStore, LoadError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(|error| LoadError::File(ca.to_owned(), error.into()))?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    let bad = |source| LoadError::File(path.to_owned(), source);
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
