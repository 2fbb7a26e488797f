//! The log, on standard error, written by a thread of its own: logging never blocks on a slow reader, nor fails with it.

pub mod limit;
mod queue;

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tracing::error;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use self::queue::Queue;
use crate::config::{Config, LogFormat};
use crate::logging::limit::Limit;

/// For the last lines at the end.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// One per process, like standard error.
static QUEUE: Queue = Queue::new();
/// The queue of the writer thread. Before it is started, lines are written directly.
static STARTED: AtomicBool = AtomicBool::new(false);

/// A log that cannot be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// `log_level` is neither a level nor filter directives.
    #[error("log_level: unknown level {0:?}, expected error, warn, info, debug, trace or off, or filter directives")]
    Level(String),
    /// The writer thread cannot be started.
    #[error("cannot start the thread that writes the log")]
    Thread(#[source] io::Error),
    /// The log was started before.
    #[error("the log is already running")]
    Started,
}

/// Starts logging as configured, once in a process. Panics are logged too.
///
/// # Errors
/// `log_level` is invalid, the thread cannot be started, or the log is already running.
pub fn start(config: &Config) -> Result<(), LogError> {
    let filter = filter(&config.log_level)?;
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

/// Stricter than `EnvFilter`, which takes a misspelled level for a target and turns off all others.
///
/// # Errors
/// A part is neither a level nor a directive with a `=` or a `[`.
fn filter(text: &str) -> Result<EnvFilter, LogError> {
    let is_word = |part: &str| !part.contains(['=', '[']);
    let is_unknown = |part: &&str| is_word(part) && part.parse::<LevelFilter>().is_err();
    if let Some(unknown) = text.split(',').map(str::trim).find(is_unknown) {
        return Err(LogError::Level(unknown.to_owned()));
    }
    EnvFilter::builder().parse(text).map_err(|_| LogError::Level(text.to_owned()))
}

/// Writes a plain line to standard error, in order with the log if that was started.
pub fn line(text: &str) {
    put(format!("{text}\n").into_bytes());
}

/// Waits until all lines are written, at most a second.
pub fn flush() {
    QUEUE.flush(FLUSH_TIMEOUT);
}

/// The number of lines dropped because standard error was blocked.
pub(crate) fn dropped() -> u64 {
    QUEUE.dropped()
}

fn put(line: Vec<u8>) {
    match STARTED.load(Ordering::Relaxed) {
        true => QUEUE.push(line),
        // nothing is served yet, and there is nowhere to report it
        false => drop(io::stderr().write_all(&line)),
    }
}

/// Receives whole lines.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        for level in ["off", "error", "warn", "info", "debug", "trace", "INFO", "telexec_engine=debug,info", ""] {
            assert!(filter(level).is_ok(), "{level}");
        }
        for (level, named) in [("foo", "\"foo\""), ("info,inof", "\"inof\""), ("a=b=c", "a=b=c"), ("a=foo", "a=foo")] {
            let refused = filter(level).unwrap_err().to_string();
            assert!(refused.contains(named) && refused.contains("error, warn, info, debug, trace"), "{refused}");
        }
    }
}
