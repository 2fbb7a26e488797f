//! What is in memory of an execution's output, and who still needs it.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use telexec_executor::{Exited, Output, OutputStream};

use crate::output::in_memory::HeldBytes;
use crate::output::spool::SpoolFile;
use crate::state::checkpoint::Checkpoint;
use crate::streams::source::CHUNK_BYTES;

/// How much may wait in memory for the owner or the spool while the command runs.
pub(super) const WINDOW: usize = 512 * 1024;
/// The same where much is in memory already. Then a quarter of it is read from disk at once.
pub(super) const SMALL_WINDOW: usize = 64 * 1024;
/// How much stays in memory for later readers while the command runs.
pub(super) const KEPT_BYTES: usize = 64 * 1024;
/// And after its end. A command that prints no more than this needs no files.
pub(super) const KEPT_BYTES_AT_END: usize = 16 * 1024;
// what was read never takes all the room: nobody would make any
const _: () = assert!(KEPT_BYTES <= SMALL_WINDOW && KEPT_BYTES <= WINDOW);
/// How much that was read stays in memory, of a command that waits for its caller after a lost connection: what may have
/// been lost with it. That is the stream window of the client (4 MiB, of this project's), the server's send buffer (1 MiB),
/// a message, and what chunks cost.
pub(super) const RETAINED_BYTES: usize = 6656 * 1024;
/// The same where much is retained already.
pub(super) const SMALL_RETAINED_BYTES: usize = 256 * 1024;
/// What a chunk costs beside its bytes, about.
pub(super) const CHUNK_COST: usize = 128;
/// The most that is given to the spool at once.
pub(super) const BATCH_BYTES: usize = 256 * 1024;

/// What a transcript is made of.
pub(super) struct State {
    /// The end of the output, without gaps.
    pub(super) window: VecDeque<Output>,
    /// What the window costs, in bytes.
    pub(super) cost: usize,
    /// Counts that, without what is retained.
    pub(super) waiting: HeldBytes,
    /// Counts what was read, while it is retained.
    pub(super) retained: HeldBytes,
    /// What was read is to be retained.
    pub(super) retains: bool,
    /// Bytes of both streams.
    pub(super) end: u64,
    pub(super) owner: Owner,
    /// Counts up with each reader that took the owner's place.
    pub(super) generation: u64,
    /// The owner has read so far.
    pub(super) read: u64,
    pub(super) spool: Option<Spooled>,
    /// It is not for its caller alone: the next engine is to have what is left of it.
    pub(super) is_kept: bool,
    /// Where the owner stops, since the command continues without it.
    pub(super) promoted: Option<u64>,
    /// No more output comes.
    pub(super) complete: bool,
    /// It was cut to what is kept after the end.
    pub(super) sealed: bool,
    pub(super) exited: Option<Exited>,
    /// Of each stream: bytes that were forgotten, and that neither the owner nor the spool has got.
    pub(super) dropped: [u64; 2],
    /// Has what is in memory too, for the next agent.
    pub(super) checkpoint: Option<Arc<Checkpoint>>,
}

/// Who started the command, or took the place of who did.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// Output waits until it was read.
    Reads,
    /// Nothing waits for it.
    Gone,
}

pub(super) struct Spooled {
    pub(super) file: Arc<SpoolFile>,
    /// Up to here the output is in the spool.
    pub(super) end: u64,
    /// Up to here it was offered to the spool: more than that has, if it could not keep it.
    pub(super) seen: u64,
}

impl Spooled {
    /// Of an execution that an earlier engine has followed so far, of whose output what comes before `start` is not in memory.
    pub(super) fn restored(file: SpoolFile, start: u64) -> Self {
        let end = file.stored(u64::MAX).map_or(0, |stored| stored.data);
        Self { file: Arc::new(file), end, seen: end.max(start) }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.end < self.seen
    }
}

