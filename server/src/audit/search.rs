//! `telexecd audit search` and `show`.

use std::collections::HashSet;
use std::hash::Hash;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::SystemTime;

use serde_json::Value;
use telexec_executor::text::printable;

use super::reading::each_record;
use super::report::unreadable;
use super::show::{asked, in_full, in_line};
use crate::identity::patterns::NamePatterns;
use crate::logging;

/// Exit codes, as of grep(1).
const FOUND: u8 = 0;
pub(crate) const NOT_FOUND: u8 = 1;
const FAILED: u8 = 2;
/// The event, and here the cause, of a start that came to nothing.
const NOT_STARTED: &str = "not_started";
/// At most so many starts, executions or approvals are remembered.
const MAX_REMEMBERED: usize = 1_000_000;
/// The fields that are searched for a text.
const TEXTS: [&str; 15] = [
    "approval_id",
    "argv",
    "certificate_name",
    "command",
    "directory",
    "environment",
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
    /// With all of these labels in what was asked for.
    pub(crate) labels: Vec<(String, String)>,
    /// As this user.
    pub(crate) user: Option<String>,
    /// Approved by one of these identities.
    pub(crate) approved_by: Option<NamePatterns>,
    /// Only starts and ends of executions of which this is so. The files are read twice.
    pub(crate) outcome: Option<Outcome>,
    /// Only starts and ends of executions that were recorded.
    pub(crate) recorded: bool,
    /// From this time on.
    pub(crate) since: Option<SystemTime>,
    /// Before this time.
    pub(crate) until: Option<SystemTime>,
    /// If there are executions with just this id, or that had this approval, not those whose ids begin so; and who requested and
    /// reviewed the approvals that they had. The files are read twice.
    pub(crate) whole: bool,
    pub(crate) format: Format,
}

/// Whether and how an execution has ended.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Ended {
        /// The `cause` of an end, or `not_started`; empty: any.
        causes: Vec<String>,
        /// Empty: any.
        exit_codes: Vec<u8>,
    },
    /// There is no record of an end.
    Unfinished,
}

impl Outcome {
    /// Whether this record reports such an end.
    fn is_reported(&self, record: &Value) -> bool {
        let Self::Ended { causes, exit_codes } = self else { return false };
        let cause = match field(record, "event") {
            Some("end") => field(record, "cause").unwrap_or_default(),
            Some(NOT_STARTED) => NOT_STARTED,
            _ => return false,
        };
        let code = || number(record, "exit_code").and_then(|code| u8::try_from(code).ok());
        (causes.is_empty() || causes.iter().any(|wanted| wanted == cause))
            && (exit_codes.is_empty() || code().is_some_and(|code| exit_codes.contains(&code)))
    }
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
        with_outcome: HashSet::new(),
        unfinished: HashSet::new(),
        ran_as: HashSet::new(),
        approvals: HashSet::new(),
        approved: HashSet::new(),
        overflows: false,
        found: false,
    };
    if query.whole || query.outcome.is_some() || query.user.is_some() {
        // how something ended, and as whom it ran, comes after it, and a request and its review come before the start that has their ID
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
            "telexecd: more than {MAX_REMEMBERED} executions or approvals match: the records of some are missing"
        ));
    }
    Ok(match (search.overflows || !read.malformed.is_empty(), search.found) {
        (true, _) => FAILED,
        (false, true) => FOUND,
        (false, false) => NOT_FOUND,
    })
}

struct Search<'a> {
    query: &'a Query,
    /// There are executions with just the id that is looked for.
    exact: bool,
    /// The numbers of starts that were found by their text: their ends do not have it.
    starts: HashSet<u64>,
    /// The numbers of starts with the end that is looked for.
    with_outcome: HashSet<u64>,
    /// The numbers of starts without an end.
    unfinished: HashSet<u64>,
    /// The numbers of starts that ran as the user that is looked for.
    ran_as: HashSet<u64>,
    /// The approvals of the executions.
    approvals: HashSet<String>,
    /// The executions that had the approval that is looked for.
    approved: HashSet<String>,
    /// There are more of these than are remembered.
    overflows: bool,
    found: bool,
}

