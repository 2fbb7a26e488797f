//! The log, on standard error. A thread of its own writes it: whoever has something to log never waits for who reads it,
//! and does not fail with it.

pub mod limit;
mod queue;

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tracing::error;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use self::queue::Queue;
use crate::config::{Config, LogFormat};
use crate::logging::limit::Limit;

/// At the end: how long the last lines may take.
const FLUSH_TIME: Duration = Duration::from_secs(1);

/// Of this process, as standard error is.
static QUEUE: Queue = Queue::new();
/// A thread writes what is in it. Until then lines are written at once.
static STARTED: AtomicBool = AtomicBool::new(false);

/// A log that cannot be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// `log_level` is neither a level nor filter directives.
    #[error(transparent)]
    Level(#[from] ParseError),
    /// There is no thread to be had that writes it.
    #[error("cannot start the thread that writes the log")]
    Thread(#[source] io::Error),
    /// This process has a log already.
    #[error("the log was started before")]
    Started,
}

/// Starts logging as configured, once in a process. Panics are logged too.
///
/// # Errors
/// `log_level` is wrong, there is no thread for it, or it was started before.
pub fn start(config: &Config) -> Result<(), LogError> {
    let filter = EnvFilter::builder().parse(&config.log_level)?;
    thread::Builder::new().name("log".into()).spawn(|| QUEUE.write()).map_err(LogError::Thread)?;
    STARTED.store(true, Ordering::Relaxed);
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Line).log_internal_errors(false);
    match config.log_format {
        LogFormat::Text => builder.with_ansi(io::stderr().is_terminal()).finish().with(Limit).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).finish().with(Limit).try_init(),
    }
    .map_err(|_| LogError::Started)?;
    std::panic::set_hook(Box::new(|panic| {
        let (thread, place) = (thread::current(), panic.location().map(ToString::to_string));
        let text = panic.payload_as_str().unwrap_or_default();
        error!(thread = thread.name(), place, "panicked: {text}");
    }));
    Ok(())
}

/// Writes a line of its own to standard error: at its turn in the log, if that was started.
pub fn line(text: &str) {
    put(format!("{text}\n").into_bytes());
}

/// Waits until what was logged is written, for a second at the most.
pub fn flush() {
    QUEUE.flush(FLUSH_TIME);
}

/// How many lines were dropped, since standard error did not take them.
pub(crate) fn dropped() -> u64 {
    QUEUE.dropped()
}

fn put(line: Vec<u8>) {
    match STARTED.load(Ordering::Relaxed) {
        true => QUEUE.push(line),
        // nothing is served yet, and who cannot be told cannot be told that
        false => drop(io::stderr().write_all(&line)),
    }
}

/// Takes a line of the log, which comes whole.
struct Line;

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        put(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
