//! Calls of a CA's service.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::http::Uri;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme};
use telexec_proto::enrollment::v1::enrollment_service_client::EnrollmentServiceClient;
use telexec_proto::enrollment::v1::{EnrollRequest, EnrollResponse, RenewRequest, RenewResponse};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::util::BoxCloneService;

use crate::error::EnrollError;
use crate::token::Token;
use crate::{DEFAULT_PORT, SERVER_NAME};

/// For a connection and its TLS handshake: a server that is silent is not the CA's.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// For one attempt, from the connection to the answer.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two attempts.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// What gai_strerror(3) of glibc, musl and macOS has for EAI_NONAME and EAI_NODATA, which the standard library keeps only as
/// texts.
const NO_SUCH_NAME: [&str; 5] = [
    "Name or service not known",
    "No address associated with hostname",
    "Name does not resolve",
    "Name has no usable address",
    "nodename nor servname provided, or not known",
];

type Client = EnrollmentServiceClient<BoxCloneService<Request<Body>, Response<Incoming>, hyper::Error>>;

/// How long calls are repeated while the server cannot be reached.
pub(crate) struct Retry<'a> {
    pub(crate) timeout: Duration,
    /// Called for the first failure of several, with the rest of the time.
    pub(crate) report: &'a dyn Fn(&EnrollError, Duration),
}

/// Where a CA's service is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    host: String,
    port: u16,
}

