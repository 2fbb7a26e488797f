//! The output of one execution, and who reads it.
//!
//! What was read last is in memory, as much of it as its readers need: the owner, who started the command and slows it down
//! by reading slowly; the spool, which keeps the output of commands that may go to the background; and a little for all
//! others, who never hold up anything. What they come too late for is in the spool, or is a gap.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use telexec_executor::{Event, Exited, Output, OutputStream};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::handover::{Chunk, Printed};
use super::in_memory::{self, Held};
use super::registry::Registry;
use super::spool::{SpoolFile, Stopped};
use super::{PAUSE, is_passing};

/// While it runs, so much may wait in memory for the owner or the spool.
const WINDOW: usize = 512 * 1024;
/// The same where much is in memory already; a quarter of it is read from disk at once then.
const LITTLE: usize = 64 * 1024;
/// So much stays in memory for those who come later, while it runs.
const KEPT: usize = 64 * 1024;
/// And after its end; a command that prints no more than this needs no files.
const KEPT_AT_END: usize = 16 * 1024;
/// What a chunk costs beside its bytes, about.
const CHUNK_COST: usize = 128;
/// The most that is given to the spool at once.
const BATCH: usize = 256 * 1024;

/// The output of one execution.
pub(super) struct Transcript {
    state: Mutex<State>,
    /// Something was added: readers wait for it.
    added: Notify,
    /// Something was read or kept: the pump waits for it.
    taken: Notify,
}

struct State {
    /// The end of the output, without gaps.
    window: VecDeque<Output>,
    /// What the window costs, in bytes.
    cost: Held,
    /// Bytes of both streams.
    end: u64,
    owner: Owner,
    /// The owner has read so far.
    read: u64,
    spool: Option<Spooled>,
    /// It is not for its caller alone: the next engine is to have what is left of it.
    is_kept: bool,
    /// Where the owner stops, since the command goes on without it.
    promoted: Option<u64>,
    /// No more output comes.
    complete: bool,
    /// It is as short as it is to be after the end.
    sealed: bool,
    exited: Option<Exited>,
    /// Of each stream: bytes that were forgotten, and that neither the owner nor the spool has got.
    dropped: [u64; 2],
}

/// Who started the command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// What it has not read yet waits for it.
    Reads,
    /// Nobody waits for it.
    Gone,
}

struct Spooled {
    file: Arc<SpoolFile>,
    /// The spool has so much of the output.
    end: u64,
    /// It has been offered so much; more than it has if it could not keep it.
    seen: u64,
}

impl Spooled {
    fn is_stopped(&self) -> bool {
        self.end < self.seen
    }
}

/// What is to be done for the spool.
enum ToKeep {
    /// These follow what it has.
    Write(Arc<SpoolFile>, Vec<Output>),
    /// It keeps no more, whatever comes: up to here.
    Skip(u64),
    /// It has all, or needs none.
    Nothing,
}

/// What a reader finds at its position.
enum Found {
    Output(Output),
    OnDisk(Arc<SpoolFile>, u64),
    /// What is before this was not kept; the owner is told at the end how much it has not got.
    Gap(u64),
    /// What is before this was on disk, and is lost.
    Lost(u64),
    Promoted,
    Exited(Box<Exited>),
}

impl Transcript {
    /// An empty one. With `file`, what does not fit into memory is kept there.
    pub(super) fn new(file: Option<SpoolFile>) -> Self {
        let is_kept = file.is_some();
        let spool = file.map(|file| Spooled { file: Arc::new(file), end: 0, seen: 0 });
        let state = State {
            window: VecDeque::new(),
            cost: Held::default(),
            end: 0,
            owner: Owner::Reads,
            read: 0,
            spool,
            is_kept,
            promoted: None,
            complete: false,
            sealed: false,
            exited: None,
            dropped: [0; 2],
        };
        Self { state: Mutex::new(state), added: Notify::new(), taken: Notify::new() }
    }

