//! An executor that answers what a test says: for what the engine does not do at will.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures_util::{StreamExt, stream};

use telexec_executor::{
    Attach, Command, Event, Execution, ExecutionId, ExecutionInfo, ExecutionState, Executor, ExecutorError, ExitCause,
    Exited, Input, ListPage, ListQuery, Output, OutputStream, Program, Signal, Started, StreamTotals, TerminalSize,
    Usage,
};

/// One execution, and what was asked of it.
#[derive(Default)]
pub(crate) struct Fake(Mutex<State>);

#[derive(Default)]
pub(crate) struct State {
    /// What it writes.
    pub(crate) output: Vec<(OutputStream, &'static str)>,
    /// What it writes as soon as it gets input.
    pub(crate) replies: Vec<(OutputStream, &'static str)>,
    /// It has a terminal.
    pub(crate) terminal: bool,
    /// Bytes before this are no longer kept.
    pub(crate) kept_from: u64,
    /// How it ends; `None`: it runs on.
    pub(crate) exited: Option<Exited>,
    /// It becomes a task after its output.
    pub(crate) promoted: bool,
    /// The same command runs.
    pub(crate) duplicate: bool,
    /// The signal that ends it.
    pub(crate) ends_by: Option<Signal>,
    pub(crate) commands: Vec<Command>,
    pub(crate) inputs: Vec<Input>,
    pub(crate) signals: Vec<Signal>,
    pub(crate) queries: Vec<ListQuery>,
}

pub(crate) const ID: &str = "task_123";

impl Fake {
    pub(crate) fn new(state: State) -> std::sync::Arc<Self> {
        std::sync::Arc::new(Self(Mutex::new(state)))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn known(&self, id: &ExecutionId) -> Result<MutexGuard<'_, State>, ExecutorError> {
        if id.as_str() == ID { Ok(self.state()) } else { Err(ExecutorError::NotFound(id.clone())) }
    }
}

impl State {
    fn end(&self) -> u64 {
        self.output.iter().map(|(_, text)| text.len() as u64).sum()
    }

    fn info(&self) -> ExecutionInfo {
        let state = if self.exited.is_some() { ExecutionState::Exited } else { ExecutionState::Running };
        let (position, terminal) = (self.end(), self.terminal);
        ExecutionInfo { position, terminal, exited: self.exited.clone(), ..info(ID, state) }
    }

    fn execution(&self, from: u64) -> Execution {
        let mut events = Vec::new();
        if from < self.kept_from {
            events.push(Event::Gap(self.kept_from));
        }
        let (mut position, from) = (0, from.max(self.kept_from));
        for (stream, text) in &self.output {
            let skipped = usize::try_from(from.saturating_sub(position)).unwrap().min(text.len());
            let data = text.as_bytes()[skipped..].to_vec().into();
            if skipped < text.len() {
                events.push(Event::Output(Output { stream: *stream, data, position: position + skipped as u64 }));
            }
            position += text.len() as u64;
        }
        events.extend(self.exited.clone().map(Event::Exited));
        events.extend(self.promoted.then_some(Event::Promoted));
        let started = Started { id: ID.parse().unwrap(), pid: 1, start_time: SystemTime::UNIX_EPOCH };
        Execution::new(started, stream::iter(events.into_iter().map(Ok)).chain(stream::pending()))
    }
}

#[async_trait]
impl Executor for Fake {
    async fn execute(&self, command: Command) -> Result<Execution, ExecutorError> {
        let mut state = self.state();
        state.commands.push(command);
        match state.duplicate {
            true => Err(ExecutorError::AlreadyRunning(Box::new(state.info()))),
            false => Ok(state.execution(0)),
        }
    }

    async fn attach(&self, id: &ExecutionId, from: Attach) -> Result<Execution, ExecutorError> {
        let state = self.known(id)?;
        match from.position <= state.end() {
            true => Ok(state.execution(from.position)),
            false => Err(ExecutorError::OutOfRange { field: "position".into(), end: state.end() }),
        }
    }

    async fn write_input(&self, id: &ExecutionId, input: Input) -> Result<u64, ExecutorError> {
        let mut state = self.known(id)?;
        state.inputs.push(input);
        let replies = std::mem::take(&mut state.replies);
        state.output.extend(replies);
        Ok(state.inputs.iter().map(|input| input.data.len() as u64).sum())
    }

    async fn resize(&self, _id: &ExecutionId, _size: TerminalSize) -> Result<(), ExecutorError> {
        Ok(())
    }

    async fn signal(&self, id: &ExecutionId, signal: Signal) -> Result<ExecutionInfo, ExecutorError> {
        let mut state = self.known(id)?;
        state.signals.push(signal);
        if state.ends_by == Some(signal) {
            state.exited = Some(Exited { signal: Some(signal), ..exited(ExitCause::Signaled) });
        }
        Ok(state.info())
    }

    async fn get(&self, id: &ExecutionId) -> Result<ExecutionInfo, ExecutorError> {
        Ok(self.known(id)?.info())
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, ExecutorError> {
        let mut state = self.state();
        state.queries.push(query);
        Ok(ListPage { executions: vec![state.info()], next_page_token: String::new() })
    }
}

pub(crate) fn info(id: &str, state: ExecutionState) -> ExecutionInfo {
    ExecutionInfo {
        id: id.parse().unwrap(),
        program: Program::Shell { text: "make".into(), shell: Some("bash".into()), login: true },
        working_directory: "/src".into(),
        user: "user".into(),
        identity: String::new(),
        terminal: false,
        labels: Default::default(),
        state,
        pid: 1,
        start_time: SystemTime::UNIX_EPOCH,
        position: 0,
        exited: None,
        processes: 1,
        usage: Usage::default(),
    }
}

pub(crate) fn exited(cause: ExitCause) -> Exited {
    Exited {
        cause,
        signal: None,
        core_dumped: false,
        wall_time: Duration::ZERO,
        user_time: Duration::ZERO,
        system_time: Duration::ZERO,
        max_rss_bytes: 0,
        receipt: None,
        usage: Usage::default(),
        stdout: StreamTotals::default(),
        stderr: StreamTotals::default(),
        surviving_processes: 0,
        working_directory: None,
        end_time: SystemTime::UNIX_EPOCH,
    }
}
