//! The way of an action's outputs from the target to the CAS.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::{OutputError, store, unfit};
use crate::cas::{Cas, batches, given, insistently, is_small};
use crate::digest::Digest;
use crate::layout::below;
use crate::sftp::{Attributes, Open, PIECE_BYTES, Sftp};

/// Files that are read together: so many, with so many bytes. What is larger is read in pieces, twice if the CAS lacks it.
const GROUP_FILES: usize = 64;
const GROUP_BYTES: u64 = 2 * 1024 * 1024;
/// Pieces of a file that are asked for ahead.
const PIECES_AHEAD: usize = 16;
/// Blobs that wait to be uploaded together.
const WAITING_BYTES: u64 = 8 * 1024 * 1024;
/// A regular file among the outputs.
pub(super) struct Found {
    pub(super) path: String,
    pub(super) size: u64,
}

impl Found {
    pub(super) fn new(directory: &str, path: &str, attributes: &Attributes) -> Self {
        Self { path: below(directory, path), size: attributes.size }
    }
}

/// Blobs on their way to the CAS.
pub(super) struct Uploads<'a> {
    pub(super) cas: &'a Cas,
    pub(super) waiting: Vec<(Digest, Bytes)>,
    pub(super) bytes: u64,
}

impl Uploads<'_> {
    pub(super) async fn add(&mut self, digest: Digest, blob: Bytes) -> Result<(), OutputError> {
        self.bytes += digest.size;
        self.waiting.push((digest, blob));
        if self.bytes > WAITING_BYTES { self.flush().await } else { Ok(()) }
    }

    /// Stores what waits, as far as the CAS lacks it.
    pub(super) async fn flush(&mut self) -> Result<(), OutputError> {
        let mut waiting: HashMap<Digest, Bytes> = std::mem::take(&mut self.waiting).into_iter().collect();
        self.bytes = 0;
        if waiting.is_empty() {
            return Ok(());
        }
        let digests: Vec<Digest> = waiting.keys().copied().collect();
        let missing = self.cas.missing(&digests).await?;
        let (small, large): (Vec<Digest>, Vec<Digest>) =
            digests.into_iter().filter(|digest| missing.contains(digest)).partition(is_small);
        for batch in batches(small) {
            let blobs = batch.into_iter().filter_map(|digest| Some((digest, waiting.remove(&digest)?))).collect();
            self.cas.store_batch(blobs).await?;
        }
        for digest in large {
            if let Some(blob) = waiting.remove(&digest) {
                store(self.cas, digest, blob).await?;
            }
        }
        Ok(())
    }

    /// The digests of files, in their order; all of them are uploaded, or wait.
    pub(super) async fn files(&mut self, files: &[Found], sftp: &Sftp) -> Result<Vec<Digest>, OutputError> {
        let mut digests = Vec::with_capacity(files.len());
        let mut rest = files;
        while let Some(first) = rest.first() {
            if first.size > GROUP_BYTES {
                digests.push(self.large_file(first, sftp).await?);
                rest = rest.get(1..).unwrap_or_default();
                continue;
            }
            let (group, others) = rest.split_at(group_length(rest));
            for content in read_group(group, sftp).await? {
                let digest = self.cas.function.digest(&content);
                self.add(digest, content).await?;
                digests.push(digest);
            }
            rest = others;
        }
        Ok(digests)
    }

    async fn large_file(&self, file: &Found, sftp: &Sftp) -> Result<Digest, OutputError> {
        let handle = sftp.open(&file.path, Open::Read).await.handle().await?;
        let mut hasher = self.cas.function.hasher();
        let mut pieces = Pieces::new(file, &handle);
        while let Some(piece) = pieces.next(sftp).await? {
            hasher.update(&piece);
        }
        let digest = hasher.finish();
        if self.cas.missing(&[digest]).await?.contains(&digest) {
            let upload = || self.upload_large(file, &handle, digest, sftp);
            let is_passing = |error: &OutputError| matches!(error, OutputError::Cas(error) if error.is_passing());
            insistently(upload, is_passing).await?;
        }
        sftp.close(&handle).await.done().await?;
        Ok(digest)
    }

    async fn upload_large(&self, file: &Found, handle: &Bytes, digest: Digest, sftp: &Sftp) -> Result<(), OutputError> {
        let (sender, taken) = mpsc::channel(1);
        let send = async {
            let sender = sender;
            let mut pieces = Pieces::new(file, handle);
            while let Some(piece) = pieces.next(sftp).await? {
                // they are not needed
                if !given(&sender, piece).await? {
                    break;
                }
            }
            Ok(())
        };
        let write = async { Ok(self.cas.write(digest, taken).await?) };
        tokio::try_join!(write, send).map(drop)
    }
}

/// How many files at the beginning are read together: at least one.
fn group_length(files: &[Found]) -> usize {
    let mut bytes = 0;
    let fits = |file: &&Found| {
        bytes += file.size;
        bytes <= GROUP_BYTES
    };
    files.iter().take(GROUP_FILES).take_while(fits).count().max(1)
}

/// The contents of small files, in two rounds.
async fn read_group(files: &[Found], sftp: &Sftp) -> Result<Vec<Bytes>, OutputError> {
    let mut opening = Vec::with_capacity(files.len());
    for file in files {
        opening.push(sftp.open(&file.path, Open::Read).await);
    }
    let mut reading = Vec::with_capacity(files.len());
    for (reply, file) in opening.into_iter().zip(files) {
        let handle = reply.handle().await?;
        let mut pieces = Pieces::new(file, &handle);
        pieces.ask(sftp, usize::MAX).await;
        reading.push((pieces, sftp.close(&handle).await));
    }
    let mut contents = Vec::with_capacity(files.len());
    for (mut pieces, closed) in reading {
        let mut content = Vec::with_capacity(usize::try_from(pieces.file.size).unwrap_or_default());
        while let Some(piece) = pieces.answer().await? {
            content.extend_from_slice(&piece);
        }
        closed.done().await?;
        contents.push(content.into());
    }
    Ok(contents)
}

/// A file that is read in order.
struct Pieces<'a> {
    file: &'a Found,
    handle: Bytes,
    asked: u64,
    /// Their lengths, and their answers.
    replies: VecDeque<(usize, crate::sftp::Reply)>,
}

impl<'a> Pieces<'a> {
    fn new(file: &'a Found, handle: &Bytes) -> Self {
        Self { file, handle: handle.clone(), asked: 0, replies: VecDeque::new() }
    }

    async fn ask(&mut self, sftp: &Sftp, ahead: usize) {
        while self.asked < self.file.size && self.replies.len() < ahead {
            let length = (self.file.size - self.asked).min(PIECE_BYTES as u64);
            let reply = sftp.read(&self.handle, self.asked, u32::try_from(length).unwrap_or(u32::MAX)).await;
            self.replies.push_back((usize::try_from(length).unwrap_or_default(), reply));
            self.asked += length;
        }
    }

    async fn answer(&mut self) -> Result<Option<Bytes>, OutputError> {
        let Some((length, reply)) = self.replies.pop_front() else { return Ok(None) };
        let piece = reply.data().await?.unwrap_or_default();
        if piece.len() == length {
            Ok(Some(piece))
        } else {
            Err(unfit(&self.file.path, "has changed while it was read"))
        }
    }

    async fn next(&mut self, sftp: &Sftp) -> Result<Option<Bytes>, OutputError> {
        self.ask(sftp, PIECES_AHEAD).await;
        self.answer().await
    }
}
