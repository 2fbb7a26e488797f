//! The file with the last record that was delivered, for the next agent.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use tracing::{info, warn};

use super::Protocol;
use crate::audit::follower::{Follower, Line};

/// Of the file, and more than is ever in it.
const MAX_BYTES: u64 = 256;

/// Of a record that is not known.
const NO_HASH: &str = "-";

/// A record that was delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Delivered {
    pub(super) seq: u64,
    /// Its hash, which tells it from that of another log with the same number.
    hash: String,
}

impl From<&Line> for Delivered {
    fn from(line: &Line) -> Self {
        Self { seq: line.seq, hash: line.hash.clone() }
    }
}

impl Delivered {
    /// The one before the first that is in the files.
    pub(super) fn before_first_of(log: &Path) -> Self {
        let first = Follower::new(log.to_owned(), None).read().ok().and_then(|batch| Some(batch.lines.first()?.seq));
        Self { seq: first.map_or(0, |first| first.saturating_sub(1)), hash: NO_HASH.to_owned() }
    }
}

/// The file.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    /// For the log.
    protocol: Protocol,
}

impl StateFile {
    pub(super) fn new(path: PathBuf, protocol: Protocol) -> Self {
        Self { path, protocol }
    }

    /// The last record that was delivered of this log, whose last one has the number `last`; `None`: none is known.
    pub(super) fn read(&self, log: &Path, last: u64) -> Option<Delivered> {
        let to = self.protocol;
        let read = match self.load() {
            Ok(read) => read?,
            Err(error) => {
                warn!(%error, "cannot read how much of the audit log was sent to {to}: sending all that there is");
                return None;
            }
        };
        // one that was rotated out since cannot be compared
        let there = Follower::new(log.to_owned(), Some(read.seq)).read();
        let is_same = |line: &Line| line.seq != read.seq || line.hash == read.hash;
        let is_of_log = match &there {
            Ok(batch) => read.seq <= last && batch.lines.first().is_none_or(is_same),
            Err(error) => {
                warn!(%error, "cannot read the audit log to compare it with what was sent to {to}");
                true
            }
        };
        if !is_of_log {
            info!("the audit log is another one than that which was sent to {to}: sending all that there is");
        }
        is_of_log.then_some(read)
    }

    fn load(&self) -> io::Result<Option<Delivered>> {
        let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).map_err(io::Error::other)?;
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut text = String::new();
        file.take(MAX_BYTES).read_to_string(&mut text)?;
        let delivered = text.split_once(' ').and_then(|(seq, hash)| {
            Some(Delivered { seq: seq.parse().ok().filter(|seq| *seq < u64::MAX)?, hash: hash.trim_end().to_owned() })
        });
        delivered.map(Some).ok_or_else(|| io::Error::other(format!("{} is damaged", self.path.display())))
    }

    /// Replaces it.
    ///
    /// # Errors
    /// It is as it was.
    pub(super) fn write(&self, delivered: &Delivered) -> io::Result<()> {
        let mut new = self.path.clone().into_os_string();
        new.push(".new");
        // not what someone else may have put there
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        writeln!(file, "{} {}", delivered.seq, delivered.hash)?;
        file.sync_data()?;
        std::fs::rename(new, &self.path)
    }
}
