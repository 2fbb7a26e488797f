//! One connection to a syslog server, by TCP or TLS. Blocks, with time limits.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use rustls::ClientConnection;

use super::super::{DestinationConfig, Protocol};

/// For the connection to each address, and the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// After it the server counts as gone: it takes nothing.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// For the server to read to the end, and to close the connection in turn.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two looks at whether it is gone.
const SETTLE_DELAY: Duration = Duration::from_millis(10);
/// Of what comes after the end of TLS.
const MAX_LAST_READS: usize = 16;
/// A syslog server sends nothing; TLS sends a little.
const MAX_RECEIVED: usize = 64 * 1024;

/// A connection. Dropping it closes it, and what was sent last may be lost.
pub(super) struct Connection {
    stream: TcpStream,
    tls: Option<ClientConnection>,
    /// In bytes.
    received: usize,
}

impl Connection {
    /// Connects, and checks the server's certificate.
    ///
    /// # Errors
    /// No address can be reached, or the server is another one.
    pub(super) fn open(config: &DestinationConfig) -> io::Result<Self> {
        let server = config.server(Protocol::Syslog).map_err(io::Error::other)?;
        let stream = connect(server.address, server.tls.is_some())?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(SEND_TIMEOUT))?;
        stream.set_read_timeout(Some(CONNECT_TIMEOUT))?;
        sockopt::set_tcp_user_timeout(&stream, u32::try_from(SEND_TIMEOUT.as_millis()).unwrap_or(u32::MAX))?;
        let mut connection = Self { stream, tls: None, received: 0 };
        if let Some((ca, name)) = server.tls {
            let tls = config.tls(ca).map_err(io::Error::other)?;
            connection.handshake(ClientConnection::new(tls, name).map_err(io::Error::other)?)?;
        }
        Ok(connection)
    }

    fn handshake(&mut self, mut tls: ClientConnection) -> io::Result<()> {
        let until = Instant::now() + CONNECT_TIMEOUT;
        while tls.is_handshaking() {
            if Instant::now() > until {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake takes too long"));
            }
            retry_on_eintr(|| tls.complete_io(&mut self.stream))?;
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
                retry_on_eintr(|| tls.write_tls(&mut self.stream))?;
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

    /// Reads, and drops, until the end.
    fn receive(&mut self) -> io::Result<()> {
        let mut dropped = [0; 4096];
        loop {
            let read = match &mut self.tls {
                None => retry_on_eintr(|| self.stream.read(&mut dropped))?,
                Some(tls) => {
                    let read = retry_on_eintr(|| tls.read_tls(&mut self.stream))?;
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
            self.received += read;
            if self.received > MAX_RECEIVED {
                return Err(io::Error::other("the server sends data: it is not a syslog server"));
            }
        }
    }

    /// Closes it, after all was sent. Returns once the server has closed it too, and has refused none of it.
    ///
    /// # Errors
    /// It may have not.
    pub(super) fn close(mut self) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            while tls.wants_write() {
                retry_on_eintr(|| tls.write_tls(&mut self.stream))?;
            }
        }
        self.stream.shutdown(Shutdown::Write)?;
        self.stream.set_read_timeout(Some(CLOSE_TIMEOUT))?;
        let closed = self.receive().map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => io::Error::new(
                io::ErrorKind::TimedOut,
                "the server does not read to the end, or does not close the connection",
            ),
            _ => error,
        });
        closed?;
        // what comes after the end of TLS, until that of the connection
        for _ in 0..MAX_LAST_READS {
            if retry_on_eintr(|| self.stream.read(&mut [0; 4096]))? == 0 {
                break;
            }
        }
        self.wait_for_acknowledgement()
    }

    /// Waits until the server has acknowledged this side's end too: it may have closed the connection before that arrived. If something
    /// was sent that it had not read then, it answers with a reset.
    fn wait_for_acknowledgement(&self) -> io::Result<()> {
        let until = Instant::now() + CLOSE_TIMEOUT;
        // a connection that is gone has no peer, see getpeername(2)
        while self.stream.peer_addr().is_ok() {
            if Instant::now() > until {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the server does not acknowledge the end"));
            }
            std::thread::sleep(SETTLE_DELAY);
        }
        self.stream.take_error()?.map_or(Ok(()), Err)
    }
}

/// Calls it again after a signal.
fn retry_on_eintr<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Without TLS only to this machine.
fn connect(address: &str, is_tls: bool) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address, or none on this machine");
    for address in address.to_socket_addrs()?.filter(|address| is_tls || address.ip().is_loopback()) {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}
