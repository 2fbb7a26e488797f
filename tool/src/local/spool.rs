//! Output that is kept on disk, so that those who come later can read it.
//!
//! Of each execution there are two files: the bytes of both streams in the order they were read, so that a byte's place in
//! the file is its position; and an index, which says where the stream changes. Both only grow, so what has been written is
//! whole whenever the agent ends; where they were removed, new ones begin.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rustix::fs::{FlockOperation, flock, statvfs};
use tempfile::TempDir;
use tracing::warn;

use super::disk::{Disk, PATIENCE};
use super::handover::{self, Inherited};
use super::leftovers::{self, Notes};
use super::pump::CHUNK_BYTES;
use super::{own_directory, temporary_directory};
use crate::{Output, OutputStream};

/// How much output may be kept on disk, index included, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpoolLimits {
    /// Of one execution. Default 64 MiB.
    pub execution: u64,
    /// Of all. Default 1 GiB. What ended executions hold of it is given up for others, the oldest first.
    pub total: u64,
}

impl Default for SpoolLimits {
    fn default() -> Self {
        Self { execution: 64 << 20, total: 1 << 30 }
    }
}

/// The directory of one engine's spool files. It is removed with the last owner, unless it is left to the next engine.
pub(super) struct Spool {
    limits: SpoolLimits,
    used: Arc<AtomicU64>,
    next: AtomicU64,
    disk: Disk,
    state_dir: PathBuf,
    directory: PathBuf,
    /// The next engine is to have the files.
    is_left: AtomicBool,
    /// Locked while its engine lives: one that is not is a dead engine's.
    lock: Mutex<File>,
    notes: Arc<Notes>,
    /// Removes the state directory with the spool, if it is a temporary one.
    temporary: Option<TempDir>,
}

pub(super) const PREFIX: &str = "spool-";
/// A file in the state directory, which only this user can open: whoever can open a file can lock it.
const LOCK: &str = "lock";
/// A file system with less is full.
const MIN_FREE: u64 = 256 * 1024;
/// The most that is read at once.
const READ_BYTES: usize = 256 * 1024;
/// An entry of the index: a position, and in the lowest bit the stream that begins there.
const ENTRY_BYTES: usize = 8;
/// How many entries are looked at at once.
const ENTRIES: usize = 512;

impl Spool {
    /// A new one, below the state directory or a temporary one, and what earlier engines have left there for it. What dead
    /// ones have left is removed. Blocks.
    ///
    /// # Errors
    /// The directory cannot be made or used.
    pub(super) fn new(
        disk: Disk,
        state_dir: Option<&Path>,
        limits: SpoolLimits,
    ) -> io::Result<(Arc<Self>, Vec<Inherited>)> {
        let temporary = if state_dir.is_none() { Some(temporary_directory()?) } else { None };
        let state_dir = match (state_dir, &temporary) {
            (Some(path), _) => own_directory(path)?,
            (None, Some(temporary)) => temporary.path().to_owned(),
            (None, None) => return Err(io::ErrorKind::NotFound.into()),
        };
        let all = lock_all(&state_dir)?;
        let earlier = abandoned(&state_dir)?;
        // one may have been killed since the start of this one
        earlier.iter().for_each(|directory| leftovers::end_of(&state_dir, directory));
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir_in(&state_dir)?;
        let lock = hold(directory.path())?;
        let directory = directory.keep();
        let notes = Arc::new(Notes::new(directory.clone()));
        let spool = Arc::new(Self {
            limits,
            used: Arc::default(),
            next: AtomicU64::new(0),
            disk,
            state_dir,
            directory,
            is_left: AtomicBool::new(false),
            lock: Mutex::new(lock),
            notes,
            temporary,
        });
        let inherited = earlier.iter().flat_map(|directory| handover::take(directory, &spool)).collect();
        drop(all);
        Ok((spool, inherited))
    }

