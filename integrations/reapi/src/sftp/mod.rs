//! An SFTP session with an agent, which carries out many requests in flight.
//!
//! Requests are sent when they are made, and carried out in that order: a directory can be made and filled without waiting for
//! the answers. Of the SFTP clients that there are, russh-sftp takes handles for text, which those of the agent are not, and
//! openssh-sftp-client brings a tree of crates of its own.

mod wire;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use telexec_client::{RemoteFiles, SftpAnswer};
use telexec_executor::ExecutorError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

pub(crate) use wire::Owner;
use wire::{Answer, Packet, request, status};

/// What is read or written by one request: as much as an agent takes.
pub(crate) const PIECE_BYTES: usize = 255 * 1024;
/// What may be in flight, in units of [`UNIT_BYTES`]: each request takes one, and more for what it carries.
const WINDOW_UNITS: usize = 512;
const UNIT_BYTES: usize = 16 * 1024;
/// For one request: a disk can be slow, and the process that serves the files may have been stopped.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Small requests go together.
const GATHERED_REQUESTS: usize = 256;

/// How agents say EMLINK, ENOSPC and EDQUOT: SFTP has no numbers for them.
const TOO_MANY_LINKS: &str = "too many links";
const NO_ROOM: [&str; 2] = ["no space left on device", "quota exceeded"];
const TYPE_BITS: u32 = 0o170_000;
const PERMISSION_BITS: u32 = 0o7777;

/// Why a request was not carried out.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum SftpError {
    /// The agent's process refused it.
    #[error("{text}")]
    Refused {
        /// SFTP's.
        code: u32,
        /// In words, with the path.
        text: String,
    },
    /// The session is over.
    #[error("the session with the target's files has ended: {0}")]
    Ended(Arc<str>),
    /// An answer makes no sense.
    #[error("an answer of the target's file process is malformed")]
    Malformed,
}

impl SftpError {
    /// There is no such file.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code: status::NO_SUCH_FILE, .. })
    }

    /// The target is not to blame: what it is asked for is invalid there, such as a path that is too long.
    pub(crate) fn is_unfit(&self) -> bool {
        matches!(self, Self::Refused { code: status::BAD_MESSAGE, .. })
    }

    /// The file has as many hard links as it can have.
    pub(crate) fn has_too_many_links(&self) -> bool {
        matches!(self, Self::Refused { text, .. } if text.ends_with(TOO_MANY_LINKS))
    }

    /// The user of the session may not do it.
    pub(crate) fn is_denied(&self) -> bool {
        matches!(self, Self::Refused { code: status::PERMISSION_DENIED, .. })
    }

    /// The disk has no room.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Refused { text, .. } if NO_ROOM.iter().any(|words| text.ends_with(words)))
    }

    /// The request was refused, and the session goes on.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }
}

/// What is known of a file; of a symbolic link, the link itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) size: u64,
    /// The id of its user.
    pub(crate) owner: u32,
    /// Its type and permissions, as the kernel has them.
    mode: u32,
    /// In seconds since 1970.
    pub(crate) changed: u32,
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    /// A pipe, a socket or a device.
    Other,
}

impl Attributes {
    pub(crate) fn kind(&self) -> Kind {
        match self.mode & TYPE_BITS {
            0o100_000 => Kind::File,
            0o040_000 => Kind::Directory,
            0o120_000 => Kind::Symlink,
            _ => Kind::Other,
        }
    }

    #[cfg(test)]
    pub(crate) fn file(size: u64) -> Self {
        Self { size, mode: 0o100_644, ..Self::default() }
    }

    pub(crate) fn permissions(&self) -> u32 {
        self.mode & PERMISSION_BITS
    }

