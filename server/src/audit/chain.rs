//! The hash chain of the log: each line holds the hash of the line before, and ends with its own, over all of its text
//! before that. An edited line fails its own hash; if that was computed anew, the next line fails; a missing, repeated or
//! moved line shows by its number.

use serde::Deserialize;

use crate::digest::sha256;

/// The longest line that is ever written, with its newline.
pub(super) const MAX_LINE: usize = 1 << 20;

/// What precedes the hash in a line, and the length from there to the end.
const BEFORE_HASH: &[u8] = b",\"hash\":\"";
const HASH_BYTES: usize = 64;
/// What precedes the number and the hash of a record, elsewhere.
const REFERENCE: &str = "audit record ";
const SEAL_BYTES: usize = BEFORE_HASH.len() + HASH_BYTES + 2;

/// A line as the next one refers to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Link {
    pub(super) seq: u64,
    pub(super) hash: String,
}

impl Link {
    /// The predecessor of the first line.
    pub(super) fn none() -> Self {
        Self { seq: 0, hash: "0".repeat(HASH_BYTES) }
    }

    /// As the log of a keeper has it.
    pub(super) fn reference(&self) -> String {
        format!("{REFERENCE}{} {}", self.seq, self.hash)
    }

    /// The reverse.
    pub(super) fn of_reference(reference: &str) -> Option<Self> {
        let (seq, hash) = reference.strip_prefix(REFERENCE)?.split_once(' ')?;
        let is_hash = hash.len() == HASH_BYTES && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        Some(Self { seq: seq.parse().ok()?, hash: is_hash.then(|| hash.to_owned())? })
    }
}

/// The fields of a line that the chain and the verifier need.
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
    /// Not looked at here, but by those who read it elsewhere.
    #[serde(rename = "trace_id")]
    _trace_id: Option<String>,
    pub(super) prev: String,
    pub(super) hash: String,
}

/// A fault in a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// It is longer than any record.
    #[error("it is longer than 1 MiB, the longest that a record can be")]
    TooLong,
    /// The last line of a file has no newline.
    #[error("it has no newline: the file was cut off here, or is being written")]
    Unfinished,
    /// It has no hash at its end.
    #[error("it is not an audit record: it does not end with a hash")]
    NoRecord,
    /// Its hash does not match.
    #[error("it was modified: its hash does not match")]
    Changed,
    /// It is not a record of an agent.
    #[error("it is not an audit record: {0}")]
    Malformed(String),
    /// The line that should be here is missing.
    #[error("records are missing before it: expected {0}")]
    Missing(u64),
    /// It is repeated or out of order.
    #[error("it is repeated or out of order: expected {0}")]
    Repeated(u64),
    /// The line before it is not the one whose hash it holds.
    #[error(
        "the record before it was modified and its hash recomputed: it does not match the hash that this one holds"
    )]
    Unchained,
}

/// Completes a line, whose text is a JSON object, with its hash, which is returned.
pub(super) fn seal(line: &mut Vec<u8>) -> String {
    line.pop();
    let hash = sha256(line);
    line.extend_from_slice(BEFORE_HASH);
    line.extend_from_slice(hash.as_bytes());
    line.extend_from_slice(b"\"}\n");
    hash
}

/// Parses a line, without its newline.
///
/// # Errors
/// The line is not as it was written.
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
    /// Whether the line follows this one.
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
