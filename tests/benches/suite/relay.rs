//! The least that carries bytes from one process to another: read, write, and nothing else.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use aws_lc_rs::digest::{Context, SHA256};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use telexec_tests::Certs;

use crate::Result;

/// As the agent reads.
const CHUNK_BYTES: usize = 64 * 1024;

/// How many there are.
pub(crate) fn read_all(mut from: impl Read) -> Result<u64> {
    let (mut buffer, mut bytes) = (vec![0; CHUNK_BYTES], 0);
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(bytes),
            read => bytes += read as u64,
        }
    }
}

/// How many there were.
pub(crate) fn relay(mut from: impl Read, mut to: impl Write) -> std::io::Result<u64> {
    let (mut buffer, mut bytes) = (vec![0; CHUNK_BYTES], 0);
    loop {
        match from.read(&mut buffer)? {
            0 => return to.flush().map(|()| bytes),
            read => {
                to.write_all(buffer.get(..read).unwrap_or_default())?;
                bytes += read as u64;
            }
        }
    }
}

/// A file whose content is digested as it is read or written.
pub(crate) struct Digested {
    file: File,
    digest: Context,
}

impl Digested {
    pub(crate) fn new(file: File) -> Self {
        Self { file, digest: Context::new(&SHA256) }
    }
}

impl Read for Digested {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.digest.update(buffer.get(..read).unwrap_or_default());
        Ok(read)
    }
}

impl Write for Digested {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(data)?;
        self.digest.update(data.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

/// Both ends of a connection.
pub(crate) fn connected() -> Result<[TcpStream; 2]> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let here = TcpStream::connect(listener.local_addr()?)?;
    let (there, _) = listener.accept()?;
    there.set_nodelay(true)?;
    Ok([here, there])
}

/// Sends `from` through TLS, to where `take` reads it.
pub(crate) fn over_tls(
    certs: &Certs,
    from: impl Read + Send,
    take: impl FnOnce(rustls::StreamOwned<rustls::ClientConnection, TcpStream>) -> Result<u64>,
) -> Result<u64> {
    let chain = CertificateDer::pem_file_iter(&certs.agent.cert)?.collect::<std::result::Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(&certs.agent.key)?;
    let server = rustls::ServerConfig::builder_with_provider(certs.config(None).crypto_provider().clone())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    let client = rustls::ClientConnection::new(certs.config(None), ServerName::try_from("localhost")?)?;
    let server = rustls::ServerConnection::new(Arc::new(server))?;
    let [here, there] = connected()?;
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut stream = rustls::StreamOwned::new(server, there);
            relay(from, &mut stream)?;
            stream.conn.send_close_notify();
            stream.flush()
        });
        take(rustls::StreamOwned::new(client, here))
    })
}
