//! What was written, and may not be on the disk yet.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, fstat, openat, syncfs};
use rustix::io::Errno;
use telexec_executor::{FileError, FileOperation};

use crate::place::Place;
use crate::session::failure;

/// The file systems that were written to.
#[derive(Default)]
pub(crate) struct Unsynced(HashMap<u64, (OwnedFd, Vec<u8>)>);

impl Unsynced {
    /// Remembers the one that this file is on.
    ///
    /// # Errors
    /// Of openat(2) and fstat(2).
    pub(crate) fn add(&mut self, place: &Place) -> Result<(), Errno> {
        let device = fstat(place.directory())?.st_dev;
        if let Entry::Vacant(entry) = self.0.entry(device) {
            let directory = openat(place.directory(), ".", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            entry.insert((directory, place.real()));
        }
        Ok(())
    }

    /// Waits until all of it is on the disk.
    ///
    /// # Errors
    /// Of syncfs(2).
    pub(crate) fn sync(&mut self) -> Result<(), FileError> {
        for (directory, path) in std::mem::take(&mut self.0).into_values() {
            syncfs(directory).map_err(failure(FileOperation::Write, &path))?;
        }
        Ok(())
    }
}