/// What is to be done for the spool.
pub(super) enum ToKeep {
    /// These follow what it has.
    Write(Arc<SpoolFile>, Vec<Output>),
    /// It keeps no more, whatever comes: up to here.
    Skip(u64),
    /// It has all, or needs none.
    Nothing,
}

impl State {
    /// Where the window begins.
    pub(super) fn start(&self) -> u64 {
        self.window.front().map_or(self.end, |chunk| chunk.position)
    }

    /// Where a reader stops.
    pub(super) fn until(&self, is_first: bool) -> u64 {
        self.promoted.filter(|_| is_first).unwrap_or(u64::MAX)
    }

    /// How much stays in memory that was read.
    fn retention(&self) -> usize {
        match self.may_retain() {
            false => 0,
            true if self.retained.is_full() => 0,
            true if self.retained.is_high() => SMALL_RETAINED_BYTES,
            true => RETAINED_BYTES,
        }
    }

    /// What is on disk can be read again from there.
    fn may_retain(&self) -> bool {
        self.retains && self.spool.as_ref().is_none_or(Spooled::is_stopped)
    }

    /// How much may be added, where this much may wait: nothing, or at least a chunk. What was read, and is kept, never fills it.
    pub(super) fn room(&self, window: usize) -> usize {
        let left = |used: usize, most: usize| if used > most { 0 } else { most - used + CHUNK_BYTES };
        let waits = usize::try_from(self.end.saturating_sub(self.read)).unwrap_or(usize::MAX);
        // not as much as may be retained now: that may become less, and nothing is forgotten for it
        let most = window.saturating_add(RETAINED_BYTES);
        let retains = if self.may_retain() { left(waits, window).min(left(self.cost, most)) } else { 0 };
        left(self.cost, window).max(retains)
    }

    /// Counts what is in memory.
    fn account(&mut self) {
        let read = if self.retains { self.read.min(self.end).saturating_sub(self.start()) } else { 0 };
        let retained = usize::try_from(read).unwrap_or(usize::MAX).min(self.cost);
        self.retained.set(retained);
        self.waiting.set(self.cost - retained);
    }

    /// What is in memory at this position, to the end of its chunk.
    pub(super) fn output(&self, position: u64) -> Option<Output> {
        let after = self.window.partition_point(|chunk| chunk.position <= position);
        self.window.get(after.checked_sub(1)?).and_then(|chunk| after_position(chunk, position))
    }

    /// Forgets what is no longer needed.
    pub(super) fn trim(&mut self) {
        self.trim_window();
        self.account();
        if let Some(checkpoint) = &self.checkpoint {
            checkpoint.forget(self.start(), self.dropped, self.sealed);
        }
    }

    fn trim_window(&mut self) {
        let on_disk = self.spool.as_ref().is_some_and(|spool| !spool.is_stopped());
        let kept = match &self.spool {
            Some(spool) if self.sealed && spool.end == self.end => 0,
            _ if self.sealed => KEPT_BYTES_AT_END,
            _ => KEPT_BYTES,
        };
        let kept = kept.max(self.retention());
        // however long the chunks are: what is forgotten now is missing at the end
        let tail = if on_disk && !self.sealed { 0 } else { kept.min(KEPT_BYTES_AT_END) };
        while let Some(first) = self.window.front() {
            let end = end_of(first);
            let is_read = self.owner == Owner::Gone || self.read >= end;
            // what is not to be kept yet, since there is little, is in memory
            let is_kept = self.spool.as_ref().is_none_or(|spool| spool.seen >= end);
            if self.cost <= kept || !is_read || !is_kept {
                return;
            }
            let Some(chunk) = self.window.pop_front() else { return };
            self.cost -= chunk.data.len() + CHUNK_COST;
            let missing = tail.saturating_sub(self.cost + CHUNK_COST);
            let rest = after_position(&chunk, end.saturating_sub(missing as u64).max(chunk.position));
            self.forget(&chunk, rest.as_ref().map_or(end, |rest| rest.position));
            if let Some(rest) = rest {
                // a copy, so that the rest of its memory is given back
                self.cost += rest.data.len() + CHUNK_COST;
                self.window.push_front(Output { data: Bytes::copy_from_slice(&rest.data), ..rest });
                return;
            }
        }
    }

