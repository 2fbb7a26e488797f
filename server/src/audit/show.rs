//! Records for people: on one line, or on a line for each field.

use std::fmt::Write;

use serde_json::Value;
use telexec_executor::NAMED_COMMAND;
use telexec_executor::text::printable;

/// The fields that come first, in this order; the others follow by their names.
const FIRST: [&str; 22] = [
    "agent",
    "execution_id",
    "identity",
    "rpc",
    "transport",
    "peer",
    "decision",
    "rules",
    "approval_id",
    "approved_by",
    "action",
    "reason",
    "named_command",
    "command",
    "argv",
    "user",
    "directory",
    "cause",
    "exit_code",
    "signal",
    "error",
    "message",
];
/// In the heading, or of the chain, which `audit verify` is for.
const OMITTED: [&str; 5] = ["event", "hash", "prev", "seq", "time"];

/// The text of a record, with a newline at its end: `start, record 12, 2026-11-27T08:30:00Z`, and a line for each field,
/// indented, with further ones for the further lines of a text.
pub(super) fn in_full(record: &Value) -> String {
    let part = |name: &str| record.get(name).map(text).unwrap_or_default();
    let mut full = printable(&format!("{}, record {}, {}", part("event"), part("seq"), part("time")));
    full.push('\n');
    let mut fields = Vec::new();
    for (name, value) in record.as_object().into_iter().flatten() {
        if !OMITTED.contains(&name.as_str()) {
            flatten(name.clone(), value, &mut fields);
        }
    }
    let place = |name: &str| FIRST.iter().position(|first| *first == name).unwrap_or(FIRST.len());
    fields.sort_by_cached_key(|(name, _)| (place(name), name.clone()));
    let width = fields.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
    for (name, value) in fields {
        let mut name = printable(&name);
        for line in value.split('\n') {
            let _ = writeln!(full, "  {name:width$}  {}", printable(line));
            name.clear();
        }
    }
    full
}

/// The fields of a record in a record get names such as `stdout.bytes`.
fn flatten(name: String, value: &Value, fields: &mut Vec<(String, String)>) {
    match value {
        Value::Object(inner) => {
            inner.iter().for_each(|(key, value)| flatten(format!("{name}.{key}"), value, fields));
        }
        value => fields.push((name, text(value))),
    }
}

/// A text as it is, all else as JSON.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A field of what was asked for; the name of a named command as it is written.
pub(super) fn asked(record: &Value, name: &str) -> String {
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
pub(super) fn in_line(record: &Value) -> String {
    let field = |name: &str| record.get(name).map(joined).unwrap_or_default();
    let named = |name: &str, word: &str| match field(name) {
        value if value.is_empty() => String::new(),
        value => format!("{word}{value}"),
    };
    let recording = |name: &str| record.get("recording").and_then(|recording| recording.get(name)).map(joined);
    let failure = named("message", ": ");
    let failure = if failure.is_empty() { named("error", ": ") } else { failure };
    let what = match field("event").as_str() {
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
