//! Sockets passed by systemd (sd_listen_fds(3)).

use std::os::fd::OwnedFd;

use listenfd::ListenFd;
use socket2::{Domain, SockRef, Type};

use super::{BindError, ListenAddress, Listener, Tcp, Unix, Vsock};
use crate::tls::Tls;

/// All sockets that were passed, at least one.
/// A keeper has got them in place of this process.
pub(super) fn listeners(tls: &Option<Tls>, insecure: bool, is_kept: bool) -> Result<Vec<Listener>, BindError> {
    let none = || BindError::Systemd("no sockets were passed: start the agent by a socket unit".to_owned());
    // the library does not check that the sockets are meant for this process
    let meant = std::env::var("LISTEN_PID").ok();
    // a keeper has checked that they were meant for it
    if meant != (!is_kept).then(|| std::process::id().to_string()) {
        return Err(none());
    }
    let mut passed = ListenFd::from_env();
    let all: Vec<_> = (0..passed.len()).map(|at| listener(&mut passed, at, tls, insecure)).collect::<Result<_, _>>()?;
    if all.is_empty() { Err(none()) } else { Ok(all) }
}

fn listener(passed: &mut ListenFd, at: usize, tls: &Option<Tls>, insecure: bool) -> Result<Listener, BindError> {
    let io = |source| BindError::Io { listen: ListenAddress::Systemd, source };
    if let Ok(Some(socket)) = passed.take_unix_listener(at) {
        listening(SockRef::from(&socket), at)?;
        return Unix::new(socket).map(Listener::Unix).map_err(io);
    }
    if let Ok(Some(socket)) = passed.take_tcp_listener(at) {
        listening(SockRef::from(&socket), at)?;
        return Tcp::new(socket, &ListenAddress::Systemd, tls.clone(), insecure).map(Listener::Tcp);
    }
    let vsock = (Domain::VSOCK.into(), Type::STREAM.into());
    match passed.take_custom::<OwnedFd>(at, vsock.0, vsock.1, "vsock socket") {
        Ok(Some(socket)) => {
            listening(SockRef::from(&socket), at)?;
            Vsock::new(socket, insecure).map(Listener::Vsock).map_err(io)
        }
        _ => Err(unusable(at, "is no Unix, TCP or vsock stream socket")),
    }
}

/// A unit with `Accept=yes` passes a connected socket instead of a listening one.
fn listening(socket: SockRef<'_>, at: usize) -> Result<(), BindError> {
    match socket.is_listener() {
        Ok(true) => Ok(()),
        Ok(false) => Err(unusable(at, "is a connection: the socket unit must have Accept=no")),
        Err(source) => Err(BindError::Io { listen: ListenAddress::Systemd, source }),
    }
}

fn unusable(at: usize, why: &str) -> BindError {
    BindError::Systemd(format!("descriptor {} {why}", at + 3))
}
