//! Which blobs a target has, and which of them go when there is no more room.

use std::collections::{BTreeMap, HashMap};

use super::Copy;
use crate::tree::Blob;

#[derive(Default)]
pub(super) struct State {
    pub(super) blobs: HashMap<Blob, Kept>,
    /// Of the next copy: no two files have one name, so that what is removed late is never a newer one.
    pub(super) copies: u64,
    /// Those that are complete, by when they were used last.
    pub(super) by_use: BTreeMap<u64, Blob>,
    pub(super) uses: u64,
    /// With those that arrive.
    pub(super) bytes: u64,
}

pub(super) struct Kept {
    pub(super) copy: Copy,
    /// `None`: it arrives.
    pub(super) used: Option<u64>,
    /// Actions that are about to link it; the one that brings it, too.
    pub(super) pins: usize,
}

impl State {
    /// It was there before. Returns whether it is the only copy.
    pub(super) fn add(&mut self, blob: Blob, copy: Copy) -> bool {
        self.copies = self.copies.max(copy);
        if self.blobs.contains_key(&blob) {
            return false;
        }
        self.blobs.insert(blob, Kept { copy, used: None, pins: 0 });
        self.bytes += blob.digest.size;
        self.touch(&blob);
        true
    }

    /// It is to arrive, for the action that brings it.
    pub(super) fn reserve(&mut self, blob: Blob) -> Copy {
        self.copies += 1;
        self.blobs.insert(blob, Kept { copy: self.copies, used: None, pins: 1 });
        self.bytes = self.bytes.saturating_add(blob.digest.size);
        self.copies
    }

    pub(super) fn pin(&mut self, blob: &Blob) {
        self.touch(blob);
        if let Some(kept) = self.blobs.get_mut(blob) {
            kept.pins += 1;
        }
    }

    /// It is complete, and was used last.
    pub(super) fn touch(&mut self, blob: &Blob) {
        self.uses += 1;
        let Some(kept) = self.blobs.get_mut(blob) else { return };
        if let Some(before) = kept.used.replace(self.uses) {
            self.by_use.remove(&before);
        }
        self.by_use.insert(self.uses, *blob);
    }

    /// Returns whether it was known, and complete.
    pub(super) fn forget(&mut self, blob: &Blob, copy: Copy) -> bool {
        let Some(Kept { copy: known, used: Some(used), .. }) = self.blobs.get(blob) else { return false };
        if *known != copy {
            return false;
        }
        self.by_use.remove(used);
        self.bytes = self.bytes.saturating_sub(blob.digest.size);
        self.blobs.remove(blob);
        true
    }

    /// Forgets those that were used longest ago, until the limit is kept, or all others are about to be used.
    pub(super) fn make_room(&mut self, limit: u64) -> Vec<(Blob, Copy)> {
        let (mut bytes, mut surplus) = (self.bytes, Vec::new());
        for blob in self.by_use.values() {
            if bytes <= limit {
                break;
            }
            if let Some(kept) = self.blobs.get(blob).filter(|kept| kept.pins == 0) {
                bytes = bytes.saturating_sub(blob.digest.size);
                surplus.push((*blob, kept.copy));
            }
        }
        for (blob, copy) in &surplus {
            self.forget(blob, *copy);
        }
        surplus
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;

    #[test]
    fn what_is_about_to_be_used_or_arrives_is_kept() {
        let blobs = [1, 2, 3].map(|size| {
            let digest = Digest::of_name(&"0".repeat(64), size).unwrap();
            Blob { digest, executable: false }
        });
        let [old, pinned, arriving] = blobs;
        let mut state = State::default();
        assert!(state.add(old, 7) && state.add(pinned, 8) && !state.add(old, 9));
        state.pin(&pinned);
        assert_eq!(state.reserve(arriving), 10);
        assert_eq!(state.bytes, 6);
        assert!(state.make_room(6).is_empty());
        assert_eq!(state.make_room(5), [(old, 7)]);
        assert!(state.make_room(0).is_empty() && state.bytes == 5);
        state.touch(&arriving);
        assert!(state.make_room(0).is_empty(), "it is pinned by who brought it");
        // another copy is another file
        assert!(!state.forget(&arriving, 9) && state.forget(&arriving, 10) && !state.forget(&arriving, 10));
    }
}
