//! The executions that have not ended, by the identity that they count for: found without a look at all that have.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::record::Record;

/// In the order of their starts, of each identity.
#[derive(Default)]
pub(super) struct Active(HashMap<String, BTreeMap<u64, Arc<Record>>>);

impl Active {
    pub(super) fn insert(&mut self, record: &Arc<Record>) {
        let own = self.0.entry(record.counts_for().to_owned()).or_default();
        own.insert(record.sequence, Arc::clone(record));
    }

    pub(super) fn remove(&mut self, record: &Record) {
        let Some(own) = self.0.get_mut(record.counts_for()) else { return };
        own.remove(&record.sequence);
        if own.is_empty() {
            self.0.remove(record.counts_for());
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Record>> {
        self.0.values().flat_map(BTreeMap::values)
    }

    pub(super) fn count_of(&self, identity: &str) -> usize {
        self.0.get(identity).map_or(0, BTreeMap::len)
    }

    pub(super) fn of(&self, identity: &str) -> impl Iterator<Item = &Arc<Record>> {
        self.0.get(identity).into_iter().flat_map(BTreeMap::values)
    }
}