    pub(crate) fn is_executable(&self) -> bool {
        self.mode & 0o111 != 0
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Open {
    Read,
    /// A new one, with these permissions.
    Create(u32),
}

/// A session. Dropping it ends it, with what is open.
pub(crate) struct Sftp {
    requests: mpsc::Sender<Bytes>,
    shared: Arc<Shared>,
    window: Arc<Semaphore>,
    _reader: AbortOnDropHandle<()>,
}

struct Shared(Mutex<Waiting>);

/// Requests without an answer.
struct Waiting {
    next_id: u32,
    by_id: HashMap<u32, (oneshot::Sender<Answer>, OwnedSemaphorePermit)>,
    over: Option<SftpError>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that waits has failed.
    fn end(&self, error: SftpError) {
        let mut waiting = self.lock();
        waiting.over.get_or_insert(error);
        waiting.by_id.clear();
    }
}

impl Sftp {
    /// Begins a session, as this user or the agent's default one.
    ///
    /// # Errors
    /// The agent could not be asked.
    pub(crate) async fn begin(files: &RemoteFiles, user: Option<String>) -> Result<Self, ExecutorError> {
        let (requests, queue) = mpsc::channel(GATHERED_REQUESTS);
        let answers = files.sftp(user, Gathered { queue, waiting: Vec::new() }).await?;
        let waiting = Waiting { next_id: wire::VERSION, by_id: HashMap::new(), over: None };
        let shared = Arc::new(Shared(Mutex::new(waiting)));
        let reader = tokio::spawn(read(answers, Arc::clone(&shared)));
        let window = Arc::new(Semaphore::new(WINDOW_UNITS));
        let this = Self { requests, shared, window, _reader: AbortOnDropHandle::new(reader) };
        let version = this.send(0, Packet::new(request::INIT)).await;
        match version.answer().await {
            Ok(Answer::Version) => Ok(this),
            Ok(_) => Err(ExecutorError::Internal(SftpError::Malformed.to_string())),
            Err(error) => Err(ExecutorError::Internal(error.to_string())),
        }
    }

    /// Whether it can be used.
    pub(crate) fn is_open(&self) -> bool {
        self.shared.lock().over.is_none()
    }

    /// Sends a request that carries so many bytes, once there is room for it.
    async fn send(&self, carried: usize, packet: Packet) -> Reply {
        let units = u32::try_from(1 + carried / UNIT_BYTES).unwrap_or(u32::MAX).min(WINDOW_UNITS as u32);
        let (answer, reply) = oneshot::channel();
        let reply = Reply { answer: reply, shared: Arc::clone(&self.shared) };
        let Ok(permit) = Arc::clone(&self.window).acquire_many_owned(units).await else { return reply };
        let packet = {
            let mut waiting = self.shared.lock();
            if waiting.over.is_some() {
                return reply;
            }
            let id = waiting.next_id;
            waiting.next_id = id.wrapping_add(1);
            waiting.by_id.insert(id, (answer, permit));
            packet.finish(id)
        };
        if self.requests.send(packet).await.is_err() {
            self.shared.end(SftpError::Ended("the agent takes no more requests".into()));
        }
        reply
    }

    async fn named(&self, kind: u8, path: &str) -> Reply {
        self.send(path.len(), Packet::new(kind).string(path)).await
    }

    pub(crate) async fn make_directory(&self, path: &str, mode: u32) -> Reply {
        self.send(path.len(), Packet::new(request::MKDIR).string(path).attributes(Some(mode), None)).await
    }

    /// Gives it to somebody, with these permissions.
    pub(crate) async fn give(&self, path: &str, owner: Owner, mode: u32) -> Reply {
        self.send(path.len(), Packet::new(request::SETSTAT).string(path).owned_by(owner, mode)).await
    }

    pub(crate) async fn hard_link(&self, file: &str, path: &str) -> Reply {
        self.extended("hardlink@openssh.com", file, path).await
    }

    /// Replaces what has the new path.
    pub(crate) async fn rename(&self, path: &str, new: &str) -> Reply {
        self.extended("posix-rename@openssh.com", path, new).await
    }

    async fn extended(&self, name: &str, first: &str, second: &str) -> Reply {
        let packet = Packet::new(request::EXTENDED).string(name).string(first).string(second);
        self.send(first.len() + second.len(), packet).await
    }

    pub(crate) async fn symlink(&self, path: &str, target: &str) -> Reply {
        // in the order of OpenSSH, which is not that of the draft
        self.send(path.len(), Packet::new(request::SYMLINK).string(target).string(path)).await
    }

    pub(crate) async fn remove(&self, path: &str) -> Reply {
        self.named(request::REMOVE, path).await
    }

    pub(crate) async fn attributes(&self, path: &str) -> Reply {
        self.named(request::LSTAT, path).await
    }

    /// Of an open file.
    pub(crate) async fn attributes_of(&self, handle: &Bytes) -> Reply {
        self.send(0, Packet::new(request::FSTAT).string(handle)).await
    }

    pub(crate) async fn read_link(&self, path: &str) -> Reply {
        self.named(request::READLINK, path).await
    }

    pub(crate) async fn open_directory(&self, path: &str) -> Reply {
        self.named(request::OPENDIR, path).await
    }

    /// The next names; see [`Reply::names`].
    pub(crate) async fn read_directory(&self, handle: &Bytes) -> Reply {
        self.send(PIECE_BYTES, Packet::new(request::READDIR).string(handle)).await
    }

    pub(crate) async fn open(&self, path: &str, how: Open) -> Reply {
        const READ: u32 = 0x01;
        const WRITE_NEW: u32 = 0x02 | 0x08 | 0x20;
        let (flags, mode) = match how {
            Open::Read => (READ, None),
            Open::Create(mode) => (WRITE_NEW, Some(mode)),
        };
        self.send(path.len(), Packet::new(request::OPEN).string(path).u32(flags).attributes(mode, None)).await
    }

    pub(crate) async fn close(&self, handle: &Bytes) -> Reply {
        self.send(0, Packet::new(request::CLOSE).string(handle)).await
    }

    /// At most [`PIECE_BYTES`]; see [`Reply::data`].
    pub(crate) async fn read(&self, handle: &Bytes, offset: u64, length: u32) -> Reply {
        let packet = Packet::new(request::READ).string(handle).u64(offset).u32(length);
        self.send(length as usize, packet).await
    }

    /// At most [`PIECE_BYTES`].
    pub(crate) async fn write(&self, handle: &Bytes, offset: u64, data: &[u8]) -> Reply {
        self.send(data.len(), Packet::new(request::WRITE).string(handle).u64(offset).string(data)).await
    }

    /// Sets the permissions and the time of the last change of an open file.
    pub(crate) async fn set(&self, handle: &Bytes, mode: u32, changed: u32) -> Reply {
        let packet = Packet::new(request::FSETSTAT).string(handle).attributes(Some(mode), Some(changed));
        self.send(0, packet).await
    }

    /// All names in a directory, but for `.` and `..`.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) async fn list(&self, path: &str) -> Result<Vec<(Bytes, Attributes)>, SftpError> {
        let handle = self.open_directory(path).await.handle().await?;
        let mut entries = Vec::new();
        while let Some(names) = self.read_directory(&handle).await.names().await? {
            entries.extend(names.into_iter().filter(|(name, _)| !matches!(name.as_ref(), b"." | b"..")));
        }
        self.close(&handle).await.done().await?;
        Ok(entries)
    }

    /// A whole file, up to so many bytes.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) async fn content(&self, path: &str, limit: u32) -> Result<Bytes, SftpError> {
        let handle = self.open(path, Open::Read).await.handle().await?;
        let content = self.read(&handle, 0, limit).await.data().await?;
        self.close(&handle).await.done().await?;
        Ok(content.unwrap_or_default())
    }
}

