//! Finds a record in a file of a log by its number, by binary search: a peer decides how often that is done.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

use crate::audit::chain::MAX_LINE;
use crate::audit::files;
use crate::audit::follower::{Follower, number};

/// More than how a line begins, with its number.
const MAX_BEGIN: usize = 64;

/// Whether a log has this line, which begins with this number.
///
/// # Errors
/// A file cannot be read.
pub(super) fn has_line(log: &Path, seq: u64, line: &[u8]) -> io::Result<bool> {
    let mut rotated = files::rotated(log)?;
    rotated.truncate(rotated.partition_point(|(first, _)| *first <= seq));
    let candidates = rotated.pop().map(|(_, path)| path).into_iter().chain([log.to_owned()]);
    for path in candidates {
        match find(&path, seq) {
            Ok(found) if found.as_deref() == Some(line) => return Ok(true),
            Ok(_) => {}
            // damaged, which no peer can cause: line by line, all files
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                let found = Follower::new(log.to_owned(), Some(seq)).read()?;
                return Ok(found.lines.first().is_some_and(|found| found.text == line));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// The line with this number. The numbers in a file grow from line to line.
fn find(path: &Path, seq: u64) -> io::Result<Option<Vec<u8>>> {
    // not what someone else may have put there, such as a pipe
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).map_err(io::Error::other)?;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let damaged = || io::Error::from(io::ErrorKind::InvalidData);
    // where a line begins, and where one with a greater number does
    let (mut low, mut high) = (0, file.metadata()?.len());
    while high - low > 2 * MAX_LINE as u64 {
        let middle = low + (high - low) / 2;
        let read = read(&file, middle, MAX_LINE)?;
        let next = read.iter().position(|byte| *byte == b'\n').map(|newline| newline + 1);
        let begin = middle + next.ok_or_else(damaged)? as u64;
        match number(&self::read(&file, begin, MAX_BEGIN)?) {
            Some(there) if there <= seq => low = begin,
            Some(_) => high = begin,
            None => return Err(damaged()),
        }
    }
    let lines = read(&file, low, 3 * MAX_LINE)?;
    Ok(lines.split(|byte| *byte == b'\n').find(|line| number(line) == Some(seq)).map(<[u8]>::to_vec))
}

/// As much as there is, and no more than this.
fn read(mut file: &File, offset: u64, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(offset))?;
    file.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_found_and_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let line = |seq: u64| {
            // short ones and long ones
            let length = if seq.is_multiple_of(7) { 900_000 } else { seq * 97 % 1000 };
            format!(
                "{{\"seq\":{seq},\"time\":\"t\",\"event\":\"e\",\"hash\":\"{}\"}}",
                "x".repeat(usize::try_from(length).unwrap())
            )
        };
        let text = |range: std::ops::Range<u64>| range.map(|seq| line(seq) + "\n").collect::<String>();
        std::fs::write(files::rotated_name(&log, 100), text(100..150)).unwrap();
        std::fs::write(files::rotated_name(&log, 150), text(150..151)).unwrap();
        std::fs::write(&log, text(151..200)).unwrap();
        for seq in 95..205 {
            let is_there = (100..200).contains(&seq);
            assert_eq!(has_line(&log, seq, line(seq).as_bytes()).unwrap(), is_there, "{seq}");
            assert!(!has_line(&log, seq, line(seq + 1).as_bytes()).unwrap());
        }
        // zeros in the middle, as after a power cut
        let rotated = files::rotated_name(&log, 100);
        let mut damaged = std::fs::read(&rotated).unwrap();
        let middle = damaged.len() / 2;
        damaged[middle - 100_000..middle + 1_500_000].fill(0);
        std::fs::write(&rotated, damaged).unwrap();
        for seq in [100, 101, 148, 149, 150] {
            assert!(has_line(&log, seq, line(seq).as_bytes()).unwrap(), "{seq}");
        }
        assert!(!has_line(&log, 126, line(126).as_bytes()).unwrap());
        std::fs::write(&log, "").unwrap();
        assert!(!has_line(&log, 151, line(151).as_bytes()).unwrap());
    }
}
