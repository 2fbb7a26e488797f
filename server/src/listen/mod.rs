//! Where the agent listens: addresses, and the sockets bound to them.

pub(crate) mod connection_limiter;
pub(crate) mod pending;
mod systemd;
mod tcp;
mod unix;
pub(crate) mod vsock;

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpStream, UnixStream};
use tokio_vsock::VsockStream;

use self::tcp::Tcp;
use self::unix::Unix;
use self::vsock::Vsock;
use crate::address::Listen;
use crate::config::{Config, ConfigError};
use crate::identity::source::Source;
use crate::invalid::InvalidSetting;
use crate::reload::Reload;
use crate::tls::Tls;

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
    /// Without TLS only this machine may ask for metrics.
    #[error(
        "metrics_listen: {0} is not a loopback address: set tls_cert, tls_key and client_ca to serve metrics there"
    )]
    PlainMetrics(SocketAddr),
    /// systemd has passed none, or one that cannot be used.
    #[error("systemd: {0}")]
    Systemd(String),
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
    /// For metrics.
    pub(crate) metrics: Option<Listener>,
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
            match listen {
                Listen::Unix(path) => all.push(Listener::Unix(Unix::bind(listen, path, config.socket_mode)?)),
                Listen::Tcp(address) => {
                    all.push(Listener::Tcp(Tcp::bind(listen, address, tls.clone(), config.insecure).await?));
                }
                Listen::Vsock { cid, port } => {
                    all.push(Listener::Vsock(Vsock::bind(listen, *cid, *port, config.insecure)?));
                }
                Listen::Systemd => all.extend(systemd::listeners(&tls, config.insecure)?),
            }
        }
        let metrics = match &config.metrics_listen {
            Some(listen) => Some(Self::bind_metrics(listen, config, tls.clone()).await?),
            None => None,
        };
        Ok(Self { all, metrics, tls, reload: Reload::default() })
    }

    /// Without TLS on this machine, which is no risk for anyone who runs commands; elsewhere only with it.
    async fn bind_metrics(listen: &Listen, config: &Config, tls: Option<Tls>) -> Result<Listener, BindError> {
        match listen {
            Listen::Unix(path) => Ok(Listener::Unix(Unix::bind(listen, path, config.socket_mode)?)),
            Listen::Tcp(address) => {
                let bound = Tcp::bind(listen, address, tls, true).await.map_err(|error| match error {
                    BindError::NotLoopback(address) => BindError::PlainMetrics(address),
                    error => error,
                });
                Ok(Listener::Tcp(bound?))
            }
            Listen::Vsock { .. } | Listen::Systemd => {
                Err(ConfigError::from(InvalidSetting("metrics_listen must be tcp:// or unix://".to_owned())).into())
            }
        }
    }

    /// What was bound, with the real port where 0 was asked for.
    pub fn addresses(&self) -> Vec<Listen> {
        self.all.iter().map(Listener::address).collect()
    }

    /// Where metrics are served, likewise.
    pub fn metrics_address(&self) -> Option<Listen> {
        self.metrics.as_ref().map(Listener::address)
    }

    /// To replace their certificates while [`crate::serve`] runs: changes of the files are also noticed without it.
    pub fn reload(&self) -> Reload {
        self.reload.clone()
    }
}

/// One bound socket.
pub(crate) enum Listener {
    Unix(Unix),
    Tcp(Tcp),
    Vsock(Vsock),
}

/// A connection that was accepted, before anyone said who they are.
pub(crate) enum Accepted {
    Unix(UnixStream),
    Tcp(TcpStream, Option<Tls>),
    Vsock(VsockStream, vsock::Peer),
}

/// Where a connection comes from.
pub(crate) struct Remote {
    /// For the log.
    pub(crate) address: String,
    pub(crate) source: Source,
}

impl Listener {
    pub(crate) fn address(&self) -> Listen {
        match self {
            Self::Unix(unix) => unix.address(),
            Self::Tcp(tcp) => tcp.address(),
            Self::Vsock(vsock) => vsock.address(),
        }
    }

    /// The next connection, and where it comes from.
    pub(crate) async fn accept(&self) -> io::Result<(Accepted, Remote)> {
        match self {
            Self::Unix(unix) => unix.accept().await,
            Self::Tcp(tcp) => tcp.accept().await,
            Self::Vsock(vsock) => vsock.accept().await,
        }
    }
}
