//! One socket, of either kind.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use telexec_proto::v1::TcpAddress;
use tokio::net::{TcpStream, UnixStream};

use super::passed::PassedStream;
use super::wire::address_to_wire;

/// Detects vanished peers on quiet connections.
const TCP_KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(10));

/// A connection.
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// A Unix socket as another user.
    Passed(PassedStream),
}

impl Socket {
    /// What is written goes out at once, and a vanished peer is noticed; without either it works too.
    pub(super) fn tuned(stream: TcpStream) -> Self {
        let _ = stream.set_nodelay(true);
        let _ = SockRef::from(&stream).set_tcp_keepalive(&TCP_KEEPALIVE);
        Self::Tcp(stream)
    }

    /// Closes it such that the other side sees a reset; of Unix sockets there is none.
    pub(super) fn reset(self) {
        if let Self::Tcp(stream) = &self {
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
        }
    }

    /// The other side.
    pub(super) fn peer(&self) -> Option<TcpAddress> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().ok().map(address_to_wire),
            Self::Unix(_) | Self::Passed(_) => None,
        }
    }
}
