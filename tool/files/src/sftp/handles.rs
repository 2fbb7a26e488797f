//! What is open.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::fs::Dir;
use rustix::process::{Resource, getrlimit};

use super::session::Refusal;
use super::wire::Status;

const MOST: u64 = 1024;
/// Files that the process needs beside handles: its pipes, directories on the way to a file.
const OTHERS: u64 = 32;

/// A file that is open.
pub(crate) struct OpenFile {
    pub(crate) file: OwnedFd,
    /// The path that it had when it was opened.
    pub(crate) path: Vec<u8>,
    /// To write it was permitted.
    pub(crate) may_change: bool,
    /// All that is written goes to the end.
    pub(crate) appends: bool,
    pub(crate) read: u64,
    pub(crate) written: u64,
}

/// A directory that is open.
pub(crate) struct OpenDirectory {
    pub(crate) directory: Dir,
    pub(crate) path: Vec<u8>,
}

pub(crate) enum Open {
    File(OpenFile),
    Directory(OpenDirectory),
}

/// What is open, by handles that are never given twice.
pub(crate) struct Handles {
    open: BTreeMap<u64, Open>,
    next: u64,
    most: u64,
}

impl Handles {
    pub(crate) fn new() -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self { open: BTreeMap::new(), next: 0, most: limit.saturating_sub(OTHERS).clamp(1, MOST) }
    }

    /// How many there may be.
    pub(crate) fn most(&self) -> u64 {
        self.most
    }

    /// # Errors
    /// There is no room for one more.
    pub(crate) fn has_room(&self) -> Result<(), Refusal> {
        match (self.open.len() as u64) < self.most {
            true => Ok(()),
            false => Err(Refusal::Status(Status::Failure, "too many open handles: close some")),
        }
    }

    pub(crate) fn add(&mut self, open: Open) -> u64 {
        let handle = self.next;
        self.next += 1;
        self.open.insert(handle, open);
        handle
    }

    /// # Errors
    /// As of all here: there is none, or one of the other kind.
    pub(crate) fn file(&mut self, handle: &[u8]) -> Result<&mut OpenFile, Refusal> {
        match self.get(handle)? {
            Open::File(file) => Ok(file),
            Open::Directory(_) => {
                Err(Refusal::Status(Status::Failure, "a handle of a directory, where one of a file is due"))
            }
        }
    }

    pub(crate) fn directory(&mut self, handle: &[u8]) -> Result<&mut OpenDirectory, Refusal> {
        match self.get(handle)? {
            Open::Directory(directory) => Ok(directory),
            Open::File(_) => {
                Err(Refusal::Status(Status::Failure, "a handle of a file, where one of a directory is due"))
            }
        }
    }

    pub(crate) fn get(&mut self, handle: &[u8]) -> Result<&mut Open, Refusal> {
        number(handle).and_then(|handle| self.open.get_mut(&handle)).ok_or(UNKNOWN)
    }

    pub(crate) fn remove(&mut self, handle: &[u8]) -> Result<Open, Refusal> {
        number(handle).and_then(|handle| self.open.remove(&handle)).ok_or(UNKNOWN)
    }

    /// Takes what was opened first.
    pub(crate) fn take(&mut self) -> Option<Open> {
        self.open.pop_first().map(|(_, open)| open)
    }
}

const UNKNOWN: Refusal = Refusal::Status(Status::Failure, "no such handle: it was closed, or never given");

fn number(handle: &[u8]) -> Option<u64> {
    handle.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, Mode, OFlags, openat};

    use super::*;

    fn directory() -> Open {
        let directory = Dir::new(openat(CWD, "/", OFlags::RDONLY, Mode::empty()).unwrap()).unwrap();
        Open::Directory(OpenDirectory { directory, path: b"/".to_vec() })
    }

    #[test]
    fn handles_are_bounded_and_never_given_twice() {
        let mut handles = Handles { most: 2, ..Handles::new() };
        assert_eq!([(); 2].map(|()| handles.add(directory())), [0, 1]);
        assert!(matches!(handles.has_room(), Err(Refusal::Status(Status::Failure, text)) if text.contains("too many")));
        assert!(handles.remove(&1u64.to_be_bytes()).is_ok() && handles.has_room().is_ok());
        assert!(handles.remove(&1u64.to_be_bytes()).is_err() && handles.remove(b"1").is_err());
        assert_eq!(handles.add(directory()), 2);
        assert!(handles.file(&2u64.to_be_bytes()).is_err() && handles.directory(&2u64.to_be_bytes()).is_ok());
        assert!(Handles::new().most() <= MOST);
    }
}
