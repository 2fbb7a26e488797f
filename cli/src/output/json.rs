//! Events and executions as JSON lines, as documented in the help of `exec` and `ps`. Fields are only ever added.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use telexec_executor::{Event, ExecutionInfo, ExecutionState, OutputStream, Program};

/// An event as one line.
pub(crate) fn line(event: &Event) -> Result<String, serde_json::Error> {
    serde_json::to_string(&Line::from(event)).map(|line| line + "\n")
}

/// An execution as one line.
pub(crate) fn execution(info: &ExecutionInfo) -> Result<String, serde_json::Error> {
    serde_json::to_string(&Execution::from(info)).map(|line| line + "\n")
}

/// An event on one of many hosts, as one line.
pub(crate) fn event_on_host(host: &str, event: &Event) -> Result<String, serde_json::Error> {
    on_host(host, &Line::from(event))
}

/// An execution on one of many hosts, as one line.
pub(crate) fn execution_on_host(host: &str, info: &ExecutionInfo) -> Result<String, serde_json::Error> {
    on_host(host, &Execution::from(info))
}

/// A value with the host that it belongs to, as one line.
pub(crate) fn on_host(host: &str, what: &impl Serialize) -> Result<String, serde_json::Error> {
    serde_json::to_string(&WithHost { host, what }).map(|line| line + "\n")
}

#[derive(Serialize)]
struct WithHost<'a, T> {
    host: &'a str,
    #[serde(flatten)]
    what: &'a T,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Line<'a> {
    Started { execution_id: &'a str, pid: u32, start_time: Option<String> },
    Stdout(Chunk<'a>),
    Stderr(Chunk<'a>),
    Gap { resume_position: u64 },
    Exited(Box<Exited<'a>>),
    Promoted {},
}

#[derive(Serialize)]
struct Chunk<'a> {
    position: u64,
    #[serde(flatten)]
    data: Data<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Data<'a> {
    Text(&'a str),
    Base64(String),
}

#[derive(Serialize)]
pub(crate) struct Exited<'a> {
    cause: &'static str,
    exit_code: i32,
    signal: Option<i32>,
    signal_name: Option<String>,
    core_dumped: bool,
    wall_time: f64,
    user_time: f64,
    system_time: f64,
    max_rss_bytes: u64,
    usage: Usage,
    stdout: StreamTotals,
    stderr: StreamTotals,
    surviving_processes: u32,
    working_directory: Option<&'a str>,
    end_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<&'a str>,
}

/// `null`: not counted.
#[derive(Serialize)]
struct Usage {
    user_time: Option<f64>,
    system_time: Option<f64>,
    peak_memory_bytes: Option<u64>,
    read_bytes: Option<u64>,
    written_bytes: Option<u64>,
    peak_processes: Option<u32>,
}

impl From<telexec_executor::Usage> for Usage {
    fn from(usage: telexec_executor::Usage) -> Self {
        Self {
            user_time: usage.user_time.map(|time| time.as_secs_f64()),
            system_time: usage.system_time.map(|time| time.as_secs_f64()),
            peak_memory_bytes: usage.peak_memory_bytes,
            read_bytes: usage.read_bytes,
            written_bytes: usage.written_bytes,
            peak_processes: usage.peak_processes,
        }
    }
}

#[derive(Serialize)]
struct StreamTotals {
    bytes: u64,
    dropped_bytes: u64,
    incomplete: bool,
}

#[derive(Serialize)]
struct Execution<'a> {
    execution_id: &'a str,
    state: &'static str,
    pid: u32,
    start_time: Option<String>,
    user: &'a str,
    identity: &'a str,
    command: Option<&'a str>,
    argv: Option<&'a [String]>,
    shell: Option<&'a str>,
    login: bool,
    working_directory: &'a str,
    terminal: bool,
    labels: &'a BTreeMap<String, String>,
    processes: u32,
    usage: Usage,
    position: u64,
    exited: Option<Exited<'a>>,
}

impl<'a> From<&'a Event> for Line<'a> {
    fn from(event: &'a Event) -> Self {
        match event {
            Event::Started(started) => Self::Started {
                execution_id: started.id.as_str(),
                pid: started.pid,
                start_time: time(started.start_time),
            },
            Event::Output(output) => {
                let text = std::str::from_utf8(&output.data);
                let data = text.map_or_else(|_| Data::Base64(STANDARD.encode(&output.data)), Data::Text);
                let chunk = Chunk { position: output.position, data };
                match output.stream {
                    OutputStream::Stdout => Self::Stdout(chunk),
                    OutputStream::Stderr => Self::Stderr(chunk),
                }
            }
            Event::Gap(resume_position) => Self::Gap { resume_position: *resume_position },
            Event::Exited(exited) => Self::Exited(Box::new(exited.into())),
            Event::Promoted => Self::Promoted {},
        }
    }
}

impl<'a> From<&'a telexec_executor::Exited> for Exited<'a> {
    fn from(exited: &'a telexec_executor::Exited) -> Self {
        Self {
            cause: exited.cause.as_str(),
            exit_code: exited.exit_code(),
            signal: exited.signal.map(|signal| signal.number()),
            signal_name: exited.signal.map(|signal| signal.to_string()),
            core_dumped: exited.core_dumped,
            wall_time: exited.wall_time.as_secs_f64(),
            user_time: exited.user_time.as_secs_f64(),
            system_time: exited.system_time.as_secs_f64(),
            max_rss_bytes: exited.max_rss_bytes,
            usage: exited.usage.into(),
            stdout: exited.stdout.into(),
            stderr: exited.stderr.into(),
            surviving_processes: exited.surviving_processes,
            working_directory: exited.working_directory.as_deref(),
            end_time: time(exited.end_time),
            receipt: exited.receipt.as_ref().map(|receipt| receipt.as_str()),
        }
    }
}

