//! What an agent has sent of its audit log: segments, in numbered directories below one of its own.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use telexec_executor::text::error_chain;
use tracing::{info, warn};

use super::error::StoreError;
use super::received::Received;
use super::segment::{self, Segment, length_of};
use crate::audit::chain::Link;
use crate::audit::files;

/// Counted for each file and directory, so that many small ones reach the limits too.
const ENTRY_BYTES: u64 = 4096;
/// Of one agent: a request takes time for each.
const MAX_SEGMENTS: usize = 1000;
/// Segments that are searched for records that do not follow the last one.
const MAX_SEARCHED: usize = 4;

/// The log of one agent.
#[derive(Debug)]
pub(super) struct AgentLog {
    directory: PathBuf,
    /// Whose it is.
    identity: String,
    /// What all files and directories count.
    bytes: u64,
    /// The newest segment that has a record; `None`: it is to be opened, or there is none.
    segment: Option<Segment>,
    /// Its last request was refused.
    is_refused: bool,
}

/// What was done with records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// They are on disk now.
    pub(super) stored: u64,
    /// They were there before.
    pub(super) repeated: u64,
    /// Segments that were begun because records do not follow the last one.
    pub(super) breaks: u64,
}

/// How records continue what is there.
enum Continuation<'a> {
    /// These are new, and follow the last one.
    Follow(&'a [Received]),
    /// All of them are there.
    Repeated,
    /// They do not follow the last one.
    Break,
}

impl AgentLog {
    /// The directory need not be there.
    pub(super) fn new(directory: PathBuf, identity: &str) -> Self {
        let bytes = size(&directory);
        Self { directory, identity: identity.to_owned(), bytes, segment: None, is_refused: false }
    }

    /// What all files and directories count.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Stores records, each of which follows the one before it, as far as they are not here yet. `reserve` is asked before
    /// something grows, with the bytes that there are and the most that are added.
    ///
    /// # Errors
    /// They may not be on disk, or there is no room for them.
    pub(super) fn store(
        &mut self,
        records: &[Received],
        outcome: &mut Outcome,
        reserve: impl FnOnce(u64, u64) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let stored = self.add(records, outcome, reserve);
        if let Err(StoreError::File { .. }) = stored {
            // whatever is there now: found out by the next request
            self.segment = None;
            self.bytes = size(&self.directory);
        }
        stored
    }

    fn add(
        &mut self,
        records: &[Received],
        outcome: &mut Outcome,
        reserve: impl FnOnce(u64, u64) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        match &self.segment {
            Some(segment) => segment.check()?,
            None => {
                self.segment = self.open()?;
                // which may have moved or removed something
                self.bytes = size(&self.directory);
            }
        }
        let last = self.segment.as_ref().and_then(Segment::last).cloned();
        let continuation = match &last {
            Some(last) => self.continuation(records, last).map_err(|error| StoreError::file(&self.directory, error))?,
            None => Continuation::Break,
        };
        let new = match continuation {
            Continuation::Follow(new) => new,
            Continuation::Repeated => &[],
            Continuation::Break => records,
        };
        if !new.is_empty() {
            let length = length_of(new) as u64;
            reserve(self.bytes, length + 3 * ENTRY_BYTES)?;
            match continuation {
                Continuation::Break => {
                    // before it is done: the next agent would not know of it
                    self.log_beginning(last.as_ref(), new);
                    self.begin(new)?;
                    outcome.breaks += u64::from(last.is_some());
                }
                Continuation::Follow(_) | Continuation::Repeated => self.append(new)?,
            }
            self.bytes += length;
        }
        outcome.stored += new.len() as u64;
        outcome.repeated += (records.len() - new.len()) as u64;
        Ok(())
    }

    /// Opens the newest segment that has a record, and removes newer ones, of attempts that failed.
    fn open(&self) -> Result<Option<Segment>, StoreError> {
        for directory in self.segments()?.into_iter().rev() {
            let segment = Segment::open(&directory)?;
            if segment.last().is_some() {
                return Ok(Some(segment));
            }
            segment.remove_empty(&directory);
        }
        Ok(None)
    }

