//! The output of one execution, and who reads it.
//!
//! What was read last is in memory, as much of it as its readers need: the owner, who started the command and slows it
//! down by reading slowly; the spool, which keeps the output of commands that may go to the background; and a little
//! for all others, who never hold up anything. What they come too late for is in the spool, or is a gap.

mod reader;
mod state;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use telexec_executor::{Exited, Output, OutputStream};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub(crate) use self::reader::Reader;
use self::state::{
    CHUNK_COST, KEPT_BYTES_AT_END, Owner, SMALL_WINDOW, Spooled, State, ToKeep, WINDOW, after, cut, end_of,
};
use super::in_memory::{HeldBytes, WAITING};
use super::printed::{Chunk, Printed};
use super::spool::{Full, Location, SpoolFile, Stopped};
use crate::lock::lock;
use crate::state::checkpoint::{Checkpoint, Saved};
use crate::wait::{RETRY_DELAY, is_transient, when};

/// Who can make room on disk.
pub(crate) trait MakeRoom: Sync {
    /// Gives up something of these owners. False: there is nothing, or it cannot be done now.
    fn make_room(&self, full: &Full) -> impl Future<Output = bool> + Send;
}

/// The output of one execution.
pub(crate) struct Transcript {
    state: Mutex<State>,
    /// Something was added: readers wait for it.
    added: Notify,
    /// Something was read or kept: the pump waits for it.
    taken: Notify,
}

impl Transcript {
    /// An empty one. With `file`, what does not fit into memory is kept there. One that is `retained_for` an identity keeps
    /// what was read last, for a reader that lost it with its connection.
    pub(crate) fn new(file: Option<SpoolFile>, retained_for: Option<&str>) -> Self {
        let is_kept = file.is_some();
        let spool = file.map(|file| Spooled { file: Arc::new(file), end: 0, seen: 0 });
        let state = State {
            window: VecDeque::new(),
            cost: 0,
            waiting: HeldBytes::waiting(),
            retained: HeldBytes::retained(retained_for),
            retains: retained_for.is_some(),
            end: 0,
            owner: Owner::Reads,
            generation: 0,
            read: 0,
            spool,
            is_kept,
            promoted: None,
            complete: false,
            sealed: false,
            exited: None,
            dropped: [0; 2],
            checkpoint: None,
        };
        Self { state: Mutex::new(state), added: Notify::new(), taken: Notify::new() }
    }

    /// That of an execution which has ended under an earlier engine.
    pub(crate) fn ended(printed: Printed, file: Option<SpoolFile>, exited: Exited) -> Self {
        let transcript = Self::new(file, None);
        {
            let mut state = transcript.state();
            if let Some(spool) = &mut state.spool {
                spool.end = spool.file.stored(u64::MAX).map_or(0, |stored| stored.data);
                spool.seen = printed.end;
            }
            let output = |Chunk { stream, position, data }| Output { stream, data, position };
            state.window = printed.tail.into_iter().map(output).collect();
            state.cost = state.window.iter().map(|chunk| chunk.data.len() + CHUNK_COST).sum();
            state.end = printed.end;
            (state.owner, state.complete, state.sealed) = (Owner::Gone, true, true);
            state.exited = Some(exited);
            state.trim();
        }
        transcript
    }

    /// That of an execution which an earlier agent has followed so far; `exited`: to its end. It waits for a caller that comes
    /// again if it is `retained_for` its identity, until it is left.
    pub(crate) fn restored(
        checkpoint: Arc<Checkpoint>,
        saved: Saved,
        file: Option<SpoolFile>,
        retained_for: Option<&str>,
        exited: Option<Exited>,
    ) -> Self {
        let transcript = Self::new(None, retained_for);
        {
            let mut state = transcript.state();
            let start = saved.chunks.first().map_or(saved.end, |chunk| chunk.position);
            state.is_kept = file.is_some();
            state.spool = file.map(|file| Spooled::restored(file, start));
            // what is offered to the spool begins with a chunk
            let seen = state.spool.as_ref().map_or(0, |spool| spool.seen);
            state.window = saved.chunks.into_iter().flat_map(|chunk| cut(chunk, seen)).collect();
            state.cost = state.window.iter().map(|chunk| chunk.data.len() + CHUNK_COST).sum();
            (state.end, state.read, state.dropped, state.promoted) = (saved.end, start, saved.dropped, saved.promoted);
            (state.complete, state.sealed) = (exited.is_some(), exited.is_some());
            if retained_for.is_none() || state.promoted.is_some() {
                (state.owner, state.retains) = (Owner::Gone, false);
            }
            state.exited = exited;
            state.checkpoint = Some(checkpoint);
            state.trim();
        }
        transcript
    }

    /// From now on what is in memory is there too.
    pub(crate) fn save_to(&self, checkpoint: Arc<Checkpoint>) {
        self.state().checkpoint = Some(checkpoint);
    }

    /// Where it is saved for the next agent.
    pub(crate) fn checkpoint(&self) -> Option<Arc<Checkpoint>> {
        self.state().checkpoint.clone()
    }

