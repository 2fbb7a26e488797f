//! The content-addressable storage: blobs in batches, or one by one in pieces.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bazel_remote_apis::build::bazel::remote::execution::v2 as reapi;
use bazel_remote_apis::google::bytestream::byte_stream_client::ByteStreamClient;
use bazel_remote_apis::google::bytestream::{ReadRequest, ReadResponse, WriteRequest};
use bytes::Bytes;
use reapi::content_addressable_storage_client::ContentAddressableStorageClient;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

use crate::args::DigestFunction;
use crate::digest::Digest;

/// What one batch may have: servers take messages of 4 MiB, and names take room too.
pub(crate) const MAX_BATCH_BYTES: u64 = 4 * 1024 * 1024 - 128 * 1024;
/// What a blob's name and status take of a batch.
const BLOB_OVERHEAD_BYTES: u64 = 256;
const MAX_BATCH_BLOBS: usize = 500;
/// Of names alone.
const MAX_NAMES: usize = 10_000;
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;
const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Attempts while the server does not answer, and the pause after the first, which doubles: 25 s, in which a server starts
/// again.
const ATTEMPTS: u32 = 9;
const PAUSE: Duration = Duration::from_millis(100);
/// Of a stream, between two pieces of it.
const PIECE_TIMEOUT: Duration = Duration::from_secs(60);

/// Why blobs cannot be had, or not be stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CasError {
    /// It does not have them.
    #[error("it lacks {} blobs", .0.len())]
    Missing(Vec<Digest>),
    /// What it sent is not the blob of this name.
    #[error("it sent another blob than {0}")]
    Corrupted(Digest),
    /// The server did not answer, or refused.
    #[error("it answered")]
    Refused(#[source] Box<Status>),
    /// Its answer makes no sense.
    #[error("its answer is malformed")]
    Malformed,
}

impl CasError {
    /// The same may succeed a little later. BuildGrid says that it is exhausted while it has no thread for a call; a connection
    /// that is lost in the middle of one is `Unknown`, `Internal` or `Cancelled`.
    pub(crate) fn is_passing(&self) -> bool {
        let Self::Refused(status) = self else { return false };
        let is_lost = matches!(status.code(), Code::Unknown | Code::Internal | Code::Cancelled);
        is_lost || matches!(status.code(), Code::Unavailable | Code::ResourceExhausted)
    }
}

impl From<Status> for CasError {
    fn from(status: Status) -> Self {
        Self::Refused(Box::new(status))
    }
}

/// A content-addressable storage.
#[derive(Clone)]
pub(crate) struct Cas {
    storage: ContentAddressableStorageClient<Channel>,
    streams: ByteStreamClient<Channel>,
    instance: String,
    pub(crate) function: DigestFunction,
}

