//! The output of one execution on disk.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

use serde::{Deserialize, Serialize};
use telexec_executor::{Output, OutputStream};
use tracing::warn;

use super::index::{ENTRY_BYTES, last_before, runs, split};
use super::used::Used;
use super::{Full, Spool};
use crate::lock::lock;
use crate::state::disk::DISK_TIMEOUT;

/// The most that is read at once.
const READ_BYTES: usize = 256 * 1024;

/// Where the output of an ended execution is, and how much of it there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) name: u64,
    /// The position of the first byte: the same in the file, which has a hole before it.
    pub(crate) start: u64,
    /// The position after the last byte.
    pub(crate) data: u64,
    /// Entries of the index.
    pub(crate) index: u64,
}

/// Where the files of an execution are that runs, or will be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Location {
    directory: PathBuf,
    name: u64,
}

impl Location {
    /// That of the engine.
    pub(crate) fn directory(&self) -> PathBuf {
        self.directory.clone()
    }

    fn paths(&self) -> [PathBuf; 2] {
        paths(&self.directory, self.name)
    }
}

/// The files of an execution that an earlier agent has followed so far.
struct Found {
    data: PathBuf,
    index: PathBuf,
    written: Written,
}

impl Found {
    /// An agent that was killed may have moved one of them.
    fn in_any(places: &[Location]) -> Option<Self> {
        let paths: Vec<_> = places.iter().map(Location::paths).collect();
        let data = paths.iter().map(|[data, _]| data).find(|path| path.exists())?.clone();
        let index = paths.iter().map(|[_, index]| index).find(|path| path.exists())?.clone();
        let (end, entries) = (fs::metadata(&data).ok()?.len(), fs::metadata(&index).ok()?.len() / ENTRY_BYTES as u64);
        let start = super::index::start(&File::open(&index).ok()?).ok()?;
        let written = Written { exists: true, start, data: end, index: entries, stream: None };
        (start < end).then_some(Self { data, index, written })
    }
}

impl Spool {
    /// Takes over the files of an execution that an earlier agent has followed so far, wherever each is of these places.
    /// `move_to` gets where they will be, before they are moved, and where they may be now. Blocks.
    pub(crate) fn continue_from(
        self: &Arc<Self>,
        owner: &str,
        places: &[Location],
        move_to: impl FnOnce(Location, Vec<Location>),
    ) -> SpoolFile {
        let found = Found::in_any(places);
        let written = found.as_ref().map_or_else(Written::default, |found| found.written);
        let file = self.file_with(owner, written);
        let has_any = |place: &&Location| place.paths().iter().any(|path| path.exists());
        move_to(file.location(), places.iter().filter(has_any).cloned().collect());
        let moved = found.map(|Found { data, index, .. }| {
            fs::rename(data, &file.data).and_then(|()| fs::rename(index, &file.index))
        });
        match moved {
            Some(Ok(())) => self.used.add(owner, written.size()),
            Some(Err(error)) => {
                warn!(%error, "the kept output of an execution is lost");
                *file.written() = Written::default();
            }
            None => {}
        }
        file
    }

    /// Files for one execution of `owner`, which are made by the first write.
    pub(crate) fn file(self: &Arc<Self>, owner: &str) -> SpoolFile {
        self.file_with(owner, Written::default())
    }

    fn file_with(self: &Arc<Self>, owner: &str, written: Written) -> SpoolFile {
        let name = self.next.fetch_add(1, Ordering::Relaxed);
        let [data, index] = paths(self.directory.path(), name);
        let (spool, owner) = (Arc::clone(self), owner.to_owned());
        SpoolFile { spool, owner, name, data, index, written: Mutex::new(written) }
    }

    /// Takes the files of an ended execution over from the directory of an earlier engine. Blocks.
    ///
    /// # Errors
    /// They are not there, or shorter than they were; they stay where they are.
    pub(crate) fn take_over(self: &Arc<Self>, owner: &str, from: &Path, stored: Stored) -> io::Result<SpoolFile> {
        let [data, index] = paths(from, stored.name);
        let is_short = |path: &Path, bytes: u64| Ok::<_, io::Error>(fs::metadata(path)?.len() < bytes);
        if is_short(&data, stored.data)? || is_short(&index, stored.index.saturating_mul(ENTRY_BYTES as u64))? {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("{} is too short", data.display())));
        }
        let Stored { start, data: end, index: entries, name: _ } = stored;
        let written = Written { exists: true, start, data: end, index: entries, stream: None };
        self.used.add(owner, written.size());
        // dropped on a failure below, it removes what was moved
        let file = self.file_with(owner, written);
        fs::rename(data, &file.data)?;
        fs::rename(index, &file.index)?;
        Ok(file)
    }
}

