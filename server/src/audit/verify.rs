//! Verifies the hash chain of a log.

use std::collections::BTreeMap;
use std::io::{self, BufRead};

use super::chain::{self, Entry, Fault, Link};
use super::lines;
use super::witness::Witness;

/// Starts without an end that are listed; further ones are only counted.
const MAX_NAMED: usize = 1000;

/// Reads the files of one log as streams, from the oldest to the newest, in bounded memory whatever they hold.
#[derive(Debug, Default)]
pub struct Verifier {
    expected: Option<String>,
    witness: Option<Witness>,
    found: bool,
    last: Option<Link>,
    summary: Summary,
}

/// The result for a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The number of lines.
    pub records: u64,
    /// The first.
    pub first: Option<Position>,
    /// The last.
    pub last: Option<Position>,
    /// The hash of the last line. Noted elsewhere, it proves later that the log up to here is unchanged.
    pub hash: String,
    /// Starts without an end: their numbers and execution ids, as many as are listed.
    pub running: BTreeMap<u64, String>,
    /// How many more there are.
    pub more_running: u64,
    /// Records that could not be written, according to later ones.
    pub dropped: u64,
    /// What the log of a keeper has of it, if there is one.
    pub witness: Option<Witness>,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Its number.
    pub seq: u64,
    /// The time in the record.
    pub time: String,
}

/// Why the verification failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// It cannot be read.
    #[error("cannot be read")]
    Read(#[from] io::Error),
    /// The first line that was changed or moved.
    #[error("line {line}{}: {fault}", .seq.map(|seq| format!(" (seq {seq})")).unwrap_or_default())]
    Broken {
        /// Its line number in the file, from 1.
        line: u64,
        /// Its `seq` if the line is intact, else the one expected.
        seq: Option<u64>,
        /// What is wrong with it.
        fault: Fault,
    },
}

impl Verifier {
    /// A log need not begin at its first record: older files may be elsewhere, or deleted.
    pub fn new() -> Self {
        Self::default()
    }

    /// A log in which a record must have this hash.
    pub fn expecting(hash: Option<&str>) -> Self {
        Self { expected: hash.map(str::to_lowercase), ..Self::default() }
    }

    /// The starts in the log of a keeper must have their records.
    #[must_use]
    pub fn with_witness(self, witness: Option<Witness>) -> Self {
        Self { witness, ..self }
    }

    /// Whether a record with the expected hash was read, or is the one before the first.
    pub fn found(&self) -> bool {
        self.found
    }

    /// Reads the next file.
    ///
    /// # Errors
    /// It cannot be read, or it is broken; read no more files then.
    pub fn read(&mut self, mut file: impl BufRead) -> Result<(), VerifyError> {
        let mut text = Vec::new();
        for line in 1.. {
            let Some(read) = lines::next(&mut file, &mut text)? else { break };
            let expected = self.last.as_ref().map(|last| last.seq.saturating_add(1));
            let entry = read.and_then(|()| chain::read(&text));
            let entry = entry.map_err(|fault| VerifyError::Broken { line, seq: expected, fault })?;
            self.check(&entry).map_err(|fault| VerifyError::Broken { line, seq: Some(entry.seq), fault })?;
            // what was before the first record may have been rotated away
            let before_first = self.last.is_none().then_some(&entry.prev);
            self.found |= self.expected.as_ref().is_some_and(|hash| *hash == entry.hash || Some(hash) == before_first);
            self.last = Some(entry.link());
            if let Some(witness) = &mut self.witness {
                witness.see(&entry);
            }
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

    /// The result for all files read.
    pub fn finish(mut self) -> Summary {
        if let Some(witness) = &mut self.witness {
            witness.finish();
        }
        Summary { witness: self.witness, ..self.summary }
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
        // a start from before the first file is not here
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
