//! `telexecd audit verify`.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use telexec_executor::text::{counted, error_chain, printable};

use super::files;
use super::verify::{Position, Summary, Verifier, VerifyError};
use super::witness::Witness;
use crate::logging;

/// A line that is just being written is read again this often, after this delay.
const MAX_RETRIES: u32 = 5;
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// Verifies the files of one log, in this order; given a single file, also those rotated before it. A record must have the
/// hash `expected`, and the starts in the log of a keeper must have their records. Writes the result to `out`, and what cannot be read to standard error; returns the exit code: 0 valid, 1 broken, 2 not readable.
///
/// # Errors
/// `out` cannot be written.
pub fn verify_files(
    given: &[PathBuf],
    expected: Option<&str>,
    keeper_log: Option<&Path>,
    out: &mut impl Write,
) -> io::Result<u8> {
    let witness = match keeper_log.map(|path| read_witness(path).map_err(|error| (path, error))).transpose() {
        Ok(witness) => witness,
        Err((path, error)) => return Ok(unreadable(path, &error)),
    };
    let (mut verifier, mut read) = (Verifier::expecting(expected).with_witness(witness), 0);
    let files = match open_all(given) {
        Ok(files) => files,
        Err((path, error)) => return Ok(unreadable(&path, &error)),
    };
    for (path, file) in files {
        let name = path.display();
        match file.map_err(VerifyError::Read).and_then(|file| verifier.read(BufReader::new(Growing::new(file)))) {
            Ok(()) => read += 1,
            Err(VerifyError::Read(error)) => return Ok(unreadable(&path, &error)),
            Err(broken) => {
                writeln!(out, "broken: {name}: {broken}")?;
                return Ok(1);
            }
        }
    }
    let found = verifier.found();
    let summary = verifier.finish();
    if summary.records == 0 {
        // an agent writes a record as soon as it opens the log
        writeln!(out, "broken: no records: the log was emptied, or no agent has used it")?;
        return Ok(1);
    }
    if let (Some(expected), false) = (expected, found) {
        let expected = expected.escape_default();
        writeln!(out, "broken: no record has the hash {expected}: records are missing, or this is another log")?;
        return Ok(1);
    }
    if let Some(fault) = summary.witness.as_ref().and_then(fault) {
        writeln!(out, "broken: {fault}")?;
        return Ok(1);
    }
    write_summary(&summary, read, out)?;
    summary.witness.map_or(Ok(()), |witness| write_witness(&witness, out))?;
    Ok(0)
}

/// `-`: standard input.
fn read_witness(path: &Path) -> io::Result<Witness> {
    match path == Path::new("-") {
        true => Witness::read(io::stdin().lock()),
        false => Witness::read(BufReader::new(File::open(path)?)),
    }
}

fn fault(witness: &Witness) -> Option<String> {
    let Witness { recorded, earlier, changed, missing, .. } = witness;
    if let Some(seq) = changed {
        return Some(format!(
            "seq {seq}: the keeper's log names a different start for this number: the record was replaced, the audit log was shortened \
             before it, or the keeper's log is that of another audit log"
        ));
    }
    if let Some(seq) = missing {
        return Some(format!(
            "seq {seq}: the keeper's log has this start, and the audit log ends before it: records are missing"
        ));
    }
    let text =
        "all starts in the keeper's log are from before the first record: records are missing, or this is another log";
    (*recorded == 0 && *earlier > 0).then(|| text.to_owned())
}

fn write_witness(witness: &Witness, out: &mut impl Write) -> io::Result<()> {
    let Witness { recorded, earlier, unrecorded, helpers, lost, .. } = witness;
    writeln!(out, "keeper's log: {} recorded in these files", counted(*recorded, "start"))?;
    for (starts, what) in [
        (earlier, "recorded before the first of these records: rotated away, or removed"),
        (unrecorded, "without a record: the audit log could not be written, or the agent hides them"),
        (helpers, "for files and forwards, which have no record"),
        (lost, "that the socket of the system's log did not accept"),
    ] {
        if *starts > 0 {
            writeln!(out, "  {} {what}", counted(*starts, "start"))?;
        }
    }
    Ok(())
}

pub(super) fn unreadable(path: &Path, error: &io::Error) -> u8 {
    let name = printable(&path.display().to_string());
    logging::line(&format!("telexecd: cannot read {name}: {}", error_chain(error)));
    2
}

pub(super) type Opened = (PathBuf, io::Result<File>);

/// The files in their order, each opened when it is due.
pub(super) fn open_all(given: &[PathBuf]) -> Result<impl Iterator<Item = Opened>, (PathBuf, io::Error)> {
    let (mut rotated, mut current) = (Vec::new(), None);
    if let [path] = given {
        let failed = |error| (path.clone(), error);
        // opened first: if it is rotated meanwhile, it is found among the rotated ones
        let file = File::open(path).map_err(failed)?;
        let of_file = file.metadata().map_err(failed)?;
        rotated = files::rotated(path).map_err(failed)?;
        rotated.retain(|(_, path)| {
            path.metadata().map_or(true, |other| (other.dev(), other.ino()) != (of_file.dev(), of_file.ino()))
        });
        current = Some((path.clone(), Ok(file)));
    }
    let others: Vec<_> = match current {
        Some(_) => rotated.into_iter().map(|(_, path)| path).collect(),
        None => given.to_vec(),
    };
    Ok(others.into_iter().map(|path| (path.clone(), File::open(&path))).chain(current))
}

fn write_summary(summary: &Summary, files: u32, out: &mut impl Write) -> io::Result<()> {
    let Summary { records, first, last, hash, running, more_running, dropped, .. } = summary;
    let files = if files == 1 { String::new() } else { format!(" in {files} files") };
    let (Some(first), Some(last)) = (first, last) else { return Ok(()) };
    writeln!(out, "valid: {}{files}, {} to {}", counted(*records, "record"), shown(first), shown(last))?;
    writeln!(out, "last hash: {hash}")?;
    if first.seq > 1 {
        writeln!(out, "begins after {}, not in these files", counted(first.seq - 1, "earlier record"))?;
    }
    if *dropped > 0 {
        writeln!(out, "{} could not be written in time", counted(*dropped, "record"))?;
    }
    let starts = running.len() as u64 + more_running;
    if starts > 0 {
        let rest = match starts {
            1 => "it still runs, or the agent was killed before it ended",
            _ => "they still run, or the agent was killed before they ended",
        };
        writeln!(out, "{} without an end: {rest}", counted(starts, "start"))?;
    }
    for (seq, id) in running {
        writeln!(out, "  seq {seq}: execution {}", id.escape_default())?;
    }
    if *more_running > 0 {
        writeln!(out, "  and {more_running} more")?;
    }
    Ok(())
}

fn shown(Position { seq, time }: &Position) -> String {
    format!("seq {seq} ({})", time.escape_default())
}

/// A file that is being appended to: waits a moment for the rest of an incomplete line.
pub(super) struct Growing {
    file: File,
    in_line: bool,
}

impl Growing {
    pub(super) fn new(file: File) -> Self {
        Self { file, in_line: false }
    }
}

impl Read for Growing {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        for _ in 0..MAX_RETRIES {
            let read = self.file.read(buffer)?;
            if let Some(last) = buffer.get(..read).and_then(<[u8]>::last) {
                self.in_line = *last != b'\n';
            }
            if read > 0 || buffer.is_empty() || !self.in_line {
                return Ok(read);
            }
            std::thread::sleep(RETRY_DELAY);
        }
        self.in_line = false;
        Ok(0)
    }
}
