//! Where the agent listens: addresses, and the sockets bound to them.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::config::{Config, ConfigError, SocketMode};
use crate::reload::Reload;
use crate::tls::Tls;

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Listen {
    /// `unix:///path.sock`
    Unix(PathBuf),
    /// `tcp://host:port`
    Tcp(String),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(uri: &str) -> Result<Self, Self::Err> {
        if let Some(path) = uri.strip_prefix("unix://") {
            return match path.starts_with('/') {
                true => Ok(Self::Unix(path.into())),
                false => Err(format!("{uri}: the path must be absolute, as in unix:///run/telexec/agent.sock")),
            };
        }
        match uri.strip_prefix("tcp://").map(|address| (address, address.rsplit_once(':'))) {
            Some((address, Some((host, port)))) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Self::Tcp(address.into()))
            }
            Some(_) => Err(format!("{uri}: give a host and a port, as in tcp://0.0.0.0:7443")),
            None => Err(format!("{uri}: give unix:///path.sock or tcp://host:port")),
        }
    }
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(uri: String) -> Result<Self, Self::Error> {
        uri.parse()
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp://{address}"),
        }
    }
}

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The configuration does not allow it.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Without TLS only this machine may be listened to.
    #[error("{0} is not a loopback address: listening there needs TLS, not --insecure")]
    NotLoopback(SocketAddr),
    /// Another agent answers there.
    #[error("{0} is in use by another process")]
    InUse(Listen),
    /// The system does not allow it.
    #[error("cannot listen on {listen}")]
    Io {
        /// The address.
        listen: Listen,
        /// The cause.
        source: io::Error,
    },
}

/// Bound sockets: callers can connect from now on, and are answered once [`crate::serve`] runs.
///
/// Dropping them closes them and removes the files of Unix sockets.
pub struct Listeners {
    pub(crate) all: Vec<Listener>,
    pub(crate) tls: Option<Tls>,
    pub(crate) reload: Reload,
}

impl Listeners {
    /// Binds every address of the configuration.
    ///
    /// # Errors
    /// The first address that cannot be bound; the others are closed again.
    pub async fn bind(config: &Config) -> Result<Self, BindError> {
        let tls = config.tls_files()?.map(Tls::load).transpose().map_err(ConfigError::from)?;
        let mut all = Vec::new();
        for listen in &config.listen {
            all.push(match listen {
                Listen::Unix(path) => Listener::unix(listen, path, config.socket_mode)?,
                Listen::Tcp(address) => Listener::tcp(listen, address, tls.clone(), config.insecure).await?,
            });
        }
        Ok(Self { all, tls, reload: Reload::default() })
    }

    /// What was bound, with the real port where 0 was asked for.
    pub fn addresses(&self) -> Vec<Listen> {
        self.all.iter().map(Listener::address).collect()
    }

    /// To replace their certificates while [`crate::serve`] runs: changes of the files are also noticed without it.
    pub fn reload(&self) -> Reload {
        self.reload.clone()
    }
}

/// One bound socket.
pub(crate) enum Listener {
    Unix { socket: UnixListener, path: PathBuf, inode: u64 },
    Tcp { socket: TcpListener, address: SocketAddr, tls: Option<Tls> },
}

/// A connection that was accepted, before anyone said who they are.
pub(crate) enum Accepted {
    Unix(UnixStream),
    Tcp(TcpStream, Option<Tls>),
}

impl Listener {
    fn unix(listen: &Listen, path: &Path, mode: SocketMode) -> Result<Self, BindError> {
        let io = |source| BindError::Io { listen: listen.clone(), source };
        remove_stale(path).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => BindError::InUse(listen.clone()),
            _ => io(error),
        })?;
        let socket = UnixListener::bind(path).map_err(io)?;
        let inode = std::fs::symlink_metadata(path).map_err(io)?.ino();
        let listener = Self::Unix { socket, path: path.to_owned(), inode };
        // until then others may connect, and are turned away by their credentials
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode.0)).map_err(io)?;
        Ok(listener)
    }

    async fn tcp(listen: &Listen, address: &str, tls: Option<Tls>, insecure: bool) -> Result<Self, BindError> {
        let io = |source| BindError::Io { listen: listen.clone(), source };
        let addresses: Vec<_> = tokio::net::lookup_host(address).await.map_err(io)?.collect();
        let tls = match addresses.iter().find(|address| !address.ip().is_loopback()) {
            // certificates are for the other addresses
            None if insecure => None,
            Some(outside) if tls.is_none() => return Err(BindError::NotLoopback(*outside)),
            _ => tls,
        };
        let socket = TcpListener::bind(addresses.as_slice()).await.map_err(io)?;
        let address = socket.local_addr().map_err(io)?;
        Ok(Self::Tcp { socket, address, tls })
    }

    pub(crate) fn address(&self) -> Listen {
        match self {
            Self::Unix { path, .. } => Listen::Unix(path.clone()),
            Self::Tcp { address, .. } => Listen::Tcp(address.to_string()),
        }
    }

    /// The next connection, and where it comes from, for the log.
    pub(crate) async fn accept(&self) -> io::Result<(Accepted, String)> {
        match self {
            Self::Unix { socket, path, .. } => {
                let from = format!("unix://{}", path.display());
                Ok((Accepted::Unix(socket.accept().await?.0), from))
            }
            Self::Tcp { socket, tls, .. } => {
                let (stream, peer) = socket.accept().await?;
                set_options(&stream)?;
                Ok((Accepted::Tcp(stream, tls.clone()), peer.to_string()))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // another agent may have put its own there since
        if let Self::Unix { path, inode, .. } = self
            && std::fs::symlink_metadata(&*path).is_ok_and(|now| now.ino() == *inode)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Removes the socket file of an agent that is gone.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => match std::os::unix::net::UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
            _ => Err(io::ErrorKind::AddrInUse.into()),
        },
        Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file that is not a socket")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Small answers go out at once, and a peer that vanished is noticed (tcp(7)).
fn set_options(stream: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(Duration::from_secs(20)).with_interval(KEEPALIVE))?;
    // keepalive alone waits for ever while output is queued
    socket.set_tcp_user_timeout(Some(Duration::from_secs(30)))
}

const KEEPALIVE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for uri in ["unix:///a.sock", "tcp://127.0.0.1:0", "tcp://[::1]:7443", "tcp://host.example:1"] {
            assert_eq!(uri.parse::<Listen>().unwrap().to_string(), uri);
        }
        for uri in
            ["", "unix://a.sock", "/a.sock", "tcp://", "tcp://host", "tcp://:1", "tcp://host:99999", "http://a:1"]
        {
            assert!(uri.parse::<Listen>().unwrap_err().starts_with(uri), "{uri}");
        }
    }
}
