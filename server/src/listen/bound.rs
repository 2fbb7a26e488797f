//! Bound sockets. With a keeper they are bound before it runs, and each agent inherits them: while there is none, after a crash
//! or during an upgrade, connections wait in place of being refused.

use std::ffi::OsString;
use std::io;
use std::net::{Shutdown, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_setfd};
use serde::{Deserialize, Serialize};
use socket2::SockRef;
use telexec_keeper::inherited;
use telexec_keeper::users::Credentials;
use tracing::warn;

use super::unix::SocketFile;
use super::{BindError, ListenAddress, raise_backlog, unix, vsock};
use crate::config::{Config, SocketMode};
use crate::process::thread_of_user::as_user;

/// The variable that says which sockets are inherited.
const VARIABLE: &str = "TELEXEC_SOCKETS";

/// A socket that listens. Dropping it closes it, and removes its file.
#[derive(Debug)]
pub(crate) struct BoundSocket {
    /// As configured.
    pub(super) listen: ListenAddress,
    pub(super) socket: OwnedFd,
    /// `None`: it is no Unix socket.
    pub(super) file: Option<SocketFile>,
}

/// A socket that is passed on, as the variable has it.
#[derive(Debug, Serialize, Deserialize)]
struct Passed {
    address: String,
    descriptor: RawFd,
    inode: Option<u64>,
}

impl BoundSocket {
    /// Blocks while a host name is looked up.
    ///
    /// # Errors
    /// See [`BindError`].
    pub(super) fn bind(listen: &ListenAddress, mode: SocketMode) -> Result<Self, BindError> {
        let io = |source| BindError::Io { listen: listen.clone(), source };
        let (socket, file) = match listen {
            ListenAddress::Unix(path) => {
                let (socket, file) = unix::bind(listen, path, mode)?;
                (socket, Some(file))
            }
            ListenAddress::Tcp(address) => {
                let addresses: Vec<_> = address.to_socket_addrs().map_err(io)?.collect();
                (TcpListener::bind(addresses.as_slice()).map_err(io)?.into(), None)
            }
            ListenAddress::Vsock { cid, port } => (vsock::bind(*cid, *port).map_err(io)?, None),
            ListenAddress::Systemd => return Err(io(io::ErrorKind::InvalidInput.into())),
        };
        raise_backlog(&socket).map_err(io)?;
        Ok(Self { listen: listen.clone(), socket, file })
    }

    /// One that an agent before this one may have used. `None`: it is to be bound again.
    fn resume(passed: Passed, mode: SocketMode) -> Option<Self> {
        let socket = inherited(passed.descriptor).inspect_err(|error| warn!(%error, "a socket is bound again")).ok()?;
        let listen: ListenAddress = passed.address.parse().ok()?;
        let file = match (&listen, passed.inode) {
            (ListenAddress::Unix(path), Some(inode)) => Some(SocketFile::new(path.clone(), inode)),
            _ => None,
        };
        let bound = Self { listen, socket, file };
        if bound.is_usable(mode) {
            return Some(bound);
        }
        bound.close();
        None
    }

    /// It listens, and others can connect to it, as far as its file is to let them.
    fn is_usable(&self, mode: SocketMode) -> bool {
        let has_file = || self.file.as_ref().is_none_or(|file| file.is_there() && file.set_mode(mode).is_ok());
        // the process that others see to listen is that which called listen(2) last
        SockRef::from(&self.socket).is_listener().unwrap_or(false) && has_file() && raise_backlog(&self.socket).is_ok()
    }

    pub(super) fn into_parts(self) -> (OwnedFd, Option<SocketFile>) {
        (self.socket, self.file)
    }

    /// Refuses connections, although the keeper has it too.
    fn close(self) {
        let closed = SockRef::from(&self.socket).shutdown(Shutdown::Both);
        // vsock cannot be shut down
        if let (Err(error), ListenAddress::Vsock { .. }) = (closed, &self.listen) {
            warn!(address = %self.listen, %error, "connections to an address that was removed wait until telexecd is restarted");
        }
    }
}

/// The sockets of a process that becomes a keeper.
#[derive(Debug)]
pub struct KeptSockets(Vec<BoundSocket>);

impl KeptSockets {
    /// Binds every address of the configuration but those that systemd has bound, as this user (`None`: as that of this process).
    /// Blocks.
    ///
    /// # Errors
    /// The first address that cannot be bound; the others are closed again.
    pub fn bind(config: &Config, user: Option<&Credentials>) -> Result<Self, BindError> {
        let listen = || config.listen.iter().chain(&config.metrics_listen);
        let bind_all = || -> Result<Vec<_>, BindError> {
            let own = listen().filter(|listen| !matches!(listen, ListenAddress::Systemd));
            own.map(|listen| BoundSocket::bind(listen, config.socket_mode)).collect()
        };
        let bound = match user {
            Some(user) => as_user(user, bind_all).map_err(BindError::User)?,
            None => bind_all(),
        };
        bound.map(Self)
    }

    /// Lets the next program of this process inherit them. Returns the variable by which it finds them.
    ///
    /// # Errors
    /// A descriptor cannot be changed.
    pub(crate) fn pass(&self) -> io::Result<(&'static str, OsString)> {
        let mut passed = Vec::new();
        for BoundSocket { listen, socket, file } in &self.0 {
            fcntl_setfd(socket.as_fd(), FdFlags::empty())?;
            let inode = file.as_ref().map(SocketFile::inode);
            passed.push(Passed { address: listen.to_string(), descriptor: socket.as_raw_fd(), inode });
        }
        Ok((VARIABLE, serde_json::to_string(&passed)?.into()))
    }
}

/// The sockets that a keeper's agent inherits, each until it is taken.
#[derive(Debug, Default)]
pub(super) struct Inherited(Vec<BoundSocket>);

impl Inherited {
    /// To be called once. Without the variable there are none. Files of Unix sockets get this mode.
    pub(super) fn find(mode: SocketMode) -> Self {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        let passed: Vec<Passed> = serde_json::from_str(&text).unwrap_or_default();
        Self(passed.into_iter().filter_map(|passed| BoundSocket::resume(passed, mode)).collect())
    }

    /// The one for this address, or a new one.
    ///
    /// # Errors
    /// See [`BindError`].
    pub(super) fn take_or_bind(&mut self, listen: &ListenAddress, mode: SocketMode) -> Result<BoundSocket, BindError> {
        match self.0.iter().position(|bound| bound.listen == *listen) {
            Some(at) => Ok(self.0.swap_remove(at)),
            None => BoundSocket::bind(listen, mode),
        }
    }

    /// What is left is not in the configuration any more.
    pub(super) fn close(self) {
        self.0.into_iter().for_each(BoundSocket::close);
    }
}
