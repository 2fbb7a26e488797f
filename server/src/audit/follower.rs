//! Reads the records of a log one after another while it is written and rotated.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::Deserialize;

use crate::audit::chain::MAX_LINE;
use crate::audit::files;

/// How much is read at once, at most.
const MAX_READ: usize = MAX_LINE;

/// A record as it is in the log.
pub(super) struct Line {
    pub(super) seq: u64,
    pub(super) time: String,
    pub(super) event: String,
    pub(super) hash: String,
    /// In hexadecimal, if the call had one.
    #[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "syslog has no field for it"))]
    pub(super) trace_id: Option<String>,
    /// Without the newline.
    pub(super) text: Vec<u8>,
}

impl Line {
    /// Whether something was denied, refused or rejected.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self.event.as_str(), "denied" | "refused" | "rejected")
    }
}

/// The fields that are needed of it.
#[derive(Deserialize)]
struct Head {
    seq: u64,
    time: String,
    event: String,
    hash: String,
    trace_id: Option<String>,
}

/// What was read.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) lines: Vec<Line>,
    /// Records before or between these that are not in the files any more, each counted once.
    pub(super) lost: u64,
}

/// A place in the log.
pub(super) struct Follower {
    path: PathBuf,
    /// The number of the next record; `None`: the first one that there is.
    next: Option<u64>,
    open: Option<Open>,
    /// Records before this one are known to be missing.
    missing_to: u64,
    /// The files were listed again after this record was not found.
    listed_for: Option<u64>,
    /// How much is read at once, in bytes; more only for a longer line.
    limit: usize,
    buffer: Vec<u8>,
}

struct Open {
    file: File,
    /// Where the next line begins.
    offset: u64,
    /// The number of its first line by its name, if it was not the current file when it was opened.
    first: Option<u64>,
    /// Nothing is added to it any more.
    is_closed: bool,
}

impl Follower {
    /// From the record with this number on, or the first one that there is.
    pub(super) fn new(path: PathBuf, next: Option<u64>) -> Self {
        Self { path, next, open: None, missing_to: 0, listed_for: None, limit: MAX_READ, buffer: Vec::new() }
    }

    /// Goes to the record with this number.
    pub(super) fn seek(&mut self, next: u64) {
        (self.next, self.open, self.listed_for) = (Some(next), None, None);
    }

    /// Reads at most so many bytes at once, from now on; more only for a longer line.
    pub(super) fn set_limit(&mut self, bytes: usize) {
        self.limit = bytes.clamp(1, MAX_READ);
    }

