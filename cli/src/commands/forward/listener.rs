//! Sockets that listen here, and connections to and from here.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::task::Poll;
use std::time::Duration;

use rustix::fs::Mode;
use rustix::io::Errno;
use telexec_client::{Connection, Endpoint, ForwardError};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream, lookup_host};

/// For connections from here.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// What listens on one address.
pub(super) struct Listener {
    sockets: Vec<ListeningSocket>,
    endpoint: Endpoint,
}

enum ListeningSocket {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _file: RemovedOnDrop },
}

struct RemovedOnDrop(PathBuf);

impl Drop for RemovedOnDrop {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A connection here.
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    pub(super) async fn bind(endpoint: &Endpoint) -> io::Result<Self> {
        match endpoint {
            Endpoint::Tcp { host, port } => Self::bind_tcp(host, *port).await,
            Endpoint::Unix(path) => Self::bind_unix(path),
        }
    }

    /// On both families for localhost, with the same port, as ssh does. An address that is taken is an error: another
    /// one in its place would leave callers with whoever has it.
    async fn bind_tcp(host: &str, port: u16) -> io::Result<Self> {
        let addresses = match host {
            // takes connections of both families, where there are both
            "*" => vec![(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()],
            "localhost" => vec![(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()],
            host => {
                let mut addresses: Vec<SocketAddr> = lookup_host((host, port)).await?.collect();
                addresses.sort_by_key(SocketAddr::is_ipv6);
                addresses
            }
        };
        let first = bind_first(&addresses).await?;
        let bound = first.local_addr()?;
        let mut sockets = vec![ListeningSocket::Tcp(first)];
        if host == "localhost" && bound.is_ipv4() {
            match TcpListener::bind((Ipv6Addr::LOCALHOST, bound.port())).await {
                Ok(other) => sockets.push(ListeningSocket::Tcp(other)),
                Err(error) if port == 0 || is_absent(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let endpoint = Endpoint::Tcp { host: bound.ip().to_string(), port: bound.port() };
        Ok(Self { sockets, endpoint })
    }

    /// For this user alone.
    fn bind_unix(path: &str) -> io::Result<Self> {
        let before = rustix::process::umask(Mode::from_raw_mode(0o177));
        let bound = UnixListener::bind(Path::new(path));
        rustix::process::umask(before);
        let listener = ListeningSocket::Unix { listener: bound?, _file: RemovedOnDrop(path.into()) };
        Ok(Self { sockets: vec![listener], endpoint: Endpoint::Unix(path.to_owned()) })
    }

    /// With the actual port.
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(super) async fn accept(&self) -> io::Result<Socket> {
        std::future::poll_fn(|context| {
            for socket in &self.sockets {
                let accepted = match socket {
                    ListeningSocket::Tcp(listener) => {
                        listener.poll_accept(context).map_ok(|(tcp, _)| Socket::tuned(tcp))
                    }
                    ListeningSocket::Unix { listener, .. } => {
                        listener.poll_accept(context).map_ok(|(unix, _)| Socket::Unix(unix))
                    }
                };
                if accepted.is_ready() {
                    return accepted;
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// The first of them that this machine has.
async fn bind_first(addresses: &[SocketAddr]) -> io::Result<TcpListener> {
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpListener::bind(address).await {
            Err(error) if is_absent(&error) => failure = error,
            bound => return bound,
        }
    }
    Err(failure)
}

/// Whether it is because this machine has no such address, or none of its family.
fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error())
}

impl Socket {
    pub(super) async fn dial(endpoint: &Endpoint) -> io::Result<Self> {
        let dial = async {
            match endpoint {
                Endpoint::Tcp { host, port } => {
                    let stream = TcpStream::connect((host.as_str(), *port)).await?;
                    Ok(Self::tuned(stream))
                }
                Endpoint::Unix(path) => UnixStream::connect(path).await.map(Self::Unix),
            }
        };
        let dialled = tokio::time::timeout(DIAL_TIMEOUT, dial).await;
        dialled.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer")))
    }

    fn tuned(stream: TcpStream) -> Self {
        let _ = stream.set_nodelay(true);
        Self::Tcp(stream)
    }

    /// Carries the bytes; a reset of one side is one of the other.
    pub(super) async fn join(mut self, connection: Connection) -> Result<(), ForwardError> {
        let joined = match &mut self {
            Self::Tcp(stream) => {
                let (reader, writer) = stream.split();
                connection.join(reader, writer).await
            }
            Self::Unix(stream) => {
                let (reader, writer) = stream.split();
                connection.join(reader, writer).await
            }
        };
        if joined.is_err() {
            self.reset();
        }
        joined
    }

    /// Closes it such that the other side sees a reset; of Unix sockets there is none.
    pub(super) fn reset(self) {
        if let Self::Tcp(stream) = &self {
            let _ = stream.set_zero_linger();
        }
    }

    pub(super) fn stream(&mut self) -> &mut (dyn SocketStream + Send) {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
        }
    }
}

/// Either kind of stream.
pub(super) trait SocketStream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin> SocketStream for T {}
