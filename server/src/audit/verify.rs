//! Is the chain whole?

use std::collections::BTreeMap;
use std::io::{self, BufRead};

use super::chain::{self, Entry, Fault, Link};
use super::lines;

/// Of the starts that have no end, so many are named; the others are counted.
const MAX_NAMED: usize = 1000;

/// Reads the files of one log, from the oldest to the newest, as they come: its memory is bounded, whatever they hold.
#[derive(Debug, Default)]
pub struct Verifier {
    last: Option<Link>,
    summary: Summary,
}

/// What a log holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// How many lines.
    pub records: u64,
    /// The first.
    pub first: Option<Position>,
    /// The last.
    pub last: Option<Position>,
    /// The hash of the last line: noted elsewhere, it shows later that this log, up to here, is still this one.
    pub hash: String,
    /// Starts whose end is not here, by their numbers, with the ids of their executions: as many as are named.
    pub running: BTreeMap<u64, String>,
    /// How many there are more of these.
    pub more_running: u64,
    /// Records that could not be written, as later ones say.
    pub dropped: u64,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Its number.
    pub seq: u64,
    /// When what it tells happened, as it says.
    pub time: String,
}

/// Why a log is not verified.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// It cannot be read.
    #[error("cannot be read")]
    Read(#[from] io::Error),
    /// The first line that is not as it was written, or not where.
    #[error("line {line}{}: {fault}", .seq.map(|seq| format!(" (seq {seq})")).unwrap_or_default())]
    Broken {
        /// Its number in its file, from 1.
        line: u64,
        /// The number that it says it has, if it was not changed, or that it should have.
        seq: Option<u64>,
        /// What is wrong with it.
        fault: Fault,
    },
}

impl Verifier {
    /// One that has read nothing. A log need not begin at its first record: older files may be elsewhere, or deleted.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the next file.
    ///
    /// # Errors
    /// It cannot be read, or it is broken; nothing is to be read after that.
    pub fn read(&mut self, mut file: impl BufRead) -> Result<(), VerifyError> {
        let mut text = Vec::new();
        for line in 1.. {
            let Some(read) = lines::next(&mut file, &mut text)? else { break };
            let expected = self.last.as_ref().map(|last| last.seq.saturating_add(1));
            let entry = read.and_then(|()| chain::read(&text));
            let entry = entry.map_err(|fault| VerifyError::Broken { line, seq: expected, fault })?;
            self.check(&entry).map_err(|fault| VerifyError::Broken { line, seq: Some(entry.seq), fault })?;
            self.last = Some(entry.link());
            self.summary.add(entry);
        }
        Ok(())
    }

    fn check(&self, entry: &Entry) -> Result<(), Fault> {
        match &self.last {
            Some(last) => entry.follows(last),
            None if entry.seq <= 1 => entry.follows(&Link::none()),
            None => Ok(()),
        }
    }

    /// What was read.
    pub fn finish(self) -> Summary {
        self.summary
    }
}

impl Summary {
    fn add(&mut self, entry: Entry) {
        self.records += 1;
        self.dropped = self.dropped.saturating_add(entry.dropped);
        if entry.event == "start" {
            match self.running.len() < MAX_NAMED {
                true => drop(self.running.insert(entry.seq, entry.execution_id)),
                false => self.more_running += 1,
            }
        }
        // one from before the first file has none here
        if let Some(start) = entry.start
            && self.running.remove(&start).is_none()
            && self.first.as_ref().is_some_and(|first| first.seq <= start)
        {
            self.more_running = self.more_running.saturating_sub(1);
        }
        let position = Position { seq: entry.seq, time: entry.time };
        self.first.get_or_insert_with(|| position.clone());
        self.last = Some(position);
        self.hash = entry.hash;
    }
}