    /// Counts what is lost of a chunk before `end`, which is in the chunk.
    pub(super) fn forget(&mut self, chunk: &Output, end: u64) {
        let got = self.read.max(self.spool.as_ref().map_or(0, |spool| spool.end));
        let [stdout, stderr] = &mut self.dropped;
        let dropped = match chunk.stream {
            OutputStream::Stdout => stdout,
            OutputStream::Stderr => stderr,
        };
        *dropped += end.saturating_sub(got.max(chunk.position));
    }

    /// What is to be done for the spool next; `None`: that is not yet known.
    pub(super) fn to_keep(&self) -> Option<ToKeep> {
        let Some(spool) = &self.spool else { return Some(ToKeep::Nothing) };
        let is_much = spool.seen > 0 || self.cost > KEPT_BYTES_AT_END;
        if !is_much || spool.seen == self.end {
            return self.complete.then_some(ToKeep::Nothing);
        }
        if spool.is_stopped() {
            return Some(ToKeep::Skip(self.end));
        }
        let mut bytes = 0;
        let from = self.window.partition_point(|chunk| chunk.position < spool.seen);
        let fits = |chunk: &&Output| {
            let fits = bytes < BATCH_BYTES;
            bytes += chunk.data.len();
            fits
        };
        let chunks: Vec<_> = self.window.iter().skip(from).take_while(fits).cloned().collect();
        // what was offered ends with a chunk
        if chunks.is_empty() {
            return Some(ToKeep::Skip(self.end));
        }
        Some(ToKeep::Write(Arc::clone(&spool.file), chunks))
    }

    /// `tail`: the last of what is on disk. It is not needed where what was not kept there is in memory.
    pub(super) fn forget_spool(&mut self, tail: Vec<Output>) -> Option<Spooled> {
        let spool = self.spool.take()?;
        if self.window.is_empty() {
            self.cost = tail.iter().map(|chunk| chunk.data.len() + CHUNK_COST).sum();
            self.window = tail.into();
            self.trim();
        }
        Some(spool)
    }

    pub(super) fn was_offered(&mut self, offered: u64) {
        if let Some(spool) = &mut self.spool {
            spool.seen = offered;
        }
        self.trim();
    }

    pub(super) fn was_kept(&mut self, end: u64, offered: u64) {
        let Some(spool) = &mut self.spool else { return };
        spool.end = end;
        self.was_offered(offered);
    }
}

/// The position after a chunk.
pub(super) fn end_of(chunk: &Output) -> u64 {
    chunk.position + chunk.data.len() as u64
}

/// What of a chunk is at and after a position in it.
pub(super) fn after_position(chunk: &Output, position: u64) -> Option<Output> {
    let before = usize::try_from(position.checked_sub(chunk.position)?).ok()?;
    let data = (before < chunk.data.len()).then(|| chunk.data.slice(before..))?;
    Some(Output { stream: chunk.stream, data, position })
}

/// A chunk, cut in two at a position that is in it.
pub(super) fn cut(chunk: Output, position: u64) -> impl Iterator<Item = Output> {
    let rest = (position > chunk.position).then(|| after_position(&chunk, position)).flatten();
    let length = usize::try_from(position.saturating_sub(chunk.position)).unwrap_or(usize::MAX);
    let first = match &rest {
        Some(_) => Output { data: chunk.data.slice(..length), ..chunk },
        None => chunk,
    };
    [Some(first), rest].into_iter().flatten()
}

/// What of a chunk is at and after a position anywhere.
pub(super) fn after(chunk: &Output, position: u64) -> Option<Output> {
    after_position(chunk, position.max(chunk.position))
}
