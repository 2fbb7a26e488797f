//! `telexecd audit play`: plays the recording of an execution, after it has verified that this is what was recorded.
//!
//! `find` finds the recording in the log, `screen` is what is written to the auditor's terminal. `check` verifies all recordings.

mod check;
mod find;
mod screen;

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Seek, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Deserialize;
use telexec_executor::text::printable;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

pub(crate) use self::check::verify_recordings;
use self::find::{Found, Search};
use self::screen::Screen;
use super::recording::{Header, of_log, open};
use super::report::unreadable;
use crate::digest::sha256_of;
use crate::logging;

/// A line is longer only where a recording was tampered with.
const MAX_LINE_BYTES: u64 = 8 << 20;

/// How it is played.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Playback {
    /// So many times as fast as it was.
    pub(crate) speed: f64,
    /// Longer pauses are cut to this.
    pub(crate) max_idle: Option<Duration>,
    /// Show the input too.
    pub(crate) input: bool,
}

/// Which execution is meant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Which<'a> {
    /// Its id, or the beginning of it.
    pub(crate) id: &'a str,
    /// Who started it; `None`: the only one who has such an execution.
    pub(crate) identity: Option<&'a str>,
}

/// A longer one is not waited for.
const MAX_PAUSE: Duration = Duration::from_secs(366 * 24 * 60 * 60);
/// How often it is looked for Ctrl-C.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Executions that are named where several are meant.
const MAX_NAMED: usize = 10;

/// An event, whatever its code.
#[derive(Deserialize)]
struct Line(f64, String, String);

/// Plays the recording of an execution, of those with this id the newest. Without a terminal only the text is written, at once.
/// Returns the exit code: 0 played, 1 there is none, or it is not what was recorded, 2 not readable.
///
/// # Errors
/// `out` cannot be written.
pub(crate) fn play(log: &Path, which: Which<'_>, playback: Playback, out: &mut impl Write) -> io::Result<u8> {
    let found = match find::find(log, which.id) {
        Ok(search) => match one(log, which, search) {
            Ok(found) => found,
            Err((code, reason)) => {
                report(&reason);
                return Ok(code);
            }
        },
        Err((path, error)) => return Ok(unreadable(&path, &error)),
    };
    let path = of_log(log).join(found.file.as_deref().unwrap_or_default());
    let mut file = match open(&path, File::options().read(true)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            report(&format!(
                "{} is gone: it was too old (audit.recordings.max_age), or somebody has removed it",
                path.display()
            ));
            return Ok(1);
        }
        Err(error) => return Ok(unreadable(&path, &error)),
    };
    match verify(&found, &mut file) {
        Ok(None) => {}
        Ok(Some(fault)) => {
            report(&format!("{}: {fault}", path.display()));
            return Ok(1);
        }
        Err(error) => return Ok(unreadable(&path, &error)),
    }
    let mut screen = Screen::new(out, io::stdout().is_terminal());
    let played = play_file(BufReader::new(file), playback, &mut screen);
    // also after a failure
    let restored = screen.restore();
    match played.and(restored) {
        // whoever reads it has seen enough
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(0),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(unreadable(&path, &error)),
        played => played.map(|()| 0),
    }
}

/// The execution that is meant.
///
/// # Errors
/// There is none, or several, or it was not recorded; with the exit code.
fn one(log: &Path, Which { id, identity }: Which<'_>, mut search: Search) -> Result<Found, (u8, String)> {
    let (log, id) = (log.display(), printable(id));
    search.found.retain(|found| identity.is_none_or(|identity| found.identity == identity));
    if !search.is_log {
        return Err((2, format!("{log} is no audit log")));
    }
    match &search.found[..] {
        [] => Err((1, format!("{log} has no execution {id}"))),
        [found] if found.file.is_some() => Ok(found.clone()),
        [found] => {
            let why =
                found.error.as_deref().map_or_else(|| "no rule that permitted it has @record".to_owned(), printable);
            Err((1, format!("the execution {} was not recorded: {why}", printable(&found.id))))
        }
        [first, rest @ ..] if rest.iter().all(|found| found.id == first.id) => {
            let names: Vec<_> = search.found.iter().take(MAX_NAMED).map(|found| printable(&found.identity)).collect();
            Err((
                1,
                format!("several identities have an execution {id}: choose one with --identity: {}", names.join(", ")),
            ))
        }
        several => {
            let ids: Vec<_> = several.iter().take(MAX_NAMED).map(|found| printable(&found.id)).collect();
            Err((1, format!("several executions begin with {id}: {}", ids.join(", "))))
        }
    }
}