    /// The next records; none: there are none yet.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(super) fn read(&mut self) -> io::Result<Batch> {
        loop {
            if self.open.is_none() {
                self.open = self.find()?;
            }
            let next = self.next.unwrap_or(0);
            let Some(open) = &mut self.open else { return Ok(Batch::default()) };
            // before it is read: what was written until then is read
            let is_finished = open.is_closed || !is_at(&self.path, &open.file)?;
            let lines = match read_lines(open, next, self.limit, &mut self.buffer)? {
                Read::Lines(lines) => lines,
                Read::Old => continue,
                Read::Nothing if !is_finished || !self.go_on()? => return Ok(Batch::default()),
                Read::Nothing => continue,
            };
            // the log may have been rotated between the list of its files and the opening of one
            let is_gap = self.next.is_some() && lines.first().is_some_and(|line| line.seq > next);
            if is_gap && self.listed_for != self.next {
                (self.listed_for, self.open) = (self.next, None);
                continue;
            }
            return Ok(self.take(lines));
        }
    }

    /// Takes the next file after one that was read to its end. False: there is nothing in it yet.
    fn go_on(&mut self) -> io::Result<bool> {
        let Some(after) = self.after()? else { return Ok(false) };
        // until then the writer may still write to the old one, if it was not the one that moved it
        if after.first.is_none() && after.file.metadata()?.len() == 0 {
            return Ok(false);
        }
        if let Some(open) = &mut self.open
            && !open.is_closed
        {
            // what was written meanwhile, once
            open.is_closed = true;
            return Ok(true);
        }
        self.open = Some(after);
        Ok(true)
    }

    fn take(&mut self, lines: Vec<Line>) -> Batch {
        let mut batch = Batch::default();
        for line in lines {
            let next = self.next.unwrap_or(line.seq);
            if line.seq < next {
                continue;
            }
            batch.lost += line.seq.saturating_sub(next.max(self.missing_to));
            if line.seq > next {
                self.missing_to = line.seq;
            }
            self.next = Some(line.seq.saturating_add(1));
            batch.lines.push(line);
        }
        batch
    }

    /// The file with the next record, or the first one after it.
    fn find(&self) -> io::Result<Option<Open>> {
        let rotated = files::rotated(&self.path)?;
        let next = self.next.unwrap_or(0);
        let at = rotated.partition_point(|(first, _)| *first <= next).saturating_sub(1);
        self.open_first(rotated.into_iter().skip(at))
    }

    /// The file after one that was read to its end, whatever was in that.
    fn after(&self) -> io::Result<Option<Open>> {
        let rotated = files::rotated(&self.path)?;
        let next = self.next.unwrap_or(0);
        let read = self.open.as_ref().and_then(|open| open.first);
        let is_after = |first: u64| first >= next && read.is_none_or(|read| first > read);
        self.open_first(rotated.into_iter().filter(|(first, _)| is_after(*first)))
    }

    /// The first of these that is still there, or the current one.
    fn open_first(&self, rotated: impl Iterator<Item = (u64, PathBuf)>) -> io::Result<Option<Open>> {
        let rotated = rotated.map(|(first, path)| (path, Some(first)));
        // not what someone else may have put there, such as a pipe
        let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).map_err(io::Error::other)?;
        for (path, first) in rotated.chain([(self.path.clone(), None)]) {
            match OpenOptions::new().read(true).custom_flags(flags).open(path) {
                Ok(file) if file.metadata()?.is_file() => {
                    return Ok(Some(Open { file, offset: 0, first, is_closed: first.is_some() }));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

/// Whether the file has this name.
fn is_at(path: &std::path::Path, file: &File) -> io::Result<bool> {
    let own = file.metadata()?;
    Ok(std::fs::metadata(path).is_ok_and(|now| (now.dev(), now.ino()) == (own.dev(), own.ino())))
}

/// What was read of a file.
enum Read {
    /// There is no whole line.
    Nothing,
    /// All records were read before, or are none.
    Old,
    /// At least one.
    Lines(Vec<Line>),
}

/// The next whole lines, as many as are read at once, from this number on. What is no record is left out.
fn read_lines(open: &mut Open, next: u64, limit: usize, buffer: &mut Vec<u8>) -> io::Result<Read> {
    buffer.resize(limit, 0);
    let length = match open.file.read_at(buffer, open.offset)? {
        // someone has emptied it
        0 if open.file.metadata()?.len() < open.offset => {
            open.offset = 0;
            open.file.read_at(buffer, 0)?
        }
        length => length,
    };
    let read = buffer.get(..length).unwrap_or_default();
    let last = read.iter().rposition(|byte| *byte == b'\n');
    // of a line that is longer, that alone
    let longer = if last.is_none() && length == limit { first_line(open, buffer)? } else { None };
    let Some(newline) = last.or(longer) else { return Ok(Read::Nothing) };
    let (whole, read) = (newline + 1, buffer.as_slice());
    open.offset += whole as u64;
    let lines = read.get(..whole).unwrap_or_default().split(|byte| *byte == b'\n');
    let lines = lines.filter(|line| number(line).is_none_or(|seq| seq >= next));
    let record = |text: &[u8]| {
        let Head { seq, time, event, hash, trace_id } = serde_json::from_slice(text).ok()?;
        Some(Line { seq, time, event, hash, trace_id, text: text.to_vec() })
    };
    let lines: Vec<_> = lines.filter_map(record).filter(|line| line.seq >= next).collect();
    Ok(if lines.is_empty() { Read::Old } else { Read::Lines(lines) })
}

/// Reads so much that a record is in it; where its line ends.
fn first_line(open: &Open, buffer: &mut Vec<u8>) -> io::Result<Option<usize>> {
    buffer.resize(MAX_READ, 0);
    let length = open.file.read_at(buffer, open.offset)?;
    let newline = buffer.iter().take(length).position(|byte| *byte == b'\n');
    // no record is so long
    Ok(newline.or((length == MAX_READ).then_some(MAX_READ - 1)))
}

/// The number of a record, by how its line begins; `None`: it begins otherwise.
pub(super) fn number(line: &[u8]) -> Option<u64> {
    let digits = line.strip_prefix(b"{\"seq\":")?.split(|byte| *byte == b',').next()?;
    str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn append(path: &std::path::Path, numbers: std::ops::Range<u64>) {
        let mut file = File::options().append(true).create(true).open(path).unwrap();
        for seq in numbers {
            writeln!(file, "{{\"seq\":{seq},\"time\":\"t\",\"event\":\"e\",\"hash\":\"h\"}}").unwrap();
        }
    }

    fn all(follower: &mut Follower) -> (Vec<u64>, u64) {
        let (mut numbers, mut lost) = (Vec::new(), 0);
        loop {
            let batch = follower.read().unwrap();
            if batch.lines.is_empty() {
                return (numbers, lost);
            }
            lost += batch.lost;
            numbers.extend(batch.lines.iter().map(|line| line.seq));
        }
    }

    #[test]
    fn records_are_read_once_and_in_order_however_the_log_is_rotated() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let mut follower = Follower::new(path.clone(), None);
        assert!(all(&mut follower).0.is_empty());
        append(&path, 1..4);
        assert_eq!(all(&mut follower).0, [1, 2, 3]);
        append(&path, 4..5);
        std::fs::rename(&path, files::rotated_name(&path, 1)).unwrap();
        assert_eq!(all(&mut follower).0, [4]);
        append(&path, 5..7);
        assert_eq!(all(&mut follower).0, [5, 6]);
        // twice before it is looked at
        for (first, after) in [(5, 8), (8, 10)] {
            append(&path, if first == 5 { 7..8 } else { 8..10 });
            std::fs::rename(&path, files::rotated_name(&path, first)).unwrap();
            append(&path, after..after);
        }
        append(&path, 10..11);
        assert_eq!(all(&mut follower), (vec![7, 8, 9, 10], 0));
        // again, from within a rotated file
        follower.seek(6);
        assert_eq!(all(&mut follower), (vec![6, 7, 8, 9, 10], 0));
        assert_eq!(all(&mut Follower::new(path.clone(), Some(9))), (vec![9, 10], 0));
        // those that are gone are counted
        std::fs::remove_file(files::rotated_name(&path, 1)).unwrap();
        let mut late = Follower::new(path.clone(), Some(3));
        assert_eq!(all(&mut late), (vec![5, 6, 7, 8, 9, 10], 2));
        // once, and not those that were never asked for
        late.seek(3);
        assert_eq!(all(&mut late), (vec![5, 6, 7, 8, 9, 10], 0));
        assert_eq!(all(&mut Follower::new(path.clone(), None)), (vec![5, 6, 7, 8, 9, 10], 0));
    }

    #[test]
    fn a_file_that_was_moved_away_is_read_until_there_is_another_one() {
        let directory = tempfile::tempdir().unwrap();
        let (path, moved) = (directory.path().join("audit.log"), directory.path().join("moved"));
        append(&path, 1..3);
        let mut follower = Follower::new(path.clone(), None);
        assert_eq!(all(&mut follower).0, [1, 2]);
        std::fs::rename(&path, &moved).unwrap();
        append(&moved, 3..4);
        assert_eq!(all(&mut follower).0, [3]);
        append(&path, 5..5);
        append(&moved, 4..5);
        assert_eq!(all(&mut follower).0, [4]);
        append(&moved, 5..6);
        append(&path, 6..7);
        assert_eq!(all(&mut follower), (vec![5, 6], 0));
    }

    #[test]
    fn a_log_that_is_rotated_while_its_files_are_listed_is_read_to_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        append(&path, 1..4);
        let mut follower = Follower::new(path.clone(), Some(1));
        std::fs::rename(&path, files::rotated_name(&path, 1)).unwrap();
        append(&path, 4..6);
        // as if it was listed before
        follower.open = Some(Open { file: File::open(&path).unwrap(), offset: 0, first: None, is_closed: false });
        assert_eq!(all(&mut follower), (vec![1, 2, 3, 4, 5], 0));
    }

    #[test]
    fn files_without_records_are_passed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        append(&path, 1..4);
        for (first, next) in [(1, 4), (4, 7), (7, 10)] {
            std::fs::rename(&path, files::rotated_name(&path, first)).unwrap();
            append(&path, next..next + 3);
        }
        // emptied, of zeros, with older records, a pipe, a directory
        File::create(files::rotated_name(&path, 1)).unwrap();
        std::fs::write(files::rotated_name(&path, 4), [0; 100]).unwrap();
        append(&files::rotated_name(&path, 999), 1..2);
        let mode = rustix::fs::Mode::RWXU;
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, files::rotated_name(&path, 2), fifo, mode, 0).unwrap();
        std::fs::create_dir(files::rotated_name(&path, 3)).unwrap();
        for limit in [1, MAX_READ] {
            let mut follower = Follower::new(path.clone(), Some(1));
            follower.set_limit(limit);
            assert_eq!(all(&mut follower), (vec![7, 8, 9, 10, 11, 12], 6));
            append(&path, 13..14);
            std::fs::rename(&path, files::rotated_name(&path, 10)).unwrap();
            append(&path, 14..15);
            assert_eq!(all(&mut follower).0, [13, 14]);
            append(&files::rotated_name(&path, 10), 14..15);
            std::fs::rename(files::rotated_name(&path, 10), &path).unwrap();
            std::fs::write(&path, "").unwrap();
            append(&path, 10..13);
        }
    }

    #[test]
    fn a_file_that_was_emptied_is_read_from_its_beginning() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        append(&path, 1..4);
        let mut follower = Follower::new(path.clone(), None);
        assert_eq!(all(&mut follower).0, [1, 2, 3]);
        File::create(&path).unwrap();
        append(&path, 4..5);
        assert_eq!(all(&mut follower), (vec![4], 0));
    }

    #[test]
    fn a_line_that_is_being_written_is_read_when_it_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        append(&path, 1..2);
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"{\"seq\":2,\"time\":").unwrap();
        let mut follower = Follower::new(path, None);
        assert_eq!(all(&mut follower).0, [1]);
        file.write_all(b"\"t\",\"event\":\"e\",\"hash\":\"h\"}\nnot a record\n").unwrap();
        assert_eq!(all(&mut follower).0, [2]);
    }
}
