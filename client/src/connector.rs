//! Connects to a target, for HTTP/2.
//!
//! tonic calls this for the first connection, and again after that was lost.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rustls::CertificateError;
#[cfg(target_os = "linux")]
use socket2::{Domain, SockAddr, Socket, Type};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};

use crate::error::{Source, find};
use crate::tls::{Handshake, LoadError};
use crate::{ConnectError, ConnectOptions, LookupError, Target, tls};

/// Detects vanished peers on quiet connections.
const TCP_KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(20)).with_interval(Duration::from_secs(5));

/// For the greeting of an agent on plaintext TCP.
const GREETING_TIMEOUT: Duration = Duration::from_secs(3);
/// The buffer for the greeting; larger reads bypass it.
const GREETING_BYTES: usize = 64;
/// The frame type of a greeting (RFC 9113, section 6.5).
const SETTINGS: u8 = 4;

/// A connection in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Connects to an agent by a transport that is not built in, and that makes up for losses by itself, for
/// [`Agent::connect_by`](crate::Agent::connect_by).
#[async_trait]
pub trait Transport: fmt::Debug + Send + Sync {
    /// A new connection, on which HTTP/2 is spoken.
    ///
    /// # Errors
    /// There is none; the message says why.
    async fn dial(&self) -> io::Result<Box<dyn Duplex>>;
}

/// Where a connection leads.
#[derive(Debug)]
pub(crate) enum Route {
    Target(Target),
    Custom(Arc<dyn Transport>),
}

/// Connects to one agent, any number of times.
#[derive(Debug)]
pub(crate) struct Connector {
    pub(crate) route: Route,
    /// Of the agent, in messages.
    pub(crate) name: Arc<str>,
    pub(crate) options: ConnectOptions,
}

impl Connector {
    pub(crate) async fn connect(&self) -> Result<Box<dyn Duplex>, ConnectError> {
        let limit = self.options.connect_timeout;
        let until = Instant::now() + limit;
        let handshake = match timeout_at(until, self.handshake()).await {
            Ok(handshake) => handshake?,
            // not the agent
            Err(_) => return Err(self.no_workload_api(format!("no answer within {limit:?}"))),
        };
        match timeout_at(until, self.dial(handshake)).await {
            Ok(connected) => connected,
            Err(_) => Err(self.unreachable(format!("no answer within {limit:?}"))),
        }
    }

    /// What the target's TLS needs, if it has any.
    async fn handshake(&self) -> Result<Option<Handshake>, ConnectError> {
        match (&self.route, &self.options.tls) {
            (Route::Target(Target::Tcp { host, .. }), Some(tls)) => {
                tls.load(host).await.map(Some).map_err(|error| self.unusable(error))
            }
            _ => Ok(None),
        }
    }

    async fn dial(&self, handshake: Option<Handshake>) -> Result<Box<dyn Duplex>, ConnectError> {
        let target = match &self.route {
            Route::Target(target) => target,
            Route::Custom(transport) => return transport.dial().await.map_err(|error| self.unreachable(error)),
        };
        match (target, handshake) {
            (Target::Unix(path), _) => {
                // a silent agent is only slow here: the connect timeout applies
                self.greeted(self.dial_unix(path).await?, Duration::MAX).await
            }
            (Target::Vsock { cid, port }, _) => self.greeted(self.dial_vsock(*cid, *port).await?, Duration::MAX).await,
            (Target::VsockUds { path, port }, _) => {
                let mut stream = self.dial_unix(path).await?;
                hypervisor(&mut stream, *port).await.map_err(|error| self.unreachable(error))?;
                self.greeted(stream, Duration::MAX).await
            }
            (Target::Tcp { host, port }, None) if target.is_local() => {
                self.greeted(self.dial_tcp(host, *port).await?, GREETING_TIMEOUT).await
            }
            (Target::Tcp { .. }, None) => Err(ConnectError::TlsRequired { endpoint: self.name.to_string() }),
            (Target::Tcp { host, port }, Some(handshake)) => self.dial_tls(host, *port, handshake).await,
        }
    }

