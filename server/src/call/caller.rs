//! A caller: its identity and its connection.

use rustls::pki_types::CertificateDer;
use telexec_executor::ExecutorError;
use tokio::net::unix::UCred;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::digest::sha256;
use crate::identity::Identity;
use crate::tls::client_cert_check::ClientCertCheck;

/// The peer of a connection. Each of its requests has it as an `Arc<Caller>` among its extensions.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) identity: Identity,
    pub(crate) transport: Transport,
    /// An IP address and port, a vsock address, or the path of the Unix socket that it connected to.
    pub(crate) address: String,
    /// The certificate that it presented.
    pub(crate) certificate: Option<PeerCertificate>,
    /// The process that connected to a Unix socket, as the kernel knows it.
    pub(crate) credentials: Option<UCred>,
    /// Checks whether that certificate is still valid; `None`: it has none.
    pub(crate) cert_check: Option<ClientCertCheck>,
}

impl Caller {
    /// A caller without certificate and credentials.
    pub(crate) fn new(identity: Identity, transport: Transport, address: &str) -> Self {
        let address = address.to_owned();
        Self { identity, transport, address, certificate: None, credentials: None, cert_check: None }
    }

    /// Whether it is still authenticated.
    ///
    /// # Errors
    /// [`ExecutorError::Unauthenticated`].
    pub(crate) fn check(&self) -> Result<(), ExecutorError> {
        self.cert_check.as_ref().map_or(Ok(()), |cert_check| cert_check.check(&self.identity))
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

/// What identifies a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerCertificate {
    /// In hexadecimal with colons.
    pub(crate) serial: String,
    /// SHA-256 of the whole certificate, in hexadecimal.
    pub(crate) fingerprint: String,
}

impl PeerCertificate {
    /// `None`: malformed.
    pub(crate) fn from_certificate(der: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        Some(Self { serial: certificate.raw_serial_as_string(), fingerprint: sha256(der) })
    }
}
