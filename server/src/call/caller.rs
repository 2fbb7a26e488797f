//! A caller: who it is, and what is known of how it came.

use rustls::pki_types::CertificateDer;
use telexec_executor::ExecutorError;
use tokio::net::unix::UCred;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::digest::sha256;
use crate::identity::Identity;
use crate::tls::client_cert_check::ClientCertCheck;

/// The other side of a connection. Each of its requests carries it, as an `Arc<Caller>` among the extensions.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) identity: Identity,
    pub(crate) transport: Transport,
    /// Where it comes from: an IP address and port, a vsock address, or the socket that it connected to.
    pub(crate) address: String,
    /// The certificate that it showed.
    pub(crate) certificate: Option<PeerCertificate>,
    /// The process that connected to a Unix socket, as the kernel knows it.
    pub(crate) credentials: Option<UCred>,
    /// Whether that certificate still counts; `None`: it needs none.
    pub(crate) cert_check: Option<ClientCertCheck>,
}

impl Caller {
    /// One of whom nothing else is known.
    pub(crate) fn new(identity: Identity, transport: Transport, address: &str) -> Self {
        let address = address.to_owned();
        Self { identity, transport, address, certificate: None, credentials: None, cert_check: None }
    }

    /// Whether it still is who it was.
    ///
    /// # Errors
    /// [`ExecutorError::Unauthenticated`].
    pub(crate) fn check(&self) -> Result<(), ExecutorError> {
        self.cert_check.as_ref().map_or(Ok(()), |cert_check| cert_check.check(&self.identity))
    }

    /// It is root on this machine.
    pub(crate) fn is_root(&self) -> bool {
        self.transport == Transport::Unix && self.credentials.is_some_and(|credentials| credentials.uid() == 0)
    }
}

/// How a caller is connected, as policies and the audit log call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// A Unix socket.
    Unix,
    /// TCP without protection, on a loopback address.
    Tcp,
    /// TCP with certificates on both sides.
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

/// A certificate by what tells it from all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerCertificate {
    /// In hexadecimal, as `openssl x509 -serial` has it, with colons.
    pub(crate) serial: String,
    /// SHA-256 of the whole certificate, in hexadecimal.
    pub(crate) fingerprint: String,
}

impl PeerCertificate {
    /// `None`: it is malformed.
    pub(crate) fn from_certificate(der: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        Some(Self { serial: certificate.raw_serial_as_string(), fingerprint: sha256(der) })
    }
}
