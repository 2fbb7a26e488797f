//! Blobs that a target has: read-only files in a directory of the worker's, for hard links to them.
//!
//! Each has the same time of its last change. A file that was written to has another one, or another size, and is not used
//! any more. The directory is named after the boot of the machine: what was not on its disk when it went down is not trusted.

mod claim;
mod state;
mod useless;

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use telexec_client::RemoteFiles;
use telexec_executor::{ExecutorError, FileErrorKind, FilePath, FileTarget, Files};
use tokio::sync::Notify;

use self::claim::Claim;
use self::state::State;
use self::useless::Useless;
use crate::args::DigestFunction;
use crate::cas::{Cas, CasError, batches, is_small};
use crate::digest::Digest;
use crate::failure::TargetError;
use crate::owned::{self, OwnedError};
use crate::sftp::{Attributes, Kind, Open, PIECE_BYTES, Sftp, SftpError, all_done};
use crate::tree::Blob;

/// Of the last change of each file: 9 September 2001.
const CHANGED: u32 = 1_000_000_000;
/// Files that are open for writing at the same time: agents let a session have a thousand.
const OPEN_FILES: usize = 64;

/// The blobs of one target.
pub(crate) struct Cache {
    /// Of the machine, when they were written.
    pub(crate) boot: String,
    /// That of the boot, with one for blobs and one for files that are not complete.
    root: String,
    directory: String,
    arriving: String,
    files: RemoteFiles,
    limit: u64,
    state: Mutex<State>,
    /// Some arrived, or will not.
    changed: Notify,
}

/// Why blobs are not on a target.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CacheError {
    /// They could not be had.
    #[error(transparent)]
    Cas(#[from] CasError),
    /// They could not be written.
    #[error(transparent)]
    File(#[from] SftpError),
    /// Something else there changes or removes it.
    #[error("{path} is changed as often as it is written")]
    Unstable {
        /// The file.
        path: String,
    },
    /// There is no room, even without all others.
    #[error("the inputs have {bytes} bytes, and the cache has room for {limit} (--cache-size)")]
    TooLarge {
        /// What the action needs.
        bytes: u64,
        /// What there may be.
        limit: u64,
    },
}

/// One file of a blob: it is written once.
type Copy = u64;

/// Keeps blobs from being removed.
pub(crate) struct Pins<'a> {
    cache: &'a Cache,
    blobs: HashMap<Blob, Copy>,
}

impl Pins<'_> {
    /// The file of one of them.
    pub(crate) fn path(&self, blob: &Blob) -> String {
        self.cache.path(blob, self.blobs.get(blob).copied().unwrap_or_default())
    }

    /// Forgets one of them, whose file cannot be used, unless that was done already.
    ///
    /// # Errors
    /// The session has ended.
    pub(crate) async fn forget(&self, blob: &Blob, sftp: &Sftp) -> Result<(), SftpError> {
        let Some(copy) = self.blobs.get(blob) else { return Ok(()) };
        let is_known = self.cache.lock().forget(blob, *copy);
        if is_known { self.cache.remove(&[(*blob, *copy)], sftp).await } else { Ok(()) }
    }
}

impl Drop for Pins<'_> {
    fn drop(&mut self) {
        let mut state = self.cache.lock();
        for (blob, copy) in &self.blobs {
            if let Some(kept) = state.blobs.get_mut(blob).filter(|kept| kept.copy == *copy) {
                kept.pins = kept.pins.saturating_sub(1);
            }
        }
    }
}

impl Cache {
    /// What is there from before.
    pub(crate) async fn open(
        sftp: &Sftp,
        user: u32,
        files: RemoteFiles,
        root: String,
        boot: String,
        function: DigestFunction,
        limit: u64,
    ) -> Result<Self, TargetError> {
        let (directory, arriving) = (format!("{root}/{}", function.name()), format!("{root}/arriving"));
        let (state, changed) = (Mutex::default(), Notify::new());
        let this = Self { boot, root, directory, arriving, files, limit, state, changed };
        this.make_directories(sftp, user).await?;
        for (name, attributes) in sftp.list(&this.directory).await? {
            match of_name(&name, attributes).filter(|(blob, copy)| this.lock().add(*blob, *copy)) {
                Some(_) => {}
                None => this.remove_useless(&this.directory, &name).await?,
            }
        }
        for (name, _) in sftp.list(&this.arriving).await? {
            this.remove_useless(&this.arriving, &name).await?;
        }
        let surplus = this.lock().make_room(limit);
        this.remove(&surplus, sftp).await?;
        Ok(this)
    }

    /// They may be there.
    pub(crate) async fn make_directories(&self, sftp: &Sftp, user: u32) -> Result<(), OwnedError> {
        for path in [&self.root, &self.directory, &self.arriving] {
            owned::make(sftp, user, path, 0o700).await?;
        }
        Ok(())
    }

