//! Blobs that a target has: read-only files in a directory of the worker's, for hard links to them.
//!
//! Each has the same time of its last change. A file that was written to has another one, or another size, and is not used
//! any more. The directory is named after the boot of the machine: what was not on its disk when it went down is not trusted.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::args::DigestFunction;
use crate::cas::{Cas, CasError, batches, is_small};
use crate::digest::Digest;
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
    /// With a directory for files that are not complete beside it.
    directory: String,
    arriving: String,
    limit: u64,
    state: Mutex<State>,
    /// Some arrived, or will not.
    changed: Notify,
}

#[derive(Default)]
struct State {
    blobs: HashMap<Blob, Kept>,
    /// Those that are complete, by when they were used last.
    by_use: BTreeMap<u64, Blob>,
    uses: u64,
    bytes: u64,
}

struct Kept {
    /// `None`: it arrives.
    used: Option<u64>,
    /// Actions that are about to link it.
    pins: usize,
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

/// Keeps blobs from being removed.
pub(crate) struct Pins<'a> {
    cache: &'a Cache,
    blobs: HashSet<Blob>,
}

impl Drop for Pins<'_> {
    fn drop(&mut self) {
        let mut state = self.cache.lock();
        for blob in &self.blobs {
            if let Some(kept) = state.blobs.get_mut(blob) {
                kept.pins = kept.pins.saturating_sub(1);
            }
        }
    }
}

impl Cache {
    /// What is there from before, in a directory that exists.
    pub(crate) async fn open(
        sftp: &Sftp,
        directory: String,
        boot: String,
        function: DigestFunction,
        limit: u64,
    ) -> Result<Self, SftpError> {
        let (directory, arriving) = (format!("{directory}/{}", function.name()), format!("{directory}/arriving"));
        for path in [&directory, &arriving] {
            make_directory(sftp, path, 0o700).await?;
        }
        let this = Self { boot, directory, arriving, limit, state: Mutex::default(), changed: Notify::new() };
        let mut useless = Vec::new();
        for (name, attributes) in sftp.list(&this.directory).await? {
            match of_name(&name, attributes) {
                Some(blob) => this.lock().add(blob),
                None => useless.push(format!("{}/{}", this.directory, String::from_utf8_lossy(&name))),
            }
        }
        for (name, _) in sftp.list(&this.arriving).await? {
            useless.push(format!("{}/{}", this.arriving, String::from_utf8_lossy(&name)));
        }
        let surplus = this.lock().make_room(0, limit);
        let mut removed = Vec::new();
        for path in useless.into_iter().chain(surplus.iter().map(|blob| this.path(blob))) {
            removed.push(sftp.remove(&path).await);
        }
        all_done(removed).await?;
        Ok(this)
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
    pub(crate) fn path(&self, blob: &Blob) -> String {
        format!("{}/{}{}", self.directory, blob.digest.hash(), if blob.executable { ".x" } else { "" })
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
        loop {
            let arrived = self.changed.notified();
            let (pins, claim, surplus) = self.claim(&blobs);
            self.remove(&surplus, sftp).await?;
            if pins.blobs.len() == blobs.len() {
                return Ok(pins);
            }
            match claim.blobs.is_empty() {
                // the others arrive for other actions
                true => arrived.await,
                false => self.bring(claim, cas, sftp).await?,
            }
        }
    }

    /// Pins those that are there, claims those that nobody brings, and makes room for these.
    fn claim(&self, wanted: &HashSet<Blob>) -> (Pins<'_>, Claim<'_>, Vec<Blob>) {
        let mut state = self.lock();
        let mut pins = Pins { cache: self, blobs: HashSet::new() };
        let mut claim = Claim { cache: self, blobs: HashSet::new() };
        for blob in wanted {
            match state.blobs.get(blob).map(|kept| kept.used) {
                Some(Some(_)) => {
                    state.touch(blob);
                    pins.blobs.insert(*blob);
                }
                Some(None) => {}
                None => {
                    state.blobs.insert(*blob, Kept { used: None, pins: 0 });
                    claim.blobs.insert(*blob);
                }
            }
        }
        for blob in &pins.blobs {
            if let Some(kept) = state.blobs.get_mut(blob) {
                kept.pins += 1;
            }
        }
        let coming = claim.blobs.iter().map(|blob| blob.digest.size).sum();
        let surplus = state.make_room(coming, self.limit);
        (pins, claim, surplus)
    }

    async fn remove(&self, blobs: &[Blob], sftp: &Sftp) -> Result<(), SftpError> {
        let mut replies = Vec::with_capacity(blobs.len());
        for blob in blobs {
            replies.push(sftp.remove(&self.path(blob)).await);
        }
        for reply in replies {
            gone(reply.done().await)?;
        }
        Ok(())
    }

    /// Forgets a blob whose file is not what it was.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(crate) async fn forget(&self, blob: &Blob, sftp: &Sftp) -> Result<(), SftpError> {
        self.lock().forget(blob);
        gone(sftp.remove(&self.path(blob)).await.done().await)
    }

