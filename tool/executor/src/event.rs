//! What an execution reports while it runs.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::{ExecutionId, Signal};

/// One step of an execution: [`Started`](Event::Started) first, [`Exited`](Event::Exited) or
/// [`Promoted`](Event::Promoted) last and once.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "one Exited for each execution, and boxing it would be one more allocation"
)]
pub enum Event {
    /// The command runs.
    Started(Started),
    /// It wrote something.
    Output(Output),
    /// Output is missing here, since it is no longer kept: what follows begins at this position. Only for those who came
    /// later ([`crate::Executor::attach`]), and for the caller of a command that went to the background where what was kept
    /// for it cannot be read.
    Gap(u64),
    /// It has ended, and all its output was delivered.
    Exited(Exited),
    /// It runs on in the background, where [`crate::Executor::attach`] finds it.
    Promoted,
}

/// A command has started.
#[derive(Clone, Debug, PartialEq)]
pub struct Started {
    /// Names the execution.
    pub id: ExecutionId,
    /// The main process, as its own machine sees it.
    pub pid: u32,
    /// By that machine's clock.
    pub start_time: SystemTime,
}

/// A chunk of output: exact bytes, in order for each stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Which stream it was written to.
    pub stream: OutputStream,
    /// What was written.
    pub data: Bytes,
    /// Bytes of both streams before this chunk, without those beyond `max_output_bytes`.
    pub position: u64,
}

/// One of the two streams that a command writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Exited {
    /// Why it ended, with the exit code or the signal where there is one.
    pub cause: ExitCause,
    /// The signal that ended the main process, if one did, whatever the cause.
    pub signal: Option<Signal>,
    /// The main process left a core dump.
    pub core_dumped: bool,
    /// From the start of the command to the end of its main process.
    pub wall_time: Duration,
    /// Processor time in user mode, of the main process and the descendants that were waited for.
    pub user_time: Duration,
    /// Processor time in kernel mode, likewise.
    pub system_time: Duration,
    /// The largest resident set of any one of these processes, in bytes.
    pub max_rss_bytes: u64,
    /// What was read from standard output.
    pub stdout: StreamTotals,
    /// What was read from standard error.
    pub stderr: StreamTotals,
    /// Processes that were left running.
    pub surviving_processes: u32,
    /// Where the shell stood when it ended, if that was asked for and is known.
    pub working_directory: Option<String>,
    /// By the clock of the machine that it ran on.
    pub end_time: SystemTime,
    /// What all its processes together have used until then.
    pub usage: Usage,
    /// With [`crate::Command::receipt`]: what has run and how it ended, signed by the agent: an in-toto statement in a DSSE
    /// envelope.
    pub receipt: Option<Arc<String>>,
}

/// What all processes of an execution together have used, also those that nobody waited for: what its cgroup has counted.
/// `None`: that is not counted on its machine, or not for this execution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time in user mode.
    pub user_time: Option<Duration>,
    /// Processor time in kernel mode.
    pub system_time: Option<Duration>,
    /// The most memory at any time, the page cache included, in bytes.
    pub peak_memory_bytes: Option<u64>,
    /// Read from block devices.
    pub read_bytes: Option<u64>,
    /// Written to block devices.
    pub written_bytes: Option<u64>,
    /// The most processes and threads at any time.
    pub peak_processes: Option<u32>,
}

impl Usage {
    /// Processor time in both modes.
    pub fn cpu_time(&self) -> Option<Duration> {
        Some(self.user_time?.saturating_add(self.system_time?))
    }
}

impl Event {
    /// Nothing follows it.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Exited(_) | Self::Promoted)
    }
}

impl Exited {
    /// The exit code, or -1 where there is none (a signal, a timeout, a cancel).
    pub fn exit_code(&self) -> i32 {
        match self.cause {
            ExitCause::Exited(code) => i32::from(code),
            _ => -1,
        }
    }
}

/// Why a command ended. The first cause wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExitCause {
    /// The main process exited with this code.
    Exited(u8),
    /// A signal ended the main process, sent by anyone.
    Signaled,
    /// Its timeout ran out.
    TimedOut,
    /// The caller cancelled it, or vanished.
    Cancelled,
    /// The deadline of the call ran out.
    DeadlineExceeded,
    /// The kernel's OOM killer ended it: a memory limit was reached, or the machine's own memory ran out.
    OutOfMemory,
    /// The executor shut down.
    Shutdown,
}

impl ExitCause {
    /// One of each; of [`ExitCause::Exited`], that with code 0.
    pub const ALL: [Self; 7] = [
        Self::Exited(0),
        Self::Signaled,
        Self::TimedOut,
        Self::Cancelled,
        Self::DeadlineExceeded,
        Self::OutOfMemory,
        Self::Shutdown,
    ];

    /// A word for it, such as `timed_out`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exited(_) => "exited",
            Self::Signaled => "signaled",
            Self::TimedOut => "timed_out",
            Self::Cancelled => "cancelled",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::OutOfMemory => "out_of_memory",
            Self::Shutdown => "agent_shutdown",
        }
    }
}

/// The sum of one output stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamTotals {
    /// All bytes read from the command, delivered or dropped.
    pub bytes: u64,
    /// Of these, how many were dropped (`max_output_bytes`).
    pub dropped_bytes: u64,
    /// A survivor still held the stream open when reading stopped.
    pub incomplete: bool,
}
