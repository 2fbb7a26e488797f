//! Output that is kept on disk, so that those who come later can read it.
//!
//! Of each execution there are two files: the bytes of both streams in the order they were read, so that a byte's place
//! in the file is its position; and an index, which says where the stream changes. Both only grow, so what has been
//! written is whole whenever the agent ends; where they were removed, new ones begin.

mod file;
mod index;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::statvfs;

pub(crate) use self::file::{Location, SpoolFile, Stopped, Stored};
use self::index::ENTRY_BYTES;
use crate::SpoolLimits;
use crate::state::directory::EngineDirectory;

/// A file system with less is full.
const MIN_FREE: u64 = 256 * 1024;

/// How much output of one engine's executions is on disk, and where.
pub(crate) struct Spool {
    limits: SpoolLimits,
    used: Arc<AtomicU64>,
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

    /// Why nothing new may go to the background until there is room, if that is so.
    ///
    /// # Errors
    /// The spool cannot be used now.
    pub(crate) async fn is_full(self: &Arc<Self>) -> io::Result<Option<&'static str>> {
        // less than the smallest piece of output
        if self.limits.total.saturating_sub(self.used.load(Ordering::Relaxed)) <= ENTRY_BYTES as u64 {
            return Ok(Some("the spool is full: running commands hold all of it"));
        }
        let spool = Arc::clone(self);
        let free = self.directory.disk().run("", move || spool.free()).await??;
        Ok((free < MIN_FREE).then_some("the disk that output is kept on is full"))
    }

    /// How many bytes of the file system may be used. Blocks.
    fn free(&self) -> io::Result<u64> {
        self.directory.recreate()?;
        let disk = statvfs(self.directory.path())?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    /// Reserves this many bytes, or as many as there are.
    fn reserve(&self, bytes: u64) -> u64 {
        let most = |used: u64| used.saturating_add(bytes).min(self.limits.total.max(used));
        let before = self.used.update(Ordering::Relaxed, Ordering::Relaxed, most);
        most(before) - before
    }

    fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}
