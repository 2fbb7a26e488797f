//! Listeners: addresses, and the sockets bound to them.

pub(crate) mod bound;
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

use self::bound::{BoundSocket, Inherited};
use self::tcp::Tcp;
use self::unix::Unix;
use self::vsock::Vsock;
use crate::address::ListenAddress;
use crate::call::caller::Transport;
use crate::config::{Config, ConfigError};
use crate::identity::source::Source;
use crate::reload::Reload;
use crate::tls::{Tls, TlsSource};

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Only root can become another user, and bind as that.
    #[error("cannot bind sockets as agent_user")]
    User(#[source] io::Error),
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
    /// Those of these that systemd has not passed: closed when this process ends, but not when it hands over.
    pub(crate) bound: Vec<BoundSocket>,
    /// For metrics.
    pub(crate) metrics: Option<(Listener, BoundSocket)>,
    pub(crate) tls: Option<Tls>,
    pub(crate) reload: Reload,
}

impl Listeners {
    /// Binds every address of the configuration. Blocks while host names are looked up.
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
        let mut inherited = match &config.kept_by {
            Some(_) => Inherited::find(config),
            None => Inherited::default(),
        };
        let (mut all, mut bound) = (Vec::new(), Vec::new());
        for listen in &config.listen {
            match listen {
                ListenAddress::Systemd => {
                    all.extend(systemd::listeners(&tls, config.insecure, config.kept_by.is_some())?)
                }
                ListenAddress::Unix(_) | ListenAddress::Tcp(_) | ListenAddress::Vsock { .. } => {
                    let own = inherited.take_or_bind(listen, config.socket_mode)?;
                    all.push(Listener::new(listen, &own, tls.clone(), config.insecure)?);
                    bound.push(own);
                }
            }
        }
        let metrics = match &config.metrics_listen {
            Some(listen) => {
                let tls = tls.clone().filter(|_| asks_for_certificates);
                let own = inherited.take_or_bind(listen, config.socket_mode)?;
                Some((Self::listen_for_metrics(listen, &own, tls)?, own))
            }
            None => None,
        };
        Ok(Self { all, bound, metrics, tls, reload: Reload::default() })
    }

    /// Plaintext on this machine, since metrics hold no secrets; elsewhere only with TLS.
    fn listen_for_metrics(
        listen: &ListenAddress,
        bound: &BoundSocket,
        tls: Option<Tls>,
    ) -> Result<Listener, BindError> {
        Listener::new(listen, bound, tls, true).map_err(|error| match error {
            BindError::Config(error) => error.of_metrics().into(),
            error => error,
        })
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
        self.metrics.as_ref().map(|(listener, _)| listener.address())
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
    fn new(listen: &ListenAddress, bound: &BoundSocket, tls: Option<Tls>, insecure: bool) -> Result<Self, BindError> {
        let io = |source| BindError::Io { listen: listen.clone(), source };
        let socket = bound.try_clone().map_err(io)?;
        match listen {
            ListenAddress::Tcp(_) => Tcp::new(socket.into(), listen, tls, insecure).map(Self::Tcp),
            ListenAddress::Vsock { .. } => Vsock::new(socket, insecure).map(Self::Vsock).map_err(io),
            ListenAddress::Unix(_) | ListenAddress::Systemd => Unix::new(socket.into()).map(Self::Unix).map_err(io),
        }
    }

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
