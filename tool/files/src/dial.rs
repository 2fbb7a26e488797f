//! Connecting to a Unix socket as the user of a process, for an agent that takes the connection over.
//!
//! The agent sends the path on a pair of sockets and closes that direction. The process ([`serve`]) answers with the
//! number of the error, 0 for none, and passes the connection itself ([`receive`]): it carries no bytes, and ends.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_domain, socket_type};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, socket_with,
};

const ERRNO_BYTES: usize = 4;
/// For the other side to accept. The agent gives up before; when it was killed, the process ends by this.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Connects to the path that comes on `channel`, and answers there. While the other side accepts nothing, it waits a while.
///
/// # Errors
/// The channel is closed: the agent is gone.
pub fn serve(mut channel: impl Read + AsFd) -> io::Result<()> {
    let mut path = Vec::new();
    channel.read_to_end(&mut path)?;
    match dial(&path) {
        Ok(connection) => answer(channel.as_fd(), 0, &[connection.as_fd()]),
        Err(error) => answer(channel.as_fd(), error.raw_os_error(), &[]),
    }
}

fn dial(path: &[u8]) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let connection = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&connection, Timeout::Send, Some(TIMEOUT))?;
    connect(&connection, &address)?;
    // it is the connection's from now on
    set_socket_timeout(&connection, Timeout::Send, None)?;
    Ok(connection)
}

fn answer(channel: BorrowedFd<'_>, errno: i32, connection: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !connection.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(connection));
    }
    sendmsg(channel, &[IoSlice::new(&errno.to_be_bytes())], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// What the process at the other end of `channel` has answered: the connection, or the error of the system.
///
/// # Errors
/// There is no answer (yet: [`WouldBlock`](io::ErrorKind::WouldBlock)), or it is none.
pub fn receive(channel: impl AsFd) -> io::Result<Result<UnixStream, io::Error>> {
    let mut errno = [0; ERRNO_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(channel, &mut [IoSliceMut::new(&mut errno)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let passed = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut passed) => passed.next(),
        _ => None,
    });
    match (received.bytes, i32::from_be_bytes(errno), passed) {
        (ERRNO_BYTES, 0, Some(connection)) if is_unix_stream(&connection) => Ok(Ok(connection.into())),
        (ERRNO_BYTES, 1.., None) => Ok(Err(io::Error::from_raw_os_error(i32::from_be_bytes(errno)))),
        (0, ..) => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "neither a connection nor an error")),
    }
}

/// Another process of that user may have put anything in its place: what the agent, perhaps root, writes to a socket of
/// another family could be obeyed.
fn is_unix_stream(connection: &OwnedFd) -> bool {
    socket_domain(connection) == Ok(AddressFamily::UNIX) && socket_type(connection) == Ok(SocketType::STREAM)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::net::{Shutdown, UdpSocket};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::{UnixDatagram, UnixListener};

    use super::*;

    /// What a process is told, and what it answers.
    fn dialled(path: &[u8]) -> io::Result<UnixStream> {
        let (mut agent, process) = UnixStream::pair().unwrap();
        agent.write_all(path).unwrap();
        agent.shutdown(Shutdown::Write).unwrap();
        serve(process).unwrap();
        receive(&agent).unwrap()
    }

    #[test]
    fn the_connection_itself_is_passed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let mut connection = dialled(path.as_os_str().as_bytes()).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        connection.write_all(b"forth").unwrap();
        connection.shutdown(Shutdown::Write).unwrap();
        let mut text = String::new();
        accepted.read_to_string(&mut text).unwrap();
        assert_eq!(text, "forth");
    }

    #[test]
    fn errors_are_those_of_the_system() {
        let directory = tempfile::tempdir().unwrap();
        let (missing, file) = (directory.path().join("missing"), directory.path().join("file"));
        File::create(&file).unwrap();
        for (path, errno) in [
            (missing.as_os_str().as_bytes(), Errno::NOENT),
            (file.as_os_str().as_bytes(), Errno::CONNREFUSED),
            (&[b'a'; 200], Errno::NAMETOOLONG),
        ] {
            assert_eq!(dialled(path).unwrap_err().raw_os_error(), Some(errno.raw_os_error()));
        }
    }

    #[test]
    fn nothing_but_a_connection_is_taken() {
        let other = |errno: i32, passed: &[BorrowedFd<'_>]| {
            let (agent, process) = UnixStream::pair().unwrap();
            answer(process.as_fd(), errno, passed).unwrap();
            receive(&agent).unwrap_err().kind()
        };
        let datagram = UnixDatagram::unbound().unwrap();
        let (file, internet) = (File::open("/dev/null").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        for passed in [datagram.as_fd(), file.as_fd(), internet.as_fd()] {
            assert_eq!(other(0, &[passed]), io::ErrorKind::InvalidData);
        }
        assert_eq!(other(0, &[]), io::ErrorKind::InvalidData);
        assert_eq!(other(-1, &[]), io::ErrorKind::InvalidData);
        let (agent, process) = UnixStream::pair().unwrap();
        agent.set_nonblocking(true).unwrap();
        assert_eq!(receive(&agent).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(process);
        assert_eq!(receive(&agent).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