    /// Leaves the files to the next engine, with what [`handover::write`] has written beside them.
    pub(super) fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
    }

    fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Relaxed)
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// The state directory goes with the engine.
    pub(super) fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }

    /// Does what blocks on the state directory.
    pub(super) fn disk(&self) -> &Disk {
        &self.disk
    }

    /// What is written again with the directory.
    pub(super) fn notes(&self) -> &Arc<Notes> {
        &self.notes
    }

    /// Why nothing new may go to the background until there is room, if that is so.
    ///
    /// # Errors
    /// The spool cannot be used now.
    pub(super) async fn is_full(self: &Arc<Self>) -> io::Result<Option<&'static str>> {
        // less than the smallest piece of output
        if self.limits.total.saturating_sub(self.used.load(Ordering::Relaxed)) <= ENTRY_BYTES as u64 {
            return Ok(Some("the spool is full: running commands hold all of it"));
        }
        let spool = Arc::clone(self);
        let free = self.disk.run("", move || spool.free()).await??;
        Ok((free < MIN_FREE).then_some("the disk that output is kept on is full"))
    }

    /// How many bytes of the file system may be used. Blocks.
    fn free(&self) -> io::Result<u64> {
        self.make_again()?;
        let disk = statvfs(&self.directory)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    /// Makes the directory again, if it was removed. Blocks.
    ///
    /// # Errors
    /// It cannot be made, or is another's now.
    pub(super) fn make_again(&self) -> io::Result<()> {
        self.try_make_again().map_err(|error| {
            io::Error::new(error.kind(), format!("{}, where output is kept: {error}", self.directory.display()))
        })
    }

    fn try_make_again(&self) -> io::Result<()> {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let held = lock.metadata()?;
        match fs::metadata(&self.directory) {
            Ok(there) if (there.dev(), there.ino()) == (held.dev(), held.ino()) => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let _all = lock_all(&own_directory(&self.state_dir)?)?;
        match DirBuilder::new().mode(0o700).create(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => *lock = hold(&own_directory(&self.directory)?)?,
        }
        warn!(path = %self.directory.display(), "the state directory was removed, and is made again: output that was kept in it is lost");
        self.notes.write_again();
        Ok(())
    }

    /// Removes all files. Blocks on the file system.
    pub(super) fn remove(&self) {
        let _ = fs::remove_dir_all(&self.directory);
    }

    /// Files for one execution of `owner`, which are made by the first write.
    pub(super) fn file(self: &Arc<Self>, owner: &str) -> SpoolFile {
        self.file_with(owner, Written::default())
    }

    fn file_with(self: &Arc<Self>, owner: &str, written: Written) -> SpoolFile {
        let name = self.next.fetch_add(1, Ordering::Relaxed);
        let [data, index] = paths(&self.directory, name);
        let (spool, owner) = (Arc::clone(self), owner.to_owned());
        SpoolFile { spool, owner, name, data, index, written: Mutex::new(written) }
    }

    /// Takes the files of an ended execution over from the directory of an earlier engine. Blocks.
    ///
    /// # Errors
    /// They are not there, or shorter than they were; they stay where they are.
    pub(super) fn take(self: &Arc<Self>, owner: &str, from: &Path, stored: Stored) -> io::Result<SpoolFile> {
        let [data, index] = paths(from, stored.name);
        let is_short = |path: &Path, bytes: u64| Ok::<_, io::Error>(fs::metadata(path)?.len() < bytes);
        if is_short(&data, stored.data)? || is_short(&index, stored.index.saturating_mul(ENTRY_BYTES as u64))? {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("{} is too short", data.display())));
        }
        let Stored { start, data: end, index: entries, name: _ } = stored;
        let written = Written { exists: true, start, data: end, index: entries, stream: None };
        self.used.fetch_add(written.size(), Ordering::Relaxed);
        // dropped on a failure below, it removes what was moved
        let file = self.file_with(owner, written);
        fs::rename(data, &file.data)?;
        fs::rename(index, &file.index)?;
        Ok(file)
    }

    /// Takes so many bytes, or as many as there are.
    fn reserve(&self, bytes: u64) -> u64 {
        let most = |used: u64| used.saturating_add(bytes).min(self.limits.total.max(used));
        let before = self.used.update(Ordering::Relaxed, Ordering::Relaxed, most);
        most(before) - before
    }

    fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        if self.is_left() {
            return;
        }
        let (directory, temporary) = (self.directory.clone(), self.temporary.take());
        let remove = move || {
            let _ = fs::remove_dir_all(directory);
            drop(temporary);
        };
        // waited for, since this process may end now
        let _ = self.disk.run_blocking(PATIENCE, remove);
    }
}