    /// That of an execution which has ended under an earlier engine.
    pub(super) fn ended(printed: Printed, file: Option<SpoolFile>, exited: Exited) -> Self {
        let transcript = Self::new(file);
        {
            let mut state = transcript.state();
            if let Some(spool) = &mut state.spool {
                spool.end = spool.file.stored(u64::MAX).map_or(0, |stored| stored.data);
                spool.seen = printed.end;
            }
            let output = |Chunk { stream, position, data }| Output { stream, data, position };
            state.window = printed.tail.into_iter().map(output).collect();
            let cost = state.window.iter().map(|chunk| chunk.data.len() + CHUNK_COST).sum();
            state.cost.set(cost);
            state.end = printed.end;
            (state.owner, state.complete, state.sealed) = (Owner::Gone, true, true);
            state.exited = Some(exited);
        }
        transcript
    }

    /// What the next engine is to know of it. Of a command that only its caller could follow no output is left.
    pub(super) fn printed(&self) -> Printed {
        let state = self.state();
        let chunk = |chunk: &Output| Chunk { stream: chunk.stream, position: chunk.position, data: chunk.data.clone() };
        let tail = if state.is_kept { state.window.iter().map(chunk).collect() } else { Vec::new() };
        let stored = state.spool.as_ref().and_then(|spool| spool.file.stored(spool.end));
        Printed { end: state.end, tail, stored }
    }

    /// A panic while the lock was held leaves nothing half done here.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a reader goes on that cannot have what is on disk.
    fn after_disk(&self, is_owner: bool) -> u64 {
        let state = self.state();
        state.start().min(state.until(is_owner))
    }

    /// Bytes of both streams so far.
    pub(super) fn end(&self) -> u64 {
        self.state().end
    }

