//! Writing a file, by one call or by several: an upload that loses its call is kept for a while, with its process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use telexec_executor::{ExecutionId, ExecutorError, FilePiece, FilePieces, InvalidCommand};
use telexec_files::frame::{Kind, MAX_BYTES};
use telexec_files::message::Task;
use telexec_proto::v1::WriteFileResponse;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::session::{Session, unexpected};
use super::wire::{Answered, Asked};
use crate::admission::Stack;
use crate::call::Call;
use crate::lock::lock;

/// An upload with more zeros in holes is not kept for another call: its process may still be digesting them, which costs the
/// caller nothing.
const MAX_KEPT_HOLE_BYTES: u64 = 8 * 1024 * 1024 * 1024;
/// Uploads of one identity that are remembered.
const MAX_UPLOADS: usize = 256;

/// A file that is being written.
pub(super) struct Upload {
    session: Session,
    /// Bytes of its content that the process has, or will have before anything else.
    committed: u64,
    /// Of these, zeros in holes.
    holes: u64,
    /// The process has the end too, and its answer is due: a call may be lost in between.
    is_ended: bool,
}

/// Why an upload goes on no further.
enum Stopped {
    /// Its call did; another one may continue it.
    Call(ExecutorError),
    /// It is over.
    Upload(ExecutorError),
}

impl Upload {
    /// Begins to write.
    ///
    /// # Errors
    /// That is denied, or cannot be.
    async fn start(stack: &Stack, call: &Call, asked: Asked) -> Result<Self, ExecutorError> {
        let mut session = Session::start(stack, call, asked.user.as_deref(), asked.job).await?;
        session.permitted().await?;
        Ok(Self { session, committed: 0, holes: 0, is_ended: false })
    }

    /// Writes all of these pieces, without the first `skipped` bytes, and gives the file its name. A file that has its end
    /// already is only waited for.
    async fn complete(&mut self, pieces: &mut FilePieces, skipped: u64) -> Result<WriteFileResponse, Stopped> {
        if !self.is_ended {
            self.add_all(pieces, skipped).await?;
            self.session.queue(Kind::End, Bytes::new());
            self.is_ended = true;
        }
        let outcome = self.session.finish().await.map_err(Stopped::Upload)?;
        WriteFileResponse::answered(outcome).ok_or_else(|| Stopped::Upload(unexpected()))
    }

    async fn add_all(&mut self, pieces: &mut FilePieces, mut skipped: u64) -> Result<(), Stopped> {
        loop {
            // which comes early if the file cannot be written
            let piece = tokio::select! {
                biased;
                early = self.session.finish() => return Err(Stopped::Upload(early.err().unwrap_or_else(unexpected))),
                piece = pieces.next() => piece,
            };
            match piece.transpose().map_err(Stopped::Call)? {
                Some(FilePiece::Data(mut data)) => {
                    let known = usize::try_from(skipped).unwrap_or(usize::MAX).min(data.len());
                    skipped -= known as u64;
                    self.add(data.split_off(known));
                }
                Some(FilePiece::Hole(length)) => {
                    let known = skipped.min(length);
                    skipped -= known;
                    self.committed = self.committed.saturating_add(length - known);
                    self.holes = self.holes.saturating_add(length - known);
                    self.session.queue(Kind::Hole, Bytes::copy_from_slice(&(length - known).to_be_bytes()));
                }
                Some(FilePiece::End { .. }) => return Err(Stopped::Upload(unexpected())),
                None if skipped > 0 => {
                    let reason = "the content is shorter than what the upload has already".to_owned();
                    return Err(Stopped::Call(ExecutorError::FailedPrecondition { reason }));
                }
                None => return Ok(()),
            }
            self.session.flush_much().await.map_err(Stopped::Upload)?;
        }
    }

    fn add(&mut self, mut data: Bytes) {
        self.committed += data.len() as u64;
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(MAX_BYTES));
            self.session.queue(Kind::Data, piece);
        }
    }
}

