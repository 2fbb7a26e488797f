//! Authenticates the peer of a connection: by TLS, by the credentials of a Unix socket, or by the context id of a virtual
//! machine.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};
use telexec_engine::{Lost, Workers};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::net::unix::UCred;
use tokio_rustls::TlsAcceptor;

use crate::admission::on_workers::on_workers;
use crate::call::caller::{Caller, Transport};
use crate::identity::Identity;
use crate::listen::{Accepted, Remote};
use crate::metrics::HandshakeResult;
use crate::tls::Tls;
use crate::tls::ca_names::reason;
use crate::tls::client_cert_check::ClientCertCheck;
use crate::tls::no_certificate::without_certificate;
use crate::tls::peer_certificate::PeerCertificate;
use crate::tls::presented::Presenting;

/// From accepting a connection to an identity; slower peers are dropped.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Of what rustls says in the logs.
const MAX_REASON_BYTES: usize = 512;

/// Encrypted in one go for one write to the socket: a few chunks of output.
const TLS_BUFFER_BYTES: usize = 256 * 1024;

/// Why a peer was not authenticated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("it took longer than {} s", HANDSHAKE_TIMEOUT.as_secs())]
    Timeout,
    #[error("displaced by others: its source had the most pending connections")]
    Displaced,
    #[error("TLS: {}", tls_reason(source))]
    Tls {
        /// Of rustls, or of the socket.
        source: io::Error,
        /// What the peer presented until then.
        certificate: Option<CertificateDer<'static>>,
    },
    #[error("TLS: {0}")]
    Lost(#[from] Lost),
    #[error("the agent has no X.509-SVID")]
    NoCertificate,
    #[error("its certificate has no usable identity (SPIFFE ID, DNS SAN or CN)")]
    Nameless(Option<CertificateDer<'static>>),
    #[error("its user is neither root nor the agent's own, and there is no policy that could let it in")]
    ForeignUser,
    #[error("it is not this machine's host, and there is no policy that could let it in")]
    ForeignGuest,
    #[error("its credentials cannot be read: {0}")]
    Credentials(io::Error),
}

impl HandshakeError {
    /// For the metrics.
    pub(crate) fn result(&self) -> HandshakeResult {
        match self {
            Self::Timeout => HandshakeResult::Timeout,
            Self::Displaced => HandshakeResult::Displaced,
            Self::Tls { .. } | Self::Lost(_) | Self::NoCertificate => HandshakeResult::Tls,
            Self::Nameless(_) => HandshakeResult::Nameless,
            Self::ForeignUser | Self::ForeignGuest => HandshakeResult::Foreign,
            Self::Credentials(_) => HandshakeResult::Credentials,
        }
    }

    /// Whether the agent has turned the peer away: it has not gone away, kept silent, or refused the agent's certificate.
    pub(crate) fn is_decision(&self) -> bool {
        match self {
            Self::Tls { source, .. } => {
                let error = source.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
                error.is_some_and(|error| !matches!(error, rustls::Error::AlertReceived(_)))
            }
            Self::Nameless(_) | Self::ForeignUser | Self::ForeignGuest | Self::Credentials(_) => true,
            Self::Timeout | Self::Displaced | Self::Lost(_) | Self::NoCertificate => false,
        }
    }

    /// The certificate that the peer presented. That it has the key to it is not certain.
    pub(crate) fn certificate(&self) -> Option<&CertificateDer<'static>> {
        match self {
            Self::Tls { certificate, .. } | Self::Nameless(certificate) => certificate.as_ref(),
            Self::Timeout | Self::Displaced | Self::Lost(_) | Self::NoCertificate => None,
            Self::ForeignUser | Self::ForeignGuest | Self::Credentials(_) => None,
        }
    }
}

fn tls_reason(error: &io::Error) -> String {
    let refused = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    let text = refused.map_or_else(|| error.to_string(), reason);
    // the peer's certificate may be in it
    let end = text.floor_char_boundary(MAX_REASON_BYTES);
    text.get(..end).unwrap_or_default().to_owned()
}