impl<'a> From<&'a ExecutionInfo> for Execution<'a> {
    fn from(info: &'a ExecutionInfo) -> Self {
        let (command, argv, shell, login) = match &info.program {
            Program::Shell { text, shell, login } => (Some(text.as_str()), None, shell.as_deref(), *login),
            Program::Argv(argv) => (None, Some(argv.as_slice()), None, false),
        };
        Self {
            execution_id: info.id.as_str(),
            state: match info.state {
                ExecutionState::Running => "running",
                ExecutionState::Lingering => "lingering",
                ExecutionState::Exited => "exited",
            },
            pid: info.pid,
            start_time: time(info.start_time),
            user: &info.user,
            identity: &info.identity,
            command,
            argv,
            shell,
            login,
            working_directory: &info.working_directory,
            terminal: info.terminal,
            labels: &info.labels,
            processes: info.processes,
            usage: info.usage.into(),
            position: info.position,
            exited: info.exited.as_ref().map(Exited::from),
        }
    }
}

impl From<telexec_executor::StreamTotals> for StreamTotals {
    fn from(totals: telexec_executor::StreamTotals) -> Self {
        Self { bytes: totals.bytes, dropped_bytes: totals.dropped_bytes, incomplete: totals.incomplete }
    }
}

/// RFC 3339; `None` if out of range.
pub(crate) fn time(time: SystemTime) -> Option<String> {
    // formatting earlier times panics
    time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let mut text = String::new();
    write!(text, "{}", humantime::format_rfc3339_micros(time)).ok().map(|()| text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use telexec_executor::Output;

    use super::*;

    #[test]
    fn bytes_that_are_not_text_are_base64() {
        let chunk = |data: &'static [u8]| {
            line(&Event::Output(Output { stream: OutputStream::Stderr, data: data.into(), position: 7 })).unwrap()
        };
        assert_eq!(chunk(b"a\n"), "{\"event\":\"stderr\",\"position\":7,\"text\":\"a\\n\"}\n");
        assert_eq!(chunk(b"\xff\0"), "{\"event\":\"stderr\",\"position\":7,\"base64\":\"/wA=\"}\n");
    }

    #[test]
    fn times_beyond_the_calendar_are_null() {
        let at = |seconds| time(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0).as_deref(), Some("1970-01-01T00:00:00.000000Z"));
        assert_eq!(at(1 << 50), None);
        assert_eq!(time(SystemTime::UNIX_EPOCH - Duration::from_secs(1)), None);
    }
}
