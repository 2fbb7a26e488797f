//! The cgroups of one execution, as its agent describes them for the next one.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::directory::Directory;
use super::leaf::{Keeper, Leaf, OomCounter};

/// A [`Leaf`], for the next agent. Paths are used again, and inodes say whether they were.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeafRecord {
    keeper: KeeperRecord,
    controllers: Vec<DirectoryRecord>,
    oom: Option<OomCounter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum KeeperRecord {
    Unified(DirectoryRecord),
    Freezer(DirectoryRecord),
    None,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DirectoryRecord {
    path: PathBuf,
    inode: u64,
}

impl DirectoryRecord {
    fn of(directory: &Directory) -> Self {
        let inode = fs::metadata(directory.path()).map_or(0, |found| found.ino());
        Self { path: directory.path().to_owned(), inode }
    }

    /// It is not given up to others: there is none, or it is the same.
    fn is_its_own(&self) -> bool {
        fs::metadata(&self.path).map_or(true, |found| found.ino() == self.inode)
    }
}

impl LeafRecord {
    /// Where it is, if it keeps processes together.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.keeper {
            KeeperRecord::Unified(directory) | KeeperRecord::Freezer(directory) => Some(&directory.path),
            KeeperRecord::None => None,
        }
    }

    /// `None`: others have one of its directories.
    pub(crate) fn restore(self) -> Option<Leaf> {
        let directory = |record: DirectoryRecord| record.is_its_own().then(|| Directory::inherited(record.path));
        let keeper = match self.keeper {
            KeeperRecord::Unified(record) => Keeper::Unified(directory(record)?),
            KeeperRecord::Freezer(record) => Keeper::Freezer(directory(record)?),
            KeeperRecord::None => Keeper::None,
        };
        let controllers = self.controllers.into_iter().map(directory).collect::<Option<_>>()?;
        Some(Leaf { keeper, controllers, oom: self.oom })
    }
}

impl Leaf {
    /// For the next agent.
    pub(crate) fn record(&self) -> LeafRecord {
        let keeper = match &self.keeper {
            Keeper::Unified(directory) => KeeperRecord::Unified(DirectoryRecord::of(directory)),
            Keeper::Freezer(directory) => KeeperRecord::Freezer(DirectoryRecord::of(directory)),
            Keeper::None => KeeperRecord::None,
        };
        let controllers = self.controllers.iter().map(DirectoryRecord::of).collect();
        LeafRecord { keeper, controllers, oom: self.oom }
    }
}