    /// What it takes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.state().cost.bytes()
    }

    /// Waits until there is room for another chunk. False: there is none, and the owner is not waited for any more.
    pub(super) async fn room(&self, abandoned: &CancellationToken) -> bool {
        let room = when(&self.taken, || self.has_room().then_some(()));
        abandoned.run_until_cancelled(room).await.is_some() || self.has_room()
    }

    fn has_room(&self) -> bool {
        self.bytes() < if in_memory::is_much() { LITTLE } else { WINDOW }
    }

    /// Adds a chunk.
    pub(super) fn add(&self, stream: OutputStream, data: Bytes) {
        let mut state = self.state();
        let position = state.end;
        state.end += data.len() as u64;
        state.cost.add(data.len() + CHUNK_COST);
        state.window.push_back(Output { stream, data, position });
        state.trim();
        drop(state);
        self.added.notify_waiters();
    }

    /// The owner goes, or needs no more: the command does not wait for it.
    pub(super) fn leave(&self) {
        let mut state = self.state();
        state.owner = Owner::Gone;
        state.trim();
        drop(state);
        self.taken.notify_waiters();
    }

    /// The command goes on in the background: its owner is told so after what there is.
    pub(super) fn promote(&self) {
        let mut state = self.state();
        if state.exited.is_some() {
            return;
        }
        let end = state.end;
        state.promoted.get_or_insert(end);
        drop(state);
        self.added.notify_waiters();
        // it has what it needs in memory, or in the spool
        self.leave();
    }

    /// It went, or goes, to the background.
    pub(super) fn is_promoted(&self) -> bool {
        self.state().promoted.is_some()
    }

    /// No more output comes.
    pub(super) fn complete(&self) {
        self.state().complete = true;
        self.added.notify_waiters();
    }

    /// The command has ended. Forgets what is not to be kept, and returns how much nobody has got: of standard output and
    /// of standard error.
    pub(super) fn seal(&self) -> [u64; 2] {
        let mut state = self.state();
        state.complete = true;
        state.sealed = true;
        state.trim();
        state.dropped
    }

    /// This is the last that is told.
    pub(super) fn finish(&self, exited: Exited) {
        self.state().exited = Some(exited);
        self.added.notify_waiters();
    }

    /// Some of it is on disk.
    pub(super) fn is_on_disk(&self) -> bool {
        self.state().spool.as_ref().is_some_and(|spool| spool.end > 0)
    }

    /// Gives up what is on disk of an execution that has ended, but for the last of it, which goes into memory. False: the
    /// file system does not answer.
    pub(super) async fn forget_spool(&self) -> bool {
        let Some((file, end)) = self.state().spool.as_ref().map(|spool| (Arc::clone(&spool.file), spool.end)) else {
            return true;
        };
        let tail = match read_tail(&file, end).await {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return false,
            // it was removed, or the disk is broken
            tail => tail.unwrap_or_default(),
        };
        drop(self.state().forget_spool(tail));
        // who reads it has it until then
        if let Some(file) = Arc::into_inner(file) {
            file.remove().await;
        }
        true
    }

    /// Keeps the output on disk, if it is to be and there is much of it, until all is kept. `registry` makes room: it gives
    /// up what older executions have there.
    pub(super) async fn keep(&self, registry: &Registry) {
        loop {
            match when(&self.added, || self.state().to_keep()).await {
                ToKeep::Write(file, chunks) => {
                    let offered = chunks.last().map_or(0, end_of);
                    let kept = write_all(&file, chunks, registry).await;
                    self.state().was_kept(kept, offered);
                }
                ToKeep::Skip(offered) => self.state().was_offered(offered),
                ToKeep::Nothing => return,
            }
            self.taken.notify_waiters();
        }
    }

    fn find(&self, position: u64, is_owner: bool) -> Option<Found> {
        let mut state = self.state();
        if is_owner {
            state.read = position;
            state.trim();
            self.taken.notify_waiters();
        }
        if is_owner && state.promoted.is_some_and(|end| position >= end) {
            return Some(Found::Promoted);
        }
        if position >= state.end {
            return state.exited.clone().map(|exited| Found::Exited(Box::new(exited)));
        }
        if let Some(output) = state.output(position) {
            return Some(Found::Output(output));
        }
        let until = state.until(is_owner);
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

impl State {
    /// Where the window begins.
    fn start(&self) -> u64 {
        self.window.front().map_or(self.end, |chunk| chunk.position)
    }

    /// Where a reader stops.
    fn until(&self, is_owner: bool) -> u64 {
        self.promoted.filter(|_| is_owner).unwrap_or(u64::MAX)
    }

    /// What is in memory at this position, to the end of its chunk.
    fn output(&self, position: u64) -> Option<Output> {
        let after = self.window.partition_point(|chunk| chunk.position <= position);
        self.window.get(after.checked_sub(1)?).and_then(|chunk| after_position(chunk, position))
    }

    /// Forgets what nobody needs any more.
    fn trim(&mut self) {
        let kept = match &self.spool {
            // all of it is on disk
            Some(spool) if self.sealed && spool.end == self.end => 0,
            _ if self.sealed => KEPT_AT_END,
            _ => KEPT,
        };
        while let Some(first) = self.window.front() {
            let end = end_of(first);
            let is_read = self.owner == Owner::Gone || self.read >= end;
            // what is not to be kept yet, since there is little, is in memory
            let is_kept = self.spool.as_ref().is_none_or(|spool| spool.seen >= end);
            if self.cost.bytes() <= kept || !is_read || !is_kept {
                return;
            }
            let surplus = self.cost.bytes() - kept;
            let Some(chunk) = self.window.pop_front() else { return };
            self.cost.subtract(chunk.data.len() + CHUNK_COST);
            // of the last one that is forgotten after the end, as much as fits stays
            let rest = if self.sealed { after_position(&chunk, chunk.position + surplus as u64) } else { None };
            self.forget(&chunk, rest.as_ref().map_or(end, |rest| rest.position));
            if let Some(rest) = rest {
                // a copy, so that the rest of its memory is given back
                self.cost.add(rest.data.len() + CHUNK_COST);
                self.window.push_front(Output { data: Bytes::copy_from_slice(&rest.data), ..rest });
                return;
            }
        }
    }

    /// Counts what nobody has got of a chunk before `end`, which is in the chunk.
    fn forget(&mut self, chunk: &Output, end: u64) {
        let got = self.read.max(self.spool.as_ref().map_or(0, |spool| spool.end));
        let [stdout, stderr] = &mut self.dropped;
        let dropped = match chunk.stream {
            OutputStream::Stdout => stdout,
            OutputStream::Stderr => stderr,
        };
        *dropped += end.saturating_sub(got.max(chunk.position));
    }

    /// What is to be done for the spool next; `None`: that is not yet known.
    fn to_keep(&self) -> Option<ToKeep> {
        let Some(spool) = &self.spool else { return Some(ToKeep::Nothing) };
        let is_much = spool.seen > 0 || self.cost.bytes() > KEPT_AT_END;
        if !is_much || spool.seen == self.end {
            return self.complete.then_some(ToKeep::Nothing);
        }
        if spool.is_stopped() {
            return Some(ToKeep::Skip(self.end));
        }
        let mut bytes = 0;
        let from = self.window.partition_point(|chunk| chunk.position < spool.seen);
        let fits = |chunk: &&Output| {
            let fits = bytes < BATCH;
            bytes += chunk.data.len();
            fits
        };
        let chunks = self.window.iter().skip(from).take_while(fits).cloned().collect();
        Some(ToKeep::Write(Arc::clone(&spool.file), chunks))
    }

    /// `tail`: the last of what is on disk. It is not needed where what was not kept there is in memory.
    fn forget_spool(&mut self, tail: Vec<Output>) -> Option<Spooled> {
        let spool = self.spool.take()?;
        if self.window.is_empty() {
            self.cost.set(tail.iter().map(|chunk| chunk.data.len() + CHUNK_COST).sum());
            self.window = tail.into();
            self.trim();
        }
        Some(spool)
    }

    fn was_offered(&mut self, offered: u64) {
        if let Some(spool) = &mut self.spool {
            spool.seen = offered;
        }
        self.trim();
    }

    fn was_kept(&mut self, end: u64, offered: u64) {
        let Some(spool) = &mut self.spool else { return };
        spool.end = end;
        self.was_offered(offered);
    }
}

/// The position after a chunk.
fn end_of(chunk: &Output) -> u64 {
    chunk.position + chunk.data.len() as u64
}

/// What of a chunk is at and after a position in it.
fn after_position(chunk: &Output, position: u64) -> Option<Output> {
    let before = usize::try_from(position.checked_sub(chunk.position)?).ok()?;
    let data = (before < chunk.data.len()).then(|| chunk.data.slice(before..))?;
    Some(Output { stream: chunk.stream, data, position })
}

/// What of a chunk is at and after a position anywhere.
fn after(chunk: &Output, position: u64) -> Option<Output> {
    after_position(chunk, position.max(chunk.position))
}

/// Writes chunks, as many as can be kept; returns where what is kept ends.
async fn write_all(file: &Arc<SpoolFile>, mut chunks: Vec<Output>, registry: &Registry) -> u64 {
    loop {
        match file.append(chunks.clone()).await {
            (end, Some(Stopped::Total)) if registry.make_room().await => {
                chunks = chunks.iter().filter_map(|chunk| after(chunk, end)).collect();
            }
            (end, Some(Stopped::Disk(error))) if is_passing(&error) => {
                tokio::time::sleep(PAUSE).await;
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
    let mut position = end.saturating_sub(KEPT_AT_END as u64).max(file.start());
    let mut tail = Vec::new();
    while position < end {
        tail.extend(file.read(position, end).await?);
        position = tail.last().map_or(end, end_of);
    }
    Ok(tail)
}

/// Waits for what `check` finds, which is asked again whenever there are news.
async fn when<T>(news: &Notify, check: impl Fn() -> Option<T>) -> T {
    loop {
        let next = news.notified();
        tokio::pin!(next);
        // from here on nothing is missed
        next.as_mut().enable();
        if let Some(found) = check() {
            return found;
        }
        next.await;
    }
}

/// One who reads a transcript, at its own speed.
pub(super) struct Reader {
    transcript: Arc<Transcript>,
    position: u64,
    /// Read from disk, not told yet.
    read: VecDeque<Output>,
    /// What that holds, with the piece of it that was told last.
    held: Held,
    is_owner: bool,
}

impl Reader {
    /// Who started the command: it reads all.
    pub(super) fn owner(transcript: Arc<Transcript>) -> Self {
        Self { transcript, position: 0, read: VecDeque::new(), held: Held::default(), is_owner: true }
    }

    /// Someone else.
    pub(super) fn at(transcript: Arc<Transcript>, position: u64) -> Self {
        Self { transcript, position, read: VecDeque::new(), held: Held::default(), is_owner: false }
    }

    /// What comes next; not to be called after the last event.
    pub(super) async fn next(&mut self) -> Event {
        loop {
            if let Some(output) = self.read.pop_front() {
                return self.tell(output);
            }
            self.held.set(0);
            let transcript = Arc::clone(&self.transcript);
            match when(&transcript.added, || transcript.find(self.position, self.is_owner)).await {
                Found::Output(output) => return self.tell(output),
                Found::OnDisk(file, end) => {
                    if !self.read(file, end).await {
                        return self.skip_to(transcript.after_disk(self.is_owner));
                    }
                }
                Found::Gap(position) if self.is_owner => self.position = position,
                Found::Gap(position) | Found::Lost(position) => return self.skip_to(position),
                Found::Promoted => return Event::Promoted,
                Found::Exited(exited) => return Event::Exited(*exited),
            }
        }
    }

    fn tell(&mut self, output: Output) -> Event {
        self.position = end_of(&output);
        Event::Output(output)
    }

    /// What is before is not told.
    fn skip_to(&mut self, position: u64) -> Event {
        self.position = position;
        Event::Gap(position)
    }

    /// False: it cannot be read, now or ever.
    async fn read(&mut self, file: Arc<SpoolFile>, end: u64) -> bool {
        let length = if in_memory::is_much() { LITTLE / 4 } else { BATCH };
        let end = end.min(self.position.saturating_add(length as u64));
        // at once: others that come at the same time are to see it
        self.held.set(length);
        match file.read(self.position, end).await {
            Ok(chunks) if !chunks.is_empty() => {
                self.held.set(chunks.iter().map(|chunk| chunk.data.len()).sum());
                self.read = chunks.into();
            }
            Err(error) if is_passing(&error) => tokio::time::sleep(PAUSE).await,
            // someone has removed it, or the disk is broken
            unread => {
                warn!(error = unread.err().map(tracing::field::display), "kept output cannot be read");
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Disk;
    use crate::{spool::Spool, spool::SpoolLimits};

    /// What was kept does not count as dropped, even if it cannot be read any more.
    #[tokio::test]
    async fn the_owner_of_a_promoted_command_is_told_of_what_was_kept_and_is_lost() {
        let state = tempfile::tempdir().unwrap();
        let (spool, _) = Spool::new(Disk::new().unwrap(), Some(state.path()), SpoolLimits::default()).unwrap();
        let transcript = Arc::new(Transcript::new(Some(spool.file("owner"))));
        for _ in 0..8 {
            transcript.add(OutputStream::Stdout, vec![b'x'; KEPT / 4].into());
        }
        let Some(ToKeep::Write(file, chunks)) = transcript.state().to_keep() else { panic!("it is to be kept") };
        let (end, stopped) = file.append(chunks).await;
        assert!(end == 2 * KEPT as u64 && stopped.is_none());
        transcript.state().was_kept(end, end);
        transcript.promote();
        std::fs::remove_dir_all(spool.directory()).unwrap();
        let mut owner = Reader::owner(Arc::clone(&transcript));
        let in_memory = transcript.state().start();
        assert!(owner.next().await == Event::Gap(in_memory));
        let mut told = in_memory;
        while let Event::Output(output) = owner.next().await {
            told += output.data.len() as u64;
        }
        assert!(told == end && in_memory > 0);
        assert_eq!(transcript.seal(), [0; 2]);
    }
}