    /// The next agent is not to have it.
    pub(crate) fn forget_checkpoint(&self) {
        let checkpoint = self.state().checkpoint.take();
        drop(checkpoint);
    }

    /// Where the next agent finds what is on disk; `None`: nothing ever is.
    pub(crate) fn location(&self) -> Option<Location> {
        self.state().spool.as_ref().map(|spool| spool.file.location())
    }

    /// What the next engine is to know of it. Of a command that only its caller could follow no output is left.
    pub(crate) fn printed(&self) -> Printed {
        let state = self.state();
        let chunk = |chunk: &Output| Chunk { stream: chunk.stream, position: chunk.position, data: chunk.data.clone() };
        let tail = if state.is_kept { state.window.iter().map(chunk).collect() } else { Vec::new() };
        let stored = state.spool.as_ref().and_then(|spool| spool.file.stored(spool.end));
        Printed { end: state.end, tail, stored }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Where a reader continues that cannot read what is on disk.
    fn after_disk(&self, is_first: bool) -> u64 {
        let state = self.state();
        state.start().min(state.until(is_first))
    }

    /// Bytes of both streams so far.
    pub(crate) fn end(&self) -> u64 {
        self.state().end
    }

    /// What it takes of memory, without what is retained.
    pub(crate) fn bytes(&self) -> usize {
        let state = self.state();
        if state.retains && state.sealed { state.cost.min(KEPT_BYTES_AT_END) } else { state.cost }
    }

    /// Waits until there is room for another chunk, and returns how much there is. 0: there is none, and the owner is not waited
    /// for any more.
    pub(crate) async fn room(&self, abandoned: &CancellationToken) -> usize {
        let room = || Some(self.room_now()).filter(|room| *room > 0);
        let waited = abandoned.run_until_cancelled(when(&self.taken, room)).await;
        waited.or_else(room).unwrap_or(0)
    }

    /// How much room there is.
    pub(crate) fn room_now(&self) -> usize {
        self.state().room(if WAITING.is_high() { SMALL_WINDOW } else { WINDOW })
    }

    /// Adds a chunk.
    pub(crate) fn add(&self, stream: OutputStream, data: Bytes) {
        let mut state = self.state();
        let position = state.end;
        state.end += data.len() as u64;
        state.cost += data.len() + CHUNK_COST;
        state.window.push_back(Output { stream, data, position });
        state.trim();
        drop(state);
        self.added.notify_waiters();
    }

    /// This owner goes, unless another has taken its place.
    pub(crate) fn leave(&self, generation: u64) {
        if self.state().generation == generation {
            self.release_owner();
        }
    }

    /// The owner goes, or needs no more: the command does not wait for it any more.
    pub(crate) fn release_owner(&self) {
        let mut state = self.state();
        state.owner = Owner::Gone;
        // what a connection that is lost now takes with it is kept after the end
        state.retains &= state.exited.is_some();
        state.trim();
        drop(state);
        self.taken.notify_waiters();
    }

    /// The command continues in the background: its owner gets that event after the output so far.
    pub(crate) fn promote(&self) {
        let mut state = self.state();
        if state.exited.is_some() {
            return;
        }
        let end = state.end;
        let promoted = *state.promoted.get_or_insert(end);
        state.checkpoint.iter().for_each(|checkpoint| checkpoint.set_promoted(promoted));
        drop(state);
        self.added.notify_waiters();
        // it has what it needs in memory, or in the spool
        self.release_owner();
    }

    /// It went, or goes, to the background.
    pub(crate) fn is_promoted(&self) -> bool {
        self.state().promoted.is_some()
    }

    /// Returns when the command has ended, or continues in the background.
    pub(crate) async fn concluded(&self) {
        let is_over = |state: &State| state.exited.is_some() || state.promoted.is_some();
        when(&self.added, || is_over(&self.state()).then_some(())).await;
    }

    /// Returns when the command has ended.
    pub(crate) async fn finished(&self) {
        when(&self.added, || self.state().exited.is_some().then_some(())).await;
    }

    /// Returns when the command waits for no owner.
    pub(crate) async fn left(&self) {
        when(&self.taken, || (self.state().owner == Owner::Gone).then_some(())).await;
    }

    /// No more output comes.
    pub(crate) fn complete(&self) {
        self.state().complete = true;
        self.added.notify_waiters();
    }

    /// The command has ended. Forgets what is not to be kept, and returns how much was lost of standard output and of
    /// standard error.
    pub(crate) fn seal(&self) -> [u64; 2] {
        let mut state = self.state();
        state.complete = true;
        state.sealed = true;
        state.trim();
        state.dropped
    }

    /// This is the last event.
    pub(crate) fn finish(&self, exited: Exited) {
        self.state().exited = Some(exited);
        self.added.notify_waiters();
    }

    /// Some of it is on disk.
    pub(crate) fn is_on_disk(&self) -> bool {
        self.state().spool.as_ref().is_some_and(|spool| spool.end > 0)
    }

    /// Gives up what is on disk of an execution that has ended, but for the last of it, which goes into memory. False:
    /// the file system does not answer.
    pub(crate) async fn forget_spool(&self) -> bool {
        let Some((file, end)) = self.state().spool.as_ref().map(|spool| (Arc::clone(&spool.file), spool.end)) else {
            return true;
        };
        let tail = match read_tail(&file, end).await {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return false,
            // it was removed, or the disk is broken
            tail => tail.unwrap_or_default(),
        };
        drop(self.state().forget_spool(tail));
        // a reader that is reading it keeps it until then
        if let Some(file) = Arc::into_inner(file) {
            file.remove().await;
        }
        true
    }

    /// Keeps the output on disk, if it is to be and there is much of it, until all is kept. `room` gives up what older
    /// executions have there.
    pub(crate) async fn keep(&self, room: &impl MakeRoom) {
        loop {
            match when(&self.added, || self.state().to_keep()).await {
                ToKeep::Write(file, chunks) => {
                    let offered = chunks.last().map_or(0, end_of);
                    let kept = write_all(&file, chunks, room).await;
                    self.state().was_kept(kept, offered);
                }
                ToKeep::Skip(offered) => self.state().was_offered(offered),
                ToKeep::Nothing => return,
            }
            self.taken.notify_waiters();
        }
    }

    /// Which owner it has, or had last.
    pub(crate) fn generation(&self) -> u64 {
        self.state().generation
    }

    /// The command waits for a caller that has lost its connection.
    pub(crate) fn retains(&self) -> bool {
        self.state().retains
    }

    /// From now on another reader is the owner; returns its generation. `position`: where it reads; `None`: where the one
    /// before it has.
    pub(crate) fn take_over(&self, position: Option<u64>) -> u64 {
        let mut state = self.state();
        state.owner = Owner::Reads;
        state.generation += 1;
        // who reads again what is retained has no more of it retained: else a repeat would be a way around that limit
        state.read = position.unwrap_or_default().max(state.read);
        state.generation
    }

    /// Forgets what is retained. False: there is an owner, which may lose its connection yet.
    pub(crate) fn release_retained(&self) -> bool {
        let mut state = self.state();
        state.retains &= state.owner == Owner::Reads;
        state.trim();
        !state.retains
    }

    fn find(&self, position: u64, generation: Option<u64>) -> Option<Found> {
        let mut state = self.state();
        let is_first = generation == Some(0);
        if generation == Some(state.generation) {
            state.read = position.max(state.read);
            state.trim();
            self.taken.notify_waiters();
        }
        if is_first && state.promoted.is_some_and(|end| position >= end) {
            return Some(Found::Promoted);
        }
        if position >= state.end {
            return state.exited.clone().map(|exited| Found::Exited(Box::new(exited)));
        }
        if let Some(output) = state.output(position) {
            return Some(Found::Output(output));
        }
        let until = state.until(is_first);
        match &state.spool {
            Some(spool) if position < spool.end => match spool.file.start() {
                start if start <= position => Some(Found::OnDisk(Arc::clone(&spool.file), spool.end.min(until))),
                start if start < spool.end => Some(Found::Lost(start.min(until))),
                _ => Some(Found::Lost(state.start().min(until))),
            },
            _ => Some(Found::Gap(state.start())),
        }
    }
}

/// What a reader finds at its position.
enum Found {
    Output(Output),
    OnDisk(Arc<SpoolFile>, u64),
    /// What is before this was not kept; the owner learns at the end how much it has not got.
    Gap(u64),
    /// What is before this was on disk, and is lost.
    Lost(u64),
    Promoted,
    Exited(Box<Exited>),
}

/// Writes chunks, as many as can be kept; returns where what is kept ends.
async fn write_all(file: &Arc<SpoolFile>, mut chunks: Vec<Output>, room: &impl MakeRoom) -> u64 {
    loop {
        match file.append(chunks.clone()).await {
            (end, Some(Stopped::Full(full))) if room.make_room(&full).await => {
                chunks = chunks.iter().filter_map(|chunk| after(chunk, end)).collect();
            }
            (end, Some(Stopped::Disk(error))) if is_transient(&error) => {
                tokio::time::sleep(RETRY_DELAY).await;
                chunks = chunks.iter().filter_map(|chunk| after(chunk, end)).collect();
            }
            (end, Some(reason)) => {
                warn!(%reason, position = end, "output is not kept from here on");
                return end;
            }
            (end, None) => return end,
        }
    }
}

/// The last of what is on disk before `end`, as much as stays in memory after an end.
async fn read_tail(file: &Arc<SpoolFile>, end: u64) -> io::Result<Vec<Output>> {
    let mut position = end.saturating_sub(KEPT_BYTES_AT_END as u64).max(file.start());
    let mut tail = Vec::new();
    while position < end {
        tail.extend(file.read(position, end).await?);
        position = tail.last().map_or(end, end_of);
    }
    Ok(tail)
}