/// An authenticated peer, or one whose calls have tokens.
pub(crate) struct Peer {
    pub(crate) caller: Arc<Caller>,
    pub(crate) io: Box<dyn Stream>,
}

impl Peer {
    /// `None`: its calls say who it is.
    pub(crate) fn identity(&self) -> Option<&Identity> {
        Some(&self.caller.identity).filter(|_| self.caller.is_authenticated())
    }
}

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Authenticates the peer; the computations of TLS run on `workers`. With `strangers`, other local users than root and the
/// agent's own, and other virtual machines, are accepted too: a policy decides what they may do.
pub(crate) async fn handshake(
    accepted: Accepted,
    remote: &Remote,
    strangers: bool,
    workers: &Workers,
) -> Result<Peer, HandshakeError> {
    let address = remote.address.as_str();
    let handshake = async {
        match accepted {
            Accepted::Unix(stream) => {
                let credentials = stream.peer_cred().map_err(HandshakeError::Credentials)?;
                if !strangers && !is_own(&credentials) {
                    return Err(HandshakeError::ForeignUser);
                }
                let identity = Identity::from_credentials(&credentials);
                let caller = Caller::new(identity, Transport::Unix, address);
                let caller = Caller { credentials: Some(credentials), ..caller };
                Ok(Peer { caller: caller.into(), io: Box::new(stream) })
            }
            Accepted::Tcp(stream, None) => {
                let caller = Caller::new(Identity::anonymous(), Transport::Tcp, address);
                Ok(Peer { caller: caller.into(), io: Box::new(stream) })
            }
            Accepted::Vsock(stream, peer) => {
                if !strangers && !peer.is_trusted() {
                    return Err(HandshakeError::ForeignGuest);
                }
                let identity = Identity::from_cid(peer.cid);
                let caller = Caller::new(identity, Transport::Vsock, address);
                Ok(Peer { caller: caller.into(), io: Box::new(stream) })
            }
            Accepted::Tcp(stream, Some(tls)) => tls_handshake(stream, tls, remote, workers).await,
        }
    };
    tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await.unwrap_or(Err(HandshakeError::Timeout))
}

/// Whether it is root, or the agent's own user.
fn is_own(credentials: &UCred) -> bool {
    credentials.uid() == 0 || credentials.uid() == rustix::process::geteuid().as_raw()
}

async fn tls_handshake(
    stream: TcpStream,
    tls: Tls,
    remote: &Remote,
    workers: &Workers,
) -> Result<Peer, HandshakeError> {
    // an idle peer costs no worker
    stream.readable().await.map_err(|source| HandshakeError::Tls { source, certificate: None })?;
    let (credentials, since) = (tls.current(), UnixTime::now());
    let Some(own) = &credentials.own else {
        if let Ok(refusal) = without_certificate() {
            let _ = TlsAcceptor::from(refusal).accept(stream).await;
        }
        return Err(HandshakeError::NoCertificate);
    };
    let acceptor = TlsAcceptor::from(Arc::clone(&own.server));
    let accept = Presenting::new(acceptor.accept(stream));
    let (accepted, certificate) = on_workers(workers, &remote.source.to_string(), accept).await?;
    let mut stream = match accepted {
        Ok(stream) => stream,
        Err(source) => return Err(HandshakeError::Tls { source, certificate }),
    };
    stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER_BYTES));
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    if chain.is_empty() {
        // TLS requires a certificate, unless calls may have tokens
        let caller = Caller::new(Identity::unknown(), Transport::Tls, &remote.address);
        return Ok(Peer { caller: caller.into(), io: Box::new(stream) });
    }
    let certificate = PeerCertificate::parse(chain).ok_or(HandshakeError::Nameless(certificate))?;
    let caller = Caller::new(certificate.identity.clone(), Transport::Mtls, &remote.address);
    let cert_check = Some(ClientCertCheck::new(tls, credentials, certificate, since).into());
    let caller = Caller { cert_check, ..caller };
    Ok(Peer { caller: caller.into(), io: Box::new(stream) })
}
