//! Sockets, TLS, and connections with HTTP/1.1.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use http::{HeaderMap, Request};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::app::{self, App};
use crate::args::Listen;
use crate::guests::{Guest, Guests};
use crate::unread::watched;

/// A command that is followed is one.
const MAX_CONNECTIONS: usize = 4096;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// From the connection to its first request.
const FIRST_TIMEOUT: Duration = Duration::from_secs(10);
/// From one request to the next: longer than SDKs keep connections (90 s), since a request on one that is being closed fails.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(120);
const MAX_HEADERS_BYTES: usize = 64 * 1024;
/// After accepting failed, as when the process has too many files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error("cannot listen on {listen}")]
    Bind { listen: String, source: io::Error },
    #[error("{path}: cannot be used")]
    Pem { path: String, source: rustls::pki_types::pem::Error },
    #[error("the certificate cannot be used")]
    Tls(#[from] rustls::Error),
}

pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    pub(crate) async fn bind(listen: &Listen) -> Result<Self, ServeError> {
        let bound = match listen {
            Listen::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            Listen::Unix(path) => unix(path).map(Self::Unix),
        };
        bound.map_err(|source| ServeError::Bind { listen: listen.to_string(), source })
    }
}

/// A socket that nobody listens on any more is replaced.
fn unix(path: &Path) -> io::Result<UnixListener> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    let probe = || std::os::unix::net::UnixStream::connect(path);
    if is_socket && probe().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        std::fs::remove_file(path)?;
    }
    UnixListener::bind(path)
}

pub(crate) fn acceptor(cert: &Path, key: &Path) -> Result<TlsAcceptor, ServeError> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |source| ServeError::Pem { path, source }
    };
    let chain = CertificateDer::pem_file_iter(cert).map_err(failed(cert))?;
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(failed(cert))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(failed(key))?;
    let mut config = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

type Stream = Box<dyn Io>;

trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Io for S {}

impl Listener {
    /// The next connection, and whose it is.
    async fn accept(&self) -> io::Result<(Stream, Option<SocketAddr>)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                let _ = stream.set_nodelay(true);
                Ok((Box::new(stream), Some(peer)))
            }
            Self::Unix(listener) => Ok((Box::new(listener.accept().await?.0), None)),
        }
    }
}

/// Until the stop.
pub(crate) async fn serve(listener: Listener, tls: Option<TlsAcceptor>, app: Arc<App>, stop: &CancellationToken) {
    let (places, guests) = (Arc::new(Semaphore::new(MAX_CONNECTIONS)), Guests::default());
    let router = app::router(Arc::clone(&app));
    loop {
        let Some(Ok(place)) = stop.run_until_cancelled(Arc::clone(&places).acquire_owned()).await else { return };
        let (stream, peer) = match stop.run_until_cancelled(listener.accept()).await {
            Some(Ok(accepted)) => accepted,
            Some(Err(error)) => {
                warn!("a connection was not accepted: {error}");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
            None => return,
        };
        let Some(guest) = guests.enter(peer) else {
            debug!("{peer:?} has too many connections that have not said whose they are");
            continue;
        };
        let visitor = Visitor { app: Arc::clone(&app), router: router.clone(), guest: Mutex::new(Some(guest)) };
        let (tls, stop) = (tls.clone(), stop.clone());
        tokio::spawn(async move {
            stop.run_until_cancelled(secured(stream, tls, visitor)).await;
            drop(place);
        });
    }
}

/// Who is at the other end of a connection.
struct Visitor {
    app: Arc<App>,
    router: Router,
    /// Until it is known.
    guest: Mutex<Option<Guest>>,
}

impl Visitor {
    /// Looks who asks.
    fn greet(&self, headers: &HeaderMap) {
        let mut guest = self.guest.lock().unwrap_or_else(PoisonError::into_inner);
        guest.take_if(|_| self.app.knows(headers));
    }
}

async fn secured(stream: Stream, tls: Option<TlsAcceptor>, visitor: Visitor) {
    let Some(tls) = tls else { return one(stream, visitor).await };
    match timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
        Ok(Ok(stream)) => one(Box::new(stream), visitor).await,
        Ok(Err(error)) => debug!("a handshake failed: {error}"),
        Err(_) => debug!("a handshake took too long"),
    }
}

async fn one(stream: Stream, visitor: Visitor) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS_TIMEOUT).max_buf_size(MAX_HEADERS_BYTES);
    let asked = CancellationToken::new();
    let asks = asked.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        asks.cancel();
        visitor.greet(request.headers());
        let (request, reading) = watched(request);
        let answer = TowerToHyperService::new(visitor.router.clone()).call(request);
        async move {
            match answer.await {
                Ok(response) => Ok(reading.answered(response).await),
                Err(never) => Err(never),
            }
        }
    });
    let silence = async {
        if timeout(FIRST_TIMEOUT, asked.cancelled()).await.is_ok() {
            pending().await
        }
    };
    tokio::select! {
        served = http.serve_connection(TokioIo::new(stream), service) => match served {
            Ok(()) => {}
            Err(error) => debug!("a connection failed: {error}"),
        },
        () = silence => debug!("a connection had no request within {} s", FIRST_TIMEOUT.as_secs()),
    }
}
