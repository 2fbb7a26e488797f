//! Sockets, TLS, and connections with HTTP/1.1.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
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

use crate::args::Listen;

/// A command that is followed is one.
const MAX_CONNECTIONS: usize = 4096;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Also of connections that are idle: longer than SDKs keep them (90 s), since a request on one that is being closed fails.
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

/// Until the stop.
pub(crate) async fn serve(listener: Listener, tls: Option<TlsAcceptor>, router: Router, stop: &CancellationToken) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Some(Ok(place)) = stop.run_until_cancelled(Arc::clone(&places).acquire_owned()).await else { return };
        let (tls, router, stop_one) = (tls.clone(), router.clone(), stop.clone());
        let accepted = match &listener {
            Listener::Tcp(listener) => match stop.run_until_cancelled(listener.accept()).await {
                Some(Ok((stream, _))) => {
                    let _ = stream.set_nodelay(true);
                    tokio::spawn(async move {
                        stop_one.run_until_cancelled(secured(stream, tls, router)).await;
                        drop(place);
                    });
                    Ok(())
                }
                Some(Err(error)) => Err(error),
                None => return,
            },
            Listener::Unix(listener) => match stop.run_until_cancelled(listener.accept()).await {
                Some(Ok((stream, _))) => {
                    tokio::spawn(async move {
                        stop_one.run_until_cancelled(secured(stream, tls, router)).await;
                        drop(place);
                    });
                    Ok(())
                }
                Some(Err(error)) => Err(error),
                None => return,
            },
        };
        if let Err(error) = accepted {
            warn!("a connection was not accepted: {error}");
            sleep(ACCEPT_PAUSE).await;
        }
    }
}

async fn secured<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    tls: Option<TlsAcceptor>,
    router: Router,
) {
    let Some(tls) = tls else { return one(stream, router).await };
    match timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
        Ok(Ok(stream)) => one(stream, router).await,
        Ok(Err(error)) => debug!("a handshake failed: {error}"),
        Err(_) => debug!("a handshake took too long"),
    }
}

async fn one<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, router: Router) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS_TIMEOUT).max_buf_size(MAX_HEADERS_BYTES);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await {
        debug!("a connection failed: {error}");
    }
}
