//! A caller: its identity and its connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use telexec_executor::ExecutorError;
use tokio::net::unix::UCred;

use crate::identity::Identity;
use crate::identity::source::Source;
use crate::reload::{Changes, next_change};
use crate::tls::Credentials;
use crate::tls::client_cert_check::ClientCertCheck;
use crate::tls::peer_certificate::PeerCertificate;
use crate::token::{KeySet, Token};

/// The longest sleep until an expiry: the system clock may be set meanwhile.
const CLOCK_INTERVAL: Duration = Duration::from_secs(60);

/// The peer of a connection, or whom a token on it names. Each request has one as an `Arc<Caller>` among its extensions.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) identity: Identity,
    pub(crate) transport: Transport,
    /// An IP address and port, a vsock address, or the path of the Unix socket that it connected to.
    pub(crate) address: String,
    /// The process that connected to a Unix socket, as the kernel knows it.
    pub(crate) credentials: Option<UCred>,
    /// The peer's certificate, and whether that is still valid; `None`: it has none.
    pub(crate) cert_check: Option<Arc<ClientCertCheck>>,
    /// `None`: it is known by the connection.
    pub(crate) token: Option<Token>,
    /// The peer of the connection, if the token names another caller: a gateway.
    pub(crate) presented_by: Option<Identity>,
}

impl Caller {
    /// A caller without certificate and credentials.
    pub(crate) fn new(identity: Identity, transport: Transport, address: &str) -> Self {
        let address = address.to_owned();
        Self { identity, transport, address, credentials: None, cert_check: None, token: None, presented_by: None }
    }

    /// Whom this token names, which the peer of `connection` has sent.
    pub(crate) fn with_token(connection: &Self, token: Token) -> Self {
        Self {
            identity: token.named.identity.clone(),
            transport: connection.transport,
            address: connection.address.clone(),
            credentials: connection.credentials,
            cert_check: connection.cert_check.clone(),
            token: Some(token),
            presented_by: connection.is_authenticated().then(|| connection.identity.clone()),
        }
    }

    /// A caller as it would be if one of this identity called.
    pub(crate) fn imagined(identity: Identity) -> Self {
        let transport = match identity.as_str() {
            name if name.starts_with("unix:uid=") => Transport::Unix,
            name if name.starts_with("vsock:cid=") => Transport::Vsock,
            name if name.starts_with("tcp:") => Transport::Tcp,
            name if name.contains(':') && !name.starts_with("spiffe:") => Transport::Tls,
            _ => Transport::Mtls,
        };
        Self::new(identity, transport, "")
    }

    /// Whether the connection says who it is.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.transport != Transport::Tls || self.token.is_some()
    }

    /// What it shares with others, for fairness: its identity, or the source of its connection.
    pub(crate) fn source(&self) -> String {
        let address = self.address.parse().ok().filter(|_| !self.is_authenticated());
        let source = address.map(|address: SocketAddr| Source::of_ip(address.ip()).to_string());
        source.unwrap_or_else(|| self.identity.to_string())
    }

    /// Whether another call may be made.
    ///
    /// # Errors
    /// [`ExecutorError::Unauthenticated`].
    pub(crate) fn check_new_call(&self) -> Result<(), ExecutorError> {
        self.cert_check.as_deref().map_or(Ok(()), ClientCertCheck::check_new_call)?;
        self.check_open_call()
    }

    /// Whether it is still authenticated, for a call that was made.
    ///
    /// # Errors
    /// [`ExecutorError::Unauthenticated`].
    pub(crate) fn check_open_call(&self) -> Result<(), ExecutorError> {
        self.cert_check.as_deref().map_or(Ok(()), ClientCertCheck::check_open_call)?;
        self.token.as_ref().map_or(Ok(()), Token::check_open_call)
    }

    /// Returns when its connection is to be replaced by another.
    pub(crate) async fn retired(&self) {
        let retirement = self.cert_check.as_deref().and_then(ClientCertCheck::retirement);
        while retirement.is_none_or(|retirement| SystemTime::now() < retirement) {
            wait_until(retirement).await;
        }
    }

    /// Whether it may lose that while a call is open.
    pub(crate) fn may_change(&self) -> bool {
        self.cert_check.is_some() || self.token.is_some()
    }

    /// What may cause that, from now on.
    pub(crate) fn changes(&self) -> CallerChanges<'_> {
        CallerChanges {
            caller: self,
            certificates: self.cert_check.as_deref().map(ClientCertCheck::changes),
            keys: self.token.as_ref().map(Token::key_changes),
        }
    }

    /// The roles that its token gives it.
    pub(crate) fn roles(&self) -> &[String] {
        self.token.as_ref().map_or(&[], |token| &token.named.roles)
    }

    /// When its certificate or token expires, whichever is first.
    pub(crate) fn expiry(&self) -> Option<SystemTime> {
        let certificate = self.certificate().map(PeerCertificate::end);
        let expiry = certificate.into_iter().chain(self.token.as_ref().map(Token::expiry)).min()?;
        UNIX_EPOCH.checked_add(Duration::from_secs(expiry))
    }

    /// The certificate that the peer presented.
    pub(crate) fn certificate(&self) -> Option<&PeerCertificate> {
        self.cert_check.as_deref().map(ClientCertCheck::certificate)
    }

    /// Whether it is root on this machine. Whom a token names is not, even if root has sent it.
    pub(crate) fn is_root(&self) -> bool {
        self.token.is_none()
            && self.transport == Transport::Unix
            && self.credentials.is_some_and(|credentials| credentials.uid() == 0)
    }
}

/// Changes of what authenticates a caller.
pub(crate) struct CallerChanges<'a> {
    caller: &'a Caller,
    certificates: Option<Changes<Credentials>>,
    keys: Option<Changes<KeySet>>,
}

impl CallerChanges<'_> {
    /// Returns when it may not be authenticated any more, or about every minute if that depends on the time.
    pub(crate) async fn next(&mut self) {
        let Self { caller, certificates, keys } = self;
        tokio::select! {
            () = next_change(certificates) => {}
            () = next_change(keys) => {}
            () = wait_until(caller.cert_check.as_ref().and_then(|cert_check| cert_check.end())) => {}
            () = wait_until(caller.token.as_ref().and_then(Token::end)) => {}
        }
    }
}

/// `None`: waits forever.
async fn wait_until(end: Option<SystemTime>) {
    let Some(end) = end else { return std::future::pending().await };
    let rest = end.duration_since(SystemTime::now()).unwrap_or_default();
    tokio::time::sleep(rest.min(CLOCK_INTERVAL)).await;
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
    /// TCP with TLS, without a client certificate.
    Tls,
    /// vsock, from the host of this virtual machine.
    Vsock,
}

impl Transport {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Unix => "unix",
            Self::Tcp => "tcp",
            Self::Mtls => "mtls",
            Self::Tls => "tls",
            Self::Vsock => "vsock",
        }
    }
}
