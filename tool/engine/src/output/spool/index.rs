//! The index of kept output: where its stream changes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use telexec_executor::{Output, OutputStream};

use crate::streams::source::CHUNK_BYTES;

/// An entry of the index: a position, and in the lowest bit the stream that begins there.
pub(super) const ENTRY_BYTES: usize = 8;
/// How many entries are read at once.
const ENTRIES: usize = 512;

/// The position of the first byte.
pub(super) fn start(index: &File) -> io::Result<u64> {
    entry(index, 0).map(|(position, _)| position)
}

fn entry(index: &File, number: u64) -> io::Result<(u64, OutputStream)> {
    let mut bytes = [0; ENTRY_BYTES];
    index.read_exact_at(&mut bytes, number * ENTRY_BYTES as u64)?;
    Ok(decode(bytes))
}

fn decode(bytes: [u8; ENTRY_BYTES]) -> (u64, OutputStream) {
    let entry = u64::from_le_bytes(bytes);
    (entry >> 1, if entry & 1 == 0 { OutputStream::Stdout } else { OutputStream::Stderr })
}

/// The number of the last entry that is not beyond `position`, or of the first one.
pub(super) fn last_before(index: &File, entries: u64, position: u64) -> io::Result<u64> {
    let (mut low, mut high) = (0, entries);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match entry(index, middle)?.0 <= position {
            true => low = middle,
            false => high = middle,
        }
    }
    Ok(low)
}

/// The entries from `first` on, or as many of them as are read at once.
pub(super) fn runs(index: &File, first: u64, entries: u64) -> io::Result<Vec<(u64, OutputStream)>> {
    let count = usize::try_from(entries.saturating_sub(first)).unwrap_or(ENTRIES).min(ENTRIES);
    let mut bytes = vec![0; count * ENTRY_BYTES];
    index.read_exact_at(&mut bytes, first * ENTRY_BYTES as u64)?;
    Ok(bytes.as_chunks::<ENTRY_BYTES>().0.iter().copied().map(decode).collect())
}

/// Data that begins at `position`, cut where the stream changes, and where a chunk is long enough. The first run begins
/// at or before `position`.
pub(super) fn split(data: &Bytes, position: u64, runs: &[(u64, OutputStream)]) -> Vec<Output> {
    let end = position + data.len() as u64;
    let ends = runs.iter().skip(1).map(|run| run.0).chain([u64::MAX]);
    let offset = |at: u64| usize::try_from(at - position).unwrap_or(0);
    let mut chunks = Vec::new();
    for ((start, stream), run_end) in runs.iter().zip(ends) {
        let (mut from, to) = ((*start).max(position), run_end.min(end));
        while from < to {
            let next = to.min(from + CHUNK_BYTES as u64);
            chunks.push(Output { stream: *stream, data: data.slice(offset(from)..offset(next)), position: from });
            from = next;
        }
    }
    chunks
}
