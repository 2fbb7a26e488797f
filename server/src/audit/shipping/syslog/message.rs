//! Records as messages of syslog: RFC 5424, each with its length before it (RFC 5425, RFC 6587).

use crate::audit::follower::Line;

/// Facility "log audit".
const FACILITY: u8 = 13;
/// Severities.
const WARNING: u8 = 4;
const INFORMATIONAL: u8 = 6;
/// What is no name in a header.
const NIL: &str = "-";
const MAX_HOST_BYTES: usize = 255;

/// Appends a record to `frames`. The message is the line of the log as it is.
pub(super) fn append(frames: &mut Vec<u8>, host: &str, line: &Line) {
    let severity = if line.is_refusal() { WARNING } else { INFORMATIONAL };
    let priority = FACILITY * 8 + severity;
    let (host, event) = (name(host, MAX_HOST_BYTES), name(&line.event, 32));
    let header = format!("<{priority}>1 {} {host} telexecd - {event} - ", name(&line.time, 32));
    frames.extend(format!("{} {header}", header.len() + line.text.len()).into_bytes());
    frames.extend(&line.text);
}

/// A field of the header has printable ASCII characters without spaces.
fn name(text: &str, max: usize) -> &str {
    match !text.is_empty() && text.len() <= max && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => text,
        false => NIL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_message() {
        let line = |event: &str| Line {
            seq: 1,
            time: "2026-11-26T16:33:48.110612Z".to_owned(),
            event: event.to_owned(),
            hash: String::new(),
            trace_id: None,
            text: b"{\"seq\":1}".to_vec(),
        };
        let mut frames = Vec::new();
        append(&mut frames, "web1", &line("start"));
        append(&mut frames, "a b", &line("denied"));
        let text = String::from_utf8(frames).unwrap();
        let first = "<110>1 2026-11-26T16:33:48.110612Z web1 telexecd - start - {\"seq\":1}";
        let second = "<108>1 2026-11-26T16:33:48.110612Z - telexecd - denied - {\"seq\":1}";
        assert_eq!(text, format!("{} {first}{} {second}", first.len(), second.len()));
    }
}