    #[cfg(unix)]
    async fn dial_unix(&self, path: &Path) -> Result<impl Duplex + 'static, ConnectError> {
        tokio::net::UnixStream::connect(path).await.map_err(|error| self.unreachable(error))
    }

    #[cfg(not(unix))]
    async fn dial_unix(&self, _: &Path) -> Result<TcpStream, ConnectError> {
        Err(self.unreachable("this system has no Unix sockets"))
    }

    #[cfg(target_os = "linux")]
    async fn dial_vsock(&self, cid: u32, port: u32) -> Result<impl Duplex + 'static, ConnectError> {
        connect_vsock(cid, port).await.map_err(|error| self.unreachable(error))
    }

    #[cfg(not(target_os = "linux"))]
    async fn dial_vsock(&self, _: u32, _: u32) -> Result<TcpStream, ConnectError> {
        Err(self.unreachable("vsock is for Linux"))
    }

    /// Detects early that no agent listens there, or one that requires TLS or another user.
    async fn greeted(&self, stream: impl Duplex + 'static, timeout: Duration) -> Result<Box<dyn Duplex>, ConnectError> {
        let mut stream = BufReader::with_capacity(GREETING_BYTES, stream);
        match greeting(&mut stream, timeout).await {
            Ok(Some(SETTINGS)) => Ok(Box::new(stream)),
            Ok(Some(_)) => Err(self.unreachable("what listens there is not a telexec agent")),
            Ok(None) => {
                let what = "it requires TLS, or is not an agent";
                Err(self.untrusted(format!("no answer within {timeout:?}: {what}")))
            }
            Err(error) => Err(self.unreachable(error)),
        }
    }

    async fn dial_tls(&self, host: &str, port: u16, handshake: Handshake) -> Result<Box<dyn Duplex>, ConnectError> {
        let stream = self.dial_tcp(host, port).await?;
        match tls::handshake(handshake, stream).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(match find::<rustls::Error>(&error).cloned() {
                // ours, which rustls would not show as text
                Some(rustls::Error::InvalidCertificate(CertificateError::Other(error))) => self.untrusted(error),
                Some(error) => self.untrusted(error),
                None => self.unreachable(error),
            }),
        }
    }

    async fn dial_tcp(&self, host: &str, port: u16) -> Result<TcpStream, ConnectError> {
        let plain = self.options.tls.is_none();
        let found = lookup_host((host, port)).await;
        let found = found.map_err(|error| self.unreachable(LookupError::new(host, &error)))?;
        // without TLS a name such as localhost counts as local only if its address is
        let addresses: Vec<SocketAddr> = found.filter(|address| !plain || address.ip().is_loopback()).collect();
        let each = self.options.connect_timeout / u32::try_from(addresses.len().max(1)).unwrap_or(1);
        let mut failure = self.unreachable("the name has no usable address");
        for address in addresses {
            match tokio::time::timeout(each, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return self.tuned(stream),
                Ok(Err(error)) => failure = self.unreachable(error),
                Err(_) => failure = self.unreachable(format!("no answer from {address} within {each:?}")),
            }
        }
        Err(failure)
    }

    fn tuned(&self, stream: TcpStream) -> Result<TcpStream, ConnectError> {
        stream.set_nodelay(true).map_err(|error| self.unreachable(error))?;
        SockRef::from(&stream).set_tcp_keepalive(&TCP_KEEPALIVE).map_err(|error| self.unreachable(error))?;
        Ok(stream)
    }

    /// This side's credentials cannot be used.
    fn unusable(&self, error: LoadError) -> ConnectError {
        let endpoint = self.name.to_string();
        match error {
            LoadError::File(path, source) => ConnectError::Credentials { endpoint, path, source: source.into() },
            #[cfg(feature = "spiffe")]
            LoadError::Workload(source) => {
                ConnectError::WorkloadApi { endpoint, is_temporary: false, source: source.into() }
            }
            #[cfg(feature = "spiffe")]
            LoadError::NoWorkloadApi(source) => self.no_workload_api(source),
            LoadError::Name(reason) => ConnectError::ServerName { endpoint, reason },
        }
    }

    fn no_workload_api(&self, source: impl Into<Source>) -> ConnectError {
        let endpoint = self.name.to_string();
        ConnectError::WorkloadApi { endpoint, is_temporary: true, source: source.into().into() }
    }

    fn unreachable(&self, source: impl Into<Source>) -> ConnectError {
        ConnectError::Unreachable { endpoint: self.name.to_string(), source: source.into().into() }
    }

    fn untrusted(&self, source: impl Into<Source>) -> ConnectError {
        ConnectError::Untrusted { endpoint: self.name.to_string(), source: source.into().into() }
    }
}

/// tokio has no type for vsock, and the library that has one brings nix. The type for Unix sockets reads and writes this kind
/// in the same way.
#[cfg(target_os = "linux")]
async fn connect_vsock(cid: u32, port: u32) -> io::Result<tokio::net::UnixStream> {
    let socket = Socket::new(Domain::VSOCK, Type::STREAM.nonblocking(), None)?;
    match socket.connect(&SockAddr::vsock(cid, port)) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
        _ => {}
    }
    let stream = tokio::net::UnixStream::from_std(socket.into())?;
    stream.writable().await?;
    match stream.take_error()? {
        Some(error) => Err(error),
        None => Ok(stream),
    }
}

/// Asks a hypervisor to connect to a port of its machine. Reads no further than its reply: the rest is from the agent.
async fn hypervisor(stream: &mut (impl Duplex + 'static), port: u32) -> io::Result<()> {
    stream.write_all(format!("CONNECT {port}\n").as_bytes()).await?;
    let mut answer = Vec::new();
    while answer.last() != Some(&b'\n') {
        if answer.len() == GREETING_BYTES {
            return Err(io::Error::other("what listens there is not a hypervisor's vsock"));
        }
        match stream.read_u8().await {
            Ok(byte) => answer.push(byte),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                let reason = "the hypervisor refused: nothing in its machine listens on this port";
                return Err(io::Error::new(io::ErrorKind::ConnectionRefused, reason));
            }
            Err(error) => return Err(error),
        }
    }
    match answer.strip_prefix(b"OK ") {
        Some(_) => Ok(()),
        None => Err(io::Error::other(format!("the hypervisor answered {:?}", String::from_utf8_lossy(&answer)))),
    }
}

/// Waits for the SETTINGS frame that an agent sends first, without consuming it. Returns the type of the first frame, or
/// `None` on timeout.
pub(crate) async fn greeting(stream: &mut (impl AsyncBufRead + Unpin), timeout: Duration) -> io::Result<Option<u8>> {
    match tokio::time::timeout(timeout, stream.fill_buf()).await {
        Ok(Ok([])) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection without an answer")),
        Ok(Ok(first)) => Ok(Some(first.get(3).copied().unwrap_or(SETTINGS))),
        Ok(Err(error)) => Err(error),
        Err(_) => Ok(None),
    }
}
