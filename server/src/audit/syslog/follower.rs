//! Reads the records of a log one after another while it is written and rotated.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

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
    /// Without the newline.
    pub(super) text: Vec<u8>,
}

/// The fields that are needed of it.
#[derive(Deserialize)]
struct Head {
    seq: u64,
    time: String,
    event: String,
}

/// What was read.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) lines: Vec<Line>,
    /// Records before or between these that are not in the files any more.
    pub(super) lost: u64,
}

/// A place in the log.
pub(super) struct Follower {
    path: PathBuf,
    /// The number of the next record.
    next: u64,
    open: Option<Open>,
    buffer: Vec<u8>,
}

struct Open {
    file: File,
    /// Where the next line begins.
    offset: u64,
    /// It was not the current file when it was opened.
    is_rotated: bool,
}

impl Follower {
    /// From the record with this number on.
    pub(super) fn new(path: PathBuf, next: u64) -> Self {
        Self { path, next, open: None, buffer: Vec::new() }
    }

    /// Goes to the record with this number.
    pub(super) fn seek(&mut self, next: u64) {
        (self.next, self.open) = (next, None);
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
            let Some(open) = &mut self.open else { return Ok(Batch::default()) };
            // seen before it is read: what was written until then is read
            let is_finished = open.is_rotated || !is_at(&self.path, &open.file)?;
            let read = read_lines(open, &mut self.buffer)?;
            if read.is_empty() {
                if !is_finished {
                    return Ok(Batch::default());
                }
                self.open = self.after()?;
                if self.open.as_ref().is_none_or(|open| !open.is_rotated) {
                    // where there is nothing new yet, it is looked at again later
                    return self.read_current();
                }
                continue;
            }
            let batch = self.take(read);
            if !batch.lines.is_empty() {
                return Ok(batch);
            }
        }
    }

    fn read_current(&mut self) -> io::Result<Batch> {
        let Some(open) = &mut self.open else { return Ok(Batch::default()) };
        let read = read_lines(open, &mut self.buffer)?;
        Ok(self.take(read))
    }

    /// Those that were not read before.
    fn take(&mut self, read: Vec<Line>) -> Batch {
        let mut batch = Batch::default();
        for line in read.into_iter() {
            if line.seq < self.next {
                continue;
            }
            batch.lost += line.seq - self.next;
            self.next = line.seq.saturating_add(1);
            batch.lines.push(line);
        }
        batch
    }

    /// The file with the next record, or the first one after it.
    fn find(&self) -> io::Result<Option<Open>> {
        let rotated = files::rotated(&self.path)?;
        let at = rotated.partition_point(|(first, _)| *first <= self.next).saturating_sub(1);
        self.open_first(rotated.into_iter().skip(at))
    }

    /// The file after one that was read to its end.
    fn after(&self) -> io::Result<Option<Open>> {
        let rotated = files::rotated(&self.path)?;
        self.open_first(rotated.into_iter().filter(|(first, _)| *first >= self.next))
    }

    /// The first of these that is still there, or the current one.
    fn open_first(&self, rotated: impl Iterator<Item = (u64, PathBuf)>) -> io::Result<Option<Open>> {
        let rotated = rotated.map(|(_, path)| (path, true));
        for (path, is_rotated) in rotated.chain([(self.path.clone(), false)]) {
            match File::open(path) {
                Ok(file) => return Ok(Some(Open { file, offset: 0, is_rotated })),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
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

/// The next whole lines, as many as are read at once. What is no record is left out.
fn read_lines(open: &mut Open, buffer: &mut Vec<u8>) -> io::Result<Vec<Line>> {
    buffer.resize(MAX_READ, 0);
    let length = open.file.read_at(buffer, open.offset)?;
    let read = buffer.get(..length).unwrap_or_default();
    let whole = match read.iter().rposition(|byte| *byte == b'\n') {
        Some(newline) => newline + 1,
        // no record is so long
        None if length == MAX_READ => length,
        None => 0,
    };
    open.offset += whole as u64;
    let lines = read.get(..whole).unwrap_or_default().split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let record = |text: &[u8]| {
        let Head { seq, time, event } = serde_json::from_slice(text).ok()?;
        Some(Line { seq, time, event, text: text.to_vec() })
    };
    Ok(lines.filter_map(record).collect())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn append(path: &std::path::Path, numbers: std::ops::Range<u64>) {
        let mut file = File::options().append(true).create(true).open(path).unwrap();
        for seq in numbers {
            writeln!(file, "{{\"seq\":{seq},\"time\":\"t\",\"event\":\"e\"}}").unwrap();
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
        let mut follower = Follower::new(path.clone(), 1);
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
        assert_eq!(all(&mut Follower::new(path.clone(), 9)), (vec![9, 10], 0));
        // those that are gone are counted
        std::fs::remove_file(files::rotated_name(&path, 1)).unwrap();
        assert_eq!(all(&mut Follower::new(path.clone(), 3)), (vec![5, 6, 7, 8, 9, 10], 2));
    }

    #[test]
    fn a_line_that_is_being_written_is_read_when_it_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        append(&path, 1..2);
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"{\"seq\":2,\"time\":").unwrap();
        let mut follower = Follower::new(path, 1);
        assert_eq!(all(&mut follower).0, [1]);
        file.write_all(b"\"t\",\"event\":\"e\"}\nnot a record\n").unwrap();
        assert_eq!(all(&mut follower).0, [2]);
    }
}
