//! One connection: authenticates the peer, then serves HTTP/2 until it closes.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::UnixTime;
use telexec_engine::{Lost, Workers};
use telexec_proto::convert::error_to_status;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::net::unix::UCred;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tower::ServiceExt;
use tracing::debug;

use crate::admission::call_limiter;
use crate::admission::call_limiter::CallLimiter;
use crate::admission::on_workers::on_workers;
use crate::call::caller::{Caller, Transport};
use crate::call::deadline::Deadline;
use crate::http2::body;
use crate::http2::body::Body;
use crate::http2::message;
use crate::http2::message::Limited;
use crate::http2::preface::{PendingAdmission, PrefaceTimeout};
use crate::identity::Identity;
use crate::listen::{Accepted, Remote};
use crate::metrics::{Metrics, Refusal};
use crate::request_memory::RequestMemory;
use crate::tls::Tls;
use crate::tls::ca_names::reason;
use crate::tls::client_cert_check::ClientCertCheck;
use crate::tls::peer_certificate::PeerCertificate;

/// From accepting a connection to an identity; slower peers are dropped.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// From then on to the HTTP/2 preface.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);

/// Encrypted in one go for one write to the socket: a few chunks of output.
const TLS_BUFFER_BYTES: usize = 256 * 1024;

/// Why a peer was not authenticated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("it took longer than {} s", HANDSHAKE_TIMEOUT.as_secs())]
    Timeout,
    #[error("displaced by others: its source had the most pending connections")]
    Displaced,
    #[error("TLS: {}", tls_reason(.0))]
    Tls(io::Error),
    #[error("TLS: {0}")]
    Lost(#[from] Lost),
    #[error("its certificate has no usable identity (SPIFFE ID, DNS SAN or CN)")]
    Nameless,
    #[error("its user is neither root nor the agent's own, and there is no policy that could let it in")]
    ForeignUser,
    #[error("it is not this machine's host, and there is no policy that could let it in")]
    ForeignGuest,
    #[error("its credentials cannot be read: {0}")]
    Credentials(io::Error),
}

impl HandshakeError {
    /// The label in metrics.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Displaced => "displaced",
            Self::Tls(_) | Self::Lost(_) => "tls",
            Self::Nameless => "nameless",
            Self::ForeignUser | Self::ForeignGuest => "foreign",
            Self::Credentials(_) => "credentials",
        }
    }
}

fn tls_reason(error: &io::Error) -> String {
    let refused = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    refused.map_or_else(|| error.to_string(), reason)
}

/// An authenticated peer.
pub(crate) struct Peer {
    caller: Arc<Caller>,
    io: Box<dyn Stream>,
}

impl Peer {
    pub(crate) fn identity(&self) -> &Identity {
        &self.caller.identity
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
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
    stream.readable().await.map_err(HandshakeError::Tls)?;
    let (credentials, since) = (tls.current(), UnixTime::now());
    let acceptor = TlsAcceptor::from(Arc::clone(&credentials.server));
    let accepted = on_workers(workers, &remote.source.to_string(), acceptor.accept(stream)).await?;
    let mut stream = accepted.map_err(HandshakeError::Tls)?;
    stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER_BYTES));
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let certificate = PeerCertificate::parse(chain).ok_or(HandshakeError::Nameless)?;
    let caller = Caller::new(certificate.identity.clone(), Transport::Mtls, &remote.address);
    let cert_check = Some(ClientCertCheck::new(tls, credentials, certificate, since));
    let caller = Caller { cert_check, ..caller };
    Ok(Peer { caller: caller.into(), io: Box::new(stream) })
}

/// Serves the peer's calls until it disconnects, or after `goaway` until the open calls have ended. Once the peer's
/// certificate is no longer valid new calls are refused, and open ones are ended (`permission`).
pub(crate) async fn serve(
    peer: Peer,
    admission: PendingAdmission,
    routes: Routes,
    call_limiter: CallLimiter,
    request_memory: RequestMemory,
    metrics: Metrics,
    goaway: CancellationToken,
) {
    let Peer { caller, io } = peer;
    let account = request_memory.of(&caller.identity);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let refusal = caller.check().err();
        request.extensions_mut().insert(Arc::clone(&caller));
        let permit = call_limiter.acquire(&caller.identity);
        let (routes, account, metrics) = (routes.clone(), account.clone(), metrics.clone());
        async move {
            let permit = match permit {
                Ok(permit) => permit,
                Err(exhausted) => {
                    metrics.refused(Refusal::Exhausted);
                    return Ok(call_limiter::count_until_sent(body::of(exhausted.into_http()), None, None));
                }
            };
            let (answered, reservation) = match refusal {
                Some(refusal) => {
                    metrics.refused(Refusal::Certificate);
                    (body::of(error_to_status(&refusal).into_http()), None)
                }
                None => match message::admit(request, &account, metrics) {
                    Some((request, reservation)) => (answer(routes, request).await, Some(reservation)),
                    None => (body::of(message::unsupported()), None),
                },
            };
            Ok::<_, Infallible>(call_limiter::count_until_sent(answered, Some(permit), reservation))
        }
    });
    let connection =
        http2().serve_connection(TokioIo::new(PrefaceTimeout::new(io, PREFACE_TIMEOUT, admission)), service);
    tokio::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = goaway.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        debug!(%error, cause = error.source(), "connection ended");
    }
}

/// The response of the service, within the call's deadline.
async fn answer(routes: Routes, mut request: Request<Limited<Incoming>>) -> Response<Body> {
    let deadline = match Deadline::of(request.headers()) {
        Ok(deadline) => deadline,
        Err(malformed) => return body::of(malformed.into_http()),
    };
    request.extensions_mut().insert(deadline.clone());
    match deadline.keep(routes.oneshot(request)).await {
        Ok(Ok(answer)) => body::of(answer),
        Err(late) => body::of(late.into_http()),
    }
}

/// HTTP/2 with all limits explicit; the peer is authenticated.
fn http2() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        // concurrent calls of one connection; executions have their own limit
        .max_concurrent_streams(1024)
        // requests are small, except for input
        .initial_stream_window_size(1024 * 1024)
        .initial_connection_window_size(8 * 1024 * 1024)
        .adaptive_window(false)
        .max_frame_size(64 * 1024)
        .max_send_buf_size(1024 * 1024)
        .max_header_list_size(32 * 1024)
        .header_table_size(4096)
        // an orchestrator may cancel many calls in a row
        .max_pending_accept_reset_streams(512)
        .max_local_error_reset_streams(512)
        // detects a vanished peer within 30 s, whose commands are then ended
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(10))
        .auto_date_header(false);
    builder
}
