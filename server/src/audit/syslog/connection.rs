//! One connection to a syslog server, by TCP or TLS. Blocks, with time limits.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use rustls::ClientConnection;

use super::SyslogConfig;

/// For the connection to each address, and the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// After it the other machine counts as gone: it acknowledges nothing, or takes nothing.
pub(super) const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// For a server to read to the end, and to close the connection in turn.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// A connection. Dropping it closes it, and what was sent last may be lost.
pub(super) struct Connection {
    stream: TcpStream,
    tls: Option<ClientConnection>,
}

impl Connection {
    /// Connects, and checks the server's certificate.
    ///
    /// # Errors
    /// No address can be reached, or the server is another one.
    pub(super) fn open(config: &SyslogConfig) -> io::Result<Self> {
        let server = config.server().map_err(io::Error::other)?;
        let stream = connect(server.address)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(SEND_TIMEOUT))?;
        stream.set_read_timeout(Some(CONNECT_TIMEOUT))?;
        sockopt::set_tcp_user_timeout(&stream, u32::try_from(SEND_TIMEOUT.as_millis()).unwrap_or(u32::MAX))?;
        sockopt::set_socket_keepalive(&stream, true)?;
        let mut connection = Self { stream, tls: None };
        if server.is_tls {
            let (tls, name) = config.tls().map_err(|(key, fault)| io::Error::other(format!("{key}: {fault}")))?;
            let tls = ClientConnection::new(tls, name).map_err(io::Error::other)?;
            connection.handshake(tls)?;
        }
        Ok(connection)
    }

    fn handshake(&mut self, mut tls: ClientConnection) -> io::Result<()> {
        let until = Instant::now() + CONNECT_TIMEOUT;
        while tls.is_handshaking() {
            if Instant::now() > until {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake takes too long"));
            }
            tls.complete_io(&mut self.stream)?;
        }
        self.tls = Some(tls);
        Ok(())
    }

    /// Sends all of this.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return self.stream.write_all(bytes) };
        let mut left = bytes;
        while !left.is_empty() {
            let taken = tls.writer().write(left)?;
            left = left.get(taken..).unwrap_or_default();
            while tls.wants_write() {
                tls.write_tls(&mut self.stream)?;
            }
        }
        Ok(())
    }

    /// # Errors
    /// The server has closed the connection, or refused it.
    pub(super) fn check(&mut self) -> io::Result<()> {
        self.stream.set_nonblocking(true)?;
        let read = self.receive();
        self.stream.set_nonblocking(false)?;
        match read {
            Ok(()) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the server has closed the connection")),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Reads, and drops, until the end: servers of syslog say nothing.
    fn receive(&mut self) -> io::Result<()> {
        let mut dropped = [0; 4096];
        loop {
            let read = match &mut self.tls {
                None => self.stream.read(&mut dropped)?,
                Some(tls) => {
                    let read = tls.read_tls(&mut self.stream)?;
                    let state = tls.process_new_packets().map_err(io::Error::other)?;
                    if state.peer_has_closed() {
                        return Ok(());
                    }
                    while matches!(tls.reader().read(&mut dropped), Ok(1..)) {}
                    read
                }
            };
            if read == 0 {
                return Ok(());
            }
        }
    }

    /// Closes it, after all was sent. Returns once the server has closed it too: it has read everything then.
    ///
    /// # Errors
    /// It may have not.
    pub(super) fn close(mut self) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            while tls.wants_write() {
                tls.write_tls(&mut self.stream)?;
            }
        }
        self.stream.shutdown(Shutdown::Write)?;
        self.stream.set_read_timeout(Some(CLOSE_TIMEOUT))?;
        self.receive()
    }
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}
