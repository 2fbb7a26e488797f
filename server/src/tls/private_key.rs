//! The agent's private key, and the check that no one else can read it.

use std::fs::{File, Metadata};
use std::io::{self, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::{self, PemObject};

use crate::tls::TlsError;

/// Reads a key (PEM). Only its owner may have access to it, or its group as well if it is root's.
pub(crate) fn read(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let unreadable = |error| TlsError::unreadable("private key", path, error);
    let io = |error: io::Error| unreadable(pem::Error::Io(error));
    // nobody may be writing to a FIFO
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(io(io::Error::other("it is not a file")));
    }
    let file = File::open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    let mode = metadata.mode() & 0o777;
    if mode & !allowed(&metadata) != 0 {
        return Err(TlsError::Exposed { path: path.to_owned(), mode });
    }
    PrivateKeyDer::from_pem_reader(BufReader::new(file)).map_err(unreadable)
}

/// A key of root may be readable by its group: that is how services and containers are given secrets.
fn allowed(metadata: &Metadata) -> u32 {
    match metadata.uid() {
        0 => 0o740,
        _ => 0o700,
    }
}
