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
use crate::audit::files;

/// How names end.
pub(in crate::audit) const SUFFIX: &str = ".cast";
/// Short ones count as much: there are not to be too many.
const MIN_BYTES: u64 = 16 * 1024;
/// Of the header.
const MAX_HEADER_BYTES: u64 = 64 * 1024;
/// The part of a limit that new recordings leave for those that are being written.
const NEW: f64 = 0.9;
/// Between two looks at what was removed by others.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);

/// The directory of the recordings of an audit log.
pub(in crate::audit) fn of_log(log: &Path) -> PathBuf {
    files::with_suffix(log, "recordings")
}

/// The recordings that are there.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    config: RecordingsConfig,
    entries: Entries,
    by_identity: HashMap<String, u64>,
    taken: u64,
    /// The same, for others to see.
    total: Arc<AtomicU64>,
    refreshed: Instant,
}

/// Recordings by their names.
pub(super) type Entries = HashMap<OsString, Entry>;

/// A recording.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    identity: String,
    bytes: u64,
    /// It is being written.
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
        Self { path, config, entries, by_identity, taken: 0, total, refreshed: Instant::now() }
    }

    /// Creates a file, of mode 0600, if there is room for another one beside those that are written.
    ///
    /// # Errors
    /// There is none, or it cannot be created.
    pub(super) fn create(&mut self, name: &str, identity: &str) -> io::Result<File> {
        self.refreshing(|this| this.has_room(identity, MIN_BYTES, NEW))?;
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
    pub(super) fn reopen(&mut self, name: &str, identity: &str) -> io::Result<File> {
        let file = open(&self.path.join(name), OpenOptions::new().read(true).append(true))?;
        if let Some(known) = self.entries.remove(&OsString::from(name)) {
            self.subtract(&known);
        }
        self.add(name.into(), Entry { identity: identity.to_owned(), bytes: file.metadata()?.len(), is_open: true });
        Ok(file)
    }

    /// These are there, beside those that are known.
    pub(super) fn found(&mut self, entries: Entries) {
        for (name, entry) in entries {
            if !self.entries.contains_key(&name) {
                self.add(name, entry);
            }
        }
    }

    /// Takes room for a file that is about to grow to this size.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn reserve(&mut self, name: &str, bytes: u64) -> io::Result<()> {
        let Some(entry) = self.entries.get(&OsString::from(name)).cloned() else { return Ok(()) };
        let more = bytes.max(MIN_BYTES).saturating_sub(entry.taken());
        if more > 0 {
            self.refreshing(|this| this.has_room(&entry.identity, more, 1.0))?;
        }
        self.grown(name, bytes);
        Ok(())
    }

    /// Looks once more at what is there if there is no room: others may have removed something.
    fn refreshing(&mut self, check: impl Fn(&Self) -> io::Result<()>) -> io::Result<()> {
        let checked = check(self);
        if checked.is_ok() || self.refreshed.elapsed() < REFRESH_INTERVAL {
            return checked;
        }
        self.refresh();
        check(self)
    }

    /// Whether there is room, if no more than this part of each limit may be taken.
    fn has_room(&self, identity: &str, bytes: u64, part: f64) -> io::Result<()> {
        let full = |what: &str, key: &str| {
            let reason = format!("{what} reached the limit, audit.recordings.{key}");
            Err(io::Error::new(io::ErrorKind::StorageFull, reason))
        };
        let exceeds = |taken: u64, limit: u64| taken.saturating_add(bytes) as f64 > limit as f64 * part;
        if exceeds(self.by_identity.get(identity).copied().unwrap_or_default(), self.config.share()) {
            return full("the recordings of this identity have", "max_bytes_per_identity");
        }
        if exceeds(self.taken, self.config.max_total_bytes) {
            return full("all recordings together have", "max_total_bytes");
        }
        Ok(())
    }

    /// A file has this size.
    pub(super) fn grown(&mut self, name: &str, bytes: u64) {
        if let Some(entry) = self.entries.remove(&OsString::from(name)) {
            self.subtract(&entry);
            self.add(name.into(), Entry { bytes, ..entry });
        }
    }

    /// A file is written no longer.
    pub(super) fn closed(&mut self, name: &str) {
        if let Some(entry) = self.entries.get_mut(&OsString::from(name)) {
            entry.is_open = false;
        }
    }

    /// Removes a file; returns whether it is gone.
    pub(super) fn remove(&mut self, name: &str) -> bool {
        match std::fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                warn!(%error, name, "a recording cannot be removed");
                self.closed(name);
                false
            }
            _ => {
                if let Some(entry) = self.entries.remove(&OsString::from(name)) {
                    self.subtract(&entry);
                }
                true
            }
        }
    }

    /// Looks at what is there.
    pub(super) fn refresh(&mut self) {
        self.refreshed = Instant::now();
        match self.scan() {
            Ok(entries) => {
                (self.entries, self.by_identity, self.taken) = (HashMap::new(), HashMap::new(), 0);
                entries.into_iter().for_each(|(name, entry)| self.add(name, entry));
                self.total.store(self.taken, Ordering::Relaxed);
            }
            Err(error) => warn!(%error, "the recordings cannot be listed"),
        }
    }

    /// Removes those that are too old.
    pub(super) fn clean(&mut self) {
        self.refresh();
        if self.config.max_age.is_zero() {
            return;
        }
        let is_old = |name: &OsString| {
            let modified = std::fs::metadata(self.path.join(name)).and_then(|metadata| metadata.modified());
            // negative after the clock was set back
            modified.is_ok_and(|modified| modified.elapsed().unwrap_or_default() > self.config.max_age)
        };
        let old = self.entries.iter().filter(|(name, entry)| !entry.is_open && is_old(name)).map(|(name, _)| name);
        let old: Vec<_> = old.filter_map(|name| Some(name.to_str()?.to_owned())).collect();
        for name in &old {
            if self.remove(name) {
                info!(file = name, "removed a recording that was too old");
            }
        }
    }

    /// All files that are there. One that is being written is listed also if somebody has removed it.
    fn scan(&self) -> io::Result<Entries> {
        let open = self.entries.iter().filter(|(_, entry)| entry.is_open);
        let open: Entries = open.map(|(name, entry)| (name.clone(), entry.clone())).collect();
        let found = list(&self.path, |name| self.entries.get(name).map(|entry| entry.identity.clone()))?;
        Ok(found.into_iter().chain(open).collect())
    }

    fn add(&mut self, name: OsString, entry: Entry) {
        self.taken += entry.taken();
        *self.by_identity.entry(entry.identity.clone()).or_default() += entry.taken();
        self.entries.insert(name, entry);
        self.total.store(self.taken, Ordering::Relaxed);
    }

    fn subtract(&mut self, entry: &Entry) {
        self.taken = self.taken.saturating_sub(entry.taken());
        if let Some(of_identity) = self.by_identity.get_mut(&entry.identity) {
            *of_identity = of_identity.saturating_sub(entry.taken());
        }
        self.total.store(self.taken, Ordering::Relaxed);
    }
}

/// The recordings that are there.
pub(super) fn entries(directory: &Path) -> Entries {
    list(directory, |_| None).unwrap_or_else(|error| {
        warn!(%error, "the recordings cannot be listed");
        Entries::new()
    })
}

/// The same, with the identities that are known.
fn list(directory: &Path, known: impl Fn(&OsString) -> Option<String>) -> io::Result<Entries> {
    let mut found = Entries::new();
    let files = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        files => files?,
    };
    for file in files {
        let file = file?;
        let name = file.file_name();
        // somebody may remove it just now
        let Ok(metadata) = file.metadata() else { continue };
        if metadata.is_file() && name.as_encoded_bytes().ends_with(SUFFIX.as_bytes()) {
            let identity = known(&name).unwrap_or_else(|| identity(&file.path()));
            found.insert(name, Entry { identity, bytes: metadata.len(), is_open: false });
        }
    }
    Ok(found)
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