/// Writes a file in one call.
///
/// # Errors
/// It was not written.
pub(super) async fn write(
    stack: &Stack,
    call: &Call,
    asked: Asked,
    mut pieces: FilePieces,
) -> Result<WriteFileResponse, ExecutorError> {
    let mut upload = Upload::start(stack, call, asked).await?;
    upload.complete(&mut pieces, 0).await.map_err(|(Stopped::Call(error) | Stopped::Upload(error))| error)
}

/// The uploads that may be continued; clones share them.
#[derive(Clone)]
pub(super) struct Uploads {
    table: Arc<Mutex<HashMap<Key, Arc<Slot>>>>,
    /// How long one is kept that nobody continues.
    grace: Duration,
}

/// An identity and the name that it gave to an upload.
type Key = (String, ExecutionId);

struct Slot {
    task: Task,
    user: Option<String>,
    state: Arc<tokio::sync::Mutex<State>>,
    /// Ends the call that has it.
    takeover: Mutex<CancellationToken>,
    left: Mutex<Instant>,
}

/// How far an upload is.
enum State {
    New,
    Begun(Box<Upload>),
    /// Its call may have been lost before it was answered.
    Done(Box<WriteFileResponse>, u64),
    Failed,
}

impl State {
    fn committed(&self) -> u64 {
        match self {
            Self::New | Self::Failed => 0,
            Self::Begun(upload) => upload.committed,
            Self::Done(_, committed) => *committed,
        }
    }
}

impl State {
    fn holds_many_zeros(&self) -> bool {
        matches!(self, Self::Begun(upload) if upload.holes > MAX_KEPT_HOLE_BYTES)
    }
}

impl Uploads {
    pub(super) fn new(grace: Duration) -> Self {
        Self { table: Arc::default(), grace }
    }

    /// Where to continue this upload. The call that had it is ended.
    ///
    /// # Errors
    /// [`ExecutorError::NoUpload`].
    pub(super) async fn committed(&self, identity: &str, id: &ExecutionId) -> Result<u64, ExecutorError> {
        let slot = lock(&self.table).get(&(identity.to_owned(), id.clone())).cloned();
        let slot = slot.ok_or_else(|| ExecutorError::NoUpload(id.clone()))?;
        let (state, _) = slot.take_over().await;
        match &*state {
            State::New | State::Failed => Err(ExecutorError::NoUpload(id.clone())),
            state => Ok(state.committed()),
        }
    }

    /// Writes a file, or continues to, from this offset on.
    ///
    /// # Errors
    /// It was not written; what was lost with its call may be continued.
    pub(super) async fn write(
        &self,
        (stack, call): (&Stack, &Call),
        asked: Asked,
        (id, offset): (ExecutionId, u64),
        mut pieces: FilePieces,
    ) -> Result<WriteFileResponse, ExecutorError> {
        let key = (call.caller.identity.as_str().to_owned(), id);
        let slot = self.slot(&key, &asked, offset)?;
        let (mut state, taken_over) = slot.take_over().await;
        if let State::New = *state {
            let upload = Upload::start(stack, call, asked).await.inspect_err(|_| self.forget(&key, &slot))?;
            *state = State::Begun(Box::new(upload));
        }
        let committed = state.committed();
        let skipped = committed.checked_sub(offset);
        let skipped =
            skipped.ok_or_else(|| ExecutorError::OutOfRange { field: "header.offset".into(), end: committed })?;
        let done = match &mut *state {
            State::Begun(upload) => tokio::select! {
                biased;
                () = taken_over.cancelled() => Err(Stopped::Call(superseded())),
                done = upload.complete(&mut pieces, skipped) => done,
            },
            State::Done(written, _) => return Ok(*written.clone()),
            State::New | State::Failed => return Err(ExecutorError::NoUpload(key.1)),
        };
        *slot.left() = Instant::now();
        match done {
            Ok(written) => {
                *state = State::Done(Box::new(written.clone()), state.committed());
                Ok(written)
            }
            Err(Stopped::Call(error)) if !state.holds_many_zeros() => Err(error),
            Err(Stopped::Call(error) | Stopped::Upload(error)) => {
                *state = State::Failed;
                self.forget(&key, &slot);
                Err(error)
            }
        }
    }

