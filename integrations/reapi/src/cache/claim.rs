//! Blobs that one action brings to a target, until they are there.

use std::collections::HashMap;

use super::{Cache, Copy, Pins};
use crate::tree::Blob;

/// Blobs that one action brings, for itself and for others.
pub(super) struct Claim<'a> {
    pub(super) cache: &'a Cache,
    pub(super) blobs: HashMap<Blob, Copy>,
}

impl Claim<'_> {
    /// The file that one of them is to be.
    pub(super) fn path(&self, blob: &Blob) -> String {
        self.cache.path(blob, self.blobs.get(blob).copied().unwrap_or_default())
    }

    /// The pin of each goes to those of the action.
    pub(super) fn arrived(&mut self, blobs: impl IntoIterator<Item = Blob>, pins: &mut Pins<'_>) {
        let mut state = self.cache.lock();
        for blob in blobs {
            if let Some(copy) = self.blobs.remove(&blob) {
                pins.blobs.insert(blob, copy);
                state.touch(&blob);
            }
        }
    }
}

/// What did not arrive may be brought by others.
impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut state = self.cache.lock();
        for blob in self.blobs.keys() {
            state.blobs.remove(blob);
            state.bytes = state.bytes.saturating_sub(blob.digest.size);
        }
        drop(state);
        self.cache.changed.notify_waiters();
    }
}
