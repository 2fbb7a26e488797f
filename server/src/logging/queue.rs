//! Lines on their way to standard error: bounded, in their order, and dropped with a count where there is no room.
//!
//! `tracing-appender` has such a queue, but it is bounded by lines whatever their length, does not count what could not
//! be written, and writes to standard error itself when it ends.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tracing::warn;

/// So much may wait. A line that is longer than this waits alone.
const MAX_BYTES: usize = 1024 * 1024;

pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    lines: VecDeque<Vec<u8>>,
    /// Of all lines.
    bytes: usize,
    /// One was taken, and is not written yet.
    writes: bool,
    /// Lines that are lost.
    dropped: u64,
    /// Of these, so many when that was last said.
    said: u64,
}

impl Queue {
    pub(super) const fn new() -> Self {
        let state = State { lines: VecDeque::new(), bytes: 0, writes: false, dropped: 0, said: 0 };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, line: Vec<u8>) {
        let mut state = self.state();
        if !state.lines.is_empty() && state.bytes + line.len() > MAX_BYTES {
            state.dropped += 1;
            return;
        }
        state.bytes += line.len();
        state.lines.push_back(line);
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn dropped(&self) -> u64 {
        self.state().dropped
    }

    /// Waits until all is written, or for so long.
    pub(super) fn flush(&self, patience: Duration) {
        let waits = |state: &mut State| state.writes || !state.lines.is_empty();
        drop(self.changed.wait_timeout_while(self.state(), patience, waits));
    }

    /// Writes what comes; for ever.
    pub(super) fn write(&self) {
        let mut output = Output { torn: false };
        loop {
            let line = self.next();
            let is_written = output.write(&line).is_ok();
            if let Some(total) = self.to_say(is_written) {
                warn!(total, "log lines were dropped");
            }
            let mut state = self.state();
            state.writes = false;
            drop(state);
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Vec<u8> {
        let is_empty = |state: &mut State| state.lines.is_empty();
        let mut state = self.changed.wait_while(self.state(), is_empty).unwrap_or_else(PoisonError::into_inner);
        let line = state.lines.pop_front().unwrap_or_default();
        state.bytes -= line.len();
        state.writes = true;
        line
    }

    /// After a line: how many are lost, if that is to be said, since there is room again. Should that be lost too, there
    /// is one more to tell of.
    fn to_say(&self, is_written: bool) -> Option<u64> {
        let mut state = self.state();
        state.dropped += u64::from(!is_written);
        let has_room = is_written && state.lines.is_empty();
        if !has_room || state.dropped == state.said {
            return None;
        }
        state.said = state.dropped;
        Some(state.dropped)
    }
}

/// Standard error.
struct Output {
    /// It ends within a line.
    torn: bool,
}

impl Output {
    /// Writes a line. Not by the standard library: its lock would be held for as long as that takes.
    fn write(&mut self, line: &[u8]) -> Result<(), Errno> {
        if self.torn {
            self.write_all(b"\n")?;
        }
        self.write_all(line)
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> Result<(), Errno> {
        let stderr: BorrowedFd<'_> = rustix::stdio::stderr();
        while !bytes.is_empty() {
            match rustix::io::write(stderr, bytes) {
                Ok(written) => {
                    bytes = bytes.get(written..).unwrap_or_default();
                    self.torn = !bytes.is_empty();
                }
                Err(Errno::INTR) => {}
                // whoever shares it may have made it so
                Err(Errno::AGAIN) => drop(poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None)?),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
