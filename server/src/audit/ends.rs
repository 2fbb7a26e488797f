//! Which ends the log has, of those that were written last: an agent may be killed between an end and its record.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use super::{chain, files, lines};

/// So much is read of the log: far more than is written between an end and a crash.
const RECENT_BYTES: u64 = 4 << 20;

/// The numbers of the starts whose ends are among the last records.
///
/// # Errors
/// A file cannot be read.
pub(super) fn recent(path: &Path) -> io::Result<BTreeSet<u64>> {
    let (mut found, mut left) = (BTreeSet::new(), RECENT_BYTES);
    let before = files::rotated(path)?.into_iter().map(|(_, path)| path);
    for path in before.chain([path.to_owned()]).rev().take(2) {
        left = left.saturating_sub(read_end(&path, left, &mut found)?);
    }
    Ok(found)
}

/// Reads the last of a file; returns how much.
fn read_end(path: &Path, most: u64, found: &mut BTreeSet<u64>) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let read = length.min(most);
    file.seek(SeekFrom::Start(length - read))?;
    let (mut reader, mut line) = (BufReader::new(file.take(read)), Vec::new());
    if read < length {
        reader.skip_until(b'\n')?;
    }
    while let Some(whole) = lines::next(&mut reader, &mut line)? {
        let entry = whole.ok().and_then(|()| chain::read(&line).ok());
        found.extend(entry.and_then(|entry| entry.start));
    }
    Ok(read)
}
