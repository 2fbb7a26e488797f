//! Reads the records of a log, for those that look for some of them.

use std::io::{self, BufReader};
use std::path::PathBuf;

use serde_json::Value;

use super::report::{Growing, open_all};
use super::{chain, lines};

/// What came of reading files.
#[derive(Default)]
pub(super) struct Reading {
    /// Files with lines that are no records, and the first of these.
    pub(super) malformed: Vec<(PathBuf, u64)>,
    /// The file at which it ended early.
    pub(super) unreadable: Option<(PathBuf, io::Error)>,
}

/// Passes each record to `take`, with its text.
///
/// # Errors
/// Those of `take`.
pub(super) fn each_record(
    given: &[PathBuf],
    mut take: impl FnMut(&Value, &[u8]) -> io::Result<()>,
) -> io::Result<Reading> {
    let mut reading = Reading::default();
    let files = match open_all(given) {
        Ok(files) => files,
        Err(unreadable) => return Ok(Reading { unreadable: Some(unreadable), ..reading }),
    };
    for (path, file) in files {
        let read = match file.map(|file| BufReader::new(Growing::new(file))) {
            Ok(mut file) => each_in(&mut file, &mut take),
            Err(error) => Err(Failure::Read(error)),
        };
        match read {
            Ok(malformed) => reading.malformed.extend(malformed.map(|line| (path, line))),
            Err(Failure::Read(error)) => return Ok(Reading { unreadable: Some((path, error)), ..reading }),
            Err(Failure::Take(error)) => return Err(error),
        }
    }
    Ok(reading)
}

enum Failure {
    /// The file cannot be read.
    Read(io::Error),
    /// The record cannot be taken.
    Take(io::Error),
}

/// The same for one file. Returns the number of the first line that is no record.
fn each_in(
    file: &mut BufReader<Growing>,
    take: &mut impl FnMut(&Value, &[u8]) -> io::Result<()>,
) -> Result<Option<u64>, Failure> {
    let (mut text, mut malformed) = (Vec::new(), None);
    for line in 1.. {
        let read = match lines::next(file, &mut text) {
            Ok(Some(read)) => read,
            Ok(None) => break,
            Err(error) => return Err(Failure::Read(error)),
        };
        if let Err(chain::Fault::TooLong) = read
            && let Err(error) = lines::skip(file)
        {
            return Err(Failure::Read(error));
        }
        match read.ok().and_then(|()| serde_json::from_slice::<Value>(&text).ok()).filter(Value::is_object) {
            Some(record) => take(&record, &text).map_err(Failure::Take)?,
            None => malformed = malformed.or(Some(line)),
        }
    }
    Ok(malformed)
}
