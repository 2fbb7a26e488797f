//! Finds the recording of an execution in the audit log.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA256};
use serde::Deserialize;

use crate::audit::lines;
use crate::audit::report::{Growing, open_all};
use crate::digest::hex;

/// What the log says of a recording.
#[derive(Clone, Debug, Default)]
pub(in crate::audit) struct Found {
    /// The number of the start.
    seq: u64,
    /// The name of the file.
    pub(in crate::audit) file: String,
    pub(in crate::audit) has_ended: bool,
    pub(in crate::audit) sha256: Option<String>,
    pub(in crate::audit) error: Option<String>,
}

/// The fields of a record that matter here.
#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Entry {
    Start {
        seq: u64,
        #[serde(default)]
        execution_id: String,
        recording: Option<String>,
    },
    End(End),
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
pub(super) struct End {
    start: Option<u64>,
    pub(super) recording: Option<Recorded>,
}

#[derive(Deserialize)]
pub(super) struct Recorded {
    pub(super) file: String,
    pub(super) sha256: Option<String>,
    error: Option<String>,
}

/// Whether it names a file in the directory: a path would lead out of it.
pub(super) fn is_name(file: &str) -> bool {
    Path::new(file).file_name().is_some_and(|name| *name == *file)
}

/// The newest recording of an execution with this id.
///
/// # Errors
/// This file cannot be read.
pub(super) fn find(log: &Path, id: &str) -> Result<Option<Found>, (PathBuf, io::Error)> {
    let (mut found, mut line) = (None, Vec::new());
    for (path, file) in open_all(&[log.to_owned()])? {
        let failed = |error| (path.clone(), error);
        let mut reader = BufReader::new(Growing::new(file.map_err(failed)?));
        while let Some(read) = lines::next(&mut reader, &mut line).map_err(failed)? {
            match read.ok().and_then(|()| serde_json::from_slice(&line).ok()) {
                Some(entry) => add(entry, id, &mut found),
                None => continue,
            }
        }
    }
    Ok(found)
}

fn add(entry: Entry, id: &str, found: &mut Option<Found>) {
    match (entry, found) {
        (Entry::Start { seq, execution_id, recording: Some(file) }, found) if execution_id == id && is_name(&file) => {
            *found = Some(Found { seq, file, ..Found::default() });
        }
        (Entry::End(End { start, recording }), Some(found)) if start == Some(found.seq) => {
            let (sha256, error) = recording.map(|recorded| (recorded.sha256, recorded.error)).unwrap_or_default();
            *found = Found { has_ended: true, sha256, error, ..std::mem::take(found) };
        }
        _ => {}
    }
}

/// The SHA-256 of the rest of a file.
///
/// # Errors
/// It cannot be read.
pub(in crate::audit) fn sha256_of(file: &mut File) -> io::Result<String> {
    let (mut context, mut buffer) = (Context::new(&SHA256), vec![0; 64 * 1024]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(context.finish().as_ref())),
            read => context.update(buffer.get(..read).unwrap_or_default()),
        }
    }
}
