//! Keeps a host's output until it is printed: a little in memory, more in a file, up to a limit.

use std::io::{self, Read, Seek, SeekFrom, Write};

use aws_lc_rs::digest::{Context, SHA256};
use tempfile::SpooledTempFile;

/// Bytes in memory per host.
const IN_MEMORY_BYTES: usize = 16 * 1024;

/// Identifies equal outputs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Fingerprint {
    bytes: u64,
    digest: Vec<u8>,
}

/// The output of one host.
pub(crate) struct HeldOutput {
    file: SpooledTempFile,
    digest: Context,
    /// Bytes written, and bytes kept of them.
    written: u64,
    kept: u64,
    limit: u64,
}

impl HeldOutput {
    /// Keeps at most `limit` bytes.
    pub(crate) fn new(limit: u64) -> Self {
        let file = tempfile::spooled_tempfile(IN_MEMORY_BYTES);
        Self { file, digest: Context::new(&SHA256), written: 0, kept: 0, limit }
    }

    pub(crate) fn write(&mut self, data: &[u8]) -> io::Result<()> {
        self.written += data.len() as u64;
        self.digest.update(data);
        let room = usize::try_from(self.limit - self.kept).unwrap_or(usize::MAX);
        let data = data.get(..room.min(data.len())).unwrap_or_default();
        self.kept += data.len() as u64;
        self.file.write_all(data)
    }

    /// Whether anything was written.
    pub(crate) fn has_output(&self) -> bool {
        self.written > 0
    }

    /// Bytes beyond the limit.
    pub(crate) fn dropped(&self) -> u64 {
        self.written - self.kept
    }

    pub(crate) fn fingerprint(&self) -> Fingerprint {
        Fingerprint { bytes: self.written, digest: self.digest.clone().finish().as_ref().to_vec() }
    }

    /// Reads from the beginning.
    pub(crate) fn reader(&mut self) -> io::Result<impl Read + '_> {
        self.file.seek(SeekFrom::Start(0))?;
        Ok(&mut self.file)
    }
}
