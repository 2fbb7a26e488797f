//! What an agent writes to standard error.

use std::io::{BufRead, BufReader};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// How long an agent may take to listen.
const LIMIT: Duration = Duration::from_secs(30);

/// Standard error of an agent, as far as it was written.
#[derive(Default)]
pub(crate) struct Log {
    state: Mutex<LogState>,
    changed: Condvar,
    /// Held by who reads a line, or keeps it from being read.
    pub(crate) reading: Mutex<()>,
}

#[derive(Default)]
struct LogState {
    text: String,
    ended: bool,
}

impl Log {
    pub(crate) fn follow(pipe: impl std::io::Read + Send + 'static) -> Arc<Self> {
        let log = Arc::new(Self::default());
        let writer = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
                writer.state.lock().unwrap().text += &format!("{}\n", String::from_utf8_lossy(&line));
                writer.changed.notify_all();
                drop(writer.reading.lock().unwrap());
            }
            writer.state.lock().unwrap().ended = true;
            writer.changed.notify_all();
        });
        log
    }

    pub(crate) fn text(&self) -> String {
        self.state.lock().unwrap().text.clone()
    }

    /// What `find` finds in the text, once it does; `None`: the log has ended without.
    pub(crate) fn wait<T>(&self, find: impl Fn(&str) -> Option<T>) -> Option<T> {
        let waiting = |state: &mut LogState| !state.ended && find(&state.text).is_none();
        let (state, late) = self.changed.wait_timeout_while(self.state.lock().unwrap(), LIMIT, waiting).unwrap();
        assert!(!late.timed_out(), "telexecd neither listens nor ends:\n{}", state.text);
        find(&state.text)
    }
}
