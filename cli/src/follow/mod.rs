//! An execution that is followed, by `exec` from its start and by `attach` later: its output, what is typed for it
//! (`interaction`), and how that ends.

mod interaction;

use futures_util::StreamExt;
use telexec_executor::{Event, Execution, ExecutionId, Exited, OutputStream};

pub(crate) use self::interaction::{Feed, Interaction};
use crate::connect::call_failure;
use crate::output::{Failure, Output, exit, json, say};
use crate::syntax::Destination;

/// Why it is followed no more.
pub(crate) enum Ending {
    /// It has ended.
    Exited(Exited),
    /// It runs on in the background.
    Promoted,
    /// The detach keys were typed.
    Detached,
}

impl Ending {
    /// Says what the output does not tell, and gives the exit code.
    pub(crate) fn conclude(&self, target: &Destination, id: &ExecutionId) -> u8 {
        match self {
            Self::Exited(exited) => {
                if let Some(remark) = exit::remark(exited) {
                    say(&format!("{target}: {remark}"));
                }
                exit::of_exit(exited)
            }
            Self::Promoted => {
                say(&format!("{target}: the command keeps running in the background"));
                say(&follows(target, id));
                0
            }
            Self::Detached => {
                say(&format!("{target}: detached; the command keeps running"));
                say(&follows(target, id));
                0
            }
        }
    }
}

/// How to get back to it.
pub(crate) fn follows(target: &Destination, id: &ExecutionId) -> String {
    format!("follow it with `telexec attach {target} {id}`")
}

/// How events are shown.
pub(crate) struct Shown<'a> {
    pub(crate) target: &'a Destination,
    /// As JSON lines.
    pub(crate) json: bool,
    /// On a terminal in raw mode, where a line feed only goes down.
    pub(crate) raw: bool,
}

/// Writes the events as they come, until they or `interaction` end. Any error gives the execution up.
pub(crate) async fn follow(
    execution: Execution,
    shown: Shown<'_>,
    interaction: impl Future<Output = Result<Ending, Failure>>,
) -> Result<Ending, Failure> {
    tokio::select! {
        ending = write_events(execution, shown) => ending,
        ending = interaction => ending,
    }
}

async fn write_events(mut execution: Execution, shown: Shown<'_>) -> Result<Ending, Failure> {
    let mut output = Output::start()?;
    while let Some(event) = execution.next().await {
        let event = event.map_err(|error| call_failure(exit::of_lost(&error), shown.target, &error))?;
        if shown.json {
            let line = json::line(&event).map_err(|error| Failure::new(exit::LOST, &error))?;
            output.write(OutputStream::Stdout, line.into()).await?;
        }
        match event {
            Event::Output(chunk) if !shown.json => output.write(chunk.stream, chunk.data).await?,
            Event::Gap(position) => output.write(OutputStream::Stderr, shown.gap(position).into()).await?,
            Event::Started(_) | Event::Output(_) => {}
            Event::Exited(exited) => return output.finish().await.map(|()| Ending::Exited(exited)),
            Event::Promoted => return output.finish().await.map(|()| Ending::Promoted),
        }
    }
    Err(Failure::text(exit::LOST, format!("{}: the agent did not report how the command ended", shown.target)))
}

impl Shown<'_> {
    /// Goes the way of the output, so that it stands where the output is missing.
    fn gap(&self, position: u64) -> String {
        let end = if self.raw { "\r\n" } else { "\n" };
        format!("telexec: {}: output is missing here: it is available from position {position} on{end}", self.target)
    }
}
