//! A part of one agent's log in which no record is missing: a file, and those that were rotated before it.

use std::fs::DirBuilder;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::received::Received;
use crate::audit::chain::Link;
use crate::audit::follower::Follower;
use crate::audit::{files, tail};

/// Of the current file.
pub(super) const NAME: &str = "audit.log";
/// A file is rotated before it would grow larger.
const MAX_BYTES: u64 = 64 * 1024 * 1024;
/// A file is rotated when it is older, so that old records can be removed.
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// A segment, for the agent's log alone that sends it.
#[derive(Debug)]
pub(super) struct Segment {
    path: PathBuf,
    /// Of the current file, in bytes.
    length: u64,
    /// The number of its first record, or of the next one if it is empty.
    first: u64,
    /// When it was made.
    created: SystemTime,
    last: Link,
}

impl Segment {
    /// Opens the one in this directory, or makes it.
    ///
    /// # Errors
    /// It cannot be used.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let path = directory.join(NAME);
        let tail = tail::open(&path)?;
        files::sync_directory(&path)?;
        let created = tail.file.metadata()?.created().unwrap_or_else(|_| SystemTime::now());
        Ok(Self { path, length: tail.length, first: tail.first, created, last: tail.last })
    }

    /// The last record.
    pub(super) fn last(&self) -> &Link {
        &self.last
    }

    /// Whether it has this record.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(super) fn has(&self, record: &Link) -> io::Result<bool> {
        let mut follower = Follower::new(self.path.clone(), Some(record.seq));
        follower.set_limit(1);
        let found = follower.read()?;
        Ok(found.lines.first().is_some_and(|line| line.seq == record.seq && line.hash == record.hash))
    }

    /// Appends records, each of which follows the one before it, and waits until they are on disk.
    ///
    /// # Errors
    /// They may not be: open it again.
    pub(super) fn append(&mut self, records: &[Received]) -> io::Result<()> {
        let Some(last) = records.last() else { return Ok(()) };
        let mut text = Vec::with_capacity(length_of(records));
        for record in records {
            text.extend_from_slice(&record.text);
            text.push(b'\n');
        }
        self.make_room(text.len() as u64)?;
        let mut file = files::open(&self.path)?;
        if file.metadata()?.len() != self.length {
            return Err(io::Error::other("something else writes to it"));
        }
        if let Err(error) = file.write_all(&text).and_then(|()| file.sync_data()) {
            // of an incomplete line nothing is to be left
            let _ = file.set_len(self.length);
            return Err(error);
        }
        self.length += text.len() as u64;
        self.last = last.link();
        Ok(())
    }

    /// Rotates the current file if it is full, or old.
    fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        let is_full = self.length.saturating_add(bytes) > MAX_BYTES;
        let is_old = self.created.elapsed().is_ok_and(|age| age > MAX_AGE);
        if self.length == 0 || !(is_full || is_old) {
            return Ok(());
        }
        std::fs::rename(&self.path, files::rotated_name(&self.path, self.first))?;
        files::sync_directory(&self.path)?;
        (self.length, self.first, self.created) = (0, self.last.seq.saturating_add(1), SystemTime::now());
        Ok(())
    }
}

/// Of the lines of these records, in bytes.
pub(super) fn length_of(records: &[Received]) -> usize {
    records.iter().map(|record| record.text.len() + 1).sum()
}
