//! Reads lines of untrusted files, with a limit on their length.

use std::io::{self, BufRead, Read};

use super::chain::{Fault, MAX_LINE};

/// Reads the next line into `line`, without the newline; `None`: end of file.
///
/// # Errors
/// The file cannot be read.
pub(super) fn next(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Option<Result<(), Fault>>> {
    line.clear();
    reader.by_ref().take(MAX_LINE as u64).read_until(b'\n', line)?;
    Ok(match line.pop() {
        None => None,
        Some(b'\n') => Some(Ok(())),
        Some(_) if line.len() + 1 == MAX_LINE => Some(Err(Fault::TooLong)),
        Some(last) => {
            line.push(last);
            Some(Err(Fault::Unfinished))
        }
    })
}

/// Skips the rest of a line that is too long. Returns the bytes skipped.
///
/// # Errors
/// The file cannot be read.
pub(super) fn skip(reader: &mut impl BufRead) -> io::Result<u64> {
    reader.skip_until(b'\n').map(|bytes| bytes as u64)
}
