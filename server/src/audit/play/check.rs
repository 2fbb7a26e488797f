//! `telexecd audit verify --recordings`: compares the recordings with their digests in the log.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use telexec_executor::text::{counted, printable};

use super::find::{Entry, each_entry};
use crate::audit::recording::{SUFFIX, of_log, open};
use crate::audit::report::unreadable;
use crate::digest::sha256_of;

/// What the log says of a recording.
#[derive(Default)]
struct Logged {
    has_ended: bool,
    sha256: Option<String>,
    is_incomplete: bool,
    /// The time of its end, as it is in the log; empty: it has none.
    time: String,
}

/// Compares the recordings beside a log of these files with what the log says of them; those that are older than `max_age` may be
/// missing. Returns the exit code: 0 they are as recorded, 1 one was changed or is missing, 2 not readable.
///
/// # Errors
/// `out` cannot be written.
pub(crate) fn verify_recordings(files: &[PathBuf], max_age: Duration, out: &mut impl Write) -> io::Result<u8> {
    let (mut all, mut running) = (BTreeMap::new(), BTreeMap::new());
    let read = each_entry(files, |entry| match entry {
        Entry::Start { seq, recording: Some(recorded), .. } => {
            running.extend(recorded.file().map(|file| (seq, file.to_owned())));
        }
        Entry::NotStarted { start: Some(start) } => drop(running.remove(&start)),
        Entry::End { time, start, recording: Some(recorded) } => {
            let Some(file) = recorded.file().map(str::to_owned) else { return };
            start.and_then(|start| running.remove(&start));
            let is_incomplete = recorded.error.is_some();
            all.insert(file, Logged { has_ended: true, sha256: recorded.sha256, is_incomplete, time });
        }
        _ => {}
    });
    all.extend(running.into_values().map(|file| (file, Logged::default())));
    if let Err((path, error)) = read {
        return Ok(unreadable(&path, &error));
    }
    let directory = files.last().map(|log| of_log(log)).unwrap_or_default();
    let mut counts: BTreeMap<State, u64> = BTreeMap::new();
    for (file, logged) in &all {
        let path = directory.join(file);
        let state = state_of(&path, logged, max_age).unwrap_or_else(|error| {
            unreadable(&path, &error);
            State::Unreadable
        });
        if matches!(state, State::Changed | State::Missing | State::Incomplete) {
            writeln!(out, "{}: {}", state.as_str(), printable(&path.display().to_string()))?;
        }
        *counts.entry(state).or_default() += 1;
    }
    let states = counts.iter().map(|(state, count)| format!(", {count} {}", state.as_str())).collect::<String>();
    let others = others(&directory, &all);
    let others = if others == 0 { String::new() } else { format!("; {} not in these files", counted(others, "more")) };
    writeln!(out, "{}{states}{others}", counted(all.len() as u64, "recording"))?;
    let has = |state| counts.contains_key(&state);
    Ok(match has(State::Unreadable) {
        true => 2,
        false => u8::from(has(State::Changed) || has(State::Missing)),
    })
}

/// What has become of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Unchanged,
    Changed,
    Missing,
    Incomplete,
    /// It has no digest yet: it is being written, or the agent was killed.
    Unfinished,
    /// So old that the agent may have removed it.
    Expired,
    /// It is no file, or cannot be read.
    Unreadable,
}

impl State {
    fn as_str(self) -> &'static str {
        match self {
            Self::Unchanged => "unchanged",
            Self::Changed => "changed",
            Self::Missing => "missing",
            Self::Incomplete => "incomplete",
            Self::Unfinished => "without an end",
            Self::Expired => "expired",
            Self::Unreadable => "unreadable",
        }
    }
}

fn state_of(path: &Path, logged: &Logged, max_age: Duration) -> io::Result<State> {
    let mut file = match open(path, File::options().read(true)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let ended = humantime::parse_rfc3339(&logged.time).ok();
            let age = ended.and_then(|ended| SystemTime::now().duration_since(ended).ok());
            let is_old = !max_age.is_zero() && age.is_some_and(|age| age > max_age);
            return Ok(if is_old { State::Expired } else { State::Missing });
        }
        Err(error) => return Err(error),
    };
    Ok(match &logged.sha256 {
        None if logged.has_ended => State::Incomplete,
        None => State::Unfinished,
        Some(sha256) if *sha256 != sha256_of(&mut file)? => State::Changed,
        Some(_) if logged.is_incomplete => State::Incomplete,
        Some(_) => State::Unchanged,
    })
}

/// Recordings in the directory that the log does not have.
fn others(directory: &Path, all: &BTreeMap<String, Logged>) -> u64 {
    let files = std::fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    let names = files.filter_map(|file| file.file_name().into_string().ok());
    names.filter(|name| name.ends_with(SUFFIX) && !all.contains_key(name)).count() as u64
}
