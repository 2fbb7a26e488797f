//! The file: a line of JSON that says how many follow, and one for each execution. Its types are its own, so that what
//! is renamed elsewhere changes nothing here.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use telexec_executor::{ExitCause, Exited, Fingerprint, OutputStream, Program, Signal, StreamTotals};

use crate::observer::MainProcess;
use crate::output::printed::{Chunk, Printed};
use crate::output::spool;
use crate::registry::{self, Ended, KeptProgram};

/// Goes up with any change that an older or a newer engine would take for something else.
pub(in crate::recovery) const VERSION: u32 = 2;

/// The first line. What else an engine of another version has in it does not matter.
#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    /// How many lines follow.
    executions: usize,
}

/// An ended execution.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Execution {
    id: String,
    sequence: u64,
    fingerprint: Option<String>,
    asked: Asked,
    labels: BTreeMap<String, String>,
    main_process: Main,
    exited: Exit,
    output: Output,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::recovery) struct Asked {
    identity: String,
    command: Command,
    working_directory: Option<String>,
    user: Option<String>,
    terminal: bool,
    /// Earlier agents did not write it; none of them was released.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    receipt: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum Command {
    Shell { text: String, shell: Option<String>, login: bool },
    Argv(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::recovery) struct Main {
    pid: u32,
    start_time: Time,
    user: String,
    working_directory: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exit {
    cause: Cause,
    signal: Option<u8>,
    core_dumped: bool,
    wall_time: Time,
    user_time: Time,
    system_time: Time,
    max_rss_bytes: u64,
    stdout: Totals,
    stderr: Totals,
    surviving_processes: u32,
    working_directory: Option<String>,
    end_time: Time,
    /// Earlier agents did not write it; none of them was released.
    #[serde(default, skip_serializing_if = "Usage::is_unknown")]
    usage: Usage,
    /// Likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    receipt: Option<String>,
}

#[derive(Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Usage {
    user_time: Option<Time>,
    system_time: Option<Time>,
    peak_memory_bytes: Option<u64>,
    read_bytes: Option<u64>,
    written_bytes: Option<u64>,
    peak_processes: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Cause {
    Exited(u8),
    Signaled,
    TimedOut,
    Cancelled,
    DeadlineExceeded,
    OutOfMemory,
    Shutdown,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Totals {
    bytes: u64,
    dropped_bytes: u64,
    incomplete: bool,
}

/// A length of time, or the time since the beginning of 1970.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::recovery) struct Time {
    seconds: u64,
    nanoseconds: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Output {
    end: u64,
    tail: Vec<Piece>,
    stored: Option<Stored>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Piece {
    stream: Stream,
    position: u64,
    /// In base64.
    data: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Stream {
    Stdout,
    Stderr,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    name: u64,
    start: u64,
    data: u64,
    index: u64,
}

/// # Errors
/// It cannot be written.
pub(crate) fn write(mut to: impl Write, executions: &[Ended]) -> io::Result<()> {
    line(&mut to, &Header { version: VERSION, executions: executions.len() })?;
    executions.iter().try_for_each(|ended| line(&mut to, &Execution::from(ended)))?;
    to.flush()
}

/// One, for a file of its own.
///
/// # Errors
/// None are known.
pub(in crate::recovery) fn encode(ended: &Ended) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec(&Execution::from(ended))?)
}

/// # Errors
/// It is not whole, or there is no such execution.
pub(in crate::recovery) fn decode(ended: &[u8]) -> io::Result<Ended> {
    serde_json::from_slice::<Execution>(ended)?.ended()
}

fn line(to: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *to, value)?;
    to.write_all(b"\n")
}

/// # Errors
/// It cannot be read, is not whole, or is of another version.
pub(crate) fn read(from: impl BufRead) -> io::Result<Vec<Ended>> {
    let mut lines = from.lines();
    let header: Header = serde_json::from_str(&lines.next().ok_or(io::ErrorKind::UnexpectedEof)??)?;
    if header.version != VERSION {
        return Err(io::Error::other(format!("it is of version {}, not {VERSION}", header.version)));
    }
    let execution = |line: io::Result<String>| serde_json::from_str::<Execution>(&line?)?.ended();
    let executions: Vec<Ended> = lines.map(execution).collect::<io::Result<_>>()?;
    match executions.len() == header.executions {
        true => Ok(executions),
        false => Err(io::Error::other(format!("{} of {} executions are there", executions.len(), header.executions))),
    }
}

impl From<&Ended> for Execution {
    fn from(ended: &Ended) -> Self {
        let Ended { id, sequence, asked, labels, fingerprint, main, exited, output } = ended;
        Self {
            id: id.to_string(),
            sequence: *sequence,
            fingerprint: fingerprint.map(|fingerprint| STANDARD.encode(fingerprint.as_bytes())),
            asked: asked.into(),
            labels: labels.clone(),
            main_process: main.into(),
            exited: exited.into(),
            output: output.into(),
        }
    }
}

impl Execution {
    /// # Errors
    /// There is no such execution.
    fn ended(self) -> io::Result<Ended> {
        Ok(Ended {
            id: self.id.parse().map_err(io::Error::other)?,
            sequence: self.sequence,
            asked: self.asked.into(),
            labels: self.labels,
            fingerprint: self.fingerprint.map(|text| fingerprint(&text)).transpose()?,
            main: self.main_process.main()?,
            exited: self.exited.exited()?,
            output: self.output.printed()?,
        })
    }
}

/// # Errors
/// It is none.
pub(in crate::recovery) fn fingerprint(text: &str) -> io::Result<Fingerprint> {
    let digest: Option<[u8; 32]> = STANDARD.decode(text).ok().and_then(|bytes| bytes.try_into().ok());
    digest.map(Fingerprint::from).ok_or_else(|| io::Error::other("a fingerprint has another length"))
}

impl From<&registry::Asked> for Asked {
    fn from(asked: &registry::Asked) -> Self {
        let registry::Asked { identity, program, working_directory, user, terminal, receipt } = asked.clone();
        let command = match Arc::unwrap_or_clone(program.get()) {
            Program::Shell { text, shell, login } => Command::Shell { text, shell, login },
            Program::Argv(argv) => Command::Argv(argv),
        };
        Self { identity, command, working_directory, user, terminal, receipt }
    }
}

impl From<Asked> for registry::Asked {
    fn from(asked: Asked) -> Self {
        let Asked { identity, command, working_directory, user, terminal, receipt } = asked;
        let program = match command {
            Command::Shell { text, shell, login } => Program::Shell { text, shell, login },
            Command::Argv(argv) => Program::Argv(argv),
        };
        Self { identity, program: KeptProgram::new(program), working_directory, user, terminal, receipt }
    }
}

impl From<&MainProcess> for Main {
    fn from(main: &MainProcess) -> Self {
        let MainProcess { pid, start_time, user, working_directory } = main.clone();
        Self { pid, start_time: start_time.into(), user, working_directory }
    }
}

impl Main {
    /// # Errors
    /// A time is out of range.
    pub(in crate::recovery) fn main(self) -> io::Result<MainProcess> {
        let Self { pid, start_time, user, working_directory } = self;
        Ok(MainProcess { pid, start_time: start_time.moment()?, user, working_directory })
    }
}

impl From<&Exited> for Exit {
    fn from(exited: &Exited) -> Self {
        Self {
            cause: exited.cause.into(),
            signal: exited.signal.and_then(|signal| u8::try_from(signal.number()).ok()),
            core_dumped: exited.core_dumped,
            wall_time: exited.wall_time.into(),
            user_time: exited.user_time.into(),
            system_time: exited.system_time.into(),
            max_rss_bytes: exited.max_rss_bytes,
            stdout: exited.stdout.into(),
            stderr: exited.stderr.into(),
            surviving_processes: exited.surviving_processes,
            working_directory: exited.working_directory.clone(),
            end_time: exited.end_time.into(),
            usage: exited.usage.into(),
            receipt: exited.receipt.as_deref().cloned(),
        }
    }
}

impl Exit {
    fn exited(self) -> io::Result<Exited> {
        let signal = |number: u8| Signal::from_number(number.into()).ok_or_else(|| io::Error::other("no such signal"));
        Ok(Exited {
            cause: self.cause.into(),
            signal: self.signal.map(signal).transpose()?,
            core_dumped: self.core_dumped,
            wall_time: self.wall_time.duration()?,
            user_time: self.user_time.duration()?,
            system_time: self.system_time.duration()?,
            max_rss_bytes: self.max_rss_bytes,
            stdout: self.stdout.into(),
            stderr: self.stderr.into(),
            surviving_processes: self.surviving_processes,
            working_directory: self.working_directory,
            end_time: self.end_time.moment()?,
            usage: self.usage.usage()?,
            receipt: self.receipt.map(Into::into),
        })
    }
}

impl From<telexec_executor::Usage> for Usage {
    fn from(usage: telexec_executor::Usage) -> Self {
        Self {
            user_time: usage.user_time.map(Time::from),
            system_time: usage.system_time.map(Time::from),
            peak_memory_bytes: usage.peak_memory_bytes,
            read_bytes: usage.read_bytes,
            written_bytes: usage.written_bytes,
            peak_processes: usage.peak_processes,
        }
    }
}

impl Usage {
    fn is_unknown(&self) -> bool {
        *self == Self::default()
    }

    fn usage(self) -> io::Result<telexec_executor::Usage> {
        Ok(telexec_executor::Usage {
            user_time: self.user_time.map(Time::duration).transpose()?,
            system_time: self.system_time.map(Time::duration).transpose()?,
            peak_memory_bytes: self.peak_memory_bytes,
            read_bytes: self.read_bytes,
            written_bytes: self.written_bytes,
            peak_processes: self.peak_processes,
        })
    }
}

impl From<ExitCause> for Cause {
    fn from(cause: ExitCause) -> Self {
        match cause {
            ExitCause::Exited(code) => Self::Exited(code),
            ExitCause::Signaled => Self::Signaled,
            ExitCause::TimedOut => Self::TimedOut,
            ExitCause::Cancelled => Self::Cancelled,
            ExitCause::DeadlineExceeded => Self::DeadlineExceeded,
            ExitCause::OutOfMemory => Self::OutOfMemory,
            ExitCause::Shutdown => Self::Shutdown,
        }
    }
}

impl From<Cause> for ExitCause {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Exited(code) => Self::Exited(code),
            Cause::Signaled => Self::Signaled,
            Cause::TimedOut => Self::TimedOut,
            Cause::Cancelled => Self::Cancelled,
            Cause::DeadlineExceeded => Self::DeadlineExceeded,
            Cause::OutOfMemory => Self::OutOfMemory,
            Cause::Shutdown => Self::Shutdown,
        }
    }
}