/// The answer to a request that was sent.
pub(crate) struct Reply {
    answer: oneshot::Receiver<Answer>,
    shared: Arc<Shared>,
}

impl Reply {
    async fn answer(self) -> Result<Answer, SftpError> {
        let Ok(answer) = timeout(ANSWER_TIMEOUT, self.answer).await else {
            let error = SftpError::Ended(format!("no answer for {} s", ANSWER_TIMEOUT.as_secs()).into());
            self.shared.end(error.clone());
            return Err(error);
        };
        match answer {
            Ok(Answer::Status(code, text)) if code != status::OK => Err(SftpError::Refused { code, text }),
            Ok(answer) => Ok(answer),
            Err(_) => {
                let over = self.shared.lock().over.clone();
                Err(over.unwrap_or_else(|| SftpError::Ended("it was closed".into())))
            }
        }
    }

    /// Of a request that has no more of an answer.
    pub(crate) async fn done(self) -> Result<(), SftpError> {
        match self.answer().await? {
            Answer::Status(..) => Ok(()),
            _ => Err(SftpError::Malformed),
        }
    }

    pub(crate) async fn handle(self) -> Result<Bytes, SftpError> {
        match self.answer().await? {
            Answer::Handle(handle) => Ok(handle),
            _ => Err(SftpError::Malformed),
        }
    }

