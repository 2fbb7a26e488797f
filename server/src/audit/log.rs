//! Appends lines to the log file, each whole or not at all, and rotates it.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use tracing::warn;

use super::chain::{self, Link, MAX_LINE};
use super::config::AuditConfig;
use super::{files, tail};

/// A log open for writing, by this agent alone.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    max_bytes: u64,
    keep: usize,
    sync: bool,
    file: File,
    length: u64,
    /// The number of the first line of the file.
    first: u64,
    last: Link,
    /// Bytes of an incomplete line at the end of the file.
    torn: u64,
    /// A failure to rotate has been logged.
    cannot_rotate: bool,
    _lock: File,
}

/// The end of a file that was moved aside.
#[derive(Debug)]
pub(super) struct UnusableTail {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

impl Log {
    /// Opens the log at `path` for appending, or creates it.
    ///
    /// # Errors
    /// It cannot be used.
    pub(super) fn open(path: PathBuf, config: &AuditConfig) -> io::Result<(Self, Option<UnusableTail>)> {
        let lock = files::lock(&path)?;
        let tail = tail::open(&path)?;
        if config.sync {
            files::sync_directory(&path)?;
        }
        let log = Self {
            path,
            max_bytes: config.max_bytes,
            keep: config.keep,
            sync: config.sync,
            file: tail.file,
            length: tail.length,
            first: tail.first,
            last: tail.last,
            torn: 0,
            cannot_rotate: false,
            _lock: lock,
        };
        Ok((log, tail.aside.map(|(path, bytes)| UnusableTail { path, bytes })))
    }

    /// Appends a record; `text` makes it from its number and the hash of the line before. Returns its number.
    ///
    /// # Errors
    /// It could not be written; no part of it remains.
    pub(super) fn append(&mut self, text: impl FnOnce(u64, &str) -> io::Result<Vec<u8>>) -> io::Result<u64> {
        self.mend()?;
        let seq = self.last.seq.saturating_add(1);
        let mut line = text(seq, &self.last.hash)?;
        let hash = chain::seal(&mut line);
        if line.len() > MAX_LINE {
            return Err(io::Error::other("the record is too long"));
        }
        self.make_room(line.len() as u64);
        self.write(&line)?;
        self.length += line.len() as u64;
        self.last = Link { seq, hash };
        Ok(seq)
    }

    /// The last record.
    pub(super) fn last(&self) -> &Link {
        &self.last
    }

    /// Waits until all records are on disk, if so configured.
    ///
    /// # Errors
    /// They may not be on disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        if self.sync { self.file.sync_data() } else { Ok(()) }
    }

    /// Continues in a new file if the current one was moved away.
    ///
    /// # Errors
    /// No new file could be made: the old one is still used.
    pub(super) fn reopen(&mut self) -> io::Result<bool> {
        let own = self.file.metadata()?;
        if std::fs::symlink_metadata(&self.path).is_ok_and(|now| (now.dev(), now.ino()) == (own.dev(), own.ino())) {
            return Ok(false);
        }
        let file = files::open(&self.path)?;
        if file.metadata()?.len() > 0 {
            return Err(io::Error::other("another file is there, and is not empty"));
        }
        self.begin(file);
        Ok(true)
    }

    fn begin(&mut self, file: File) {
        (self.file, self.length, self.torn) = (file, 0, 0);
        self.first = self.last.seq.saturating_add(1);
    }

    fn write(&mut self, mut line: &[u8]) -> io::Result<()> {
        let whole = line.len();
        let failed = loop {
            match self.file.write(line) {
                Ok(0) => break io::ErrorKind::WriteZero.into(),
                Ok(written) => line = line.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break error,
            }
            if line.is_empty() {
                return Ok(());
            }
        };
        self.torn = (whole - line.len()) as u64;
        // repeated before the next line if it fails
        let _ = self.mend();
        Err(failed)
    }

    /// Truncates an incomplete line, relative to the current length: someone else may have truncated the file too.
    fn mend(&mut self) -> io::Result<()> {
        if self.torn > 0 {
            let length = self.file.metadata()?.len();
            self.file.set_len(length.saturating_sub(self.torn))?;
            self.torn = 0;
        }
        Ok(())
    }

    /// Rotates the file if it is full. If that fails the file grows: records matter more than its size.
    fn make_room(&mut self, bytes: u64) {
        if self.max_bytes == 0 || self.length == 0 || self.length.saturating_add(bytes) <= self.max_bytes {
            return;
        }
        match self.rotate() {
            Ok(()) => {
                self.cannot_rotate = false;
                if let Err(error) = self.forget_oldest() {
                    warn!(%error, "cannot remove old audit files");
                }
            }
            Err(_) if self.cannot_rotate => {}
            Err(error) => {
                warn!(%error, "cannot rotate the audit log, which keeps growing");
                self.cannot_rotate = true;
            }
        }
    }

    fn rotate(&mut self) -> io::Result<()> {
        let name = files::rotated_name(&self.path, self.first);
        self.sync()?;
        let (new, file) = files::new(&self.path)?;
        // both names exist for a moment, so that readers of the log miss nothing
        files::also_name(&self.path, &name)?;
        std::fs::rename(new, &self.path)?;
        self.begin(file);
        if self.sync { files::sync_directory(&self.path) } else { Ok(()) }
    }

    fn forget_oldest(&self) -> io::Result<()> {
        if self.keep == 0 {
            return Ok(());
        }
        let rotated = files::rotated(&self.path)?;
        let surplus = rotated.len().saturating_sub(self.keep);
        rotated.into_iter().take(surplus).try_for_each(|(_, path)| std::fs::remove_file(path))
    }
}
