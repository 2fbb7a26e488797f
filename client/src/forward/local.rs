//! Sockets of this machine: the other ends of what is forwarded.

use std::fs::Metadata;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixSocket, UnixStream, lookup_host};
use tokio::time::timeout;

use super::{Connection, Endpoint, ForwardError};

/// For connections from here.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections to a Unix socket that wait to be accepted.
const BACKLOG: u32 = 1024;

/// What listens on one address of this machine. Dropping it closes it, and removes the file of a Unix socket.
#[derive(Debug)]
pub struct LocalListener {
    sockets: Vec<Bound>,
    endpoint: Endpoint,
}

#[derive(Debug)]
enum Bound {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _file: SocketFile },
}

/// Removed when dropped, if it is still the same.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    id: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.path.symlink_metadata().is_ok_and(|found| id(&found) == self.id) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn id(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

impl LocalListener {
    /// Listens. `localhost` is both families, with the same port, and `*` is all addresses. An address that is taken is an error:
    /// another one in its place would leave callers with whoever has it. A Unix socket is for this user alone.
    ///
    /// # Errors
    /// It cannot be listened on.
    pub async fn bind(endpoint: &Endpoint) -> io::Result<Self> {
        match endpoint {
            Endpoint::Tcp { host, port } => Self::bind_tcp(host, *port).await,
            Endpoint::Unix(path) => Self::bind_unix(path),
        }
    }

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
        let mut sockets = vec![Bound::Tcp(first)];
        if host == "localhost" && bound.is_ipv4() {
            match TcpListener::bind((Ipv6Addr::LOCALHOST, bound.port())).await {
                Ok(other) => sockets.push(Bound::Tcp(other)),
                Err(error) if port == 0 || is_absent(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let endpoint = Endpoint::Tcp { host: bound.ip().to_string(), port: bound.port() };
        Ok(Self { sockets, endpoint })
    }

    fn bind_unix(path: &str) -> io::Result<Self> {
        let socket = UnixSocket::new_stream()?;
        restrict(&socket)?;
        socket.bind(path)?;
        let file = SocketFile { path: path.into(), id: id(&Path::new(path).symlink_metadata()?) };
        if cfg!(not(target_os = "linux")) {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))?;
        }
        let listener = socket.listen(BACKLOG)?;
        Ok(Self { sockets: vec![Bound::Unix { listener, _file: file }], endpoint: Endpoint::Unix(path.to_owned()) })
    }

    /// Where it listens, with the actual port.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The next connection. Dropping the future loses none.
    ///
    /// # Errors
    /// Most likely there are too many open files; a later call may succeed.
    pub async fn accept(&self) -> io::Result<LocalSocket> {
        std::future::poll_fn(|context| {
            for socket in &self.sockets {
                let accepted = match socket {
                    Bound::Tcp(listener) => listener.poll_accept(context).map_ok(|(tcp, _)| LocalSocket::tcp(tcp)),
                    Bound::Unix { listener, .. } => {
                        listener.poll_accept(context).map_ok(|(unix, _)| LocalSocket::new(Stream::Unix(unix)))
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
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

/// The socket's file gets this mode when it is made: the umask belongs to the whole program.
#[cfg(target_os = "linux")]
fn restrict(socket: &UnixSocket) -> io::Result<()> {
    use std::os::fd::AsFd;
    std::fs::File::from(socket.as_fd().try_clone_to_owned()?).set_permissions(PermissionsExt::from_mode(0o600))
}

#[cfg(not(target_os = "linux"))]
fn restrict(_: &UnixSocket) -> io::Result<()> {
    Ok(())
}

/// A connection here. Dropping it resets it: the other side must not take what came for all of it. Of Unix sockets there is no
/// reset.
#[derive(Debug)]
pub struct LocalSocket {
    stream: Stream,
    is_complete: bool,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl LocalSocket {
    fn new(stream: Stream) -> Self {
        Self { stream, is_complete: false }
    }

    fn tcp(stream: TcpStream) -> Self {
        let _ = stream.set_nodelay(true);
        Self::new(Stream::Tcp(stream))
    }

    /// Connects, within 10 s.
    ///
    /// # Errors
    /// Nobody answers.
    pub async fn dial(endpoint: &Endpoint) -> io::Result<Self> {
        let dial = async {
            match endpoint {
                Endpoint::Tcp { host, port } => TcpStream::connect((host.as_str(), *port)).await.map(Self::tcp),
                Endpoint::Unix(path) => UnixStream::connect(path).await.map(Stream::Unix).map(Self::new),
            }
        };
        let dialled = timeout(DIAL_TIMEOUT, dial).await;
        dialled.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer")))
    }

    /// Carries the bytes, until both directions are closed. A reset of one side is one of the other.
    ///
    /// # Errors
    /// One of them was reset, or the agent is lost.
    pub async fn join(mut self, connection: Connection) -> Result<(), ForwardError> {
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
        self.close();
        Ok(())
    }

    /// Closes it: what was written is delivered, and was all.
    pub fn close(mut self) {
        self.is_complete = true;
    }
}

impl Drop for LocalSocket {
    fn drop(&mut self) {
        if let (Stream::Tcp(stream), false) = (&self.stream, self.is_complete) {
            let _ = stream.set_zero_linger();
        }
    }
}

impl AsyncRead for LocalSocket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(context, into),
            Stream::Unix(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for LocalSocket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(context, data),
            Stream::Unix(stream) => Pin::new(stream).poll_write(context, data),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // nothing is buffered here
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
