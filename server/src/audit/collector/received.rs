//! The records of a request.

use bytes::Bytes;

use super::request::{Malformed, each_text};
use crate::audit::chain::{self, Entry, Fault, Link, MAX_LINE};
use crate::audit::clip_line;
use crate::audit::follower::number;

/// A reason may quote what was sent.
const MAX_REASON_BYTES: u64 = 512;

/// A record as an agent has written it, and sent.
#[derive(Clone, Debug)]
pub(super) struct Received {
    pub(super) seq: u64,
    prev: String,
    hash: String,
    /// Its line, without the newline.
    pub(super) text: Bytes,
}

impl Received {
    /// # Errors
    /// It is no record, or was changed.
    fn of(text: Bytes) -> Result<Self, Fault> {
        if text.len() >= MAX_LINE {
            return Err(Fault::TooLong);
        }
        if text.contains(&b'\n') {
            return Err(Fault::Malformed("it has a newline".to_owned()));
        }
        let Entry { seq, prev, hash, .. } = chain::read(&text)?;
        // as they are found again
        if number(&text) != Some(seq) {
            return Err(Fault::Malformed("no agent writes it so".to_owned()));
        }
        if [0, u64::MAX].contains(&seq) {
            return Err(Fault::Malformed(format!("its number is {seq}")));
        }
        Ok(Self { seq, prev, hash, text })
    }

    pub(super) fn link(&self) -> Link {
        Link { seq: self.seq, hash: self.hash.clone() }
    }

    /// Whether this is the record with this number and hash.
    pub(super) fn is(&self, seq: u64, hash: &str) -> bool {
        self.seq == seq && self.hash == hash
    }

    /// Whether it is the next one after that record.
    pub(super) fn follows(&self, record: &Link) -> bool {
        self.seq == record.seq.saturating_add(1) && self.prev == record.hash
    }

    /// Whether that one is the next one after this.
    pub(super) fn is_followed_by(&self, next: &Self) -> bool {
        next.seq == self.seq.saturating_add(1) && next.prev == self.hash
    }
}

/// The records of a request in their order, and how many log records are none.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) records: Vec<Received>,
    pub(super) rejected: u64,
    /// Why, of the first one.
    pub(super) reason: String,
}

impl Batch {
    /// # Errors
    /// The request is malformed.
    pub(super) fn of(request: Bytes) -> Result<Self, Malformed> {
        let mut batch = Self::default();
        each_text(request, |text| match text.map(Received::of) {
            Some(Ok(record)) => batch.records.push(record),
            Some(Err(fault)) => batch.reject(1, || format!("the body of a log record: {fault}")),
            None => batch.reject(1, || "the body of a log record is not a string".to_owned()),
        })?;
        Ok(batch)
    }

    pub(super) fn reject(&mut self, records: u64, reason: impl FnOnce() -> String) {
        self.rejected = self.rejected.saturating_add(records);
        if self.reason.is_empty() {
            self.reason = clip_line(MAX_REASON_BYTES, &reason());
        }
    }
}