    async fn bring(&self, mut claim: Claim<'_>, cas: &Cas, sftp: &Sftp) -> Result<(), CacheError> {
        let (small, large): (Vec<Blob>, Vec<Blob>) = claim.blobs.iter().partition(|blob| is_small(&blob.digest));
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
                self.write(files, sftp).await?;
                claim.arrived(files.iter().map(|(blob, _)| *blob));
            }
        }
        for blob in large {
            match self.write_large(blob, cas, sftp).await {
                Ok(()) => claim.arrived([blob]),
                Err(CacheError::Cas(CasError::Missing(digests))) => missing.extend(digests),
                Err(error) => return Err(error),
            }
        }
        if missing.is_empty() { Ok(()) } else { Err(CasError::Missing(missing).into()) }
    }

    fn arriving_path(&self) -> String {
        format!("{}/{}", self.arriving, uuid::Uuid::new_v4())
    }

    /// Writes small ones together, in two rounds.
    async fn write(&self, files: &[(Blob, Bytes)], sftp: &Sftp) -> Result<(), SftpError> {
        let mut opening = Vec::with_capacity(files.len());
        for _ in files {
            let path = self.arriving_path();
            opening.push((sftp.open(&path, Open::Create(0o600)).await, path));
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
                    paths.push((path, self.path(blob)));
                }
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        for reply in replies {
            failed = failed.and(reply.done().await);
        }
        self.settle(failed, &paths, sftp).await
    }

    async fn write_large(&self, blob: Blob, cas: &Cas, sftp: &Sftp) -> Result<(), CacheError> {
        let path = self.arriving_path();
        let handle = sftp.open(&path, Open::Create(0o600)).await.handle().await?;
        let written = self.write_pieces(blob, cas, sftp, &handle).await;
        let closed = sftp.close(&handle).await.done().await;
        let paths = [(path, self.path(&blob))];
        match written {
            Ok(()) => Ok(self.settle(closed, &paths, sftp).await?),
            Err(CacheError::File(error)) => Ok(self.settle(Err(error), &paths, sftp).await?),
            Err(error) => {
                let [(path, _)] = paths;
                sftp.remove(&path).await.done().await?;
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

    /// Gives complete files their names, or removes what is left of them.
    async fn settle(
        &self,
        written: Result<(), SftpError>,
        paths: &[(String, String)],
        sftp: &Sftp,
    ) -> Result<(), SftpError> {
        let mut replies = Vec::with_capacity(paths.len());
        for (path, name) in paths {
            replies.push(match written {
                Ok(()) => sftp.rename(path, name).await,
                Err(_) => sftp.remove(path).await,
            });
        }
        written.and(all_done(replies).await)
    }
}

/// Blobs that one action brings, for itself and for others.
struct Claim<'a> {
    cache: &'a Cache,
    blobs: HashSet<Blob>,
}

impl Claim<'_> {
    fn arrived(&mut self, blobs: impl IntoIterator<Item = Blob>) {
        let mut state = self.cache.lock();
        for blob in blobs {
            self.blobs.remove(&blob);
            state.add(blob);
        }
    }
}

/// What did not arrive may be brought by others.
impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut state = self.cache.lock();
        for blob in &self.blobs {
            state.blobs.remove(blob);
        }
        drop(state);
        self.cache.changed.notify_waiters();
    }
}

impl State {
    /// It is complete.
    fn add(&mut self, blob: Blob) {
        self.uses += 1;
        self.by_use.insert(self.uses, blob);
        self.bytes += blob.digest.size;
        self.blobs.insert(blob, Kept { used: Some(self.uses), pins: 0 });
    }

    fn touch(&mut self, blob: &Blob) {
        self.uses += 1;
        let uses = self.uses;
        if let Some(used) = self.blobs.get_mut(blob).and_then(|kept| kept.used.replace(uses)) {
            self.by_use.remove(&used);
            self.by_use.insert(uses, *blob);
        }
    }

    fn forget(&mut self, blob: &Blob) {
        if let Some(Kept { used: Some(used), .. }) = self.blobs.get(blob) {
            self.by_use.remove(used);
            self.bytes = self.bytes.saturating_sub(blob.digest.size);
            self.blobs.remove(blob);
        }
    }

    /// Forgets those that were used longest ago, until so many bytes have room, or all others are about to be used.
    fn make_room(&mut self, coming: u64, limit: u64) -> Vec<Blob> {
        let is_pinned = |blob: &Blob| self.blobs.get(blob).is_some_and(|kept| kept.pins > 0);
        let (mut bytes, mut surplus) = (self.bytes, Vec::new());
        for blob in self.by_use.values() {
            if bytes.saturating_add(coming) <= limit {
                break;
            }
            if !is_pinned(blob) {
                bytes = bytes.saturating_sub(blob.digest.size);
                surplus.push(*blob);
            }
        }
        surplus.iter().for_each(|blob| self.forget(blob));
        surplus
    }
}

fn permissions(executable: bool) -> u32 {
    if executable { 0o555 } else { 0o444 }
}

fn of_name(name: &[u8], attributes: Attributes) -> Option<Blob> {
    let name = std::str::from_utf8(name).ok()?;
    let (hash, executable) = name.strip_suffix(".x").map_or((name, false), |hash| (hash, true));
    let blob = Blob { digest: Digest::of_name(hash, attributes.size)?, executable };
    Cache::is_intact(&blob, &attributes).then_some(blob)
}

/// Makes a directory, unless it is there.
///
/// # Errors
/// It cannot be made.
pub(crate) async fn make_directory(sftp: &Sftp, path: &str, mode: u32) -> Result<(), SftpError> {
    match sftp.make_directory(path, mode).await.done().await {
        Err(error) if error.is_refusal() => match sftp.attributes(path).await.attributes().await {
            Ok(attributes) if attributes.kind() == Kind::Directory => Ok(()),
            _ => Err(error),
        },
        made => made,
    }
}

/// Removed by now, by whomever.
fn gone(removed: Result<(), SftpError>) -> Result<(), SftpError> {
    match removed {
        Err(error) if error.is_not_found() => Ok(()),
        removed => removed,
    }
}
