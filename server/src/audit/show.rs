//! Records for people: on one line, or on a line for each field.

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
/// The width of the column of names; longer ones reach into the next one.
const MAX_WIDTH: usize = 32;
/// At least so many columns are for values.
const MIN_ROOM: usize = 20;

/// The text of a record, with a newline at its end: `start, record 12, 2026-11-27T08:30:00Z`, followed by `, without an end` if
/// it `is_unfinished`; then a line for each field,
/// indented, with further ones for the further lines of a text, and for what is longer than the terminal has `columns`: nothing of
/// a value is where a name could be.
pub(super) fn in_full(record: &Value, is_unfinished: bool, columns: Option<usize>) -> String {
    let part = |name: &str| record.get(name).map(text).unwrap_or_default();
    let mut full = printable(&format!("{}, record {}, {}", part("event"), part("seq"), part("time")));
    full.push_str(if is_unfinished { ", without an end\n" } else { "\n" });
    let fields = record.as_object().into_iter().flatten().filter(|(name, _)| !OMITTED.contains(&name.as_str()));
    let mut fields: Vec<_> = fields.flat_map(|(name, value)| flattened(name, value)).collect();
    let place = |name: &str| FIRST.iter().position(|first| *first == name).unwrap_or(FIRST.len());
    fields.sort_by(|(one, _), (other, _)| (place(one), one).cmp(&(place(other), other)));
    let names: Vec<_> = fields.iter().map(|(name, _)| printable(name)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or_default().min(MAX_WIDTH);
    for (name, (_, value)) in names.iter().zip(&fields) {
        let mut name = name.as_str();
        let room =
            columns.map_or(usize::MAX, |columns| columns.saturating_sub(width.max(name.len()) + 4).max(MIN_ROOM));
        for line in value.split('\n') {
            let line = printable(line);
            let mut rest = line.as_str();
            loop {
                let (piece, after) = rest.split_at(fitting(rest, room));
                full.push_str(format!("  {name:width$}  {piece}").trim_end());
                full.push('\n');
                (name, rest) = ("", after);
                if rest.is_empty() {
                    break;
                }
            }
        }
    }
    full
}

/// The length in bytes of what takes so many columns. All but ASCII is taken to be wide.
fn fitting(text: &str, columns: usize) -> usize {
    let mut taken = 0;
    let over = text.char_indices().find(|(_, c)| {
        taken += if c.is_ascii() { 1 } else { 2 };
        taken > columns
    });
    over.map_or(text.len(), |(at, _)| at)
}

/// The fields of a record in a record get names such as `stdout.bytes`; what is in these, or has a long name, is JSON.
fn flattened(name: &str, value: &Value) -> Vec<(String, String)> {
    match value {
        Value::Object(inner) if !inner.is_empty() && name.len() <= MAX_WIDTH => {
            inner.iter().map(|(key, value)| (format!("{name}.{key}"), text(value))).collect()
        }
        value => vec![(name.to_owned(), text(value))],
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
            let denied = if field("decision") == "deny" { "denied " } else { "" };
            let review = [named("approval_id", " "), named("about", " of "), named("review_reason", ": ")].concat();
            format!("{denied}{action}{}{place}{review}{failure}", named("signal", " "))
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
    let own = fields.filter(|(name, _)| *name != "agent" && !OMITTED.contains(&name.as_str()));
    own.map(|(name, value)| format!("{name}: {}", joined(value))).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hostile_records_take_no_more_room_than_they_have() {
        let long = "x".repeat(70_000);
        let fields: serde_json::Map<_, _> = (0..1000).map(|n| (n.to_string(), json!(n))).collect();
        let record =
            json!({ "event": "a\u{1b}\nend, record 1, ", &*long: fields, "b\n  agent": "c\n\r\u{85}d\n", "e": {} });
        let full = in_full(&record, false, None);
        assert!(full.len() < 2 * record.to_string().len(), "{} bytes", full.len());
        let lines: Vec<_> = full.lines().collect();
        assert_eq!(lines[0], r"a\u{1b}\nend, record 1, , record , ");
        assert_eq!(lines[1].trim_end(), r"  b\n  agent                        c");
        assert!(lines[2].trim_start() == r"\r\u{85}d" && lines[3].is_empty(), "{:?}", &lines[..4]);
    }

    #[test]
    fn a_long_value_is_continued_below_itself() {
        let padding = " ".repeat(71);
        let record = json!({ "event": "start", "argv": format!("a{padding}end, record 9, ä{}", "b".repeat(70)) });
        let full = in_full(&record, false, Some(80));
        let lines: Vec<_> = full.lines().skip(1).collect();
        assert_eq!(lines[0], "  argv  a");
        assert!(lines.iter().skip(1).all(|line| line.starts_with("        ")), "{lines:#?}");
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
        let narrow = in_full(&record, false, Some(1));
        assert!(narrow.lines().skip(1).all(|line| line.len() <= 8 + MIN_ROOM + 1), "{narrow}");
    }
}
