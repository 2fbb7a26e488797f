//! Sockets of this machine.

use std::fs::{File, Permissions};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use telexec_client::{Connection, Endpoint, ForwardError};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixSocket, UnixStream, lookup_host};
use tokio::time::timeout;

/// For connections from here.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// What listens on one address.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix { listener: UnixListener, file: RemovedOnDrop },
}

pub(super) struct RemovedOnDrop(PathBuf);

impl Drop for RemovedOnDrop {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listener {
    pub(super) async fn bind(endpoint: &Endpoint) -> io::Result<Self> {
        match endpoint {
            Endpoint::Tcp { host, port } => Ok(Self::Tcp(bind_tcp(host, *port).await?)),
            Endpoint::Unix(path) => bind_unix(path),
        }
    }

    /// With the actual port.
    pub(super) fn endpoint(&self) -> io::Result<Endpoint> {
        match self {
            Self::Tcp(listener) => {
                let address = listener.local_addr()?;
                Ok(Endpoint::Tcp { host: address.ip().to_string(), port: address.port() })
            }
            Self::Unix { file, .. } => Ok(Endpoint::Unix(file.0.to_string_lossy().into_owned())),
        }
    }

    pub(super) async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| Socket::tcp(stream)),
            Self::Unix { listener, .. } => listener.accept().await.map(|(stream, _)| Socket::new(Stream::Unix(stream))),
        }
    }
}

/// On the first address that this machine has. One that is taken is an error: another one in its place would leave callers
/// with whoever has it.
async fn bind_tcp(host: &str, port: u16) -> io::Result<TcpListener> {
    let addresses = match host {
        "*" => vec![(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()],
        host => {
            let mut addresses: Vec<SocketAddr> = lookup_host((host, port)).await?.collect();
            addresses.sort_by_key(SocketAddr::is_ipv6);
            addresses
        }
    };
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
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

/// For this user alone. The mode is that of the socket when it is bound: the umask belongs to the whole program.
fn bind_unix(path: &str) -> io::Result<Listener> {
    let socket = UnixSocket::new_stream()?;
    File::from(socket.as_fd().try_clone_to_owned()?).set_permissions(Permissions::from_mode(0o600))?;
    socket.bind(path)?;
    let file = RemovedOnDrop(path.into());
    Ok(Listener::Unix { listener: socket.listen(BACKLOG)?, file })
}

/// A connection here. Dropped before it was carried to its end, the other side sees a reset; of Unix sockets there is none.
pub(super) struct Socket {
    stream: Stream,
    is_complete: bool,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn new(stream: Stream) -> Self {
        Self { stream, is_complete: false }
    }

    fn tcp(stream: TcpStream) -> Self {
        let _ = stream.set_nodelay(true);
        Self::new(Stream::Tcp(stream))
    }

    pub(super) async fn dial(endpoint: &Endpoint) -> io::Result<Self> {
        let dial = async {
            match endpoint {
                Endpoint::Tcp { host, port } => TcpStream::connect((host.as_str(), *port)).await.map(Self::tcp),
                Endpoint::Unix(path) => UnixStream::connect(path).await.map(Stream::Unix).map(Self::new),
            }
        };
        let dialled = timeout(DIAL_TIMEOUT, dial).await;
        dialled.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer")))
    }

    /// Carries the bytes; a reset of one side is one of the other.
    pub(super) async fn join(mut self, connection: Connection) -> Result<(), ForwardError> {
        match &mut self.stream {
            Stream::Tcp(stream) => {
                let (reader, writer) = stream.split();
                connection.join(reader, writer).await?;
            }
            Stream::Unix(stream) => {
                let (reader, writer) = stream.split();
                connection.join(reader, writer).await?;
            }
        }
        self.is_complete = true;
        Ok(())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let (Stream::Tcp(stream), false) = (&self.stream, self.is_complete) {
            let _ = stream.set_zero_linger();
        }
    }
}
