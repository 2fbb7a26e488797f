//! Listeners: addresses, and the sockets bound to them.

pub(crate) mod connection_limiter;
pub(crate) mod descriptors;
pub(crate) mod pending;
mod systemd;
pub(crate) mod tcp;
mod unix;
pub(crate) mod vsock;

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

use socket2::SockRef;
use tokio::net::{TcpStream, UnixStream};
use tokio_vsock::VsockStream;

use self::tcp::Tcp;
use self::unix::Unix;
use self::vsock::Vsock;
use crate::address::ListenAddress;
use crate::call::caller::Transport;
use crate::config::{Config, ConfigError};
use crate::identity::source::Source;
use crate::invalid::InvalidSetting;
use crate::reload::Reload;
use crate::tls::{Tls, TlsSource};

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// systemd has passed no socket, or an unusable one.
    #[error("systemd: {0}")]
    Systemd(String),
    /// Another process listens there.
    #[error("{0} is in use by another process")]
    InUse(ListenAddress),
    /// The directory of a Unix socket is missing, and cannot be created.
    #[error("cannot listen on {listen}: cannot create the directory of the socket")]
    Directory {
        /// The address.
        listen: ListenAddress,
        /// The cause.
        source: io::Error,
    },
    /// The system refused it.
    #[error("cannot listen on {listen}")]
    Io {
        /// The address.
        listen: ListenAddress,
        /// The cause.
        source: io::Error,
    },
}

/// Bound sockets: callers can connect from now on, and are served once [`crate::serve`] runs.
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
        let source = config.tls_source()?;
        let asks_for_certificates = source.as_ref().is_some_and(TlsSource::asks_for_certificates);
        let tls = match source {
            Some(source) => Some(Tls::load(source).await.map_err(ConfigError::from)?),
            None => None,
        };
        let mut all = Vec::new();
        for listen in &config.listen {
            match listen {
                ListenAddress::Unix(path) => all.push(Listener::Unix(Unix::bind(listen, path, config.socket_mode)?)),
                ListenAddress::Tcp(address) => {
                    all.push(Listener::Tcp(Tcp::bind(listen, address, tls.clone(), config.insecure).await?));
                }
                ListenAddress::Vsock { cid, port } => {
                    all.push(Listener::Vsock(Vsock::bind(listen, *cid, *port, config.insecure)?));
                }
                ListenAddress::Systemd => {
                    all.extend(systemd::listeners(&tls, config.insecure, config.kept_by.is_some())?)
                }
            }
        }
        let metrics = match &config.metrics_listen {
            Some(listen) => {
                let tls = tls.clone().filter(|_| asks_for_certificates);
                Some(Self::bind_metrics(listen, config, tls).await?)
            }
            None => None,
        };
        Ok(Self { all, metrics, tls, reload: Reload::default() })
    }

    /// Plaintext on this machine, since metrics hold no secrets; elsewhere only with TLS.
    async fn bind_metrics(listen: &ListenAddress, config: &Config, tls: Option<Tls>) -> Result<Listener, BindError> {
        match listen {
            ListenAddress::Unix(path) => Ok(Listener::Unix(Unix::bind(listen, path, config.socket_mode)?)),
            ListenAddress::Tcp(address) => {
                let bound = Tcp::bind(listen, address, tls, true).await;
                Ok(Listener::Tcp(bound.map_err(|error| match error {
                    BindError::Config(error) => error.of_metrics().into(),
                    error => error,
                })?))
            }
            ListenAddress::Vsock { .. } | ListenAddress::Systemd => {
                Err(ConfigError::from(InvalidSetting("metrics_listen must be tcp:// or unix://".to_owned())).into())
            }
        }
    }

    /// The bound addresses, with the actual port where 0 was configured.
    pub fn addresses(&self) -> Vec<ListenAddress> {
        self.all.iter().map(Listener::address).collect()
    }

    /// The paths of the Unix sockets, with that for metrics.
    pub(crate) fn unix_paths(&self) -> Vec<PathBuf> {
        let addresses = self.addresses().into_iter().chain(self.metrics_address());
        addresses
            .filter_map(|address| if let ListenAddress::Unix(path) = address { Some(path) } else { None })
            .collect()
    }

    /// The same for metrics.
    pub fn metrics_address(&self) -> Option<ListenAddress> {
        self.metrics.as_ref().map(Listener::address)
    }

    /// Reloads files while [`crate::serve`] runs. Changes of the files are also noticed without it.
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

/// Lets as many connections wait to be accepted as the system permits (`net.core.somaxconn`, 4096 by default): libraries bind
/// TCP and vsock with 128, and callers above that are delayed by a second and more. listen(2) may be called again.
fn raise_backlog(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).listen(-1)
}

/// An accepted connection, not authenticated yet.
pub(crate) enum Accepted {
    Unix(UnixStream),
    Tcp(TcpStream, Option<Tls>),
    Vsock(VsockStream, vsock::Peer),
}

impl Accepted {
    pub(crate) fn transport(&self) -> Transport {
        match self {
            Self::Unix(_) => Transport::Unix,
            Self::Tcp(_, None) => Transport::Tcp,
            Self::Tcp(_, Some(_)) => Transport::Mtls,
            Self::Vsock(..) => Transport::Vsock,
        }
    }
}

/// Where a connection comes from.
pub(crate) struct Remote {
    /// For the log.
    pub(crate) address: String,
    pub(crate) source: Source,
}

impl Listener {
    pub(crate) fn address(&self) -> ListenAddress {
        match self {
            Self::Unix(unix) => unix.address(),
            Self::Tcp(tcp) => tcp.address(),
            Self::Vsock(vsock) => vsock.address(),
        }
    }

    /// Whether any user of this machine may connect, with nothing to show.
    pub(crate) fn is_open(&self) -> bool {
        match self {
            Self::Unix(_) => false,
            Self::Tcp(tcp) => tcp.is_plain(),
            Self::Vsock(vsock) => vsock.is_open(),
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