/// Keeps others from taking what is being made for abandoned, while the file is open.
pub(super) fn lock_all(state_dir: &Path) -> io::Result<File> {
    let all = File::options().create(true).truncate(false).write(true).mode(0o600).open(state_dir.join(LOCK))?;
    flock(&all, FlockOperation::LockExclusive)?;
    Ok(all)
}

/// The same, if nobody holds it.
///
/// # Errors
/// Someone does, or nobody ever did.
pub(super) fn try_lock_all(state_dir: &Path) -> io::Result<File> {
    let all = File::options().write(true).open(state_dir.join(LOCK))?;
    flock(&all, FlockOperation::NonBlockingLockExclusive)?;
    Ok(all)
}

fn hold(directory: &Path) -> io::Result<File> {
    let lock = File::open(directory)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    Ok(lock)
}

fn paths(directory: &Path, name: u64) -> [PathBuf; 2] {
    ["output", "index"].map(|kind| directory.join(format!("{name}.{kind}")))
}

/// Directories of engines that do not live any more.
pub(super) fn abandoned(state_dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(state_dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(PREFIX)
            && let Ok(directory) = File::open(entry.path())
            && (flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok()
                || leftovers::has_ended(&entry.path()))
        {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Where the output of an ended execution is, and how much of it there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) name: u64,
    /// The position of the first byte: the same in the file, which has a hole before it.
    pub(super) start: u64,
    /// The position after the last byte.
    pub(super) data: u64,
    /// Entries of the index.
    pub(super) index: u64,
}

/// The output of one execution on disk. Dropping it removes it, unless it is left to the next engine.
pub(super) struct SpoolFile {
    spool: Arc<Spool>,
    /// Whose turn it is that what is done here takes.
    owner: String,
    name: u64,
    data: PathBuf,
    index: PathBuf,
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
    /// What it takes of the limits.
    fn size(&self) -> u64 {
        self.data.saturating_sub(self.start) + self.index * ENTRY_BYTES as u64
    }
}

/// Why no more is written.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stopped {
    #[error("the execution has as much as one may have")]
    Limit,
    #[error("running executions have as much as all may have")]
    Total,
    #[error("it cannot be written: {0}")]
    Disk(io::Error),
}

impl SpoolFile {
    /// Writes chunks, the first of which begins where the last one ended. Returns where what is written ends now, and why
    /// that is not all, if it is not. One writes at a time; after one that was given up nobody does.
    pub(super) async fn append(self: &Arc<Self>, chunks: Vec<Output>) -> (u64, Option<Stopped>) {
        let file = Arc::clone(self);
        let end = chunks.first().map_or(0, |chunk| chunk.position);
        let written = self.spool.disk.run(&self.owner, move || file.append_now(&chunks)).await;
        written.unwrap_or_else(|no_answer| (end, Some(Stopped::Disk(no_answer.into()))))
    }

