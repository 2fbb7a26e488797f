//! The agent's private key, which nobody else may use.

use std::fs::{File, Metadata};
use std::io::{self, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::{self, PemObject};

use crate::tls::TlsError;

/// Reads a key (PEM) that is for its owner alone, or also for a group if it is root's.
pub(crate) fn read(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let unreadable = |source| TlsError::Read { what: "private key", path: path.to_owned(), source };
    let io = |error: io::Error| unreadable(pem::Error::Io(error));
    let file = File::open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    let mode = metadata.mode() & 0o777;
    if mode & !allowed(&metadata) != 0 {
        return Err(TlsError::Exposed { path: path.to_owned(), mode });
    }
    PrivateKeyDer::from_pem_reader(BufReader::new(file)).map_err(unreadable)
}

/// Root may let a group read it: that is how secrets are handed to services and into containers.
fn allowed(metadata: &Metadata) -> u32 {
    match metadata.uid() {
        0 => 0o740,
        _ => 0o700,
    }
}
