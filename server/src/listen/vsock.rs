//! vsock(7): between a virtual machine and its host. The hypervisor guarantees the peer's context id.

use std::io;
use std::os::fd::OwnedFd;

use tokio_vsock::{VMADDR_CID_ANY, VMADDR_CID_HOST, VMADDR_CID_LOCAL, VsockAddr, VsockListener};

use super::{Accepted, ListenAddress, Remote};
use crate::identity::source::Source;

/// `VMADDR_PORT_ANY`
const ANY_PORT: u32 = u32::MAX;

pub(crate) struct Vsock {
    socket: VsockListener,
    address: VsockAddr,
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

/// # Errors
/// It is in use, or there is no vsock here.
pub(super) fn bind(cid: Option<u32>, port: u32) -> io::Result<OwnedFd> {
    let port = if port == 0 { ANY_PORT } else { port };
    let socket = ::vsock::VsockListener::bind_with_cid_port(cid.unwrap_or(VMADDR_CID_ANY), port)?;
    Ok(socket.into())
}

impl Vsock {
    pub(super) fn new(socket: OwnedFd, insecure: bool) -> io::Result<Self> {
        // tokio-vsock does this too, but panics if it fails
        socket2::SockRef::from(&socket).set_nonblocking(true)?;
        let socket = VsockListener::from(socket);
        Ok(Self { address: socket.local_addr()?, socket, insecure })
    }

    pub(super) fn address(&self) -> ListenAddress {
        let cid = Some(self.address.cid()).filter(|cid| *cid != VMADDR_CID_ANY);
        ListenAddress::Vsock { cid, port: self.address.port() }
    }

    /// Whether any user of this machine may connect by vsock's loopback.
    pub(super) fn is_open(&self) -> bool {
        self.insecure && [VMADDR_CID_ANY, VMADDR_CID_LOCAL].contains(&self.address.cid())
    }

    pub(super) async fn accept(&self) -> io::Result<(Accepted, Remote)> {
        let (stream, peer) = self.socket.accept().await?;
        let address = format!("vsock://{}:{}", peer.cid(), peer.port());
        let remote = Remote { address, source: Source::Cid(peer.cid()) };
        Ok((Accepted::Vsock(stream, Peer { cid: peer.cid(), insecure: self.insecure }), remote))
    }
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
