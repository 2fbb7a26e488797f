//! Which directory each watch of inotify(7) is on.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

/// Directories by their paths below the one that was asked for, and the numbers of their watches.
#[derive(Default)]
pub(super) struct Directories {
    paths: HashMap<i32, Vec<u8>>,
    watches: BTreeMap<Vec<u8>, i32>,
}

impl Directories {
    pub(super) fn len(&self) -> usize {
        self.paths.len()
    }

    pub(super) fn path(&self, watch: i32) -> Option<&[u8]> {
        self.paths.get(&watch).map(Vec::as_slice)
    }

    pub(super) fn has(&self, path: &[u8]) -> bool {
        self.watches.contains_key(path)
    }

    /// This watch is on the directory with this path. Returns whether that was not known.
    pub(super) fn add(&mut self, watch: i32, path: Vec<u8>) -> bool {
        if self.path(watch) == Some(&path) {
            return false;
        }
        // it was moved, and that event is still to come
        self.remove(watch);
        if let Some(replaced) = self.watches.insert(path.clone(), watch) {
            self.paths.remove(&replaced);
        }
        self.paths.insert(watch, path);
        true
    }

    pub(super) fn remove(&mut self, watch: i32) {
        if let Some(path) = self.paths.remove(&watch) {
            self.watches.remove(&path);
        }
    }

    pub(super) fn watches(&self) -> impl Iterator<Item = i32> {
        self.paths.keys().copied()
    }

    /// Forgets a directory and those below it. Returns their watches.
    pub(super) fn take(&mut self, path: &[u8]) -> Vec<i32> {
        let first = [path, b"/"].concat();
        let below = self.watches.range::<[u8], _>((Bound::Included(&first[..]), Bound::Unbounded));
        let below = below.take_while(|(path, _)| path.starts_with(&first)).map(|(_, watch)| *watch);
        let taken: Vec<i32> = self.watches.get(path).copied().into_iter().chain(below).collect();
        taken.iter().for_each(|watch| self.remove(*watch));
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_was_moved_is_where_it_was_found_last() {
        let mut directories = Directories::default();
        for (watch, path) in [(1, ""), (2, "a"), (3, "a/b"), (4, "a/b/c"), (5, "a-b"), (6, "b")] {
            assert!(directories.add(watch, path.into()));
            assert!(!directories.add(watch, path.into()));
        }
        assert!(directories.add(3, b"b/x".to_vec()));
        assert_eq!(directories.take(b"a"), [2, 4]);
        assert_eq!((directories.path(2), directories.path(3)), (None, Some(&b"b/x"[..])));
        assert_eq!(directories.path(5), Some(&b"a-b"[..]));
        assert_eq!(directories.take(b"b"), [6, 3]);
        assert!(directories.add(7, b"a-b".to_vec()));
        assert_eq!((directories.path(5), directories.len()), (None, 2));
    }
}