impl From<StreamTotals> for Totals {
    fn from(StreamTotals { bytes, dropped_bytes, incomplete }: StreamTotals) -> Self {
        Self { bytes, dropped_bytes, incomplete }
    }
}

impl From<Totals> for StreamTotals {
    fn from(Totals { bytes, dropped_bytes, incomplete }: Totals) -> Self {
        Self { bytes, dropped_bytes, incomplete }
    }
}

impl From<Duration> for Time {
    fn from(time: Duration) -> Self {
        Self { seconds: time.as_secs(), nanoseconds: time.subsec_nanos() }
    }
}

impl From<SystemTime> for Time {
    fn from(moment: SystemTime) -> Self {
        moment.duration_since(UNIX_EPOCH).unwrap_or_default().into()
    }
}

impl Time {
    /// # Errors
    /// It is no time.
    pub(in crate::recovery) fn duration(self) -> io::Result<Duration> {
        let whole = Duration::from_secs(self.seconds);
        whole.checked_add(Duration::from_nanos(self.nanoseconds.into())).ok_or_else(out_of_range)
    }

    fn moment(self) -> io::Result<SystemTime> {
        UNIX_EPOCH.checked_add(self.duration()?).ok_or_else(out_of_range)
    }
}

fn out_of_range() -> io::Error {
    io::Error::other("a time is out of range")
}

