//! How far the copy is: a line on the terminal, at most a few times a second.

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::output::size;
use crate::terminal;

const ERASE: &str = "\r\x1b[K";
const INTERVAL: Duration = Duration::from_millis(200);
/// Faster copies show nothing.
const DELAY: Duration = Duration::from_millis(500);

pub(crate) struct Progress(Option<Mutex<State>>);

struct State {
    name: String,
    since: Instant,
    shown: Option<Instant>,
    /// Of the current file.
    total: Option<u64>,
    done: u64,
    /// Of all files.
    bytes: u64,
    files: u64,
}

impl Progress {
    pub(crate) fn new(quiet: bool) -> Self {
        let can_erase = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
        let shows = !quiet && can_erase && std::io::stderr().is_terminal();
        let state = || State {
            name: String::new(),
            since: Instant::now(),
            shown: None,
            total: None,
            done: 0,
            bytes: 0,
            files: 0,
        };
        Self(shows.then(|| Mutex::new(state())))
    }

    fn state(&self) -> Option<MutexGuard<'_, State>> {
        Some(self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A file begins; of this size, if that is known.
    pub(super) fn begin(&self, name: &str, total: Option<u64>) {
        if let Some(mut state) = self.state() {
            (state.name, state.total, state.done) = (telexec_executor::FilePath::new(name).to_string(), total, 0);
            state.files += 1;
        }
    }

    /// So much of it was already there; it has this size, if that is known by now.
    pub(super) fn skip(&self, bytes: u64, total: Option<u64>) {
        if let Some(mut state) = self.state() {
            state.done = bytes;
            state.total = total.or(state.total);
        }
    }

    /// So much more of it was copied.
    pub(super) fn add(&self, bytes: u64) {
        let Some(mut state) = self.state() else { return };
        state.done += bytes;
        state.bytes += bytes;
        let is_due = state.shown.map_or(state.since.elapsed() >= DELAY, |shown| shown.elapsed() >= INTERVAL);
        if is_due {
            state.shown = Some(Instant::now());
            let width = terminal::stderr_width().unwrap_or(80).saturating_sub(1);
            let line: String = state.line().chars().take(width).collect();
            let _ = write!(std::io::stderr().lock(), "{ERASE}{line}");
        }
    }

    /// Removes the line.
    pub(super) fn finish(&self) {
        if let Some(mut state) = self.state()
            && state.shown.take().is_some()
        {
            let _ = write!(std::io::stderr().lock(), "{ERASE}");
        }
    }
}

impl State {
    fn line(&self) -> String {
        let rate = size((self.bytes as f64 / self.since.elapsed().as_secs_f64()) as u64);
        let done = size(self.done);
        let part = match self.total.filter(|total| *total > 0) {
            Some(total) => format!("{:3}%  {done} of {}", self.done.saturating_mul(100) / total, size(total)),
            None => done,
        };
        let files = if self.files > 1 { format!("file {}  ", self.files) } else { String::new() };
        format!("{files}{}  {part}  {rate}/s", self.name)
    }
}
