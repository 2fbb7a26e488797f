//! The queue of lines to standard error: bounded and ordered. Lines that do not fit are dropped and counted.
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

/// Bytes that may be queued. A longer line is queued alone.
const MAX_BYTES: usize = 1024 * 1024;

pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    lines: VecDeque<Vec<u8>>,
    /// The total size of the lines.
    bytes: usize,
    /// A line was taken, and is not written yet.
    writes: bool,
    /// Dropped lines.
    dropped: u64,
    /// The value of `dropped` when it was last logged.
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

    /// Waits until all lines are written, or the timeout.
    pub(super) fn flush(&self, timeout: Duration) {
        let waits = |state: &mut State| state.writes || !state.lines.is_empty();
        drop(self.changed.wait_timeout_while(self.state(), timeout, waits));
    }

    /// Writes the lines. Never returns.
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

    /// Logs the number of dropped lines once there is room again. If that line is dropped too, it counts as one more.
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
    /// Whether the last write ended within a line.
    torn: bool,
}

impl Output {
    /// Writes a line. Not by std, which would hold its lock on standard error while it blocks.
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
                // set by another process that shares the file
                Err(Errno::AGAIN) => drop(poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None)?),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
