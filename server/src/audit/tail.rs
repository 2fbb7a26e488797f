//! Finds the last whole line of a log, after which writing continues. What follows it, left by a power cut or a broken disk,
//! is moved aside.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::chain::{self, Fault, Link, MAX_LINE};
use super::{files, lines};

/// A log that is ready to be appended to.
#[derive(Debug)]
pub(super) struct Tail {
    pub(super) file: File,
    /// Its length in bytes.
    pub(super) length: u64,
    /// The number of its first line, or of the next one if it is empty.
    pub(super) first: u64,
    pub(super) last: Link,
    /// The file and size of what was moved aside.
    pub(super) aside: Option<(PathBuf, u64)>,
}

/// Opens the log, or creates it.
///
/// # Errors
/// A file cannot be opened, read, or moved aside.
pub(super) fn open(path: &Path) -> io::Result<Tail> {
    let mut file = files::open(path)?;
    let whole = length_of(&file)?;
    let (mut length, mut last) = last_whole_line(&mut file, whole)?;
    let mut aside = None;
    if last.is_none() && whole > 0 {
        let name = files::aside_name(path);
        std::fs::rename(path, &name)?;
        (file, length, aside) = (files::open(path)?, 0, Some((name, whole)));
    } else if length < whole {
        let name = files::aside_name(path);
        copy(&mut file, length, &name)?;
        file.set_len(length)?;
        aside = Some((name, whole - length));
    }
    let first = match last.is_some() {
        true => first_line(&mut file)?,
        false => None,
    };
    if last.is_none() {
        // it was rotated just before the agent ended
        last = last_rotated(path)?;
    }
    let last = last.unwrap_or_else(Link::none);
    let first = first.unwrap_or(if length == 0 { last.seq.saturating_add(1) } else { last.seq });
    Ok(Tail { file, length, first, last, aside })
}

/// The last record of a log, which somebody may be writing; `None`: there is none.
///
/// # Errors
/// A file cannot be read.
pub(super) fn last(path: &Path) -> io::Result<Option<Link>> {
    last_in(path)?.map_or_else(|| last_rotated(path), |last| Ok(Some(last)))
}

/// The last record of the newest rotated file.
fn last_rotated(path: &Path) -> io::Result<Option<Link>> {
    files::rotated(path)?.pop().map_or(Ok(None), |(_, newest)| last_in(&newest))
}

/// The last record in a file, which need not be there.
fn last_in(path: &Path) -> io::Result<Option<Link>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let length = length_of(&file)?;
    Ok(last_whole_line(&mut file, length)?.1)
}

fn length_of(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.len())
}

/// The last whole line, and the offset of its end.
fn last_whole_line(file: &mut File, length: u64) -> io::Result<(u64, Option<Link>)> {
    match last_line(file, length)? {
        Some(last) => Ok((length, Some(last))),
        None => search(file),
    }
}

/// The last line, if it is whole.
fn last_line(file: &mut File, length: u64) -> io::Result<Option<Link>> {
    // with the newline of the line before
    let bytes = length.min(MAX_LINE as u64 + 1);
    file.seek(SeekFrom::Start(length - bytes))?;
    let mut end = Vec::new();
    Read::by_ref(file).take(bytes).read_to_end(&mut end)?;
    let last = end.strip_suffix(b"\n").and_then(|lines| lines.rsplit(|byte| *byte == b'\n').next());
    Ok(last.and_then(|last| chain::read(last).ok()).map(|entry| entry.link()))
}

/// The same by reading all lines.
fn search(file: &mut File) -> io::Result<(u64, Option<Link>)> {
    file.seek(SeekFrom::Start(0))?;
    let (mut reader, mut line) = (BufReader::new(file), Vec::new());
    let (mut at, mut found) = (0, (0, None));
    while let Some(read) = lines::next(&mut reader, &mut line)? {
        at += line.len() as u64 + 1;
        match read {
            Ok(()) => {
                if let Ok(entry) = chain::read(&line) {
                    found = (at, Some(entry.link()));
                }
            }
            Err(Fault::TooLong) => at += lines::skip(&mut reader)?,
            Err(_) => break,
        }
    }
    Ok(found)
}

/// The number of the first line.
fn first_line(file: &mut File) -> io::Result<Option<u64>> {
    file.seek(SeekFrom::Start(0))?;
    let mut line = Vec::new();
    lines::next(&mut BufReader::new(file), &mut line)?;
    Ok(chain::read(&line).ok().map(|entry| entry.seq))
}

/// Copies the rest of the file into a new one.
fn copy(file: &mut File, from: u64, to: &Path) -> io::Result<()> {
    file.seek(SeekFrom::Start(from))?;
    let mut aside = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    let copied = io::copy(file, &mut aside).and_then(|_| aside.sync_all());
    if copied.is_err() {
        // on a full disk each attempt would leave one
        let _ = std::fs::remove_file(to);
    }
    copied
}
