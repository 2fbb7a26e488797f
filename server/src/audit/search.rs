//! `telexecd audit search`.

use std::collections::HashSet;
use std::io::{self, BufReader, Write};
use std::path::PathBuf;
use std::time::SystemTime;

use serde_json::Value;
use telexec_executor::NAMED_COMMAND;
use telexec_executor::text::printable;

use super::report::{Growing, open_all, unreadable};
use super::{chain, lines};
use crate::identity::patterns::NamePatterns;
use crate::logging;

/// Exit codes, as of grep(1).
const FOUND: u8 = 0;
const NOT_FOUND: u8 = 1;
const FAILED: u8 = 2;
/// Starts whose ends are looked for.
const MAX_STARTS: usize = 1_000_000;
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
    /// Of these events; empty: of any.
    pub(crate) events: Vec<String>,
    /// Of the execution with this id, or whose id begins so.
    pub(crate) execution: Option<String>,
    /// With this text in what was asked for.
    pub(crate) text: Option<String>,
    /// Only starts and ends of executions that were recorded.
    pub(crate) recorded: bool,
    /// From this time on.
    pub(crate) since: Option<SystemTime>,
    /// Before this time.
    pub(crate) until: Option<SystemTime>,
    /// As they are in the log, instead of a line for people.
    pub(crate) json: bool,
}

/// Prints records of the files of one log, in this order; given a single file, also those rotated before it. What cannot be read
/// goes to standard error. Returns the exit code: 0 some were found, 1 none, 2 something cannot be read.
///
/// # Errors
/// `out` cannot be written.
pub(crate) fn search_files(given: &[PathBuf], query: &Query, out: &mut impl Write) -> io::Result<u8> {
    let files = match open_all(given) {
        Ok(files) => files,
        Err((path, error)) => return Ok(unreadable(&path, &error)),
    };
    let (mut search, mut failed) = (Search { query, starts: HashSet::new(), overflows: false, found: false }, false);
    for (path, file) in files {
        match file.map(|file| BufReader::new(Growing::new(file))) {
            Ok(mut file) => match search.read(&mut file, out)? {
                Read::All => {}
                Read::Malformed(line) => {
                    logging::line(&format!(
                        "telexecd: {}: line {line} and maybe others are no records",
                        printable(&path.display().to_string())
                    ));
                    failed = true;
                }
                Read::Failed(error) => return Ok(unreadable(&path, &error)),
            },
            Err(error) => return Ok(unreadable(&path, &error)),
        }
    }
    if search.overflows {
        logging::line(&format!(
            "telexecd: more than {MAX_STARTS} commands without an end match: the ends of some are missing"
        ));
        failed = true;
    }
    Ok(match (failed, search.found) {
        (true, _) => FAILED,
        (false, true) => FOUND,
        (false, false) => NOT_FOUND,
    })
}

struct Search<'a> {
    query: &'a Query,
    /// The numbers of starts that were found by their text: their ends do not have it.
    starts: HashSet<u64>,
    /// There are more starts than are looked for.
    overflows: bool,
    found: bool,
}

/// What came of a file.
enum Read {
    All,
    /// All but lines that are no records, of which this is the first.
    Malformed(u64),
    Failed(io::Error),
}

impl Search<'_> {
    fn read(&mut self, file: &mut BufReader<Growing>, out: &mut impl Write) -> io::Result<Read> {
        let (mut text, mut malformed) = (Vec::new(), None);
        for line in 1.. {
            let read = match lines::next(file, &mut text) {
                Ok(Some(read)) => read,
                Ok(None) => break,
                Err(error) => return Ok(Read::Failed(error)),
            };
            if let Err(chain::Fault::TooLong) = read
                && let Err(error) = lines::skip(file)
            {
                return Ok(Read::Failed(error));
            }
            match read.ok().and_then(|()| serde_json::from_slice::<Value>(&text).ok()).filter(Value::is_object) {
                Some(record) if self.matches(&record) => {
                    self.found = true;
                    match self.query.json {
                        true => out.write_all(&text)?,
                        false => out.write_all(in_words(&record).as_bytes())?,
                    }
                    out.write_all(b"\n")?;
                }
                Some(_) => {}
                None => malformed = malformed.or(Some(line)),
            }
        }
        Ok(malformed.map_or(Read::All, Read::Malformed))
    }

    fn matches(&mut self, record: &Value) -> bool {
        let Query { identities, events, execution, recorded, since, until, .. } = self.query;
        let field = |name: &str| record.get(name).and_then(Value::as_str).unwrap_or_default();
        let time = || humantime::parse_rfc3339_weak(field("time")).ok();
        // before the events: an end may be asked for alone
        let has_text = self.has_text(record);
        has_text
            && identities.as_ref().is_none_or(|names| names.contain(field("identity")))
            && (events.is_empty() || events.iter().any(|event| event == field("event")))
            && (!*recorded || record.get("recording").is_some())
            && execution.as_ref().is_none_or(|id| field("execution_id").starts_with(id.as_str()))
            && since.is_none_or(|since| time().is_some_and(|time| time >= since))
            && until.is_none_or(|until| time().is_some_and(|time| time < until))
    }

    /// Whether what was asked for has the text, or this is the end of a start that has.
    fn has_text(&mut self, record: &Value) -> bool {
        let Some(text) = &self.query.text else { return true };
        let number = |name: &str| record.get(name).and_then(Value::as_u64);
        if number("start").is_some_and(|start| self.starts.remove(&start)) {
            return true;
        }
        let has = TEXTS.iter().any(|name| asked(record, name).contains(text.as_str()));
        if has && event(record) == "start" {
            match self.starts.len() < MAX_STARTS {
                true => self.starts.extend(number("seq")),
                false => self.overflows = true,
            }
        }
        has
    }
}

