//! Output that is kept until it can be shown: a little of each host in memory, more in a file, and only so much.

use std::io::{self, Read, Seek, SeekFrom, Write};

use aws_lc_rs::digest::{Context, SHA256};
use tempfile::SpooledTempFile;

/// Of each host in memory.
const IN_MEMORY_BYTES: usize = 16 * 1024;

/// What tells whether two are the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Fingerprint {
    bytes: u64,
    digest: Vec<u8>,
}

/// What one host wrote.
pub(crate) struct Kept {
    file: SpooledTempFile,
    digest: Context,
    /// How much was written, and how much of that is there.
    written: u64,
    kept: u64,
    most: u64,
}

impl Kept {
    /// Keeps no more than so many bytes.
    pub(crate) fn new(most: u64) -> Self {
        let file = tempfile::spooled_tempfile(IN_MEMORY_BYTES);
        Self { file, digest: Context::new(&SHA256), written: 0, kept: 0, most }
    }

    pub(crate) fn write(&mut self, data: &[u8]) -> io::Result<()> {
        self.written += data.len() as u64;
        self.digest.update(data);
        let room = usize::try_from(self.most - self.kept).unwrap_or(usize::MAX);
        let data = data.get(..room.min(data.len())).unwrap_or_default();
        self.kept += data.len() as u64;
        self.file.write_all(data)
    }

    /// Something was written.
    pub(crate) fn any(&self) -> bool {
        self.written > 0
    }

    /// How much was not kept.
    pub(crate) fn dropped(&self) -> u64 {
        self.written - self.kept
    }

    pub(crate) fn fingerprint(&self) -> Fingerprint {
        Fingerprint { bytes: self.written, digest: self.digest.clone().finish().as_ref().to_vec() }
    }

    /// Reads it from its beginning.
    pub(crate) fn reader(&mut self) -> io::Result<impl Read + '_> {
        self.file.seek(SeekFrom::Start(0))?;
        Ok(&mut self.file)
    }
}