    /// Blocks.
    fn append_now(&self, chunks: &[Output]) -> (u64, Option<Stopped>) {
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
            let is_new = written.stream != Some(chunk.stream);
            let entry = if is_new { ENTRY_BYTES as u64 } else { 0 };
            let room = self.spool.limits.execution.saturating_sub(written.size() + entry);
            let length = room.min(chunk.data.len() as u64);
            if length == 0 {
                return Err(Stopped::Limit);
            }
            let reserved = self.spool.reserve(entry + length);
            if reserved <= entry {
                self.spool.give_back(reserved);
                return Err(Stopped::Total);
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
                self.spool.give_back(reserved);
                return Err(Stopped::Disk(error));
            }
            written.data += piece.len() as u64;
            written.index += u64::from(is_new);
            written.stream = Some(chunk.stream);
            if reserved < entry + length {
                return Err(Stopped::Total);
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
        self.spool.make_again()?;
        self.spool.give_back(written.size());
        *written = Written { exists: true, start: written.data, data: written.data, index: 0, stream: None };
        open(true)
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The position of the first byte that it has.
    pub(super) fn start(&self) -> u64 {
        self.written().start
    }

    /// What the next engine needs to know of it, up to `end`; `None`: there is nothing.
    pub(super) fn stored(&self, end: u64) -> Option<Stored> {
        let written = *self.written();
        let data = written.data.min(end);
        (data > written.start).then_some(Stored { name: self.name, start: written.start, data, index: written.index })
    }

    /// Some of what was written from `position` on, at least a byte if there is one before `end`.
    ///
    /// # Errors
    /// It cannot be read, is not there, or the file system does not answer.
    pub(super) async fn read(self: &Arc<Self>, position: u64, end: u64) -> io::Result<Vec<Output>> {
        let file = Arc::clone(self);
        self.spool.disk.run(&self.owner, move || file.read_now(position, end)).await?
    }

    /// Blocks.
    fn read_now(&self, position: u64, end: u64) -> io::Result<Vec<Output>> {
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

    /// Removes it, and waits for that as long as for anything.
    pub(super) async fn remove(self) {
        if let Some(removal) = self.removal() {
            let removed = self.spool.disk.spawn(&self.owner, || removal.run());
            let _ = tokio::time::timeout(PATIENCE, removed).await;
        }
    }

    /// `None`: there is nothing to remove, or it is the next engine's.
    fn removal(&self) -> Option<Removal> {
        let written = std::mem::take(&mut *self.written());
        let removal = Removal {
            used: Arc::clone(&self.spool.used),
            size: written.size(),
            paths: [self.data.clone(), self.index.clone()],
        };
        (written.exists && !self.spool.is_left()).then_some(removal)
    }
}

impl Drop for SpoolFile {
    fn drop(&mut self) {
        if let Some(removal) = self.removal() {
            drop(self.spool.disk.spawn(&self.owner, || removal.run()));
        }
    }
}

/// Files that nobody needs any more.
struct Removal {
    used: Arc<AtomicU64>,
    size: u64,
    paths: [PathBuf; 2],
}

impl Removal {
    /// Blocks.
    fn run(self) {
        for path in &self.paths {
            let _ = fs::remove_file(path);
        }
        self.used.fetch_sub(self.size, Ordering::Relaxed);
    }
}

fn open(path: &Path, is_new: bool) -> io::Result<File> {
    fs::OpenOptions::new().create(is_new).truncate(is_new).write(true).mode(0o600).open(path)
}

fn entry(index: &File, number: u64) -> io::Result<(u64, OutputStream)> {
    let mut bytes = [0; ENTRY_BYTES];
    index.read_exact_at(&mut bytes, number * ENTRY_BYTES as u64)?;
    Ok(decode(bytes))
}

fn decode(bytes: [u8; ENTRY_BYTES]) -> (u64, OutputStream) {
    let entry = u64::from_le_bytes(bytes);
    (entry >> 1, if entry & 1 == 0 { OutputStream::Stdout } else { OutputStream::Stderr })
}

/// The number of the last entry that is not beyond `position`, or of the first one.
fn last_before(index: &File, entries: u64, position: u64) -> io::Result<u64> {
    let (mut low, mut high) = (0, entries);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match entry(index, middle)?.0 <= position {
            true => low = middle,
            false => high = middle,
        }
    }
    Ok(low)
}

/// The entries from `first` on, or as many of them as are looked at at once.
fn runs(index: &File, first: u64, entries: u64) -> io::Result<Vec<(u64, OutputStream)>> {
    let count = usize::try_from(entries.saturating_sub(first)).unwrap_or(ENTRIES).min(ENTRIES);
    let mut bytes = vec![0; count * ENTRY_BYTES];
    index.read_exact_at(&mut bytes, first * ENTRY_BYTES as u64)?;
    Ok(bytes.as_chunks::<ENTRY_BYTES>().0.iter().copied().map(decode).collect())
}

/// Data that begins at `position`, cut where the stream changes, and where a chunk is long enough. The first run begins
/// at or before `position`.
fn split(data: &Bytes, position: u64, runs: &[(u64, OutputStream)]) -> Vec<Output> {
    let end = position + data.len() as u64;
    let ends = runs.iter().skip(1).map(|run| run.0).chain([u64::MAX]);
    let offset = |at: u64| usize::try_from(at - position).unwrap_or(0);
    let mut chunks = Vec::new();
    for ((start, stream), run_end) in runs.iter().zip(ends) {
        let (mut from, to) = ((*start).max(position), run_end.min(end));
        while from < to {
            let next = to.min(from + CHUNK_BYTES as u64);
            chunks.push(Output { stream: *stream, data: data.slice(offset(from)..offset(next)), position: from });
            from = next;
        }
    }
    chunks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spool(limits: SpoolLimits) -> (tempfile::TempDir, Arc<Spool>) {
        let state = tempfile::tempdir().unwrap();
        let (spool, _) = Spool::new(Disk::new().unwrap(), Some(state.path()), limits).unwrap();
        (state, spool)
    }

    fn output(stream: OutputStream, data: &[u8], position: u64) -> Output {
        Output { stream, data: Bytes::copy_from_slice(data), position }
    }

    /// Each byte with its stream.
    fn bytes(chunks: &[Output]) -> Vec<(OutputStream, u8)> {
        chunks.iter().flat_map(|chunk| chunk.data.iter().map(|byte| (chunk.stream, *byte))).collect()
    }

    fn read_all(file: &SpoolFile, from: u64, end: u64) -> Vec<(OutputStream, u8)> {
        let (mut position, mut found) = (from, Vec::new());
        while position < end {
            let chunks = file.read_now(position, end).unwrap();
            assert_eq!(chunks.first().unwrap().position, position);
            position += chunks.iter().map(|chunk| chunk.data.len() as u64).sum::<u64>();
            found.extend(bytes(&chunks));
        }
        found
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
        #[test]
        fn what_was_written_is_read_from_anywhere(
            pieces in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 1..40)), 1..1500),
            batch in 1..50usize,
            from in 0.0..1.0f64,
        ) {
            let (_state, spool) = spool(SpoolLimits::default());
            let file = spool.file("owner");
            let mut chunks = Vec::new();
            let mut end = 0;
            for (is_err, data) in &pieces {
                let stream = if *is_err { OutputStream::Stderr } else { OutputStream::Stdout };
                chunks.push(output(stream, data, end));
                end += data.len() as u64;
            }
            for batch in chunks.chunks(batch) {
                prop_assert!(file.append_now(batch).1.is_none());
            }
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
            let from = (end as f64 * from) as u64;
            let expected = bytes(&chunks).split_off(usize::try_from(from).unwrap());
            prop_assert_eq!(read_all(&file, from, end), expected);
        }
    }

    #[tokio::test]
    async fn limits_hold_and_what_is_removed_makes_room() {
        let (_state, spool) = spool(SpoolLimits { execution: 100, total: 150 });
        let one = spool.file("owner");
        let (end, stopped) = one.append_now(&[output(OutputStream::Stdout, &[1; 200], 0)]);
        assert!(end == 92 && matches!(stopped, Some(Stopped::Limit)));
        assert_eq!(read_all(&one, 0, 92).len(), 92);
        let two = spool.file("owner");
        let (end, stopped) = two.append_now(&[output(OutputStream::Stderr, &[2; 60], 0)]);
        assert!(end == 42 && matches!(stopped, Some(Stopped::Total)));
        assert!(spool.is_full().await.unwrap().is_some());
        one.remove().await;
        let (end, stopped) = two.append_now(&[output(OutputStream::Stderr, &[2; 18], 42)]);
        assert!(end == 60 && stopped.is_none());
        assert_eq!(read_all(&two, 0, 60).len(), 60);
        assert!(spool.is_full().await.unwrap().is_none());
        two.remove().await;
        assert_eq!(spool.used.load(Ordering::Relaxed), 0);
        assert_eq!(fs::read_dir(&spool.directory).unwrap().count(), 0);
    }

    #[test]
    fn files_are_private_and_those_of_the_dead_are_removed() {
        use std::os::unix::fs::PermissionsExt;

        let (state, spool) = spool(SpoolLimits::default());
        let file = spool.file("owner");
        file.append_now(&[output(OutputStream::Stdout, b"x", 0)]);
        for path in [&file.data, &file.index] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        // as anyone can who may open it
        let _locked = hold(state.path()).unwrap();
        let dead = state.path().join(format!("{PREFIX}dead"));
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join("0.output"), "x").unwrap();
        let (other, inherited) = Spool::new(Disk::new().unwrap(), Some(state.path()), SpoolLimits::default()).unwrap();
        assert!(inherited.is_empty());
        assert!(!dead.exists() && file.data.exists());
        assert_eq!(fs::metadata(state.path().join(LOCK)).unwrap().permissions().mode() & 0o777, 0o600);
        drop(other);
    }
}