fn event(record: &Value) -> &str {
    record.get("event").and_then(Value::as_str).unwrap_or_default()
}

/// A field of what was asked for; the name of a named command as it is written.
fn asked(record: &Value, name: &str) -> String {
    let text = record.get(name).map(joined).unwrap_or_default();
    if name == "named_command" && !text.is_empty() { format!("{NAMED_COMMAND}{text}") } else { text }
}

/// A text, or the texts of a list with spaces between.
fn joined(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// A record on a line: when, what, who, which execution, and the rest.
fn in_words(record: &Value) -> String {
    let field = |name: &str| record.get(name).map(joined).unwrap_or_default();
    let named = |name: &str, word: &str| match field(name) {
        value if value.is_empty() => String::new(),
        value => format!("{word}{value}"),
    };
    let recording = |name: &str| record.get("recording").and_then(|recording| recording.get(name)).map(joined);
    let failure = named("message", ": ");
    let failure = if failure.is_empty() { named("error", ": ") } else { failure };
    let what = match event(record) {
        "start" | "denied" | "refused" => {
            let name = asked(record, "named_command");
            let between = if name.is_empty() { "" } else { ": " };
            let asked = [named("command", ""), named("argv", ""), named("programs", "programs: ")].concat();
            let approved = named("approved_by", "; approved by ");
            let recorded = recording("file").map(|file| format!("  [recorded: {file}]")).unwrap_or_default();
            format!("{name}{between}{asked}{}{approved}{failure}{recorded}", named("reason", "; reason: "))
        }
        "end" => {
            let how = match field("cause").as_str() {
                "exited" => format!("exit code {}", field("exit_code")),
                cause => format!("{cause}{}", named("signal", " ")),
            };
            let incomplete = recording("error").map(|error| format!("  [recording incomplete: {error}]"));
            format!("{how} after {} ms{}", field("wall_ms"), incomplete.unwrap_or_default())
        }
        "rejected" => {
            let about = [named("peer", ""), named("certificate_name", " as "), named("rpc", " ")].concat();
            format!("{about}{failure}")
        }
        "opened" | "recovered" | "more" | "closed" => others(record),
        "not_started" => failure.trim_start_matches(": ").to_owned(),
        _ => {
            let place = [named("path", " "), named("unix_path", " "), named("host", " "), named("port", ":")].concat();
            let action = match field("action") {
                action if action.is_empty() => field("rpc"),
                action => action,
            };
            let review = [named("approval_id", " "), named("about", " of "), named("review_reason", ": ")].concat();
            format!("{action}{}{place}{review}{failure}", named("signal", " "))
        }
    };
    let columns = ["time", "event", "identity", "execution_id"].map(field);
    // a space would begin the next column
    let columns = columns.iter().map(|column| printable(column).replace(' ', "\\u{20}")).chain([printable(&what)]);
    columns.map(|column| if column.is_empty() { "-".to_owned() } else { column }).collect::<Vec<_>>().join("  ")
}

/// The fields that not every record has: `version: 0.1.0, pid: 7`.
fn others(record: &Value) -> String {
    let fields = record.as_object().into_iter().flatten();
    let own = fields.filter(|(name, _)| !["agent", "event", "hash", "prev", "seq", "time"].contains(&name.as_str()));
    own.map(|(name, value)| format!("{name}: {}", joined(value))).collect::<Vec<_>>().join(", ")
}
