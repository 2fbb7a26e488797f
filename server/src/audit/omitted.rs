//! Counts the records that are not written, of callers who have used up their share: one record has the totals.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use time::OffsetDateTime;

use super::record::{Body, Omitted, Origin, Record};
use crate::timestamp::rfc3339;

/// From the first omitted record to the one with the totals.
pub(super) const DELAY: Duration = Duration::from_secs(10);

/// Totals by identity.
#[derive(Default)]
pub(super) struct OmittedRecords(Mutex<HashMap<String, (Arc<Origin>, Omitted)>>);

impl OmittedRecords {
    /// Counts one. True: the first of its identity, so a record with the totals is due after [`DELAY`].
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

    /// Removes this identity's totals, as a record.
    pub(super) fn take(&self, identity: &str) -> Option<Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(identity).map(record)
    }

    /// Removes all totals, as records.
    pub(super) fn take_all(&self) -> Vec<Record> {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        all.into_values().map(record).collect()
    }
}

fn record((origin, totals): (Arc<Origin>, Omitted)) -> Record {
    Record::new(Body::Omitted(totals)).of(&origin)
}
