//! `telexecd audit play`: plays the recording of an execution, after it has verified that this is what was recorded.
//!
//! `find` finds the recording in the log, `screen` is what is written to the auditor's terminal. `check` verifies all recordings.

mod check;
mod find;
mod screen;

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Seek, Write};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use telexec_executor::text::printable;
use tokio::runtime::Builder;

pub(crate) use self::check::verify_recordings;
use self::find::{Found, sha256_of};
use self::screen::Screen;
use super::recording::{Header, of_log, open};
use super::report::unreadable;
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

/// An event, whatever its code.
#[derive(Deserialize)]
struct Line(f64, String, String);

/// Plays the newest execution with this id that the log has a recording of. Without a terminal only the text is written, at
/// once. Returns the exit code: 0 played, 1 not found or not what was recorded, 2 not readable.
///
/// # Errors
/// `out` cannot be written.
pub(crate) fn play(log: &Path, id: &str, playback: Playback, out: &mut impl Write) -> io::Result<u8> {
    let found = match find::find(log, id) {
        Ok(Some(found)) => found,
        Ok(None) => {
            report(&format!("{} has no recording of an execution {id:?}", log.display()));
            return Ok(1);
        }
        Err((path, error)) => return Ok(unreadable(&path, &error)),
    };
    let path = of_log(log).join(&found.file);
    let mut file = match open(&path, File::options().read(true)) {
        Ok(file) => file,
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
    let is_terminal = io::stdout().is_terminal();
    let mut screen = Screen::new(out, is_terminal);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let played = runtime.block_on(async {
        tokio::select! {
            played = play_file(BufReader::new(file), playback, &mut screen, is_terminal) => played,
            _ = tokio::signal::ctrl_c() => Ok(()),
        }
    });
    screen.restore()?;
    match played {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(unreadable(&path, &error)),
        played => played.map(|()| 0),
    }
}

/// What is wrong with the file; says what is not known of it.
fn verify(found: &Found, file: &mut File) -> io::Result<Option<String>> {
    if let Some(error) = &found.error {
        report(&format!("the recording is incomplete: {}", printable(error)));
    }
    match &found.sha256 {
        None if found.has_ended => report("not verified: the recording was not written to its end"),
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

async fn play_file(
    mut lines: impl BufRead,
    playback: Playback,
    screen: &mut Screen<'_, impl Write>,
    is_paced: bool,
) -> io::Result<()> {
    let mut line = Vec::new();
    read(&mut lines, &mut line)?;
    let header: Header = serde_json::from_slice(&line)?;
    report(&header.summary());
    let mut before = 0.0;
    while read(&mut lines, &mut line)? {
        let Line(at, code, text) = serde_json::from_slice(&line)?;
        if is_paced {
            wait(at - before, playback).await;
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

async fn wait(seconds: f64, Playback { speed, max_idle, .. }: Playback) {
    let pause = Duration::try_from_secs_f64(seconds / speed).unwrap_or_default();
    tokio::time::sleep(max_idle.map_or(pause, |most| pause.min(most))).await;
}

/// Whether there is a line; one that is not finished is none.
fn read(lines: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    use std::io::Read;
    line.clear();
    lines.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', line)?;
    if line.len() as u64 == MAX_LINE_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is too long"));
    }
    Ok(line.ends_with(b"\n"))
}
