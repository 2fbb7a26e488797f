//! A part of an agent's log in which each record follows the one before it: a file, and those that were rotated before it.

use std::fs::DirBuilder;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tracing::warn;

use super::error::StoreError;
use super::received::Received;
use super::search::has_line;
use crate::audit::chain::Link;
use crate::audit::{files, tail};

/// The name of the current file.
const NAME: &str = "audit.log";
/// A file is rotated before it would grow larger.
const MAX_BYTES: u64 = 64 * 1024 * 1024;
/// A file is rotated when it is older, so that old records can be removed.
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// A segment that is written.
#[derive(Debug)]
pub(super) struct Segment {
    path: PathBuf,
    /// The size of the current file, in bytes.
    length: u64,
    /// The number of the first record in the current file, if there is one.
    first: u64,
    /// When the current file was made.
    created: SystemTime,
    /// `None`: it has no record yet.
    last: Option<Link>,
}

/// The current file of the segment in this directory.
pub(super) fn log_in(directory: &Path) -> PathBuf {
    directory.join(NAME)
}

/// Whether the segment in this directory has a record.
///
/// # Errors
/// A file cannot be read.
pub(super) fn has(directory: &Path, record: &Received) -> io::Result<bool> {
    has_line(&log_in(directory), record.seq, &record.text)
}

impl Segment {
    /// Makes one in this directory, which is made too.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn create(directory: &Path) -> Result<Self, StoreError> {
        let made = DirBuilder::new().mode(0o700).create(directory).and_then(|()| files::sync_directory(directory));
        made.map_err(|error| StoreError::file(directory, error))?;
        Self::open(directory)
    }

    /// Opens the one in this directory.
    ///
    /// # Errors
    /// It cannot be used.
    pub(super) fn open(directory: &Path) -> Result<Self, StoreError> {
        let path = log_in(directory);
        let opened = || {
            let tail = tail::open(&path)?;
            // what is there is acknowledged when it is sent again
            tail.file.sync_all()?;
            files::sync_directory(&path)?;
            let created = tail.file.metadata()?.created().unwrap_or_else(|_| SystemTime::now());
            Ok((tail, created))
        };
        let (tail, created) = opened().map_err(|error| StoreError::file(&path, error))?;
        if let Some((file, bytes)) = &tail.aside {
            warn!(file = %file.display(), bytes, "the unusable end of a collected audit log was moved to this file");
        }
        let last = Some(tail.last).filter(|last| last.seq > 0);
        Ok(Self { path, length: tail.length, first: tail.first, created, last })
    }

    /// Whether it is the one in this directory.
    pub(super) fn is_in(&self, directory: &Path) -> bool {
        self.path == log_in(directory)
    }

    /// The last record; `None`: there is none yet.
    pub(super) fn last(&self) -> Option<&Link> {
        self.last.as_ref()
    }

    /// # Errors
    /// Something else has changed it since it was last written: open it again.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let changed = || io::Error::other("the file was changed by something else since it was last written");
        let checked = self.path.symlink_metadata().and_then(|metadata| match metadata.len() == self.length {
            true => Ok(()),
            false => Err(changed()),
        });
        checked.map_err(|error| StoreError::file(&self.path, error))
    }

    /// Removes it, if there is nothing in it.
    pub(super) fn remove_empty(self, directory: &Path) {
        if self.length == 0 {
            let _ = std::fs::remove_file(&self.path);
        }
        let _ = std::fs::remove_dir(directory);
    }

    /// Appends records, each of which follows the one before it, and waits until they are on disk. Returns whether the file before was
    /// rotated.
    ///
    /// # Errors
    /// Some or all may not be on disk: open it again.
    pub(super) fn append(&mut self, records: &[Received]) -> Result<bool, StoreError> {
        let (bytes, mut text) = (length_of(records), Vec::new());
        text.reserve_exact(bytes);
        for record in records {
            text.extend_from_slice(&record.text);
            text.push(b'\n');
        }
        let is_rotated = self.write(&text).map_err(|error| StoreError::file(&self.path, error))?;
        if let Some(first) = records.first().filter(|_| self.length == text.len() as u64) {
            self.first = first.seq;
        }
        self.last = records.last().map(Received::link).or(self.last.take());
        Ok(is_rotated)
    }

    fn write(&mut self, text: &[u8]) -> io::Result<bool> {
        let is_rotated = self.is_full(text.len() as u64);
        if is_rotated {
            std::fs::rename(&self.path, files::rotated_name(&self.path, self.first))?;
            (self.length, self.created) = (0, SystemTime::now());
        }
        let mut file = files::open(&self.path)?;
        if is_rotated {
            files::sync_directory(&self.path)?;
        }
        if let Err(error) = file.write_all(text).and_then(|()| file.sync_data()) {
            // leave no incomplete line behind
            let _ = file.set_len(self.length);
            return Err(error);
        }
        self.length += text.len() as u64;
        Ok(is_rotated)
    }

    /// Whether the current file is to be rotated before so many bytes are added.
    fn is_full(&self, bytes: u64) -> bool {
        let is_old = self.created.elapsed().is_ok_and(|age| age > MAX_AGE);
        self.length > 0 && (is_old || self.length.saturating_add(bytes) > MAX_BYTES)
    }
}

/// Of the lines of these records, in bytes.
pub(super) fn length_of(records: &[Received]) -> usize {
    records.iter().map(|record| record.text.len() + 1).sum()
}
