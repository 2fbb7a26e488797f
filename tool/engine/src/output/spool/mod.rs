//! Output that is kept on disk, so that those who come later can read it.
//!
//! Of each execution there are two files: the bytes of both streams in the order they were read, so that a byte's place
//! in the file is its position; and an index, which says where the stream changes. Both only grow, so what has been
//! written is whole whenever the agent ends; where they were removed, new ones begin.

mod file;
mod index;
#[cfg(test)]
mod tests;
mod used;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::fs::statvfs;

pub(crate) use self::file::{Location, SpoolFile, Stopped, Stored};
use self::index::ENTRY_BYTES;
pub(crate) use self::used::Full;
use self::used::Used;
use crate::SpoolLimits;
use crate::state::directory::EngineDirectory;

/// A file system with less is full.
const MIN_FREE: u64 = 256 * 1024;

/// How much output of one engine's executions is on disk, and where.
pub(crate) struct Spool {
    limits: SpoolLimits,
    used: Arc<Used>,
    next: AtomicU64,
    directory: Arc<EngineDirectory>,
}

impl Spool {
    /// An empty one.
    pub(crate) fn new(directory: Arc<EngineDirectory>, limits: SpoolLimits) -> Arc<Self> {
        Arc::new(Self { limits, used: Arc::default(), next: AtomicU64::new(0), directory })
    }

    /// Where its files are.
    pub(crate) fn directory(&self) -> &Arc<EngineDirectory> {
        &self.directory
    }

    /// Why nothing new of this owner may go to the background until there is room, if that is so.
    ///
    /// # Errors
    /// The spool cannot be used now.
    pub(crate) async fn full(self: &Arc<Self>, owner: &str) -> io::Result<Option<Full>> {
        // less than the smallest piece of output
        if let Some(full) = self.used.full(owner, ENTRY_BYTES as u64 + 1, &self.limits) {
            return Ok(Some(full));
        }
        let spool = Arc::clone(self);
        let free = self.directory.disk().run("", move || spool.free()).await??;
        Ok((free < MIN_FREE).then(|| self.used.no_room(owner, "the disk that output is kept on is full")))
    }

    /// How many bytes of the file system may be used. Blocks.
    fn free(&self) -> io::Result<u64> {
        self.directory.recreate()?;
        let disk = statvfs(self.directory.path())?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }
}
