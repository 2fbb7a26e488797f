//! A whole execution, as a caller of an executor sees it.

use futures_util::StreamExt;
use telexec_executor::{
    CommandBuilder, Event, Execution, Executor, ExecutorError, Exited, Output, OutputStream, Started,
};

use crate::within;

/// Everything that an execution reported.
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
        let reported = (stdout.len() + stderr.len()) as u64;
        assert!(
            output.position == reported || (holes && output.position > reported),
            "position {} at {reported}",
            output.position
        );
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

/// Reads until standard output has had this text; what else it read is lost.
///
/// # Panics
/// The execution ends before, or hangs.
pub async fn until_output(execution: &mut Execution, text: &str) {
    let mut reported = Vec::new();
    while !String::from_utf8_lossy(&reported).contains(text) {
        match within(execution.next()).await {
            Some(Ok(Event::Output(output))) if output.stream == OutputStream::Stdout => reported.extend(output.data),
            Some(Ok(Event::Started(_) | Event::Output(_))) => {}
            end => panic!("no {text:?} before {end:?}"),
        }
    }
}

/// How it ends; what it read before that is lost.
///
/// # Panics
/// It does not, or hangs.
pub async fn exit_of(mut execution: Execution) -> Exited {
    loop {
        match within(execution.next()).await {
            Some(Ok(Event::Exited(exited))) => return exited,
            Some(Ok(Event::Started(_) | Event::Output(_))) => {}
            end => panic!("no exit: {end:?}"),
        }
    }
}

/// What a follower received from some position on, with the gaps.
#[derive(Clone, Debug)]
pub struct Replay {
    /// How the command started.
    pub started: Started,
    /// All chunks, in their order.
    pub outputs: Vec<Output>,
    /// What was missing: from where, to where.
    pub gaps: Vec<(u64, u64)>,
    /// How it ended; `None`: it continues in the background.
    pub exited: Option<Exited>,
}

impl Replay {
    /// All of one stream, without what was missing.
    pub fn bytes(&self, stream: OutputStream) -> Vec<u8> {
        let chunks = self.outputs.iter().filter(|output| output.stream == stream);
        chunks.flat_map(|output| output.data.iter().copied()).collect()
    }

    /// All of standard output as text, without what was missing.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes(OutputStream::Stdout)).into_owned()
    }

    /// Each byte with its stream, from `position` on, in the order of the positions.
    pub fn from(&self, position: u64) -> Vec<(OutputStream, u8)> {
        let each = |output: &Output| {
            let (at, stream) = (output.position, output.stream);
            output.data.clone().into_iter().zip(at..).map(move |(byte, at)| (at, stream, byte)).collect::<Vec<_>>()
        };
        let bytes = self.outputs.iter().flat_map(each).filter(|(at, ..)| *at >= position);
        bytes.map(|(_, stream, byte)| (stream, byte)).collect()
    }

    /// How it ended.
    ///
    /// # Panics
    /// It went into the background.
    pub fn exited(&self) -> &Exited {
        self.exited.as_ref().expect("it has ended")
    }
}

/// Follows an execution from a position to the end of its stream.
///
/// # Panics
/// It hangs or fails, or a byte is missing, repeated or misplaced without a gap that shows it.
pub async fn replay(execution: Execution, from: u64) -> Replay {
    let first = execution.started().clone();
    let events: Vec<_> = within(execution.collect::<Vec<_>>()).await;
    let mut events = events.into_iter().map(|event| event.expect("it can be followed"));
    assert_eq!(events.next(), Some(Event::Started(first.clone())));
    let mut replay = Replay { started: first, outputs: Vec::new(), gaps: Vec::new(), exited: None };
    let mut position = from;
    let last = loop {
        match events.next() {
            Some(Event::Output(output)) => {
                assert_eq!(output.position, position);
                assert!(!output.data.is_empty());
                position += output.data.len() as u64;
                replay.outputs.push(output);
            }
            Some(Event::Gap(to)) => {
                assert!(to > position, "a gap from {position} to {to}");
                replay.gaps.push((position, to));
                position = to;
            }
            last => break last,
        }
    };
    match last {
        Some(Event::Exited(exited)) => {
            assert_eq!(position, exited.stdout.bytes + exited.stderr.bytes, "the end is not where the totals say");
            replay.exited = Some(exited);
        }
        Some(Event::Promoted) => {}
        other => panic!("after the output: {other:?}"),
    }
    assert_eq!(events.next(), None, "after the last event");
    replay
}