    pub(crate) async fn attributes(self) -> Result<Attributes, SftpError> {
        match self.answer().await? {
            Answer::Attributes(attributes) => Ok(attributes),
            _ => Err(SftpError::Malformed),
        }
    }

    /// `None`: there are no more.
    pub(crate) async fn names(self) -> Result<Option<Vec<(Bytes, Attributes)>>, SftpError> {
        match self.answer().await {
            Ok(Answer::Names(names)) => Ok(Some(names)),
            Err(SftpError::Refused { code: status::EOF, .. }) => Ok(None),
            Ok(_) => Err(SftpError::Malformed),
            Err(error) => Err(error),
        }
    }

    /// The path in a symbolic link.
    pub(crate) async fn link_target(self) -> Result<Bytes, SftpError> {
        let names = self.names().await?.unwrap_or_default();
        names.into_iter().next().map(|(name, _)| name).ok_or(SftpError::Malformed)
    }

    /// `None`: the file has ended.
    pub(crate) async fn data(self) -> Result<Option<Bytes>, SftpError> {
        match self.answer().await {
            Ok(Answer::Data(data)) => Ok(Some(data)),
            Err(SftpError::Refused { code: status::EOF, .. }) => Ok(None),
            Ok(_) => Err(SftpError::Malformed),
            Err(error) => Err(error),
        }
    }
}

/// Requests as they go to the agent: those that wait together, so that many small ones are few messages.
struct Gathered {
    queue: mpsc::Receiver<Bytes>,
    waiting: Vec<Bytes>,
}

impl Stream for Gathered {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let Self { queue, waiting } = self.get_mut();
        waiting.clear();
        queue.poll_recv_many(context, waiting, GATHERED_REQUESTS).map(|count| match waiting.as_mut_slice() {
            _ if count == 0 => None,
            [only] => Some(std::mem::take(only)),
            several => Some(several.concat().into()),
        })
    }
}

/// Takes the answers to those who wait.
async fn read(mut answers: BoxStream<'static, Result<SftpAnswer, ExecutorError>>, shared: Arc<Shared>) {
    let mut arrived = BytesMut::new();
    let mut notice = None;
    loop {
        match answers.next().await {
            Some(Ok(SftpAnswer::Data(data))) => arrived.extend_from_slice(&data),
            Some(Ok(SftpAnswer::Notice(text))) => {
                tracing::warn!("{text}");
                notice = Some(text);
            }
            Some(Err(error)) => return shared.end(SftpError::Ended(crate::chain(&error).into())),
            None => return shared.end(SftpError::Ended(notice.as_deref().unwrap_or("by the agent").into())),
        }
        loop {
            match wire::next(&mut arrived) {
                Ok(Some((id, answer))) => {
                    if let Some((waiting, _permit)) = shared.lock().by_id.remove(&id) {
                        // nobody waits for the answers to what was let go of
                        let _ = waiting.send(answer);
                    }
                }
                Ok(None) => break,
                Err(error) => return shared.end(error),
            }
        }
    }
}

/// Waits for all of them.
///
/// # Errors
/// The first that failed.
pub(crate) async fn all_done(replies: Vec<Reply>) -> Result<(), SftpError> {
    for reply in replies {
        reply.done().await?;
    }
    Ok(())
}