impl Cas {
    pub(crate) fn new(channel: Channel, instance: &str, function: DigestFunction) -> Self {
        let storage = ContentAddressableStorageClient::new(channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES);
        let streams = ByteStreamClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES);
        Self { storage, streams, instance: instance.to_owned(), function }
    }

    /// One blob, which the caller knows to be small.
    pub(crate) async fn fetch(&self, digest: Digest) -> Result<Bytes, CasError> {
        self.fetch_batch(&[digest]).await?.remove(&digest).ok_or(CasError::Malformed)
    }

    /// Blobs that are one of the [`batches`]. The empty one needs no server.
    pub(crate) async fn fetch_batch(&self, digests: &[Digest]) -> Result<HashMap<Digest, Bytes>, CasError> {
        let empty = self.function.digest(b"");
        let wanted: HashSet<Digest> = digests.iter().copied().filter(|digest| *digest != empty).collect();
        let mut blobs = match wanted.is_empty() {
            true => HashMap::new(),
            false => self.fetch_wanted(&wanted).await?,
        };
        if wanted.len() < digests.len() {
            blobs.insert(empty, Bytes::new());
        }
        Ok(blobs)
    }

    async fn fetch_wanted(&self, digests: &HashSet<Digest>) -> Result<HashMap<Digest, Bytes>, CasError> {
        let request = reapi::BatchReadBlobsRequest {
            instance_name: self.instance.clone(),
            digests: digests.iter().map(|digest| digest.to_wire()).collect(),
            digest_function: self.function.to_wire().into(),
            ..Default::default()
        };
        let answer = repeated(|| {
            let (mut storage, request) = (self.storage.clone(), timed(request.clone()));
            async move { storage.batch_read_blobs(request).await }
        })
        .await?;
        let mut blobs = HashMap::new();
        for response in answer.responses {
            let digest = response.digest.as_ref().and_then(|digest| Digest::try_from(digest).ok());
            let digest = digest.ok_or(CasError::Malformed)?;
            if !digests.contains(&digest) {
                continue;
            }
            let status = response.status.unwrap_or_default();
            match Code::from(status.code) {
                Code::Ok if self.function.digest(&response.data) == digest => {
                    blobs.insert(digest, Bytes::from(response.data));
                }
                Code::Ok => return Err(CasError::Corrupted(digest)),
                Code::NotFound => {}
                code => return Err(Status::new(code, status.message).into()),
            }
        }
        let missing: Vec<Digest> = digests.iter().filter(|digest| !blobs.contains_key(*digest)).copied().collect();
        if missing.is_empty() { Ok(blobs) } else { Err(CasError::Missing(missing)) }
    }

    /// A blob of any size, in pieces.
    pub(crate) async fn read(&self, digest: Digest) -> Result<Reading, CasError> {
        let pieces = self.read_from(digest, 0).await?;
        let hasher = self.function.hasher();
        let end = Instant::now() + transfer_timeout(&digest);
        Ok(Reading { cas: self.clone(), pieces, hasher: Some(hasher), digest, arrived: 0, attempts: ATTEMPTS, end })
    }

    async fn read_from(&self, digest: Digest, offset: u64) -> Result<Streaming<ReadResponse>, CasError> {
        let resource_name = self.resource(&self.function.resource(&digest));
        let read_offset = i64::try_from(offset).unwrap_or(i64::MAX);
        let request = ReadRequest { resource_name, read_offset, read_limit: 0 };
        let started = repeated(|| {
            let mut request = Request::new(request.clone());
            request.set_timeout(transfer_timeout(&digest));
            let mut streams = self.streams.clone();
            async move { streams.read(request).await }
        });
        started.await.map_err(|error| or_missing(error, digest))
    }

    /// Those that it lacks.
    pub(crate) async fn missing(&self, digests: &[Digest]) -> Result<HashSet<Digest>, CasError> {
        let mut missing = HashSet::new();
        for some in digests.chunks(MAX_NAMES) {
            let request = reapi::FindMissingBlobsRequest {
                instance_name: self.instance.clone(),
                blob_digests: some.iter().map(|digest| digest.to_wire()).collect(),
                digest_function: self.function.to_wire().into(),
            };
            let answer = repeated(|| {
                let (mut storage, request) = (self.storage.clone(), timed(request.clone()));
                async move { storage.find_missing_blobs(request).await }
            })
            .await?;
            for digest in &answer.missing_blob_digests {
                missing.insert(Digest::try_from(digest).map_err(|_| CasError::Malformed)?);
            }
        }
        Ok(missing)
    }

    /// Stores blobs that are one of the [`batches`].
    pub(crate) async fn store_batch(&self, blobs: Vec<(Digest, Bytes)>) -> Result<(), CasError> {
        let request = |(digest, data): (Digest, Bytes)| reapi::batch_update_blobs_request::Request {
            digest: Some(digest.to_wire()),
            data: data.into(),
            compressor: 0,
        };
        let request = reapi::BatchUpdateBlobsRequest {
            instance_name: self.instance.clone(),
            requests: blobs.into_iter().map(request).collect(),
            digest_function: self.function.to_wire().into(),
        };
        let answer = repeated(|| {
            let (mut storage, request) = (self.storage.clone(), timed(request.clone()));
            async move { storage.batch_update_blobs(request).await }
        })
        .await?;
        for response in answer.responses {
            let status = response.status.unwrap_or_default();
            match Code::from(status.code) {
                Code::Ok | Code::AlreadyExists => {}
                code => return Err(Status::new(code, status.message).into()),
            }
        }
        Ok(())
    }

    /// Stores a blob of any size, of these pieces: see [`given`] and [`insistently`].
    pub(crate) async fn write(&self, digest: Digest, pieces: mpsc::Receiver<Bytes>) -> Result<(), CasError> {
        let upload = format!("uploads/{}/{}", uuid::Uuid::new_v4(), self.function.resource(&digest));
        let resource = self.resource(&upload);
        let mut offset = 0;
        let requests = ReceiverStream::new(pieces).map(move |piece| {
            let write_offset = i64::try_from(offset).unwrap_or(i64::MAX);
            offset += piece.len() as u64;
            let resource_name = if write_offset == 0 { resource.clone() } else { String::new() };
            WriteRequest { resource_name, write_offset, finish_write: offset == digest.size, data: piece.into() }
        });
        let mut request = Request::new(requests);
        request.set_timeout(transfer_timeout(&digest));
        // the deadline of the request is the server's to keep
        let mut streams = self.streams.clone();
        let written = timeout(transfer_timeout(&digest), streams.write(request));
        let written = written.await.map_err(|_| silent())??.into_inner();
        // one that has the blob already may say so without having read it
        if written.committed_size == digest.to_wire().size_bytes { Ok(()) } else { Err(CasError::Malformed) }
    }

    fn resource(&self, name: &str) -> String {
        if self.instance.is_empty() { name.to_owned() } else { format!("{}/{name}", self.instance) }
    }
}

/// A blob that arrives.
pub(crate) struct Reading {
    cas: Cas,
    pieces: Streaming<ReadResponse>,
    /// Until the end.
    hasher: Option<crate::digest::Hasher>,
    digest: Digest,
    arrived: u64,
    /// That are left, each from where the one before was cut off.
    attempts: u32,
    /// Of all of it.
    end: Instant,
}

