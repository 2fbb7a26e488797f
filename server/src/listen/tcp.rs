//! TCP: with mTLS, or plaintext on loopback addresses.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};

use super::{Accepted, BindError, ListenAddress, Remote};
use crate::config::ConfigError;
use crate::identity::source::Source;
use crate::tls::Tls;

const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

pub(crate) struct Tcp {
    socket: TcpListener,
    address: SocketAddr,
    tls: Option<Tls>,
}

impl Tcp {
    /// `listen`: as configured, for errors.
    pub(super) fn new(
        socket: std::net::TcpListener,
        listen: &ListenAddress,
        tls: Option<Tls>,
        insecure: bool,
    ) -> Result<Self, BindError> {
        let io = |source| BindError::Io { listen: listen.clone(), source };
        let address = socket.local_addr().map_err(io)?;
        let tls = protection(&[address], tls, insecure)?;
        socket.set_nonblocking(true).map_err(io)?;
        Ok(Self { socket: TcpListener::from_std(socket).map_err(io)?, address, tls })
    }

    pub(super) fn address(&self) -> ListenAddress {
        ListenAddress::Tcp(self.address.to_string())
    }

    pub(super) fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    pub(super) async fn accept(&self) -> io::Result<(Accepted, Remote)> {
        let (stream, peer) = self.socket.accept().await?;
        set_options(&stream)?;
        let remote = Remote { address: peer.to_string(), source: Source::of_ip(peer.ip()) };
        Ok((Accepted::Tcp(stream, self.tls.clone()), remote))
    }
}

/// TLS is required, except on loopback addresses with `insecure`.
pub(crate) fn protection<T>(
    addresses: &[SocketAddr],
    tls: Option<T>,
    insecure: bool,
) -> Result<Option<T>, ConfigError> {
    match addresses.iter().find(|address| !address.ip().is_loopback()) {
        // the certificates are for the other addresses
        None if insecure => Ok(None),
        _ if tls.is_some() => Ok(tls),
        Some(outside) if insecure => Err(ConfigError::NotLoopback(*outside)),
        _ => Err(ConfigError::tcp_needs_tls()),
    }
}

/// Sends small responses at once, and detects peers that vanished (tcp(7)).
fn set_options(stream: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    socket
        .set_tcp_keepalive(&TcpKeepalive::new().with_time(Duration::from_secs(20)).with_interval(KEEPALIVE_INTERVAL))?;
    // keepalive does not apply while output is queued
    socket.set_tcp_user_timeout(Some(Duration::from_secs(30)))
}