/// What is wrong with the file; says what is not known of it.
fn verify(found: &Found, file: &mut File) -> io::Result<Option<String>> {
    if let Some(error) = &found.error {
        report(&format!("the recording is incomplete: {}", printable(error)));
    }
    if found.continued {
        report("the agent was restarted meanwhile: where that is marked, something may be missing");
    }
    match &found.sha256 {
        None if found.has_ended => report("not verified: what was written is not known"),
        None => report("not verified: the execution has not ended, or the agent was killed before it ended"),
        Some(recorded) => {
            let digest = sha256_of(file)?;
            if digest != *recorded {
                return Ok(Some(format!(
                    "this is not what was recorded: its SHA-256 is {digest}, and that in the log {}",
                    printable(recorded)
                )));
            }
        }
    }
    file.rewind()?;
    Ok(None)
}

fn report(text: &str) {
    logging::line(&format!("telexecd: {text}"));
}

fn play_file(mut lines: impl BufRead, playback: Playback, screen: &mut Screen<'_, impl Write>) -> io::Result<()> {
    let mut line = Vec::new();
    read(&mut lines, &mut line)?;
    let header: Header = parse(&line)?;
    report(&header.summary());
    let clock = if screen.is_terminal() { Some(Clock::new(playback)?) } else { None };
    let mut before = 0.0;
    while read(&mut lines, &mut line)? {
        let Line(at, code, text) = parse(&line)?;
        if clock.as_ref().is_some_and(|clock| !clock.wait(at - before)) {
            return Ok(());
        }
        before = at;
        match code.as_str() {
            "o" => screen.show(&text)?,
            "i" if playback.input => screen.mark(&text)?,
            "m" => screen.mark(&text)?,
            _ => {}
        }
    }
    Ok(())
}

fn parse<'a, T: Deserialize<'a>>(line: &'a [u8]) -> io::Result<T> {
    serde_json::from_slice(line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Waits as long as it took, until Ctrl-C: then the terminal has to be set back.
struct Clock {
    /// Waits for the signal.
    _runtime: Runtime,
    interrupted: Arc<AtomicBool>,
    playback: Playback,
}

impl Clock {
    fn new(playback: Playback) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let interrupted = Arc::new(AtomicBool::new(false));
        let note = Arc::clone(&interrupted);
        // before anything is shown
        let mut signal = runtime.block_on(async { signal(SignalKind::interrupt()) })?;
        runtime.spawn(async move {
            signal.recv().await;
            note.store(true, Ordering::Relaxed);
        });
        Ok(Self { _runtime: runtime, interrupted, playback })
    }

    /// False: it is interrupted.
    fn wait(&self, seconds: f64) -> bool {
        let Playback { speed, max_idle, .. } = self.playback;
        let pause = Duration::try_from_secs_f64(seconds / speed).unwrap_or_default();
        let pause = pause.min(max_idle.unwrap_or(MAX_PAUSE));
        let until = Instant::now() + pause;
        while !self.interrupted.load(Ordering::Relaxed) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(LOOK_INTERVAL));
        }
        false
    }
}

/// Whether there is a line; one that is not finished is none.
fn read(lines: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    lines.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', line)?;
    if line.len() as u64 == MAX_LINE_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is too long"));
    }
    Ok(line.ends_with(b"\n"))
}