impl Reading {
    /// The next piece; `None`: that was all, and it was the blob.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, CasError> {
        match (self.piece().await?, &mut self.hasher) {
            (Some(piece), Some(hasher)) => {
                self.arrived += piece.data.len() as u64;
                self.attempts = ATTEMPTS;
                if self.arrived > self.digest.size {
                    return Err(CasError::Corrupted(self.digest));
                }
                hasher.update(&piece.data);
                Ok(Some(piece.data.into()))
            }
            (None, hasher) => match hasher.take().map(crate::digest::Hasher::finish) {
                Some(digest) if digest == self.digest => Ok(None),
                _ => Err(CasError::Corrupted(self.digest)),
            },
            (Some(_), None) => Err(CasError::Malformed),
        }
    }

    async fn piece(&mut self) -> Result<Option<ReadResponse>, CasError> {
        loop {
            let end = self.end.min(Instant::now() + PIECE_TIMEOUT);
            let piece = timeout_at(end, self.pieces.message()).await.map_err(|_| too_slow())?;
            match piece.map_err(|status| or_missing(status.into(), self.digest)) {
                Err(error) if error.is_passing() && self.attempts > 1 => {
                    tokio::time::sleep(PAUSE * 2u32.pow(ATTEMPTS - self.attempts)).await;
                    self.attempts -= 1;
                    self.pieces = self.cas.read_from(self.digest, self.arrived).await?;
                }
                piece => return piece,
            }
        }
    }
}

/// Passes on a piece of a blob that is stored. Returns whether more are wanted.
pub(crate) async fn given(pieces: &mpsc::Sender<Bytes>, piece: Bytes) -> Result<bool, CasError> {
    Ok(timeout(PIECE_TIMEOUT, pieces.send(piece)).await.map_err(|_| too_slow())?.is_ok())
}

fn too_slow() -> CasError {
    Status::deadline_exceeded(format!("nothing for {} s, or less than 1 MiB/s", PIECE_TIMEOUT.as_secs())).into()
}

fn silent() -> CasError {
    Status::deadline_exceeded("the call has not ended").into()
}

fn or_missing(error: CasError, digest: Digest) -> CasError {
    match error {
        CasError::Refused(status) if status.code() == Code::NotFound => CasError::Missing(vec![digest]),
        error => error,
    }
}

/// Whether a blob goes with others.
pub(crate) fn is_small(digest: &Digest) -> bool {
    digest.size + BLOB_OVERHEAD_BYTES <= MAX_BATCH_BYTES
}

/// Blobs that are small, in groups that fit into one message each.
pub(crate) fn batches(digests: impl IntoIterator<Item = Digest>) -> Vec<Vec<Digest>> {
    let mut batches: Vec<Vec<Digest>> = Vec::new();
    let mut room = 0;
    for digest in digests {
        let size = digest.size + BLOB_OVERHEAD_BYTES;
        match batches.last_mut() {
            Some(batch) if size <= room && batch.len() < MAX_BATCH_BLOBS => batch.push(digest),
            _ => {
                batches.push(vec![digest]);
                room = MAX_BATCH_BYTES;
            }
        }
        room = room.saturating_sub(size);
    }
    batches
}

/// For a server that passes on a megabyte each second, at least.
fn transfer_timeout(digest: &Digest) -> Duration {
    CALL_TIMEOUT + Duration::from_secs(digest.size / (1024 * 1024))
}

fn timed<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(CALL_TIMEOUT);
    request
}

async fn repeated<T, F>(call: impl Fn() -> F) -> Result<T, CasError>
where
    F: Future<Output = Result<tonic::Response<T>, Status>>,
{
    // a server may send headers, and nothing after them
    let once = || async { Ok(timeout(CALL_TIMEOUT, call()).await.map_err(|_| silent())??.into_inner()) };
    insistently(once, CasError::is_passing).await
}

/// Tries again while that may help.
pub(crate) async fn insistently<T, E, F>(call: impl Fn() -> F, is_passing: impl Fn(&E) -> bool) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let mut pause = PAUSE;
    for _ in 1..ATTEMPTS {
        match call().await {
            Err(error) if is_passing(&error) => tokio::time::sleep(pause).await,
            answer => return answer,
        }
        pause *= 2;
    }
    call().await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sized(size: u64) -> Digest {
        Digest::of_name(&"0".repeat(64), size).unwrap()
    }

    #[test]
    fn batches_fit_into_messages() {
        let batches = batches([3_000_000, 2_000_000, 1_000_000, 0].map(sized));
        let sizes: Vec<Vec<u64>> =
            batches.iter().map(|batch| batch.iter().map(|digest| digest.size).collect()).collect();
        assert_eq!(sizes, [vec![3_000_000], vec![2_000_000, 1_000_000, 0]]);
        assert_eq!(super::batches(vec![sized(0); 501]).len(), 2);
        assert!(!is_small(&sized(MAX_BATCH_BYTES)));
    }
}
