//! Bound sockets. With a keeper they are bound before it runs, and each agent inherits them: while there is none, after a crash
//! or during an upgrade, connections wait instead of being refused.

use std::ffi::OsString;
use std::io;
use std::net::{Shutdown, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::accept;
use serde::{Deserialize, Serialize};
use socket2::SockRef;
use telexec_keeper::inherited;
use telexec_keeper::users::Credentials;
use tracing::warn;

use super::unix::{FileId, SocketFile};
use super::{BindError, ListenAddress, raise_backlog, unix, vsock};
use crate::config::{Config, SocketMode};
use crate::process::thread_of_user::as_user;

/// The variable that says which sockets are inherited.
pub(crate) const VARIABLE: &str = "TELEXEC_SOCKETS";

/// A socket that listens. Dropping it closes it here, and removes its file if it was bound here.
#[derive(Debug)]
pub(crate) struct BoundSocket {
    /// As configured.
    listen: ListenAddress,
    socket: OwnedFd,
    /// `None`: it is no Unix socket.
    file: Option<SocketFile>,
}

/// A socket that is inherited, as the variable has it.
#[derive(Debug, Serialize, Deserialize)]
struct SocketRecord {
    address: String,
    descriptor: RawFd,
    file: Option<FileId>,
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
    fn inherit(record: SocketRecord, mode: SocketMode) -> Option<Self> {
        let socket = inherited(record.descriptor).inspect_err(|error| warn!(%error, "a socket is bound again")).ok()?;
        let listen: ListenAddress = record.address.parse().ok()?;
        let file = match (&listen, record.file) {
            (ListenAddress::Unix(path), Some(id)) => Some(SocketFile::inherited(path.clone(), id)),
            _ => None,
        };
        let bound = Self { listen, socket, file };
        if bound.is_usable(mode) {
            return Some(bound);
        }
        // nobody is to wait for it
        let _ = bound.close();
        None
    }

    /// It listens, and others can connect to it, as far as its file is to let them.
    fn is_usable(&self, mode: SocketMode) -> bool {
        let has_file = || self.file.as_ref().is_none_or(|file| file.is_there() && file.set_mode(mode).is_ok());
        // the process that others see to listen is the one that last called listen(2)
        self.listens() && has_file() && raise_backlog(&self.socket).is_ok()
    }

    /// It was not shut down, which a Unix socket shows by POLLHUP only.
    fn listens(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
        let answer = poll(&mut polled, Some(&Timespec::default()));
        let hung_up = answer.is_err() || polled.iter().any(|socket| socket.revents().contains(PollFlags::HUP));
        SockRef::from(&self.socket).is_listener().unwrap_or(false) && !hung_up
    }

    /// The same socket, to serve it; this closes it.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub(super) fn try_clone(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// Removes its file, and refuses connections from now on, although the keeper has it too. The error, if that cannot be: vsock
    /// cannot be shut down.
    pub(crate) fn close(self) -> io::Result<()> {
        if let Some(file) = &self.file {
            file.remove();
        }
        SockRef::from(&self.socket).shutdown(Shutdown::Both)?;
        // those that wait in a Unix socket would do so until it is closed everywhere
        fcntl_setfl(&self.socket, OFlags::NONBLOCK)?;
        while accept(&self.socket).is_ok() {}
        Ok(())
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
        let mut records = Vec::new();
        for BoundSocket { listen, socket, file } in &self.0 {
            fcntl_setfd(socket.as_fd(), FdFlags::empty())?;
            let file = file.as_ref().map(SocketFile::id);
            records.push(SocketRecord { address: listen.to_string(), descriptor: socket.as_raw_fd(), file });
        }
        Ok((VARIABLE, serde_json::to_string(&records)?.into()))
    }
}

/// The sockets that a keeper's agent inherits, each until it is taken.
#[derive(Debug, Default)]
pub(super) struct Inherited(Vec<BoundSocket>);

impl Inherited {
    /// Those for the addresses of this configuration; others are closed, so that they are not in the way of new ones. To be
    /// called once. Without the variable there are none.
    pub(super) fn find(config: &Config) -> Self {
        let Ok(text) = std::env::var(VARIABLE) else { return Self::default() };
        let records: Vec<SocketRecord> = serde_json::from_str(&text)
            .inspect_err(|error| warn!(%error, "{VARIABLE}: no sockets are inherited"))
            .unwrap_or_default();
        let mut wanted: Vec<_> = config.listen.iter().chain(&config.metrics_listen).collect();
        let mut this = Self::default();
        for bound in records.into_iter().filter_map(|record| BoundSocket::inherit(record, config.socket_mode)) {
            match wanted.iter().position(|listen| **listen == bound.listen) {
                Some(at) => {
                    wanted.swap_remove(at);
                    this.0.push(bound);
                }
                None => close_removed(bound),
            }
        }
        this
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
}

fn close_removed(bound: BoundSocket) {
    let address = bound.listen.clone();
    if let Err(error) = bound.close() {
        warn!(%address, %error, "connections to this address, which was removed from the configuration, wait until telexecd is restarted");
    }
}

/// Whether an agent that has this address could pass it on.
///
/// # Errors
/// The file of its socket was replaced by one that no socket can replace.
pub(crate) fn check(listen: &ListenAddress) -> Result<(), BindError> {
    match listen {
        ListenAddress::Unix(path) => {
            unix::check(path).map(drop).map_err(|source| BindError::Io { listen: listen.clone(), source })
        }
        ListenAddress::Tcp(_) | ListenAddress::Vsock { .. } | ListenAddress::Systemd => Ok(()),
    }
}
