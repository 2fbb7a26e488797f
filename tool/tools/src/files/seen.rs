//! Which version of a file the caller knows.

use std::collections::VecDeque;
use std::time::SystemTime;

use telexec_executor::{FileInfo, FilePath};

/// Files that are remembered; the oldest is forgotten, and then edited as one that was never read.
const MAX_FILES: usize = 1_000;

/// A state of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    size: u64,
    modify_time: SystemTime,
    /// `None`: not all of it was read.
    sha256: Option<[u8; 32]>,
}

impl Version {
    pub(super) fn new(info: &FileInfo, sha256: Option<[u8; 32]>) -> Self {
        Self { size: info.size, modify_time: info.modify_time, sha256 }
    }

    /// The content decides where it is known of both: a file that was only touched is the same.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self.sha256, other.sha256) {
            (Some(own), Some(others)) => own == others,
            _ => (self.size, self.modify_time) == (other.size, other.modify_time),
        }
    }
}

/// The latest last.
#[derive(Default)]
pub(super) struct Seen(VecDeque<(FilePath, Version)>);

impl Seen {
    pub(super) fn get(&self, path: &FilePath) -> Option<&Version> {
        self.0.iter().rev().find(|(known, _)| known == path).map(|(_, version)| version)
    }

    pub(super) fn remember(&mut self, path: FilePath, version: Version) {
        self.0.retain(|(known, _)| *known != path);
        self.0.push_back((path, version));
        if self.0.len() > MAX_FILES {
            self.0.pop_front();
        }
    }
}