impl From<&Printed> for Output {
    fn from(Printed { end, tail, stored }: &Printed) -> Self {
        let stored = stored.map(|spool::Stored { name, start, data, index }| Stored { name, start, data, index });
        Self { end: *end, tail: tail.iter().map(Piece::from).collect(), stored }
    }
}

impl Output {
    fn printed(self) -> io::Result<Printed> {
        let tail = self.tail.into_iter().map(Piece::chunk).collect::<io::Result<_>>()?;
        let stored = self.stored.map(|Stored { name, start, data, index }| spool::Stored { name, start, data, index });
        Ok(Printed { end: self.end, tail, stored })
    }
}

impl From<&Chunk> for Piece {
    fn from(Chunk { stream, position, data }: &Chunk) -> Self {
        let stream = match stream {
            OutputStream::Stdout => Stream::Stdout,
            OutputStream::Stderr => Stream::Stderr,
        };
        Self { stream, position: *position, data: STANDARD.encode(data) }
    }
}

impl Piece {
    fn chunk(self) -> io::Result<Chunk> {
        let stream = match self.stream {
            Stream::Stdout => OutputStream::Stdout,
            Stream::Stderr => OutputStream::Stderr,
        };
        let data = STANDARD.decode(self.data).map_err(io::Error::other)?.into();
        Ok(Chunk { stream, position: self.position, data })
    }
}