    /// Whatever it is, and whatever its name is.
    async fn remove_useless(&self, directory: &str, name: &[u8]) -> Result<(), ExecutorError> {
        let path = FilePath::new([directory.as_bytes(), b"/", name].concat());
        match self.files.remove(FileTarget { path, user: None }, true).await {
            Err(ExecutorError::File(error)) if error.kind() == FileErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many blobs there are, and their bytes.
    pub(crate) fn size(&self) -> (usize, u64) {
        let state = self.lock();
        (state.by_use.len(), state.bytes)
    }

    /// The file of a blob.
    fn path(&self, blob: &Blob, copy: Copy) -> String {
        format!("{}/{}{}.{copy}", self.directory, blob.digest.hash(), if blob.executable { ".x" } else { "" })
    }

    /// Whether a file is still the blob.
    pub(crate) fn is_intact(blob: &Blob, attributes: &Attributes) -> bool {
        attributes.kind() == Kind::File
            && attributes.size == blob.digest.size
            && attributes.permissions() == permissions(blob.executable)
            && attributes.changed == CHANGED
    }

    /// Brings those that are not there.
    ///
    /// # Errors
    /// They cannot be had, have no room, or could not be written.
    pub(crate) async fn ensure(&self, blobs: HashSet<Blob>, cas: &Cas, sftp: &Sftp) -> Result<Pins<'_>, CacheError> {
        let bytes = blobs.iter().fold(0, |bytes: u64, blob| bytes.saturating_add(blob.digest.size));
        if bytes > self.limit {
            return Err(CacheError::TooLarge { bytes, limit: self.limit });
        }
        // kept from one turn to the next: what is there stays there
        let mut pins = Pins { cache: self, blobs: HashMap::new() };
        loop {
            let arrived = self.changed.notified();
            let (claim, surplus) = self.claim(&blobs, &mut pins);
            self.remove(&surplus, sftp).await?;
            if pins.blobs.len() == blobs.len() {
                return Ok(pins);
            }
            match claim.blobs.is_empty() {
                // the others arrive for other actions
                true => arrived.await,
                false => self.bring(claim, &mut pins, cas, sftp).await?,
            }
        }
    }

    /// Pins those that are there, claims those that nobody brings, and makes room for these.
    fn claim(&self, wanted: &HashSet<Blob>, pins: &mut Pins<'_>) -> (Claim<'_>, Vec<(Blob, Copy)>) {
        let mut state = self.lock();
        let mut claim = Claim { cache: self, blobs: HashMap::new() };
        for blob in wanted.iter().filter(|blob| !pins.blobs.contains_key(*blob)).copied().collect::<Vec<_>>() {
            match state.blobs.get(&blob).map(|kept| (kept.used, kept.copy)) {
                Some((Some(_), copy)) => {
                    state.pin(&blob);
                    pins.blobs.insert(blob, copy);
                }
                Some((None, _)) => {}
                None => {
                    claim.blobs.insert(blob, state.reserve(blob));
                }
            }
        }
        let surplus = state.make_room(self.limit);
        (claim, surplus)
    }

    /// Removes files that are forgotten, also if nobody waits for it any more.
    async fn remove(&self, copies: &[(Blob, Copy)], sftp: &Sftp) -> Result<(), SftpError> {
        let paths = copies.iter().map(|(blob, copy)| self.path(blob, *copy)).collect();
        Useless { cache: self, paths }.remove(sftp).await
    }

    /// Removes those that were used longest ago, until a half of the bytes is left or all others are about to be used. Returns
    /// how many.
    ///
    /// # Errors
    /// They cannot be removed.
    pub(crate) async fn halve(&self, sftp: &Sftp) -> Result<usize, SftpError> {
        let surplus = {
            let mut state = self.lock();
            let half = state.bytes / 2;
            state.make_room(half)
        };
        self.remove(&surplus, sftp).await?;
        Ok(surplus.len())
    }

    async fn bring(&self, mut claim: Claim<'_>, pins: &mut Pins<'_>, cas: &Cas, sftp: &Sftp) -> Result<(), CacheError> {
        let (small, large): (Vec<Blob>, Vec<Blob>) = claim.blobs.keys().partition(|blob| is_small(&blob.digest));
        // a content may be wanted in both forms
        let digests: HashSet<Digest> = small.iter().map(|blob| blob.digest).collect();
        let mut missing = Vec::new();
        for batch in batches(digests) {
            let contents = match cas.fetch_batch(&batch).await {
                Ok(contents) => contents,
                Err(CasError::Missing(digests)) => {
                    missing.extend(digests);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let arrived: Vec<(Blob, Bytes)> =
                small.iter().filter_map(|blob| Some((*blob, contents.get(&blob.digest)?.clone()))).collect();
            for files in arrived.chunks(OPEN_FILES) {
                self.write(files, &claim, sftp).await?;
                claim.arrived(files.iter().map(|(blob, _)| *blob), pins);
            }
        }
        for blob in large {
            match self.write_large(blob, &claim, cas, sftp).await {
                Ok(()) => claim.arrived([blob], pins),
                Err(CacheError::Cas(CasError::Missing(digests))) => missing.extend(digests),
                Err(error) => return Err(error),
            }
        }
        if missing.is_empty() { Ok(()) } else { Err(CasError::Missing(missing).into()) }
    }

    fn arriving_paths(&self, number: usize) -> Useless<'_> {
        let path = |_| format!("{}/{}", self.arriving, uuid::Uuid::new_v4());
        Useless { cache: self, paths: (0..number).map(path).collect() }
    }

    /// Writes small ones together, in two rounds.
    async fn write(&self, files: &[(Blob, Bytes)], claim: &Claim<'_>, sftp: &Sftp) -> Result<(), SftpError> {
        let arriving = self.arriving_paths(files.len());
        let mut opening = Vec::with_capacity(files.len());
        for path in &arriving.paths {
            opening.push((sftp.open(path, Open::Create(0o600)).await, path.clone()));
        }
        let mut replies = Vec::with_capacity(5 * files.len());
        let mut paths = Vec::with_capacity(files.len());
        let mut failed = Ok(());
        for ((blob, content), (reply, path)) in files.iter().zip(opening) {
            match reply.handle().await {
                Ok(handle) => {
                    for (at, piece) in content.chunks(PIECE_BYTES).enumerate() {
                        replies.push(sftp.write(&handle, (at * PIECE_BYTES) as u64, piece).await);
                    }
                    replies.push(sftp.set(&handle, permissions(blob.executable), CHANGED).await);
                    replies.push(sftp.close(&handle).await);
                    paths.push((path, claim.path(blob)));
                }
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        for reply in replies {
            failed = failed.and(reply.done().await);
        }
        self.settle(failed, &paths, arriving, sftp).await
    }

    async fn write_large(&self, blob: Blob, claim: &Claim<'_>, cas: &Cas, sftp: &Sftp) -> Result<(), CacheError> {
        let arriving = self.arriving_paths(1);
        let path = arriving.paths.concat();
        let handle = sftp.open(&path, Open::Create(0o600)).await.handle().await?;
        let written = self.write_pieces(blob, cas, sftp, &handle).await;
        let closed = sftp.close(&handle).await.done().await;
        match written {
            Ok(()) => Ok(self.settle(closed, &[(path, claim.path(&blob))], arriving, sftp).await?),
            Err(error) => {
                // what it takes of the disk is free before another one is tried
                let _ = arriving.remove(sftp).await;
                Err(error)
            }
        }
    }

    async fn write_pieces(&self, blob: Blob, cas: &Cas, sftp: &Sftp, handle: &Bytes) -> Result<(), CacheError> {
        let mut reading = cas.read(blob.digest).await?;
        let (mut replies, mut offset) = (Vec::new(), 0);
        while let Some(piece) = reading.next().await? {
            for part in piece.chunks(PIECE_BYTES) {
                replies.push(sftp.write(handle, offset, part).await);
                offset += part.len() as u64;
            }
            if replies.len() > OPEN_FILES {
                all_done(std::mem::take(&mut replies)).await?;
            }
        }
        replies.push(sftp.set(handle, permissions(blob.executable), CHANGED).await);
        Ok(all_done(replies).await?)
    }

    /// Gives complete files their names.
    async fn settle(
        &self,
        mut written: Result<(), SftpError>,
        paths: &[(String, String)],
        mut arriving: Useless<'_>,
        sftp: &Sftp,
    ) -> Result<(), SftpError> {
        if written.is_ok() {
            arriving.paths.extend(paths.iter().map(|(_, name)| name.clone()));
            let mut replies = Vec::with_capacity(paths.len());
            for (path, name) in paths {
                replies.push(sftp.rename(path, name).await);
            }
            written = all_done(replies).await;
        }
        match written {
            Ok(()) => arriving.paths.clear(),
            // what they take of the disk is free before others are tried
            Err(_) => drop(arriving.remove(sftp).await),
        }
        written
    }
}

fn permissions(executable: bool) -> u32 {
    if executable { 0o555 } else { 0o444 }
}

fn of_name(name: &[u8], attributes: Attributes) -> Option<(Blob, Copy)> {
    let (name, copy) = std::str::from_utf8(name).ok()?.rsplit_once('.')?;
    let (hash, executable) = name.strip_suffix(".x").map_or((name, false), |hash| (hash, true));
    let blob = Blob { digest: Digest::of_name(hash, attributes.size)?, executable };
    Some((blob, copy.parse().ok()?)).filter(|_| Cache::is_intact(&blob, &attributes))
}
