//! vsock(7): between a virtual machine and its host. The hypervisor guarantees the peer's context id.

use std::io;

use libc::{VMADDR_CID_ANY, VMADDR_CID_HOST, VMADDR_CID_LOCAL, VMADDR_PORT_ANY};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use tokio::io::Interest;
use tokio::net::UnixStream;

use super::{Accepted, BindError, ListenAddress, Remote};
use crate::identity::source::Source;

/// Connections that wait to be accepted, as the standard library has it for other sockets.
const BACKLOG: i32 = 128;

pub(crate) struct Vsock {
    /// Listens. Of its type only the polling is used.
    socket: UnixStream,
    cid: u32,
    port: u32,
    insecure: bool,
}

/// The peer, and whether being on this machine is enough to be trusted (`insecure`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) cid: u32,
    pub(crate) insecure: bool,
}

impl Peer {
    /// Trusted without a policy: the host, which controls its guests anyway. Other guests are not. A peer on vsock's loopback
    /// may be any user of this machine, so that needs `insecure`, like plaintext TCP on loopback.
    pub(crate) fn is_trusted(self) -> bool {
        self.cid == VMADDR_CID_HOST || (self.insecure && self.cid == VMADDR_CID_LOCAL)
    }
}

impl Vsock {
    pub(super) fn bind(listen: &ListenAddress, cid: Option<u32>, port: u32, insecure: bool) -> Result<Self, BindError> {
        let io = |source| BindError::Io { listen: listen.clone(), source };
        let port = if port == 0 { VMADDR_PORT_ANY } else { port };
        let socket = listen_on(&SockAddr::vsock(cid.unwrap_or(VMADDR_CID_ANY), port)).map_err(io)?;
        Self::passed(socket, insecure).map_err(io)
    }

    /// A socket that listens already.
    pub(super) fn passed(socket: Socket, insecure: bool) -> io::Result<Self> {
        let (cid, port) = cid_and_port(&socket.local_addr()?)?;
        Ok(Self { socket: polled(socket)?, cid, port, insecure })
    }

    pub(super) fn address(&self) -> ListenAddress {
        ListenAddress::Vsock { cid: Some(self.cid).filter(|cid| *cid != VMADDR_CID_ANY), port: self.port }
    }

    pub(super) async fn accept(&self) -> io::Result<(Accepted, Remote)> {
        let (socket, peer) = self.socket.async_io(Interest::READABLE, || accept(&self.socket)).await?;
        let (cid, port) = cid_and_port(&peer)?;
        let remote = Remote { address: format!("vsock://{cid}:{port}"), source: Source::Cid(cid) };
        Ok((Accepted::Vsock(polled(socket)?, Peer { cid, insecure: self.insecure }), remote))
    }
}

fn listen_on(address: &SockAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::VSOCK, Type::STREAM, None)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

fn accept(listener: &UnixStream) -> io::Result<(Socket, SockAddr)> {
    loop {
        match SockRef::from(listener).accept() {
            // with a signal pending, vsock is interrupted even where it need not wait
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            accepted => return accepted,
        }
    }
}

/// tokio has no type for vsock. The one for Unix sockets polls, reads and writes this kind in the same way.
fn polled(socket: Socket) -> io::Result<UnixStream> {
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket.into())
}

fn cid_and_port(address: &SockAddr) -> io::Result<(u32, u32)> {
    address.as_vsock_address().ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_trusted_and_other_guests_are_not() {
        let is_trusted = |(cid, insecure)| Peer { cid, insecure }.is_trusted();
        assert!(is_trusted((2, false)) && is_trusted((1, true)));
        assert!(![(1, false), (0, true), (3, false), (3, true), (u32::MAX, true)].into_iter().any(is_trusted));
    }
}