    /// That of an upload which is known, or a new one.
    fn slot(&self, key: &Key, asked: &Asked, offset: u64) -> Result<Arc<Slot>, ExecutorError> {
        let mut table = lock(&self.table);
        match table.get(key).cloned() {
            Some(slot) if slot.task == asked.job.task && slot.user == asked.user => Ok(slot),
            Some(_) => {
                Err(InvalidCommand::new("header.upload_id", "names an upload of another file, or by other options")
                    .into())
            }
            None if offset > 0 => Err(ExecutorError::NoUpload(key.1.clone())),
            None if !make_room(&mut table, &key.0) => {
                let reason = format!("{} has {MAX_UPLOADS} uploads that are not complete", key.0);
                Err(ExecutorError::Exhausted { reason, retry_after: Some(self.grace) })
            }
            None => {
                let slot = Arc::new(Slot {
                    task: asked.job.task.clone(),
                    user: asked.user.clone(),
                    state: Arc::new(tokio::sync::Mutex::new(State::New)),
                    takeover: Mutex::default(),
                    left: Mutex::new(Instant::now()),
                });
                table.insert(key.clone(), Arc::clone(&slot));
                tokio::spawn(self.clone().forget_later(key.clone(), Arc::clone(&slot)));
                Ok(slot)
            }
        }
    }

    fn forget(&self, key: &Key, slot: &Arc<Slot>) {
        let mut table = lock(&self.table);
        if table.get(key).is_some_and(|known| Arc::ptr_eq(known, slot)) {
            table.remove(key);
        }
    }

    /// Forgets an upload that nobody has continued for a while.
    async fn forget_later(self, key: Key, slot: Arc<Slot>) {
        loop {
            let expiry = *slot.left() + self.grace;
            tokio::time::sleep_until(expiry).await;
            // a call that has it now leaves it later
            let state = slot.state.lock().await;
            if slot.left().elapsed() >= self.grace || matches!(*state, State::Failed) {
                self.forget(&key, &slot);
                return;
            }
        }
    }
}

/// Whether an identity may have one more; of those that are complete the oldest is forgotten for that.
fn make_room(table: &mut HashMap<Key, Arc<Slot>>, identity: &str) -> bool {
    let own: Vec<_> = table.iter().filter(|((owner, _), _)| owner == identity).collect();
    if own.len() < MAX_UPLOADS {
        return true;
    }
    let is_over =
        |slot: &Slot| slot.state.try_lock().is_ok_and(|state| matches!(*state, State::Done(..) | State::Failed));
    let oldest = own.into_iter().filter(|(_, slot)| is_over(slot)).min_by_key(|(_, slot)| *slot.left());
    let oldest = oldest.map(|(key, _)| key.clone());
    oldest.is_some_and(|oldest| table.remove(&oldest).is_some())
}

impl Slot {
    /// Waits for the call that has it, which ends now.
    async fn take_over(self: &Arc<Self>) -> (Taken, CancellationToken) {
        let mine = CancellationToken::new();
        std::mem::replace(&mut *lock(&self.takeover), mine.clone()).cancel();
        let state = Arc::clone(&self.state).lock_owned().await;
        (Taken { state, slot: Arc::clone(self) }, mine)
    }

    fn left(&self) -> MutexGuard<'_, Instant> {
        lock(&self.left)
    }
}

/// The state of an upload, for the call that has it.
struct Taken {
    state: OwnedMutexGuard<State>,
    slot: Arc<Slot>,
}

impl std::ops::Deref for Taken {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl std::ops::DerefMut for Taken {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Taken {
    /// From now on it is waited for.
    fn drop(&mut self) {
        *self.slot.left() = Instant::now();
    }
}

fn superseded() -> ExecutorError {
    ExecutorError::FailedPrecondition { reason: "another call continues this upload".to_owned() }
}
