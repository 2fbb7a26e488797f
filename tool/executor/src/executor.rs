//! The trait everything turns on.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;

use crate::{Command, Event, ExecutionId, ExecutorError, Exited, Program, Signal, Started, Usage};
use crate::{OnDisconnect, TerminalSize, forward_executor};

/// Somewhere commands can run.
///
/// Behaviour is added by wrapping an executor in an executor; see [`crate::guard`]. What a wrapper does not change is
/// written by [`forward_executor!`].
#[async_trait]
pub trait Executor: Send + Sync {
    /// Starts a command. When this returns, it runs.
    ///
    /// Dropping the future ends the command, if it was started already.
    ///
    /// # Errors
    /// Any [`ExecutorError`]: the command did not run. [`ExecutorError::AlreadyRunning`] if that was asked for.
    async fn execute(&self, command: Command) -> Result<Execution, ExecutorError>;

    /// Follows an execution that runs, or ran and is remembered, from a position in its output. The stream begins with
    /// [`Event::Started`]; where output is not kept any more there is an [`Event::Gap`]. Readers do not hold up each other
    /// or the command.
    ///
    /// # Errors
    /// [`ExecutorError::NotFound`]; [`ExecutorError::OutOfRange`] for a position beyond what was written; or the executor
    /// could not be asked.
    async fn attach(&self, id: &ExecutionId, from: Attach) -> Result<Execution, ExecutorError>;

    /// Writes to standard input of a command that accepts input, waiting until it has room. Returns how many bytes of input
    /// it has got from all writers, those of its start included.
    ///
    /// Dropping the future may leave a part written; a repeat with the same offset writes the rest.
    ///
    /// # Errors
    /// [`ExecutorError::NotFound`]; [`ExecutorError::FailedPrecondition`] if it takes no input (any more);
    /// [`ExecutorError::OutOfRange`] for an offset beyond what was written; or the executor could not be asked.
    async fn write_input(&self, id: &ExecutionId, input: Input) -> Result<u64, ExecutorError>;

    /// Sets the size of an execution's terminal.
    ///
    /// # Errors
    /// [`ExecutorError::NotFound`]; [`ExecutorError::FailedPrecondition`] if it has no terminal (any more); or the executor
    /// could not be asked.
    async fn resize(&self, id: &ExecutionId, size: TerminalSize) -> Result<(), ExecutorError>;

    /// Sends a signal to every process of an execution. `KILL` ends it, as a timeout would, without grace. To one that
    /// has ended it does nothing. Returns the execution just after the signal.
    ///
    /// # Errors
    /// [`ExecutorError::NotFound`], or the executor could not be asked.
    async fn signal(&self, id: &ExecutionId, signal: Signal) -> Result<ExecutionInfo, ExecutorError>;

    /// Describes an execution.
    ///
    /// # Errors
    /// [`ExecutorError::NotFound`], or the executor could not be asked.
    async fn get(&self, id: &ExecutionId) -> Result<ExecutionInfo, ExecutorError>;

    /// Lists executions, oldest first.
    ///
    /// # Errors
    /// [`ExecutorError::Invalid`] for a page token that this executor did not make, or it could not be asked.
    async fn list(&self, query: ListQuery) -> Result<ListPage, ExecutorError>;
}

impl<E: Executor + ?Sized> Executor for std::sync::Arc<E> {
    forward_executor!(self => **self; execute, attach, write_input, resize, signal, get, list);
}

/// Where to follow an execution from, and what that binds it to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attach {
    /// Bytes of both streams before the first that is wanted.
    pub position: u64,
    /// [`OnDisconnect::Kill`]: dropping the stream before the end ends the execution.
    pub on_disconnect: OnDisconnect,
    /// With [`OnDisconnect::Kill`]: how long after a lost connection the caller may attach again before the execution is
    /// ended; see [`Command::disconnect_grace`]. Of a command that has a grace itself, such an attach takes the place of
    /// the call that started it: it slows the command down when it reads slowly. Default: zero.
    pub disconnect_grace: Duration,
}

impl Attach {
    /// From the beginning, or as much of it as is kept; dropping the stream changes nothing.
    pub fn start() -> Self {
        Self::position(0)
    }

