//! The version 2 hierarchy: a cgroup for each identity, and for each of its executions.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use super::directory::Directory;
use super::groups::{Group, Groups};
use super::tree::Tree;
use crate::lock::lock;
use crate::share::Share;

/// The engine's part of the version 2 hierarchy.
#[derive(Debug)]
pub(super) struct Unified {
    /// Made before it is needed: that takes a twentieth of the start of a command. Dropped before the directory that it is in.
    spare: Mutex<Option<Directory>>,
    /// Held by the thread that makes one.
    preparing: Mutex<()>,
    /// Whose execution was started last.
    last: Mutex<Option<Arc<Group>>>,
    pub(super) groups: Groups,
    /// Those that its leaves have.
    pub(super) controllers: Vec<String>,
}

impl Unified {
    pub(super) fn new(tree: Tree, controllers: Vec<String>) -> Self {
        let (spare, preparing, last) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { spare, preparing, last, groups: Groups::new(tree), controllers }
    }

    fn spare(&self) -> MutexGuard<'_, Option<Directory>> {
        lock(&self.spare)
    }

    /// A cgroup for an execution of this identity.
    pub(super) fn leaf(&self, identity: &str, share: Option<Share>) -> io::Result<Directory> {
        let group = self.groups.of(identity)?;
        if let Some(share) = share {
            self.groups.set_share(&group, share)?;
        }
        let spare = {
            let mut spare = self.spare();
            if spare.as_ref().is_some_and(|spare| spare.is_in(&group)) { spare.take() } else { None }
        };
        spare.filter(|spare| !spare.is_gone()).map_or_else(|| self.groups.add_leaf(&group), Ok)
    }

    /// Prepares what the next execution will need, if it is of the same identity as the last one and the one before.
    pub(super) fn prepare(&self, identity: &str, announce: impl FnOnce(&Path)) -> io::Result<()> {
        // another thread may be faster
        let Ok(_preparing) = self.preparing.try_lock() else { return Ok(()) };
        let group = self.groups.of(identity)?;
        let before = lock(&self.last).replace(Arc::clone(&group));
        let is_repeated = before.is_some_and(|before| Arc::ptr_eq(&before, &group));
        if !is_repeated || self.spare().as_ref().is_some_and(|spare| spare.is_in(&group)) {
            return Ok(());
        }
        // the process that was made in it is in the way of the next one
        let of_another = self.spare().take();
        drop(of_another);
        let spare = self.groups.add_leaf(&group)?;
        announce(spare.path());
        *self.spare() = Some(spare);
        Ok(())
    }

    /// Removes all that holds no process; nothing can be made from now on.
    pub(super) fn remove(&self) {
        drop(self.spare().take());
        drop(lock(&self.last).take());
        self.groups.clear();
        self.groups.tree().remove();
    }
}