impl Search<'_> {
    /// Learns from a record which others belong to it.
    fn note(&mut self, record: &Value) {
        if self.query.whole {
            self.note_execution(record);
        }
        // a start comes before its end
        if !self.is_of_execution(record) || self.query.since.is_some_and(|since| !is_from(record, since)) {
            return;
        }
        if self.query.outcome.as_ref().is_some_and(|outcome| outcome.is_reported(record)) {
            self.overflows |= !insert(&mut self.with_outcome, ended(record));
        }
        if self.query.whole || matches!(self.query.outcome, Some(Outcome::Unfinished)) {
            self.overflows |= !insert(&mut self.unfinished, begun(record));
            ended(record).into_iter().for_each(|start| _ = self.unfinished.remove(&start));
        }
        if self.has_user(record) {
            self.overflows |= !insert(&mut self.ran_as, ended(record));
        }
    }

    fn note_execution(&mut self, record: &Value) {
        let (execution, approval) = (field(record, "execution_id"), field(record, "approval_id"));
        let is_wanted = |id: Option<&str>| id.is_some() && id == self.query.execution.as_deref();
        if !self.exact && (is_wanted(execution) || is_wanted(approval)) {
            self.exact = true;
            self.approvals.clear();
            self.unfinished.clear();
            self.overflows = false;
        }
        if is_wanted(approval) {
            self.overflows |= !insert(&mut self.approved, execution.map(str::to_owned));
        }
        if is_wanted(approval) || self.is_of_execution(record) {
            self.overflows |= !insert(&mut self.approvals, approval.map(str::to_owned));
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
                let is_unfinished = begun(record).is_some_and(|start| self.unfinished.contains(&start));
                let between = if self.found { "\n" } else { "" };
                write!(out, "{between}{}", in_full(record, is_unfinished, columns))?;
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
        let Query { identities, events, user, recorded, since, until, .. } = self.query;
        let field = |name: &str| field(record, name).unwrap_or_default();
        let is_of_event = |event: &str| event == field("event") || event == "denied" && field("decision") == "deny";
        // before the events: an end may be asked for alone
        let is_asked = self.is_asked(record);
        is_asked
            && self.has_outcome(record)
            && (user.is_none() || self.has_user(record) || contains(&self.ran_as, begun(record)))
            && identities.as_ref().is_none_or(|names| names.contain(field("identity")))
            && (events.is_empty() || events.iter().any(|event| is_of_event(event)))
            && (!*recorded || record.get("recording").is_some())
            && (self.is_of_execution(record) || self.is_of_approval(record))
            && since.is_none_or(|since| is_from(record, since))
            && until.is_none_or(|until| time(record).is_some_and(|time| time < until))
    }

    /// Whether it is of an execution that is looked for, if any is.
    fn is_of_execution(&self, record: &Value) -> bool {
        let of = field(record, "execution_id").unwrap_or_default();
        self.query.execution.as_ref().is_none_or(|id| match self.exact {
            true => of == id || self.approved.contains(of),
            false => of.starts_with(id.as_str()),
        })
    }

    /// Whether it is the start or the end of an execution with the outcome that is looked for, if one is.
    fn has_outcome(&self, record: &Value) -> bool {
        match &self.query.outcome {
            None => true,
            Some(Outcome::Unfinished) => contains(&self.unfinished, begun(record)),
            // the record of a start may be missing
            Some(ended) => ended.is_reported(record) || contains(&self.with_outcome, begun(record)),
        }
    }

    /// Whether it is of the user that is looked for.
    fn has_user(&self, record: &Value) -> bool {
        self.query.user.is_some() && field(record, "user") == self.query.user.as_deref()
    }

    /// Whether it requests or reviews an approval of such an execution.
    fn is_of_approval(&self, record: &Value) -> bool {
        ["denied", "call"].map(Some).contains(&field(record, "event"))
            && field(record, "approval_id").is_some_and(|id| self.approvals.contains(id))
    }

    /// Whether what was asked for has the text, the labels and the approval, or this is the end of a start that has.
    fn is_asked(&mut self, record: &Value) -> bool {
        let Query { text, labels, approved_by, .. } = self.query;
        if text.is_none() && labels.is_empty() && approved_by.is_none() {
            return true;
        }
        if ended(record).is_some_and(|start| self.starts.remove(&start)) {
            return true;
        }
        let has_text = |text: &String| TEXTS.iter().any(|name| asked(record, name).contains(text.as_str()));
        let is_approved = |by: &NamePatterns| field(record, "approved_by").is_some_and(|name| by.contain(name));
        let has_label = |(key, value): &(String, String)| {
            record.get("labels").and_then(|labels| labels.get(key)).and_then(Value::as_str) == Some(value)
        };
        let is_asked = text.as_ref().is_none_or(has_text)
            && labels.iter().all(has_label)
            && approved_by.as_ref().is_none_or(is_approved);
        if is_asked {
            self.overflows |= !insert(&mut self.starts, begun(record));
        }
        is_asked
    }
}

fn contains(starts: &HashSet<u64>, start: Option<u64>) -> bool {
    start.is_some_and(|start| starts.contains(&start))
}

/// False: there are too many.
fn insert<T: Hash + Eq>(all: &mut HashSet<T>, one: Option<T>) -> bool {
    let Some(one) = one else { return true };
    if all.len() < MAX_REMEMBERED {
        all.insert(one);
        true
    } else {
        all.contains(&one)
    }
}

fn field<'a>(record: &'a Value, name: &str) -> Option<&'a str> {
    record.get(name).and_then(Value::as_str)
}

/// The number of a start.
fn begun(record: &Value) -> Option<u64> {
    number(record, "seq").filter(|_| field(record, "event") == Some("start"))
}

/// The number of the start whose outcome this is.
fn ended(record: &Value) -> Option<u64> {
    number(record, "start").filter(|_| ["end", NOT_STARTED].map(Some).contains(&field(record, "event")))
}

fn time(record: &Value) -> Option<SystemTime> {
    humantime::parse_rfc3339_weak(field(record, "time")?).ok()
}

fn is_from(record: &Value, since: SystemTime) -> bool {
    time(record).is_some_and(|time| time >= since)
}

fn number(record: &Value, name: &str) -> Option<u64> {
    record.get(name).and_then(Value::as_u64)
}
