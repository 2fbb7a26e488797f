//! The directory of the recordings, and what they take.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use tracing::{info, warn};

use super::cast::Header;
use super::config::RecordingsConfig;

/// How names end.
pub(super) const SUFFIX: &str = ".cast";
/// Short ones count as much: there are not to be too many.
const MIN_BYTES: u64 = 16 * 1024;
/// Of the header.
const MAX_HEADER_BYTES: u64 = 64 * 1024;
/// Between two looks at what was removed by others.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);

/// The directory of the recordings of an audit log.
pub(in crate::audit) fn of_log(log: &Path) -> PathBuf {
    log.with_file_name("recordings")
}

/// The recordings that are there.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    config: RecordingsConfig,
    entries: HashMap<OsString, Entry>,
    by_identity: HashMap<String, u64>,
    /// Of all together.
    total: Arc<AtomicU64>,
    refreshed: Instant,
}

#[derive(Debug)]
struct Entry {
    identity: String,
    bytes: u64,
    /// It is being written, or resumed by this agent.
    is_open: bool,
}

impl Entry {
    fn taken(&self) -> u64 {
        self.bytes.max(MIN_BYTES)
    }
}

impl Directory {
    /// The directory need not be there.
    pub(super) fn new(path: PathBuf, config: RecordingsConfig, total: Arc<AtomicU64>) -> Self {
        let (entries, by_identity) = (HashMap::new(), HashMap::new());
        let mut this = Self { path, config, entries, by_identity, total, refreshed: Instant::now() };
        this.refresh();
        this
    }

    /// Creates a file, of mode 0600, if there is room for another one.
    ///
    /// # Errors
    /// There is none, or it cannot be created.
    pub(super) fn create(&mut self, name: &str, identity: &str) -> io::Result<File> {
        self.check_room(identity, MIN_BYTES)?;
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path)?;
        let flags = i32::try_from(OFlags::NOFOLLOW.bits()).map_err(io::Error::other)?;
        let path = self.path.join(name);
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).custom_flags(flags).open(path)?;
        self.add(name.into(), Entry { identity: identity.to_owned(), bytes: 0, is_open: true });
        Ok(file)
    }

    /// Opens one that an earlier agent has begun.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(super) fn reopen(&mut self, name: &str) -> io::Result<File> {
        let file = open(&self.path.join(name), OpenOptions::new().read(true).append(true))?;
        if let Some(entry) = self.entries.get_mut(&OsString::from(name)) {
            entry.is_open = true;
        }
        Ok(file)
    }

    /// Whether an identity may add to what there is. What others have removed, and what is too old, does not count.
    ///
    /// # Errors
    /// It may not.
    pub(super) fn check_room(&mut self, identity: &str, bytes: u64) -> io::Result<()> {
        let checked = self.has_room(identity, bytes);
        if checked.is_ok() || self.refreshed.elapsed() < REFRESH_INTERVAL {
            return checked;
        }
        self.refresh();
        self.has_room(identity, bytes)
    }

    fn has_room(&self, identity: &str, bytes: u64) -> io::Result<()> {
        let full = |what| Err(io::Error::new(io::ErrorKind::StorageFull, what));
        let of_identity = self.by_identity.get(identity).copied().unwrap_or_default();
        if of_identity.saturating_add(bytes) > self.config.share() {
            return full("the caller's recordings take all that they may, audit.recordings.max_bytes_per_identity");
        }
        if self.total.load(Ordering::Relaxed).saturating_add(bytes) > self.config.max_total_bytes {
            return full("the recordings take all that they may, audit.recordings.max_total_bytes");
        }
        Ok(())
    }

    /// A file has grown to this size.
    pub(super) fn grown(&mut self, name: &str, bytes: u64) {
        let Some(entry) = self.entries.get_mut(&OsString::from(name)) else { return };
        let before = entry.taken();
        entry.bytes = bytes;
        let more = entry.taken().saturating_sub(before);
        self.total.fetch_add(more, Ordering::Relaxed);
        if let Some(of_identity) = self.by_identity.get_mut(&entry.identity) {
            *of_identity += more;
        }
    }

    /// A file is written no longer.
    pub(super) fn closed(&mut self, name: &str) {
        if let Some(entry) = self.entries.get_mut(&OsString::from(name)) {
            entry.is_open = false;
        }
    }

    /// Removes a file.
    pub(super) fn remove(&mut self, name: &str) {
        if let Err(error) = std::fs::remove_file(self.path.join(name)) {
            warn!(%error, name, "a recording cannot be removed");
            return;
        }
        if let Some(entry) = self.entries.remove(&OsString::from(name)) {
            self.total.fetch_sub(entry.taken(), Ordering::Relaxed);
            if let Some(of_identity) = self.by_identity.get_mut(&entry.identity) {
                *of_identity = of_identity.saturating_sub(entry.taken());
            }
        }
    }

    /// Removes those that are too old, and looks at what is there.
    pub(super) fn refresh(&mut self) {
        self.refreshed = Instant::now();
        let mut before = std::mem::take(&mut self.entries);
        self.by_identity.clear();
        self.total.store(0, Ordering::Relaxed);
        match self.scan(&mut before) {
            Ok(0) => {}
            Ok(removed) => info!(removed, "removed the recordings that were too old"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => warn!(%error, "the recordings cannot be listed"),
        }
    }

    /// Adds all that are there but those that are too old; returns how many of these were removed.
    fn scan(&mut self, before: &mut HashMap<OsString, Entry>) -> io::Result<u64> {
        let mut removed = 0;
        for file in std::fs::read_dir(&self.path)? {
            let file = file?;
            let (name, metadata) = (file.file_name(), file.metadata()?);
            if !metadata.is_file() || !name.as_encoded_bytes().ends_with(SUFFIX.as_bytes()) {
                continue;
            }
            let known = before.remove(&name);
            let is_open = known.as_ref().is_some_and(|entry| entry.is_open);
            // negative after the clock was set back
            let age = metadata.modified()?.elapsed().unwrap_or_default();
            if !is_open && !self.config.max_age.is_zero() && age > self.config.max_age {
                match std::fs::remove_file(file.path()) {
                    Ok(()) => removed += 1,
                    Err(error) => warn!(%error, ?name, "a recording cannot be removed"),
                }
                continue;
            }
            let identity = known.map_or_else(|| identity(&file.path()), |entry| entry.identity);
            self.add(name, Entry { identity, bytes: metadata.len(), is_open });
        }
        Ok(removed)
    }

    fn add(&mut self, name: OsString, entry: Entry) {
        self.total.fetch_add(entry.taken(), Ordering::Relaxed);
        *self.by_identity.entry(entry.identity.clone()).or_default() += entry.taken();
        self.entries.insert(name, entry);
    }
}

/// Opens a file, and nothing else.
///
/// # Errors
/// It is something else, or cannot be opened.
pub(in crate::audit) fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).map_err(io::Error::other)?;
    let file = options.custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a file")),
    }
}

/// Whose execution a file is the recording of; empty if that is not known.
fn identity(path: &Path) -> String {
    let header = || -> io::Result<Header> {
        let mut line = Vec::new();
        let file = open(path, OpenOptions::new().read(true))?;
        BufReader::new(file.take(MAX_HEADER_BYTES)).read_until(b'\n', &mut line)?;
        Ok(serde_json::from_slice(&line)?)
    };
    header().map(|header| header.telexec.identity).unwrap_or_default()
}
