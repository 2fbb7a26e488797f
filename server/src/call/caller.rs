//! A caller: its identity and its connection.

use telexec_executor::ExecutorError;
use tokio::net::unix::UCred;

use crate::identity::Identity;
use crate::tls::client_cert_check::ClientCertCheck;
use crate::tls::peer_certificate::PeerCertificate;

/// The peer of a connection. Each of its requests has it as an `Arc<Caller>` among its extensions.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) identity: Identity,
    pub(crate) transport: Transport,
    /// An IP address and port, a vsock address, or the path of the Unix socket that it connected to.
    pub(crate) address: String,
    /// The process that connected to a Unix socket, as the kernel knows it.
    pub(crate) credentials: Option<UCred>,
    /// Its certificate, and whether that is still valid; `None`: it has none.
    pub(crate) cert_check: Option<ClientCertCheck>,
}

impl Caller {
    /// A caller without certificate and credentials.
    pub(crate) fn new(identity: Identity, transport: Transport, address: &str) -> Self {
        let address = address.to_owned();
        Self { identity, transport, address, credentials: None, cert_check: None }
    }

    /// A caller as it would be if one of this identity called.
    pub(crate) fn imagined(identity: Identity) -> Self {
        let transport = match identity.as_str() {
            name if name.starts_with("unix:uid=") => Transport::Unix,
            name if name.starts_with("vsock:cid=") => Transport::Vsock,
            name if name.starts_with("tcp:") => Transport::Tcp,
            _ => Transport::Mtls,
        };
        Self::new(identity, transport, "")
    }

    /// Whether it is still authenticated.
    ///
    /// # Errors
    /// [`ExecutorError::Unauthenticated`].
    pub(crate) fn check(&self) -> Result<(), ExecutorError> {
        self.cert_check.as_ref().map_or(Ok(()), ClientCertCheck::check)
    }

    /// The certificate that it presented.
    pub(crate) fn certificate(&self) -> Option<&PeerCertificate> {
        self.cert_check.as_ref().map(ClientCertCheck::certificate)
    }

    /// Whether it is root on this machine.
    pub(crate) fn is_root(&self) -> bool {
        self.transport == Transport::Unix && self.credentials.is_some_and(|credentials| credentials.uid() == 0)
    }
}

/// The transport of a caller, as named in policies and the audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// A Unix socket.
    Unix,
    /// Plaintext TCP, on a loopback address.
    Tcp,
    /// TCP with mTLS.
    Mtls,
    /// vsock, from the host of this virtual machine.
    Vsock,
}

impl Transport {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Unix => "unix",
            Self::Tcp => "tcp",
            Self::Mtls => "mtls",
            Self::Vsock => "vsock",
        }
    }
}