/// The output of one execution on disk. Dropping it removes it, unless it is left to the next engine.
pub(crate) struct SpoolFile {
    spool: Arc<Spool>,
    /// Whose turn its disk operations take.
    owner: String,
    name: u64,
    pub(super) data: PathBuf,
    pub(super) index: PathBuf,
    /// Not locked while anything blocks.
    written: Mutex<Written>,
}

#[derive(Clone, Copy, Default)]
struct Written {
    /// There may be files.
    exists: bool,
    /// The position of the first byte.
    start: u64,
    /// The position after the last byte.
    data: u64,
    /// Entries of the index.
    index: u64,
    /// What was written last.
    stream: Option<OutputStream>,
}

impl Written {
    /// What counts against the limits.
    fn size(&self) -> u64 {
        self.data.saturating_sub(self.start) + self.index * ENTRY_BYTES as u64
    }
}

/// Why no more is written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Stopped {
    #[error("the execution has as much as one may have")]
    Limit,
    #[error("{}", .0.reason)]
    Full(Full),
    #[error("it cannot be written: {0}")]
    Disk(io::Error),
}

impl SpoolFile {
    /// Writes chunks, the first of which begins where the last one ended. Returns where what is written ends now, and
    /// why that is not all, if it is not. There is one writer at a time, and none after a write that was given up.
    pub(crate) async fn append(self: &Arc<Self>, chunks: Vec<Output>) -> (u64, Option<Stopped>) {
        let file = Arc::clone(self);
        let end = chunks.first().map_or(0, |chunk| chunk.position);
        let written = self.spool.directory.disk().run(&self.owner, move || file.append_now(&chunks)).await;
        written.unwrap_or_else(|no_answer| (end, Some(Stopped::Disk(no_answer.into()))))
    }

    /// Blocks.
    pub(super) fn append_now(&self, chunks: &[Output]) -> (u64, Option<Stopped>) {
        let mut written = self.written();
        written.exists = true;
        let mut now = *written;
        drop(written);
        let stopped = self.try_append(chunks, &mut now).err();
        *self.written() = now;
        (now.data, stopped)
    }

    fn try_append(&self, chunks: &[Output], written: &mut Written) -> Result<(), Stopped> {
        let [data, index] = self.open(written).map_err(Stopped::Disk)?;
        for chunk in chunks {
            if chunk.position != written.data {
                return Err(Stopped::Disk(io::Error::other("what comes next is of another position")));
            }
            let is_new = written.stream != Some(chunk.stream);
            let entry = if is_new { ENTRY_BYTES as u64 } else { 0 };
            let room = self.spool.limits.execution.saturating_sub(written.size() + entry);
            let length = room.min(chunk.data.len() as u64);
            if length == 0 {
                return Err(Stopped::Limit);
            }
            let (reserved, full) = self.spool.used.reserve(&self.owner, entry + length, &self.spool.limits);
            if let Some(full) = full.as_ref().filter(|_| reserved <= entry) {
                self.spool.used.give_back(&self.owner, reserved);
                return Err(Stopped::Full(full.clone()));
            }
            let piece = chunk.data.slice(..usize::try_from(reserved - entry).unwrap_or(chunk.data.len()));
            let write = || {
                if is_new {
                    let entry = written.data << 1 | u64::from(chunk.stream == OutputStream::Stderr);
                    index.write_all_at(&entry.to_le_bytes(), written.index * ENTRY_BYTES as u64)?;
                }
                data.write_all_at(&piece, written.data)
            };
            if let Err(error) = write() {
                self.spool.used.give_back(&self.owner, reserved);
                return Err(Stopped::Disk(error));
            }
            written.data += piece.len() as u64;
            written.index += u64::from(is_new);
            written.stream = Some(chunk.stream);
            if let Some(full) = full {
                return Err(Stopped::Full(full));
            }
            if piece.len() < chunk.data.len() {
                return Err(Stopped::Limit);
            }
        }
        Ok(())
    }

