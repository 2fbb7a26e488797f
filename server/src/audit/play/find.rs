//! Finds the recording of an execution in the audit log.

use std::collections::BTreeMap;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::audit::lines;
use crate::audit::report::{Growing, open_all};

/// What the log says of an execution that begins with what was asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    /// The number of the start.
    seq: u64,
    pub(super) id: String,
    pub(super) identity: String,
    /// The name of the file; `None`: it was not recorded.
    pub(super) file: Option<String>,
    pub(super) has_ended: bool,
    pub(super) sha256: Option<String>,
    pub(super) error: Option<String>,
    /// The agent was restarted meanwhile.
    pub(super) continued: bool,
}

/// The result of a search.
#[derive(Default)]
pub(super) struct Search {
    /// The file has records.
    pub(super) is_log: bool,
    /// The newest execution with this id, or with each id that begins so, of each identity.
    pub(super) found: Vec<Found>,
}

/// The fields of a record that matter here.
#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Entry {
    Start {
        seq: u64,
        #[serde(default)]
        execution_id: String,
        #[serde(default)]
        identity: String,
        recording: Option<Recorded>,
    },
    NotStarted {
        start: Option<u64>,
    },
    End {
        #[serde(default)]
        time: String,
        start: Option<u64>,
        recording: Option<Recorded>,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
pub(super) struct Recorded {
    file: Option<String>,
    pub(super) sha256: Option<String>,
    pub(super) error: Option<String>,
    #[serde(default)]
    pub(super) continued: bool,
}

impl Recorded {
    /// The name of the file; a path would lead out of the directory.
    pub(super) fn file(&self) -> Option<&str> {
        self.file.as_deref().filter(|file| Path::new(file).file_name().is_some_and(|name| name == *file))
    }
}

/// Gives `see` each record of a log of these files.
///
/// # Errors
/// This file cannot be read.
pub(super) fn each_entry(files: &[PathBuf], mut see: impl FnMut(Entry)) -> Result<(), (PathBuf, io::Error)> {
    let mut line = Vec::new();
    for (path, file) in open_all(files)? {
        let failed = |error| (path.clone(), error);
        let mut reader = BufReader::new(Growing::new(file.map_err(failed)?));
        while let Some(read) = lines::next(&mut reader, &mut line).map_err(failed)? {
            if let Some(entry) = read.ok().and_then(|()| serde_json::from_slice(&line).ok()) {
                see(entry);
            }
        }
    }
    Ok(())
}

/// Searches the log for an execution by its id, or by the beginning of it.
///
/// # Errors
/// This file cannot be read.
pub(super) fn find(log: &Path, id: &str) -> Result<Search, (PathBuf, io::Error)> {
    let mut search = Search::default();
    each_entry(&[log.to_owned()], |entry| {
        search.is_log = true;
        search.add(entry, id);
    })?;
    let found = std::mem::take(&mut search.found);
    let (exact, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|found| found.id == id);
    search.found = newest(if exact.is_empty() { others } else { exact });
    Ok(search)
}

/// Of each id and identity the newest.
fn newest(all: Vec<Found>) -> Vec<Found> {
    let by_name: BTreeMap<_, _> =
        all.into_iter().map(|found| ((found.id.clone(), found.identity.clone()), found)).collect();
    by_name.into_values().collect()
}

impl Search {
    fn add(&mut self, entry: Entry, id: &str) {
        match entry {
            Entry::Start { seq, execution_id, identity, recording } if execution_id.starts_with(id) => {
                let file = recording.as_ref().and_then(Recorded::file).map(str::to_owned);
                let error = recording.and_then(|recording| recording.error);
                self.found.push(Found { seq, id: execution_id, identity, file, error, ..Found::default() });
            }
            // such as a repeat
            Entry::NotStarted { start: Some(start) } => self.found.retain(|found| found.seq != start),
            Entry::End { start: Some(start), recording, .. } => {
                let Some(found) = self.found.iter_mut().find(|found| found.seq == start) else { return };
                found.has_ended = true;
                if let Some(Recorded { sha256, error, continued, .. }) = recording {
                    (found.sha256, found.error, found.continued) = (sha256, error, continued);
                }
            }
            _ => {}
        }
    }
}
