//! `telexec logs`: prints the output of an execution.

use telexec_client::Agent;
use telexec_executor::{Attach, ExecutionId, Executor, ExecutorError, OutputStream};

use super::find::find;
use crate::args::LogsArgs;
use crate::connect::{Link, call_failure, with_agent};
use crate::follow::{OutputMode, Section, SectionEvent};
use crate::output::{Failure, LastLines, OutputWriter, exit};

/// How much of the end is searched for lines at first.
const TAIL_BYTES: u64 = 64 * 1024;
/// How many times more of it next.
const TAIL_GROWTH: u64 = 8;

pub(crate) async fn run(args: LogsArgs) -> Result<u8, Failure> {
    with_agent(&args.agent.target, &args.connect, async |agent| logs(&args, agent).await).await.map(|()| 0)
}

async fn logs(args: &LogsArgs, agent: &Agent) -> Result<(), Failure> {
    let Link { executor, .. } = args.reconnect.link(agent, &args.agent.target);
    let executor = &*executor;
    let info = find(executor, &args.agent.target, &args.execution.id).await?;
    let failed = |error: ExecutorError| call_failure(exit::of_error(&error), &args.agent.target, &error);
    let start = match args.last_lines() {
        Some(lines) => tail(executor, &info.id, info.position, lines).await.map_err(failed)?,
        None => 0,
    };
    let end = if args.follow { u64::MAX } else { info.position };
    if start >= end {
        return Ok(());
    }
    let execution = executor.attach(&info.id, Attach::position(start)).await.map_err(failed)?;
    print(args, Section::new(execution, start, end)).await
}

async fn print(args: &LogsArgs, mut section: Section) -> Result<(), Failure> {
    let mode = OutputMode { target: &args.agent.target, json: false, raw: false };
    let mut output = OutputWriter::start()?;
    loop {
        let event = section.next().await;
        match event.map_err(|error| call_failure(exit::of_lost(&error), &args.agent.target, &error))? {
            Some(SectionEvent::Output(chunk)) => output.write(chunk.stream, chunk.data).await?,
            Some(SectionEvent::Gap(position)) => output.write(OutputStream::Stderr, mode.gap(position).into()).await?,
            None => return output.finish().await,
        }
    }
}

/// The position where the last lines before `end` begin.
async fn tail(executor: &dyn Executor, id: &ExecutionId, end: u64, count: usize) -> Result<u64, ExecutorError> {
    let mut length = TAIL_BYTES;
    loop {
        let start = end.saturating_sub(length);
        if count == 0 || start == end {
            return Ok(end);
        }
        let mut section = Section::new(executor.attach(id, Attach::position(start)).await?, start, end);
        let mut lines = LastLines::new(count, start);
        while let Some(event) = section.next().await? {
            match event {
                SectionEvent::Output(chunk) => lines.push(&chunk),
                SectionEvent::Gap(position) => lines.gap(position),
            }
        }
        match lines.start() {
            Some(position) => return Ok(position),
            // there is no more to look at
            None if start == 0 => return Ok(0),
            None => length = length.saturating_mul(TAIL_GROWTH),
        }
    }
}