    /// The files for what comes next. Where they were removed, new ones begin here: what was in them is a gap.
    fn open(&self, written: &mut Written) -> io::Result<[File; 2]> {
        let open = |is_new| Ok::<_, io::Error>([open(&self.data, is_new)?, open(&self.index, is_new)?]);
        match open(written.index == 0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            files => return files,
        }
        self.spool.directory.recreate()?;
        self.spool.used.give_back(&self.owner, written.size());
        *written = Written { exists: true, start: written.data, data: written.data, index: 0, stream: None };
        open(true)
    }

    pub(crate) fn location(&self) -> Location {
        Location { directory: self.spool.directory.path().to_owned(), name: self.name }
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        lock(&self.written)
    }

    /// The position of the first byte that it has.
    pub(crate) fn start(&self) -> u64 {
        self.written().start
    }

    /// What the next engine needs to know of it, up to `end`; `None`: there is nothing.
    pub(crate) fn stored(&self, end: u64) -> Option<Stored> {
        let written = *self.written();
        let data = written.data.min(end);
        (data > written.start).then_some(Stored { name: self.name, start: written.start, data, index: written.index })
    }

    /// Some of what was written from `position` on, at least a byte if there is one before `end`.
    ///
    /// # Errors
    /// It cannot be read, is not there, or the file system does not answer.
    pub(crate) async fn read(self: &Arc<Self>, position: u64, end: u64) -> io::Result<Vec<Output>> {
        let file = Arc::clone(self);
        self.spool.directory.disk().run(&self.owner, move || file.read_now(position, end)).await?
    }

    /// Blocks.
    pub(super) fn read_now(&self, position: u64, end: u64) -> io::Result<Vec<Output>> {
        let entries = self.written().index;
        let index = File::open(&self.index)?;
        let first = last_before(&index, entries, position)?;
        let runs = runs(&index, first, entries)?;
        let known_until =
            if first + (runs.len() as u64) < entries { runs.last().map_or(end, |run| run.0) } else { end };
        let length = known_until.min(end).saturating_sub(position).min(READ_BYTES as u64);
        let mut data = Vec::with_capacity(usize::try_from(length).unwrap_or(READ_BYTES));
        let mut file = File::open(&self.data)?;
        file.seek(SeekFrom::Start(position))?;
        let is_there = runs.first().is_some_and(|run| run.0 <= position);
        match is_there && file.take(length).read_to_end(&mut data)? as u64 == length {
            true => Ok(split(&data.into(), position, &runs)),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Removes it, and waits for that no longer than [`DISK_TIMEOUT`].
    pub(crate) async fn remove(self) {
        if let Some(removal) = self.removal() {
            let removed = self.spool.directory.disk().spawn(&self.owner, || removal.run());
            let _ = tokio::time::timeout(DISK_TIMEOUT, removed).await;
        }
    }

    /// `None`: there is nothing to remove, or it is the next engine's.
    fn removal(&self) -> Option<Removal> {
        let written = std::mem::take(&mut *self.written());
        let removal = Removal {
            used: Arc::clone(&self.spool.used),
            owner: self.owner.clone(),
            size: written.size(),
            paths: [self.data.clone(), self.index.clone()],
        };
        (written.exists && !self.spool.directory.is_left()).then_some(removal)
    }
}

impl Drop for SpoolFile {
    fn drop(&mut self) {
        if let Some(removal) = self.removal() {
            drop(self.spool.directory.disk().spawn(&self.owner, || removal.run()));
        }
    }
}

/// Files that are no longer needed.
struct Removal {
    used: Arc<Used>,
    owner: String,
    size: u64,
    paths: [PathBuf; 2],
}

impl Removal {
    /// Blocks.
    fn run(self) {
        for path in &self.paths {
            let _ = fs::remove_file(path);
        }
        self.used.give_back(&self.owner, self.size);
    }
}

fn paths(directory: &Path, name: u64) -> [PathBuf; 2] {
    ["output", "index"].map(|kind| directory.join(format!("{name}.{kind}")))
}

fn open(path: &Path, is_new: bool) -> io::Result<File> {
    fs::OpenOptions::new().create(is_new).truncate(is_new).write(true).mode(0o600).open(path)
}
