//! `telexecd audit verify --recordings`: compares each recording with its digest in the log.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};

use telexec_executor::text::{counted, printable};

use super::find::{End, Entry, is_name, sha256_of};
use crate::audit::lines;
use crate::audit::recording::{of_log, open};
use crate::audit::report::{Growing, open_all, unreadable};

/// What became of the recordings of a log.
#[derive(Default)]
struct Counts {
    unchanged: u64,
    /// Too old, or removed by an operator.
    missing: u64,
    incomplete: u64,
    changed: u64,
}

/// Compares the recordings beside a log of these files with what the log says of them. Returns the exit code: 0 nothing was changed,
/// 1 something was, 2 not readable.
///
/// # Errors
/// `out` cannot be written.
pub(crate) fn verify_recordings(files: &[PathBuf], out: &mut impl Write) -> io::Result<u8> {
    let (mut counts, mut line) = (Counts::default(), Vec::new());
    let directory = files.last().map(|log| of_log(log)).unwrap_or_default();
    let files = match open_all(files) {
        Ok(files) => files,
        Err((path, error)) => return Ok(unreadable(&path, &error)),
    };
    for (name, file) in files {
        let mut reader = match file {
            Ok(file) => BufReader::new(Growing::new(file)),
            Err(error) => return Ok(unreadable(&name, &error)),
        };
        loop {
            match lines::next(&mut reader, &mut line) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => return Ok(unreadable(&name, &error)),
            }
            let Ok(Entry::End(end)) = serde_json::from_slice(&line) else { continue };
            if let Err((path, error)) = counts.add(&directory, end, out)? {
                return Ok(unreadable(&path, &error));
            }
        }
    }
    let Counts { unchanged, missing, incomplete, changed } = counts;
    let all = counted(unchanged + missing + incomplete + changed, "recording");
    writeln!(out, "{all}: {unchanged} unchanged, {changed} changed, {incomplete} incomplete, {missing} removed")?;
    Ok(u8::from(changed > 0))
}

impl Counts {
    /// Counts the recording of an execution, if it has one, and names it if it was changed.
    fn add(
        &mut self,
        directory: &Path,
        end: End,
        out: &mut impl Write,
    ) -> io::Result<Result<(), (PathBuf, io::Error)>> {
        let Some(recorded) = end.recording.filter(|recorded| is_name(&recorded.file)) else { return Ok(Ok(())) };
        let path = directory.join(&recorded.file);
        let mut file = match open(&path, File::options().read(true)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.missing += 1;
                return Ok(Ok(()));
            }
            Err(error) => return Ok(Err((path, error))),
        };
        let Some(sha256) = recorded.sha256 else {
            self.incomplete += 1;
            return Ok(Ok(()));
        };
        match sha256_of(&mut file) {
            Ok(digest) if digest == sha256 => self.unchanged += 1,
            Ok(_) => {
                self.changed += 1;
                writeln!(out, "changed: {}", printable(&path.display().to_string()))?;
            }
            Err(error) => return Ok(Err((path, error))),
        }
        Ok(Ok(()))
    }
}