    /// From here on; dropping the stream changes nothing.
    pub fn position(position: u64) -> Self {
        Self { position, on_disconnect: OnDisconnect::Detach, disconnect_grace: Duration::ZERO }
    }
}

/// A piece of standard input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Input {
    /// What to write.
    pub data: Bytes,
    /// Bytes of input before `data`, those of the command's start included: what was written already is not written again.
    /// `None`: after whatever there was; of a remote execution this must then be the only writer.
    pub offset: Option<u64>,
    /// Nothing follows: the command sees the end of its input, on a terminal as if its end-of-file character was typed.
    pub close: bool,
}

type EventStream = Pin<Box<dyn Stream<Item = Result<Event, ExecutorError>> + Send>>;

/// A command that was started: the stream of its [`Event`]s.
///
/// The stream begins with [`Event::Started`] and ends after [`Event::Exited`] or [`Event::Promoted`], or after the first
/// error (the command could no longer be followed). A reader that lags behind slows the command down, if it is the one
/// who started it.
///
/// Dropping it before the end does as [`Command::on_disconnect`] says: by default the command is cancelled, and all its
/// processes are ended, in the background. With [`OnDisconnect::Detach`] it runs on without a reader.
pub struct Execution {
    started: Started,
    has_started: bool,
    events: EventStream,
}

impl Execution {
    /// An execution whose remaining events come from `events`; dropping those must end the command.
    pub fn new(started: Started, events: impl Stream<Item = Result<Event, ExecutorError>> + Send + 'static) -> Self {
        Self { started, has_started: false, events: Box::pin(events) }
    }

    /// How it started; the same as its first event.
    pub fn started(&self) -> &Started {
        &self.started
    }

    /// Its name.
    pub fn id(&self) -> &ExecutionId {
        &self.started.id
    }
}

impl Stream for Execution {
    type Item = Result<Event, ExecutorError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if !self.has_started {
            self.has_started = true;
            return Poll::Ready(Some(Ok(Event::Started(self.started.clone()))));
        }
        self.events.as_mut().poll_next(cx)
    }
}

impl fmt::Debug for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Execution").field("started", &self.started).finish_non_exhaustive()
    }
}

/// An execution as it was asked for, and how it is.
#[derive(Clone, Debug, PartialEq)]
pub struct ExecutionInfo {
    /// Names it.
    pub id: ExecutionId,
    /// What it runs.
    pub program: Program,
    /// Where it was started.
    pub working_directory: String,
    /// The name of the user that it runs as.
    pub user: String,
    /// Who started it; empty: this process itself.
    pub identity: String,
    /// It has a terminal.
    pub terminal: bool,
    /// As given at its start.
    pub labels: BTreeMap<String, String>,
    /// What it does now.
    pub state: ExecutionState,
    /// The main process, also after its end.
    pub pid: u32,
    /// By the clock of its machine.
    pub start_time: SystemTime,
    /// Bytes of both streams so far, without those beyond [`Command::max_output_bytes`].
    pub position: u64,
    /// How its main process ended, once it has.
    pub exited: Option<Exited>,
    /// Its live processes, counted for this answer.
    pub processes: u32,
    /// What all its processes together have used so far, those that it left behind included.
    pub usage: Usage,
}

/// The states of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExecutionState {
    /// Its main process runs, or its output is still being delivered.
    Running,
    /// Its main process has exited, and processes that it left behind run on.
    Lingering,
    /// No process of it is left.
    Exited,
}

/// Which executions to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// Only those of this identity; `None`: of anyone.
    pub identity: Option<String>,
    /// Include those that have ended and are still remembered.
    pub include_exited: bool,
    /// Only those that carry all these labels.
    pub labels: BTreeMap<String, String>,
    /// The most to return; 0: 100. More than 1,000 is cut to 1,000.
    pub page_size: u32,
    /// [`ListPage::next_page_token`] of the page before; empty: the first page.
    pub page_token: String,
}

/// Some executions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListPage {
    /// Oldest first.
    pub executions: Vec<ExecutionInfo>,
    /// For the next page; empty: this was the last.
    pub next_page_token: String,
}
