//! The log of a keeper (`keeper_syslog`) as a witness: the records of the starts in it must be in the audit log, as they were.

use std::collections::BTreeSet;
use std::io::{self, BufRead, Read};

use super::chain::{Entry, Link};

/// Of a line; the rest is skipped. The keeper's are shorter.
const MAX_LINE: u64 = 16 * 1024;
/// The tag of its messages, see syslog(3).
const TAG: &str = "telexec-keeper[";
/// Before the callers of processes for files and forwards, which have no record of a start.
const HELPERS: [&str; 2] = ["files:", "dial:"];

/// The starts in the log of a keeper, and what an audit log has of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Witness {
    /// Those with a record that was not seen yet.
    expected: BTreeSet<Start>,
    /// How many have their record in the log.
    pub recorded: u64,
    /// How many have a record with a number before those in the log.
    pub earlier: u64,
    /// How many commands name no record.
    pub unrecorded: u64,
    /// How many processes for files and forwards there are.
    pub helpers: u64,
    /// How many starts the log did not take.
    pub lost: u64,
    /// The number of the first record that is not as it was.
    pub changed: Option<u64>,
    /// The number of the first record after the last one in the log.
    pub missing: Option<u64>,
}

/// A start with a record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Start {
    record: Link,
    execution: String,
    pid: String,
}

/// A message of a keeper.
#[derive(Debug, PartialEq, Eq)]
enum Message {
    Start(Start),
    Unrecorded,
    Helper,
    Lost(u64),
}

impl Witness {
    /// Reads a log, in which there may be other lines.
    ///
    /// # Errors
    /// It cannot be read, or has no start.
    pub fn read(mut log: impl BufRead) -> io::Result<Self> {
        let (mut witness, mut text) = (Self::default(), Vec::new());
        let mut has_message = false;
        while log.by_ref().take(MAX_LINE).read_until(b'\n', &mut text)? > 0 {
            if text.last() != Some(&b'\n') {
                log.skip_until(b'\n')?;
            }
            let message = Message::read(&String::from_utf8_lossy(&text));
            has_message |= message.is_some();
            match message {
                Some(Message::Start(start)) => drop(witness.expected.insert(start)),
                Some(Message::Unrecorded) => witness.unrecorded += 1,
                Some(Message::Helper) => witness.helpers += 1,
                Some(Message::Lost(lost)) => witness.lost = witness.lost.saturating_add(lost),
                None => {}
            }
            text.clear();
        }
        match has_message {
            false => Err(io::Error::other("it contains no start: is it the log of a keeper with keeper_syslog?")),
            true => Ok(witness),
        }
    }

    /// Takes note of a record of the audit log, in its order.
    pub(super) fn see(&mut self, entry: &Entry) {
        // a record is of one start
        let mut is_free = entry.event == "start";
        while self.expected.first().is_some_and(|next| next.record.seq <= entry.seq)
            && let Some(Start { record, execution, .. }) = self.expected.pop_first()
        {
            // the log has no gaps
            if record.seq < entry.seq {
                self.earlier += 1;
            } else if std::mem::take(&mut is_free) && record == entry.link() && execution == entry.execution_id {
                self.recorded += 1;
            } else {
                self.changed.get_or_insert(record.seq);
            }
        }
    }

    /// All of the audit log was seen.
    pub(super) fn finish(&mut self) {
        self.missing = self.expected.first().map(|first| first.record.seq);
    }
}

impl Message {
    /// `None`: the line is something else.
    fn read(line: &str) -> Option<Self> {
        // a log of several programs has the time, the host and the tag before it, and others may quote it
        let text = match line.split_once(TAG) {
            Some((before, rest)) if !before.contains(": ") && !before.starts_with("start of ") => {
                rest.split_once("]: ")?.1
            }
            _ => line,
        };
        if let Some((lost, "")) = text.trim_end().split_once(" starts were not logged") {
            return lost.parse().ok().map(Self::Lost);
        }
        let (start, purpose) = text.strip_prefix("start of process ")?.split_once(" for \"")?;
        let pid = start.split(' ').next()?.to_owned();
        let Some((execution, rest)) = purpose.strip_prefix("execution ").and_then(|rest| rest.split_once(", ")) else {
            return Some(Self::Unrecorded);
        };
        if rest.strip_prefix("of ").is_some_and(|caller| HELPERS.iter().any(|helper| caller.starts_with(helper))) {
            return Some(Self::Helper);
        }
        let record = rest.split(", ").next().and_then(Link::of_reference);
        Some(
            record
                .map_or(Self::Unrecorded, |record| Self::Start(Start { record, execution: execution.to_owned(), pid })),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn line(rest: &str) -> String {
        format!("start of process 7 as uid 0 for \"execution a, {rest}\"\n")
    }

    fn start(seq: u64) -> Start {
        Start { record: Link { seq, hash: HASH.to_owned() }, execution: "a".to_owned(), pid: "7".to_owned() }
    }

    #[test]
    fn starts_are_found_among_other_lines() {
        let log = [
            "3 starts were not logged\n".to_owned(),
            line(&format!("audit record 57 {HASH}, of b")),
            "x".repeat(100_000) + "\n",
            "x".repeat(16 * 1024) + &line("of b"),
            line("of b"),
            line("of files:b"),
            line(&format!("audit record 57 {}, of b", &HASH[1..])),
            line(&format!("audit record -1 {HASH}, of b")),
            // it may be there twice
            line(&format!("audit record 57 {HASH}, of b")),
            format!("Nov 27 08:30:00 host telexec-keeper[9]: {}", line(&format!("audit record 58 {HASH}, of b"))),
            // others who quote it
            format!(
                "Nov 27 08:30:00 host sudo[9]: a: telexec-keeper[9]: {}",
                line(&format!("audit record 1 {HASH}, of b"))
            ),
            format!("telexec: {}", line(&format!("audit record 1 {HASH}, of b"))),
        ];
        let witness = Witness::read(log.concat().as_bytes()).unwrap();
        let expected = [start(57), start(58)].into();
        assert_eq!(witness, Witness { expected, unrecorded: 3, helpers: 1, lost: 3, ..Witness::default() });
    }

    #[test]
    fn a_log_without_a_start_is_none_of_a_keeper() {
        for log in ["", "telexecd: started\n", "start of process 7"] {
            assert!(Witness::read(log.as_bytes()).is_err(), "{log:?}");
        }
    }

    #[test]
    fn a_record_is_of_one_start() {
        let text = format!(r#"{{"seq":57,"time":"","event":"start","execution_id":"a","prev":"","hash":"{HASH}"}}"#);
        let entry: Entry = serde_json::from_str(&text).unwrap();
        let see = |starts: Vec<Start>| {
            let mut witness = Witness { expected: starts.into_iter().collect(), ..Witness::default() };
            witness.see(&entry);
            (witness.recorded, witness.earlier, witness.changed)
        };
        assert_eq!(see(vec![start(56), start(57)]), (1, 1, None));
        assert_eq!(see(vec![start(57), Start { pid: "8".to_owned(), ..start(57) }]), (1, 0, Some(57)));
        assert_eq!(see(vec![Start { execution: "b".to_owned(), ..start(57) }]), (0, 0, Some(57)));
    }
}
