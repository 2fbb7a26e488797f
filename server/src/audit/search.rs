//! `telexecd audit search` and `show`.

use std::collections::HashSet;
use std::io::{self, BufReader, Write};
use std::path::PathBuf;
use std::time::SystemTime;

use serde_json::Value;
use telexec_executor::text::printable;

use super::report::{Growing, open_all, unreadable};
use super::show::{asked, in_full, in_line};
use super::{chain, lines};
use crate::identity::patterns::NamePatterns;
use crate::logging;

/// Exit codes, as of grep(1).
const FOUND: u8 = 0;
pub(crate) const NOT_FOUND: u8 = 1;
const FAILED: u8 = 2;
/// Starts whose ends are looked for, and approvals whose records are.
const MAX_REMEMBERED: usize = 1_000_000;
/// The fields that are searched for a text.
const TEXTS: [&str; 14] = [
    "approval_id",
    "argv",
    "certificate_name",
    "command",
    "directory",
    "host",
    "message",
    "named_command",
    "path",
    "pattern",
    "programs",
    "reason",
    "review_reason",
    "unix_path",
];

/// Which records to print: those for which all of these hold.
#[derive(Debug, Default)]
pub(crate) struct Query {
    /// Of these identities; `None`: of any, and those without one.
    pub(crate) identities: Option<NamePatterns>,
    /// Of these events; empty: of any. What was denied is `denied`, too.
    pub(crate) events: Vec<String>,
    /// Of the executions with this id, or whose ids begin so.
    pub(crate) execution: Option<String>,
    /// With this text in what was asked for.
    pub(crate) text: Option<String>,
    /// Only starts and ends of executions that were recorded.
    pub(crate) recorded: bool,
    /// From this time on.
    pub(crate) since: Option<SystemTime>,
    /// Before this time.
    pub(crate) until: Option<SystemTime>,
    /// If there are executions with just this id, not those whose ids begin so; and who requested and reviewed the approvals
    /// that they had. The files are read twice.
    pub(crate) whole: bool,
    pub(crate) format: Format,
}

/// How records are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    /// A line for people.
    #[default]
    Line,
    /// A line for each field, and an empty one between records; for a terminal with so many columns, if it is one.
    Full { columns: Option<usize> },
    /// As they are in the log.
    Json,
}

/// Prints records of the files of one log, in this order; given a single file, also those rotated before it. What cannot be read
/// goes to standard error. Returns the exit code: 0 some were found, 1 none, 2 something cannot be read.
///
/// # Errors
/// `out` cannot be written.
pub(crate) fn search_files(given: &[PathBuf], query: &Query, out: &mut impl Write) -> io::Result<u8> {
    let mut search = Search {
        query,
        exact: false,
        starts: HashSet::new(),
        approvals: HashSet::new(),
        overflows: false,
        found: false,
    };
    if query.whole {
        // a request and its review come before the start that has their ID
        if let Some(path) = given.iter().find(|path| path.metadata().is_ok_and(|file| !file.is_file())) {
            return Ok(unreadable(path, &io::Error::other("it is not a regular file")));
        }
        let read = each_record(given, |record, _| {
            search.note(record);
            Ok(())
        })?;
        if let Some((path, error)) = read.unreadable {
            return Ok(unreadable(&path, &error));
        }
    }
    let read = match each_record(given, |record, text| search.print(record, text, out)) {
        // whoever reads it has seen enough
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(FOUND),
        read => read?,
    };
    for (path, line) in &read.malformed {
        let path = printable(&path.display().to_string());
        logging::line(&format!("telexecd: {path}: line {line} and maybe others are no records"));
    }
    if let Some((path, error)) = read.unreadable {
        return Ok(unreadable(&path, &error));
    }
    if search.overflows {
        logging::line(&format!(
            "telexecd: more than {MAX_REMEMBERED} starts without an end, or approvals, match: the records of some are missing"
        ));
    }
    Ok(match (search.overflows || !read.malformed.is_empty(), search.found) {
        (true, _) => FAILED,
        (false, true) => FOUND,
        (false, false) => NOT_FOUND,
    })
}

/// What came of reading files.
#[derive(Default)]
struct Reading {
    /// Files with lines that are no records, and the first of these.
    malformed: Vec<(PathBuf, u64)>,
    /// The file at which it ended early.
    unreadable: Option<(PathBuf, io::Error)>,
}

/// Passes each record to `take`, with its text.
///
/// # Errors
/// Those of `take`.
fn each_record(given: &[PathBuf], mut take: impl FnMut(&Value, &[u8]) -> io::Result<()>) -> io::Result<Reading> {
    let mut reading = Reading::default();
    let files = match open_all(given) {
        Ok(files) => files,
        Err(unreadable) => return Ok(Reading { unreadable: Some(unreadable), ..reading }),
    };
    for (path, file) in files {
        let read = match file.map(|file| BufReader::new(Growing::new(file))) {
            Ok(mut file) => each_in(&mut file, &mut take),
            Err(error) => Err(Failure::Read(error)),
        };
        match read {
            Ok(malformed) => reading.malformed.extend(malformed.map(|line| (path, line))),
            Err(Failure::Read(error)) => return Ok(Reading { unreadable: Some((path, error)), ..reading }),
            Err(Failure::Take(error)) => return Err(error),
        }
    }
    Ok(reading)
}

