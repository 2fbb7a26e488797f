//! Records that are not written one by one, of callers who have had their share: how many there were is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use time::OffsetDateTime;

use super::record::{Body, Omitted, Origin, Record};
use super::timestamp::rfc3339;

/// They are told so long after the first of them.
pub(super) const DELAY: Duration = Duration::from_secs(10);

/// What was left out, by identity.
#[derive(Default)]
pub(super) struct OmittedRecords(Mutex<HashMap<String, (Arc<Origin>, Omitted)>>);

impl OmittedRecords {
    /// Counts one; true: the first of its identity, which is to be told after the [`DELAY`].
    pub(super) fn count(&self, identity: &str, origin: impl FnOnce() -> Arc<Origin>, was_denied: bool) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = !all.contains_key(identity);
        let totals = || (origin(), Omitted { since: rfc3339(OffsetDateTime::now_utc()), denied: 0, calls: 0 });
        let (_, totals) = all.entry(identity.to_owned()).or_insert_with(totals);
        match was_denied {
            true => totals.denied += 1,
            false => totals.calls += 1,
        }
        is_first
    }

    /// What is to be told of this identity.
    pub(super) fn take(&self, identity: &str) -> Option<Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(identity).map(record)
    }

    /// What is to be told of all.
    pub(super) fn take_all(&self) -> Vec<Record> {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        all.into_values().map(record).collect()
    }
}

fn record((origin, totals): (Arc<Origin>, Omitted)) -> Record {
    Record::new(Body::More(totals)).of(&origin)
}
