//! Tells the service manager what the agent says: see sd_notify(3).

use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendto, socket_with};

/// Where a service manager has it.
pub(crate) const VARIABLE: &str = "NOTIFY_SOCKET";

/// Says so, if there is a service manager that wants to know. False: it has no room for it now.
pub(crate) fn say(state: &str) -> bool {
    let Some(path) = std::env::var_os(VARIABLE) else { return true };
    let address = match path.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddrUnix::new_abstract_name(name),
        Some((b'/', _)) => SocketAddrUnix::new(path.as_bytes()),
        _ => return true,
    };
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    if let (Ok(address), Ok(socket)) = (address, socket) {
        let sent = sendto(socket, state.as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT, &address);
        return sent != Err(Errno::AGAIN);
    }
    true
}
