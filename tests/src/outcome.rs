//! A whole execution, as a caller of an executor sees it.

use futures_util::StreamExt;
use telexec_tool::{CommandBuilder, Event, Execution, Executor, ExecutorError, Exited, OutputStream, Started};

use crate::within;

/// Everything that an execution told.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How it started.
    pub started: Started,
    /// All of its standard output.
    pub stdout: Vec<u8>,
    /// All of its standard error.
    pub stderr: Vec<u8>,
    /// All events, in their order.
    pub events: Vec<Event>,
    /// How it ended.
    pub exited: Exited,
}

impl Outcome {
    /// Standard output as text.
    ///
    /// # Panics
    /// It is not UTF-8.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }
}

/// Starts a command and follows it to its end.
///
/// # Errors
/// It did not run, or could not be followed.
///
/// # Panics
/// It hangs, or its events are not in the order that the contract promises.
pub async fn run(executor: &(impl Executor + ?Sized), command: CommandBuilder) -> Result<Outcome, ExecutorError> {
    let command = command.build()?;
    let execution = within(executor.execute(command)).await?;
    collect(execution).await
}

/// Follows an execution to its end.
///
/// # Errors
/// It could not be followed.
///
/// # Panics
/// It hangs, or its events are not in the order that the contract promises.
pub async fn collect(execution: Execution) -> Result<Outcome, ExecutorError> {
    let first = execution.started().clone();
    let events: Vec<Event> = within(execution.collect::<Vec<_>>()).await.into_iter().collect::<Result<_, _>>()?;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let Some((Event::Started(started), rest)) = events.split_first() else { panic!("no start: {events:?}") };
    let Some((Event::Exited(exited), outputs)) = rest.split_last() else { panic!("no exit: {rest:?}") };
    assert_eq!(*started, first);
    // an output that is dropped leaves a hole, and nothing else does
    let holes = exited.stdout.dropped_bytes + exited.stderr.dropped_bytes > 0;
    for event in outputs {
        let Event::Output(output) = event else { panic!("between start and exit: {event:?}") };
        let told = (stdout.len() + stderr.len()) as u64;
        assert!(output.position == told || (holes && output.position > told), "position {} at {told}", output.position);
        match output.stream {
            OutputStream::Stdout => stdout.extend_from_slice(&output.data),
            OutputStream::Stderr => stderr.extend_from_slice(&output.data),
        }
    }
    assert_eq!(stdout.len() as u64, exited.stdout.bytes - exited.stdout.dropped_bytes);
    assert_eq!(stderr.len() as u64, exited.stderr.bytes - exited.stderr.dropped_bytes);
    let (started, exited) = (started.clone(), exited.clone());
    Ok(Outcome { started, stdout, stderr, events, exited })
}

/// Reads until standard output has told this text; what else it read is lost.
///
/// # Panics
/// The execution ends before, or hangs.
pub async fn until_told(execution: &mut Execution, text: &str) {
    let mut told = Vec::new();
    while !String::from_utf8_lossy(&told).contains(text) {
        match within(execution.next()).await {
            Some(Ok(Event::Output(output))) if output.stream == OutputStream::Stdout => told.extend(output.data),
            Some(Ok(Event::Started(_) | Event::Output(_))) => {}
            end => panic!("no {text:?} before {end:?}"),
        }
    }
}
