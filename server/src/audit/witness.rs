//! The log of a keeper (`keeper_log_starts`) as a witness: the records of the starts in it must be in the audit log, as they were.

use std::collections::BTreeSet;
use std::io::{self, BufRead, Read};

use super::chain::{Entry, Link};

/// Of a line; more of it is skipped. The keeper's are shorter.
const MAX_LINE: u64 = 16 * 1024;

/// The starts in the log of a keeper, and what an audit log has of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Witness {
    /// Those with a record that was not seen yet.
    expected: BTreeSet<Link>,
    /// How many had a record in the log.
    pub recorded: u64,
    /// How many name no record: those for files and forwards, and those of an agent whose audit log could not be written.
    pub unrecorded: u64,
    /// How many have a record from before the first one in the log.
    pub earlier: u64,
    /// The number of the first record that is not as it was.
    pub changed: Option<u64>,
    /// The number of the first record after the last one in the log.
    pub missing: Option<u64>,
}

impl Witness {
    /// Reads a log, in which there may be other lines.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(mut log: impl BufRead) -> io::Result<Self> {
        let (mut witness, mut line) = (Self::default(), Vec::new());
        while log.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? > 0 {
            match start(&String::from_utf8_lossy(&line)) {
                Some(Some(record)) => drop(witness.expected.insert(record)),
                Some(None) => witness.unrecorded += 1,
                None => {}
            }
            line.clear();
        }
        Ok(witness)
    }

    /// Takes note of a record of the audit log, in its order.
    pub(super) fn see(&mut self, entry: &Entry) {
        while let Some(next) = self.expected.first().filter(|next| next.seq <= entry.seq) {
            let is_same = *next == entry.link() && entry.event == "start";
            let seq = next.seq;
            self.expected.pop_first();
            match (seq == entry.seq, is_same) {
                (true, true) => self.recorded += 1,
                (true, false) => drop(self.changed.get_or_insert(seq)),
                // the log has no gaps
                (false, _) => self.earlier += 1,
            }
        }
    }

    /// All of the audit log was seen.
    pub(super) fn finish(&mut self) {
        self.missing = self.expected.first().map(|first| first.seq);
    }
}

/// Whether a line of a log is that of a start, and its record.
fn start(line: &str) -> Option<Option<Link>> {
    let (_, start) = line.split_once("telexec-keeper: start of process ")?;
    let (_, purpose) = start.split_once(" for \"")?;
    Some(purpose.split(", ").nth(1).and_then(Link::of_reference))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_found_among_other_lines() {
        let hash = "0123456789abcdef".repeat(4);
        let line = |reference: &str| {
            format!(
                "Nov 27 host telexecd[1]: telexec-keeper: start of process 7 as uid 0 for \"execution a{reference}, of b\"\n"
            )
        };
        let log = [
            "telexec-keeper: 3 lines were lost here\n".to_owned(),
            line(&format!(", audit record 57 {hash}")),
            "x".repeat(100_000) + "\n",
            line(""),
            line(&format!(", audit record 57 {}", &hash[1..])),
            line(&format!(", audit record -1 {hash}")),
            line(&format!(", audit record 58 {hash}")),
        ];
        let witness = Witness::read(log.concat().as_bytes()).unwrap();
        let links = [57, 58].map(|seq| Link { seq, hash: hash.clone() });
        assert_eq!(witness, Witness { expected: links.into(), unrecorded: 3, ..Witness::default() });
    }
}
