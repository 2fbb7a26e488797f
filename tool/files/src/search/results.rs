//! What was found, on its way to the agent, within the limits of the caller.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use super::message::{Found, Line, Matches, SearchTask, Searched};
use crate::message::{Info, Outcome};
use crate::session::Session;

/// So many bytes are sent at once.
const BATCH_BYTES: u64 = 32 * 1024;
/// What was found is not kept longer than this, and until the next file or match.
const BATCH_TIME: Duration = Duration::from_millis(50);
/// What an entry takes beside its text, about.
const ENTRY_BYTES: u64 = 32;

/// Collects what is found.
pub(super) struct Results {
    pub(super) counts: Searched,
    max_matches: u64,
    /// Of text, that may still be sent.
    bytes_left: u64,
    found: Found,
    found_bytes: u64,
    /// Of the last batch.
    sent: Instant,
}

impl Results {
    pub(super) fn new(task: &SearchTask) -> Self {
        Self {
            counts: Searched::default(),
            max_matches: task.max_matches,
            bytes_left: task.max_bytes,
            found: Found::default(),
            found_bytes: 0,
            sent: Instant::now(),
        }
    }

    /// Whether a limit was reached: there is nothing more to do.
    pub(super) fn is_full(&self) -> bool {
        self.counts.limit_reached
    }

    /// A file was found.
    pub(super) fn file<I: Read, O: Write>(&mut self, session: &mut Session<I, O>, info: Info) -> io::Result<()> {
        if self.takes(info.path.len(), true) {
            self.found_bytes += 2 * ENTRY_BYTES;
            self.found.files.push(info);
            self.send_much(session)?;
        }
        Ok(())
    }

    /// A line was found in this file. Returns whether there may be more.
    pub(super) fn line<I: Read, O: Write>(
        &mut self,
        session: &mut Session<I, O>,
        path: &[u8],
        line: Line,
    ) -> io::Result<bool> {
        let is_known = self.found.matches.last().is_some_and(|last| last.path == path);
        let length = line.text.len() + if is_known { 0 } else { path.len() };
        if !self.takes(length, !line.is_context) {
            return Ok(false);
        }
        if !is_known {
            self.found.matches.push(Matches { path: path.to_vec(), lines: Vec::new() });
        }
        if let Some(last) = self.found.matches.last_mut() {
            last.lines.push(line);
        }
        self.send_much(session)?;
        self.send_old(session)?;
        Ok(true)
    }

    /// Whether the limits let so many bytes more through.
    fn takes(&mut self, length: usize, is_match: bool) -> bool {
        let length = length as u64;
        let has_room = length <= self.bytes_left && (!is_match || self.counts.matches < self.max_matches);
        self.counts.limit_reached |= !has_room;
        if has_room {
            self.bytes_left -= length;
            self.found_bytes += length + ENTRY_BYTES;
            self.counts.matches += u64::from(is_match);
        }
        has_room
    }

    fn send_much<I: Read, O: Write>(&mut self, session: &mut Session<I, O>) -> io::Result<()> {
        if self.found_bytes >= BATCH_BYTES { self.send(session) } else { Ok(()) }
    }

    /// Sends what has waited long.
    pub(super) fn send_old<I: Read, O: Write>(&mut self, session: &mut Session<I, O>) -> io::Result<()> {
        if self.found_bytes > 0 && self.sent.elapsed() >= BATCH_TIME { self.send(session) } else { Ok(()) }
    }

    /// Sends what there is.
    pub(super) fn send<I: Read, O: Write>(&mut self, session: &mut Session<I, O>) -> io::Result<()> {
        if self.found_bytes > 0 {
            self.found_bytes = 0;
            session.answer(Outcome::Found(std::mem::take(&mut self.found)))?;
        }
        self.sent = Instant::now();
        Ok(())
    }
}
