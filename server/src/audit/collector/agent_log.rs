//! What an agent has sent of its audit log, in a directory of its own: segments, each in a directory named by the time at which it
//! began.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use time::OffsetDateTime;
use tracing::{info, warn};

use super::received::Received;
use super::segment::{Segment, length_of};
use crate::timestamp::rfc3339;

/// What a file or a directory takes beside its content: there are not to be too many.
const MIN_BYTES: u64 = 4096;

/// The log of one agent.
#[derive(Debug)]
pub(super) struct AgentLog {
    directory: PathBuf,
    /// Whose it is.
    identity: String,
    /// Of all files and directories.
    bytes: u64,
    /// The newest segment, once something was received.
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
    /// Segments that were begun because they do not follow the last record.
    pub(super) breaks: u64,
}

impl AgentLog {
    /// The directory need not be there.
    pub(super) fn new(directory: PathBuf, identity: &str) -> Self {
        let bytes = size(&directory);
        Self { directory, identity: identity.to_owned(), bytes, segment: None, is_refused: false }
    }

    /// Of all files and directories, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Stores records, each of which follows the one before it, as far as they are not here yet. `take_room` is asked before
    /// something grows, with the bytes that there are and those that are added.
    ///
    /// # Errors
    /// They may not be on disk, or there is no room for them.
    pub(super) fn store(
        &mut self,
        records: &[Received],
        outcome: &mut Outcome,
        take_room: impl FnOnce(u64, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let stored = self.append(records, outcome, take_room);
        if stored.is_err() {
            // whatever is there now: found out by the next request
            self.segment = None;
            self.bytes = size(&self.directory);
        }
        stored
    }

    fn append(
        &mut self,
        records: &[Received],
        outcome: &mut Outcome,
        take_room: impl FnOnce(u64, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(first) = records.first() else { return Ok(()) };
        if self.segment.is_none() {
            let newest = segments(&self.directory)?.pop();
            self.segment = newest.map(|newest| Segment::open(&newest)).transpose()?;
        }
        let known = self.segment.as_ref().filter(|segment| segment.last().seq > 0);
        let new = known.map_or(Ok(Some(records)), |segment| unknown(segment, records))?;
        let rest = new.unwrap_or(records);
        // an empty one is left of an attempt that failed
        let begins = self.segment.is_none() || new.is_none();
        if rest.is_empty() {
            outcome.repeated += records.len() as u64;
            return Ok(());
        }
        let added = length_of(rest) as u64 + if begins { 3 * MIN_BYTES } else { MIN_BYTES };
        take_room(self.bytes, added)?;
        if begins {
            let before = known.map(|segment| segment.last().seq);
            let directory = self.begin()?;
            if let Some(last) = before {
                self.warn_of_break(last, first.seq, &directory);
                outcome.breaks += 1;
            } else {
                info!(agent = self.identity, "collecting the audit log of another agent");
            }
        }
        if let Some(segment) = &mut self.segment {
            segment.append(rest)?;
        }
        self.bytes = self.bytes.saturating_add(added);
        outcome.stored += rest.len() as u64;
        outcome.repeated += (records.len() - rest.len()) as u64;
        Ok(())
    }

    /// Begins a segment. Returns its directory.
    fn begin(&mut self) -> io::Result<PathBuf> {
        let newest = segments(&self.directory)?.pop();
        let newest = newest.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let now = rfc3339(OffsetDateTime::now_utc());
        // also after the clock was set back it is the last one
        let name = match newest {
            Some(newest) if newest >= now => format!("{newest}+"),
            _ => now,
        };
        let directory = self.directory.join(name);
        self.segment = Some(Segment::open(&directory)?);
        Ok(directory)
    }

    /// Whether a request was refused, which is logged once.
    pub(super) fn refused(&mut self, error: Option<&io::Error>) {
        if let (Some(error), false) = (error, self.is_refused) {
            warn!(agent = self.identity, %error, "records of an agent's audit log are refused: it sends them again");
        }
        self.is_refused = error.is_some();
    }

    fn warn_of_break(&self, last: u64, first: u64, directory: &Path) {
        let (agent, directory) = (&self.identity, directory.display());
        match first > last.saturating_add(1) {
            true => warn!(
                agent,
                last, first, %directory, "records are missing in the audit log of an agent, between these two: they were removed there before they were sent"
            ),
            false => warn!(
                agent,
                last, first, %directory, "the audit log of an agent is another one than before: it was begun anew, or changed"
            ),
        }
    }

    /// Removes files that were last written longer ago than this.
    pub(super) fn remove_old(&mut self, max_age: Duration) -> io::Result<()> {
        let is_old = |path: &Path| {
            let written = path.symlink_metadata().and_then(|metadata| metadata.modified());
            written.is_ok_and(|written| written.elapsed().is_ok_and(|age| age > max_age))
        };
        for segment in segments(&self.directory)? {
            for file in entries(&segment)? {
                if is_old(&file) {
                    std::fs::remove_file(&file)?;
                    info!(file = %file.display(), "removed collected records that were too old");
                    // it may have been the current one
                    self.segment = None;
                }
            }
            // unless something is left in it
            let _ = std::fs::remove_dir(segment);
        }
        let _ = std::fs::remove_dir(&self.directory);
        self.bytes = size(&self.directory);
        Ok(())
    }
}

/// Those of these records that the segment does not have; `None`: they do not follow its last one.
fn unknown<'a>(segment: &Segment, records: &'a [Received]) -> io::Result<Option<&'a [Received]>> {
    let last = segment.last();
    if records.first().is_some_and(|first| first.follows(last)) {
        return Ok(Some(records));
    }
    if let Some(at) = records.iter().position(|record| record.is(last)) {
        // the hashes of those before it are in its own
        return Ok(records.get(at + 1..));
    }
    match records.last() {
        Some(newest) if newest.seq < last.seq && segment.has(&newest.link())? => Ok(Some(&[])),
        _ => Ok(None),
    }
}

/// The directories of segments, the oldest first.
pub(super) fn segments(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found: Vec<_> = entries(directory)?.into_iter().filter(|path| is_directory(path)).collect();
    found.sort();
    Ok(found)
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

/// Of the files and directories in a directory; what cannot be read counts as nothing.
fn size(directory: &Path) -> u64 {
    let own = |path: &PathBuf| {
        MIN_BYTES + path.symlink_metadata().map_or(0, |found| if found.is_file() { found.len() } else { 0 })
    };
    let found = entries(directory).unwrap_or_default();
    found.iter().map(|path| own(path) + if is_directory(path) { size(path) } else { 0 }).sum()
}

/// When a file of a segment was last written; `None`: there is none.
pub(super) fn written(segment: &Path) -> io::Result<Option<SystemTime>> {
    let files = entries(segment)?.into_iter();
    Ok(files.filter_map(|file| file.symlink_metadata().ok()?.modified().ok()).max())
}
