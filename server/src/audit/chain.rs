//! What ties the lines of the log together: each holds the hash of the line before, and ends with its own, over all of
//! its text before that. So an edited line is known by itself, one whose hash was made anew by the next line, and one
//! that is missing, repeated or elsewhere by its number.

use serde::Deserialize;

use crate::digest::sha256;

/// A longer line is none of ours, its end included.
pub(super) const MAX_LINE: usize = 1 << 20;

/// What stands before the hash of a line, and how long that and all after it is.
const BEFORE_HASH: &[u8] = b",\"hash\":\"";
const HASH_BYTES: usize = 64;
const SEAL_BYTES: usize = BEFORE_HASH.len() + HASH_BYTES + 2;

/// A line as the next one knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) seq: u64,
    pub(super) hash: String,
}

impl Link {
    /// What the first line follows.
    pub(super) fn none() -> Self {
        Self { seq: 0, hash: "0".repeat(HASH_BYTES) }
    }
}

/// What a line says of itself, as far as the chain goes.
#[derive(Debug, Deserialize)]
pub(super) struct Entry {
    pub(super) seq: u64,
    pub(super) time: String,
    pub(super) event: String,
    #[serde(default)]
    pub(super) execution_id: String,
    /// Of an end: the number of its start.
    pub(super) start: Option<u64>,
    /// Records that could not be written before this one.
    #[serde(default)]
    pub(super) dropped: u64,
    prev: String,
    pub(super) hash: String,
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// It is longer than any record.
    #[error("it is longer than 1 MiB, which no record is")]
    TooLong,
    /// The last line of a file does not end.
    #[error("it has no end: the file was cut off here, or is being written")]
    Unfinished,
    /// It does not end with a hash.
    #[error("it is no record: it does not end with a hash")]
    NoRecord,
    /// Its hash is another.
    #[error("it was changed: its hash is not that of its text")]
    Changed,
    /// It is JSON that this agent does not write.
    #[error("it is no record: {0}")]
    Malformed(String),
    /// The one that should be here is not.
    #[error("lines are missing before it: {0} should be here")]
    Missing(u64),
    /// It was here already.
    #[error("it is here again, or out of its place: {0} should be here")]
    Repeated(u64),
    /// The line before it is not the one that it was written after.
    #[error(
        "the line before it was changed, and its hash made anew: it is not the one that this one was written after"
    )]
    Unchained,
}

/// Ends a line, whose text is an object of JSON: returns its hash.
pub(super) fn seal(line: &mut Vec<u8>) -> String {
    line.pop();
    let hash = sha256(line);
    line.extend_from_slice(BEFORE_HASH);
    line.extend_from_slice(hash.as_bytes());
    line.extend_from_slice(b"\"}\n");
    hash
}

/// What a line says, without its end of line.
///
/// # Errors
/// It was not written so.
pub(super) fn read(line: &[u8]) -> Result<Entry, Fault> {
    let (text, seal) =
        line.len().checked_sub(SEAL_BYTES).and_then(|at| line.split_at_checked(at)).ok_or(Fault::NoRecord)?;
    let hash = seal.strip_prefix(BEFORE_HASH).and_then(|rest| rest.strip_suffix(b"\"}")).ok_or(Fault::NoRecord)?;
    if sha256(text).as_bytes() != hash {
        return Err(Fault::Changed);
    }
    serde_json::from_slice(line).map_err(|error| Fault::Malformed(error.to_string()))
}

impl Entry {
    /// Whether it is the next after this one.
    pub(super) fn follows(&self, last: &Link) -> Result<(), Fault> {
        let next = last.seq.saturating_add(1);
        match self.seq {
            seq if seq > next => Err(Fault::Missing(next)),
            seq if seq < next => Err(Fault::Repeated(next)),
            _ if self.prev != last.hash => Err(Fault::Unchained),
            _ => Ok(()),
        }
    }

    pub(super) fn link(&self) -> Link {
        Link { seq: self.seq, hash: self.hash.clone() }
    }
}