    fn continuation<'a>(&self, records: &'a [Received], last: &Link) -> io::Result<Continuation<'a>> {
        if records.first().is_some_and(|first| first.follows(last)) {
            return Ok(Continuation::Follow(records));
        }
        let (Some(first), Some(newest)) = (records.first(), records.last()) else { return Ok(Continuation::Repeated) };
        let at = records.iter().position(|record| record.is(last.seq, &last.hash));
        // sent again after a lost acknowledgement, perhaps of what is before a break
        for directory in segments(&self.directory)?.iter().rev().take(MAX_SEARCHED) {
            if !segment::has(directory, first)? {
                continue;
            }
            // a segment that has the first and another one has all between them
            let is_current = self.segment.as_ref().is_some_and(|segment| segment.is_in(directory));
            if let (true, Some(at)) = (is_current, at) {
                return Ok(Continuation::Follow(records.get(at + 1..).unwrap_or_default()));
            }
            if segment::has(directory, newest)? {
                return Ok(Continuation::Repeated);
            }
        }
        Ok(Continuation::Break)
    }

    fn append(&mut self, records: &[Received]) -> Result<(), StoreError> {
        if let Some(segment) = &mut self.segment
            && segment.append(records)?
        {
            self.bytes += ENTRY_BYTES;
        }
        Ok(())
    }

    /// Begins a segment with these records.
    fn begin(&mut self, records: &[Received]) -> Result<(), StoreError> {
        match DirBuilder::new().mode(0o700).create(&self.directory) {
            Ok(()) => self.bytes += ENTRY_BYTES,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(StoreError::file(&self.directory, error)),
        }
        files::sync_directory(&self.directory).map_err(|error| StoreError::file(&self.directory, error))?;
        let mut segments = self.segments()?;
        if segments.len() >= MAX_SEGMENTS {
            return Err(StoreError::Full("the log of this identity has too many parts: move some elsewhere"));
        }
        let newest = segments.pop().as_deref().and_then(number);
        let directory = self.directory.join(format!("{:06}", newest.unwrap_or(0).saturating_add(1)));
        let mut segment = Segment::create(&directory)?;
        self.bytes += 2 * ENTRY_BYTES;
        segment.append(records)?;
        self.segment = Some(segment);
        Ok(())
    }

    fn segments(&self) -> Result<Vec<PathBuf>, StoreError> {
        segments(&self.directory).map_err(|error| StoreError::file(&self.directory, error))
    }

    /// Logs that these records begin a segment after the last one.
    fn log_beginning(&self, last: Option<&Link>, records: &[Received]) {
        let (agent, first) = (&self.identity, records.first().map_or(0, |record| record.seq));
        match last.map(|last| last.seq) {
            None if first == 1 => info!(agent, "collecting the audit log of an agent"),
            None => warn!(
                agent,
                first,
                "collecting the audit log of an agent, whose earlier records are not here: they were removed, there or here"
            ),
            Some(last) if first > last.saturating_add(1) => warn!(
                agent,
                last,
                first,
                "records between these are missing in the audit log of an agent: they were removed before they were sent, or it is another log"
            ),
            Some(last) => warn!(
                agent,
                last,
                first,
                "an agent sends another audit log than before: it was begun anew or changed, or two agents have this identity"
            ),
        }
    }

    /// Logs that a request was refused, if the one before was not and there is something of this agent.
    pub(super) fn log_refusal(&mut self, stored: &Result<(), StoreError>) {
        if let (Err(error), false) = (stored, self.is_refused) {
            let (agent, error) = (&self.identity, error_chain(error));
            warn!(agent, error, "records of an agent's audit log are refused: it sends them again");
        }
        self.is_refused = stored.is_err();
    }

    /// Removes files that were last written longer ago than this.
    pub(super) fn remove_old(&mut self, max_age: Duration) {
        let is_old = |path: &Path| {
            let metadata = path.symlink_metadata().ok().filter(std::fs::Metadata::is_file);
            let written = metadata.and_then(|metadata| metadata.modified().ok());
            written.is_some_and(|written| written.elapsed().is_ok_and(|age| age > max_age))
        };
        for directory in segments(&self.directory).unwrap_or_default() {
            for file in entries(&directory).unwrap_or_default().into_iter().filter(|file| is_old(file)) {
                match std::fs::remove_file(&file) {
                    Ok(()) => info!(file = %file.display(), "removed collected records that were too old"),
                    Err(error) => {
                        warn!(%error, file = %file.display(), "cannot remove collected records that are too old")
                    }
                }
                // it may have been the current one
                self.segment = None;
            }
            // unless something is left in it
            let _ = std::fs::remove_dir(directory);
        }
        let _ = std::fs::remove_dir(&self.directory);
        self.bytes = size(&self.directory);
    }
}

/// The directories of segments, the oldest first.
pub(super) fn segments(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let found = entries(directory)?.into_iter().filter(|path| is_directory(path));
    let mut found: Vec<_> = found.filter_map(|path| Some((number(&path)?, path))).collect();
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Of a segment, by the name of its directory.
fn number(directory: &Path) -> Option<u64> {
    directory.file_name()?.to_str()?.parse().ok()
}

fn is_directory(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir())
}

/// What is in a directory; nothing if it is missing.
pub(super) fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.map(|entry| Ok(entry?.path())).collect(),
    }
}

/// What a file, or a directory with all in it, counts; what cannot be read counts nothing.
fn size(path: &Path) -> u64 {
    let Ok(metadata) = path.symlink_metadata() else { return 0 };
    match metadata.is_dir() {
        true => ENTRY_BYTES + entries(path).unwrap_or_default().iter().map(|path| size(path)).sum::<u64>(),
        false => ENTRY_BYTES + if metadata.is_file() { metadata.len() } else { 0 },
    }
}

/// When a file of a segment was last written; `None`: there is none.
pub(super) fn written(segment: &Path) -> io::Result<Option<SystemTime>> {
    let files = entries(segment)?.into_iter();
    Ok(files.filter_map(|file| file.symlink_metadata().ok()?.modified().ok()).max())
}
