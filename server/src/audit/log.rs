//! The file that is written: one line after the other, each whole or not there.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use tracing::warn;

use super::chain::{self, Link, MAX_LINE};
use super::config::AuditConfig;
use super::{files, tail};

/// A log that is written. Nobody else writes to it.
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
    /// Bytes of a line that could not be written whole, at the end of the file.
    torn: u64,
    /// That was said already.
    cannot_rotate: bool,
    _lock: File,
}

/// What could not be gone on with.
#[derive(Debug)]
pub(super) struct UnusableTail {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

impl Log {
    /// Goes on with the log at `path`, or begins it.
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

    /// Adds a record, whose text is made for its number and the hash of the line before. Returns its number.
    ///
    /// # Errors
    /// It could not be written, and nothing of it is there.
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

    /// Waits until all records are on the disk, if that is wanted.
    ///
    /// # Errors
    /// They may not be.
    pub(super) fn sync(&self) -> io::Result<()> {
        if self.sync { self.file.sync_data() } else { Ok(()) }
    }

    /// Goes on in a new file if the one that is written was moved away.
    ///
    /// # Errors
    /// There is no new one: the old one is written.
    pub(super) fn reopen(&mut self) -> io::Result<bool> {
        let own = self.file.metadata()?;
        if std::fs::symlink_metadata(&self.path).is_ok_and(|now| (now.dev(), now.ino()) == (own.dev(), own.ino())) {
            return Ok(false);
        }
        let file = files::open(&self.path)?;
        if file.metadata()?.len() > 0 {
            return Err(io::Error::other("there is another file, which is not empty"));
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
        // tried again before the next line
        let _ = self.mend();
        Err(failed)
    }

    /// Cuts off a piece of a line. By what the file has now: someone may have cut it too.
    fn mend(&mut self) -> io::Result<()> {
        if self.torn > 0 {
            let length = self.file.metadata()?.len();
            self.file.set_len(length.saturating_sub(self.torn))?;
            self.torn = 0;
        }
        Ok(())
    }

    /// Begins a new file if this one is full. If that cannot be, this one grows: records matter more.
    fn make_room(&mut self, bytes: u64) {
        if self.max_bytes == 0 || self.length == 0 || self.length.saturating_add(bytes) <= self.max_bytes {
            return;
        }
        match self.rotate() {
            Ok(()) => {
                self.cannot_rotate = false;
                if let Err(error) = self.forget_oldest() {
                    warn!(%error, "audit files that are too old are not removed");
                }
            }
            Err(_) if self.cannot_rotate => {}
            Err(error) => {
                warn!(%error, "the audit log is not rotated, and grows");
                self.cannot_rotate = true;
            }
        }
    }

    fn rotate(&mut self) -> io::Result<()> {
        let name = files::rotated_name(&self.path, self.first);
        self.sync()?;
        let (new, file) = files::new(&self.path)?;
        // two names for a moment, so that whoever reads the log misses nothing of it
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