enum Failure {
    /// The file cannot be read.
    Read(io::Error),
    /// The record cannot be taken.
    Take(io::Error),
}

/// The same for one file. Returns the number of the first line that is no record.
fn each_in(
    file: &mut BufReader<Growing>,
    take: &mut impl FnMut(&Value, &[u8]) -> io::Result<()>,
) -> Result<Option<u64>, Failure> {
    let (mut text, mut malformed) = (Vec::new(), None);
    for line in 1.. {
        let read = match lines::next(file, &mut text) {
            Ok(Some(read)) => read,
            Ok(None) => break,
            Err(error) => return Err(Failure::Read(error)),
        };
        if let Err(chain::Fault::TooLong) = read
            && let Err(error) = lines::skip(file)
        {
            return Err(Failure::Read(error));
        }
        match read.ok().and_then(|()| serde_json::from_slice::<Value>(&text).ok()).filter(Value::is_object) {
            Some(record) => take(&record, &text).map_err(Failure::Take)?,
            None => malformed = malformed.or(Some(line)),
        }
    }
    Ok(malformed)
}

struct Search<'a> {
    query: &'a Query,
    /// There are executions with just the id that is looked for.
    exact: bool,
    /// The numbers of starts that were found by their text: their ends do not have it.
    starts: HashSet<u64>,
    /// The approvals of the executions.
    approvals: HashSet<String>,
    /// There are more starts or approvals than are looked for.
    overflows: bool,
    found: bool,
}

impl Search<'_> {
    /// Learns from a record which others belong to it.
    fn note(&mut self, record: &Value) {
        if !self.exact
            && field(record, "execution_id").is_some()
            && field(record, "execution_id") == self.query.execution.as_deref()
        {
            self.exact = true;
            self.approvals.clear();
        }
        if let (Some(approval), true) = (field(record, "approval_id"), self.is_of_execution(record)) {
            if self.approvals.len() < MAX_REMEMBERED {
                self.approvals.insert(approval.to_owned());
            } else {
                self.overflows |= !self.approvals.contains(approval);
            }
        }
    }

    /// If it is looked for.
    fn print(&mut self, record: &Value, text: &[u8], out: &mut impl Write) -> io::Result<()> {
        if !self.matches(record) {
            return Ok(());
        }
        match self.query.format {
            Format::Line => writeln!(out, "{}", in_line(record))?,
            Format::Full { columns } => {
                write!(out, "{}{}", if self.found { "\n" } else { "" }, in_full(record, columns))?;
            }
            Format::Json => {
                out.write_all(text)?;
                out.write_all(b"\n")?;
            }
        }
        self.found = true;
        Ok(())
    }

    fn matches(&mut self, record: &Value) -> bool {
        let Query { identities, events, recorded, since, until, .. } = self.query;
        let field = |name: &str| field(record, name).unwrap_or_default();
        let time = || humantime::parse_rfc3339_weak(field("time")).ok();
        let is_of_event = |event: &str| event == field("event") || event == "denied" && field("decision") == "deny";
        // before the events: an end may be asked for alone
        let has_text = self.has_text(record);
        has_text
            && identities.as_ref().is_none_or(|names| names.contain(field("identity")))
            && (events.is_empty() || events.iter().any(|event| is_of_event(event)))
            && (!*recorded || record.get("recording").is_some())
            && (self.is_of_execution(record) || self.is_of_approval(record))
            && since.is_none_or(|since| time().is_some_and(|time| time >= since))
            && until.is_none_or(|until| time().is_some_and(|time| time < until))
    }

    /// Whether it is of an execution that is looked for, if any is.
    fn is_of_execution(&self, record: &Value) -> bool {
        let of = field(record, "execution_id").unwrap_or_default();
        self.query.execution.as_ref().is_none_or(|id| if self.exact { of == id } else { of.starts_with(id.as_str()) })
    }

    /// Whether it requests or reviews an approval of such an execution.
    fn is_of_approval(&self, record: &Value) -> bool {
        ["denied", "call"].map(Some).contains(&field(record, "event"))
            && field(record, "approval_id").is_some_and(|id| self.approvals.contains(id))
    }

    /// Whether what was asked for has the text, or this is the end of a start that has.
    fn has_text(&mut self, record: &Value) -> bool {
        let Some(text) = &self.query.text else { return true };
        let number = |name: &str| record.get(name).and_then(Value::as_u64);
        if number("start").is_some_and(|start| self.starts.remove(&start)) {
            return true;
        }
        let has = TEXTS.iter().any(|name| asked(record, name).contains(text.as_str()));
        if has && field(record, "event") == Some("start") {
            match self.starts.len() < MAX_REMEMBERED {
                true => self.starts.extend(number("seq")),
                false => self.overflows = true,
            }
        }
        has
    }
}

fn field<'a>(record: &'a Value, name: &str) -> Option<&'a str> {
    record.get(name).and_then(Value::as_str)
}