impl FromStr for Server {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not HOST or HOST:PORT");
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                (host, port.parse().map_err(|_| wrong())?)
            }
            _ => (text, DEFAULT_PORT),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() || host.contains(['/', ' ']) || port == 0 {
            return Err(wrong());
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl Server {
    /// Gets the certificate that a token is for.
    pub(crate) async fn enroll(
        &self,
        token: &Token,
        certificate_request: &[u8],
        retry: &Retry<'_>,
    ) -> Result<EnrollResponse, EnrollError> {
        let verifier = PinnedCa { token: token.clone(), provider: provider() };
        let config = builder(&verifier.provider)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        self.call(config, retry, async |mut client| {
            let request =
                EnrollRequest { secret: token.secret().to_vec(), certificate_request: certificate_request.to_vec() };
            client.enroll(request).await.map(tonic::Response::into_inner)
        })
        .await
    }

    /// Renews the certificate with this chain and key.
    pub(crate) async fn renew(
        &self,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        cas: Vec<CertificateDer<'static>>,
        force: bool,
        retry: &Retry<'_>,
    ) -> Result<RenewResponse, EnrollError> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(cas);
        let config = builder(&provider())?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(|error| EnrollError::Usage(error.to_string()))?;
        self.call(config, retry, async |mut client| {
            client.renew(RenewRequest { force }).await.map(tonic::Response::into_inner)
        })
        .await
    }

    /// Connects and calls, again and again while the server cannot be reached.
    async fn call<T>(
        &self,
        mut config: ClientConfig,
        retry: &Retry<'_>,
        call: impl AsyncFn(Client) -> Result<T, Status>,
    ) -> Result<T, EnrollError> {
        config.alpn_protocols = vec![b"h2".to_vec()];
        let (config, started) = (Arc::new(config), Instant::now());
        let rest = || retry.timeout.saturating_sub(started.elapsed());
        let mut is_first = true;
        loop {
            let late = || self.unreachable(io::ErrorKind::TimedOut.into());
            let attempt = async {
                let connecting = tokio::time::timeout(CONNECT_TIMEOUT, self.connect(Arc::clone(&config)));
                let client = connecting.await.unwrap_or_else(|_| Err(late()))?;
                call(client).await.map_err(|status| self.failed(status))
            };
            let done = tokio::time::timeout(ATTEMPT_TIMEOUT.min(rest()), attempt).await.unwrap_or_else(|_| Err(late()));
            match done {
                Err(error) if error.is_transient() && rest() > RETRY_DELAY => {
                    if is_first {
                        (retry.report)(&error, rest());
                    }
                    is_first = false;
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                done => return done,
            }
        }
    }

    async fn connect(&self, config: Arc<ClientConfig>) -> Result<Client, EnrollError> {
        let found = lookup_host((self.host.as_str(), self.port)).await.map_err(|error| self.not_found(&error))?;
        let addresses: Vec<_> = found.collect();
        let stream = TcpStream::connect(&addresses[..]).await.map_err(|error| self.unreachable(error))?;
        let name = ServerName::try_from(SERVER_NAME).map_err(|error| self.unreachable(io::Error::other(error)))?;
        let stream = TlsConnector::from(config).connect(name, stream).await.map_err(|error| self.not_trusted(error))?;
        let handshake = http2::handshake::<_, _, Body>(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| self.unreachable(io::Error::other(error)))?;
        // ends with the client
        tokio::spawn(connection);
        let service = tower::service_fn(move |request| {
            let mut sender = sender.clone();
            async move { sender.send_request(request).await }
        });
        let origin = Uri::from_static("https://enrollment.telexec.invalid");
        Ok(EnrollmentServiceClient::with_origin(BoxCloneService::new(service), origin))
    }

    fn not_trusted(&self, error: io::Error) -> EnrollError {
        match error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>()) {
            // without the prefixes of rustls
            Some(rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(other)))) => {
                EnrollError::Untrusted { server: self.to_string(), source: io::Error::other(other.to_string()) }
            }
            Some(_) => EnrollError::Untrusted { server: self.to_string(), source: error },
            None => self.unreachable(error),
        }
    }

    fn not_found(&self, error: &io::Error) -> EnrollError {
        let (host, text) = (self.host.clone(), error.to_string());
        match text.strip_prefix("failed to lookup address information: ").unwrap_or(&text) {
            reason if NO_SUCH_NAME.contains(&reason) => EnrollError::NoSuchHost(host),
            reason => EnrollError::Lookup { host, reason: reason.to_owned() },
        }
    }

    fn unreachable(&self, source: io::Error) -> EnrollError {
        EnrollError::Unreachable { server: self.to_string(), source }
    }

    fn failed(&self, status: Status) -> EnrollError {
        let server = self.to_string();
        match status.code() {
            Code::Unauthenticated
            | Code::InvalidArgument
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::ResourceExhausted => {
                EnrollError::Refused { server, reason: status.message().to_owned(), code: status.code() }
            }
            _ => EnrollError::Failed { server, source: Box::new(status) },
        }
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn builder(
    provider: &Arc<CryptoProvider>,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, EnrollError> {
    ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| EnrollError::Usage(error.to_string()))
}

/// Trusts the CA of a token, whose certificate the server sends with its own.
#[derive(Debug)]
struct PinnedCa {
    token: Token,
    provider: Arc<CryptoProvider>,
}

/// The server did not send the CA of the token.
#[derive(Debug, thiserror::Error)]
#[error("its CA is not the one that made the token")]
struct AnotherCa;

impl ServerCertVerifier for PinnedCa {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let refused = || rustls::Error::from(CertificateError::Other(OtherError(Arc::new(AnotherCa))));
        let ca = intermediates.iter().find(|sent| self.token.is_of(sent)).ok_or_else(refused)?;
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone().into_owned())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), Arc::clone(&self.provider)).build();
        verifier.map_err(|_| refused())?.verify_server_cert(end_entity, &[], name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_hosts_with_or_without_a_port() {
        for (text, expected) in [
            ("ca1", "ca1:7444"),
            ("ca1:1", "ca1:1"),
            ("[::1]:2", "[::1]:2"),
            ("::1", "[::1]:7444"),
            ("10.0.0.1", "10.0.0.1:7444"),
        ] {
            assert_eq!(text.parse::<Server>().unwrap().to_string(), expected);
        }
        for wrong in ["", ":1", "ca1:", "ca1:x", "ca1:0", "https://ca1", "ca1:99999"] {
            assert!(wrong.parse::<Server>().is_err(), "{wrong}");
        }
    }
}
