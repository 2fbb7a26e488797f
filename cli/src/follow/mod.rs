//! Follows an execution, for `exec` from its start and for `attach` later: its output, its input (`interaction`), and
//! how it ends.

mod interaction;

use futures_util::StreamExt;
use telexec_executor::{Event, Execution, ExecutionId, Exited, OutputStream};

pub(crate) use self::interaction::{Interaction, StdinOptions};
use crate::connect::call_failure;
use crate::output::{Failure, OutputWriter, exit, json, print_message};
use crate::syntax::Destination;

/// Why following ended.
pub(crate) enum FollowEnd {
    /// The command has ended.
    Exited(Exited),
    /// It keeps running in the background.
    Promoted,
    /// The detach keys were typed.
    Detached,
}

impl FollowEnd {
    /// Prints what the output does not show, and returns the exit code.
    pub(crate) fn report(&self, target: &Destination, id: &ExecutionId) -> u8 {
        match self {
            Self::Exited(exited) => {
                if let Some(explanation) = exit::explanation(exited) {
                    print_message(&format!("{target}: {explanation}"));
                }
                exit::of_exit(exited)
            }
            Self::Promoted => {
                print_message(&format!("{target}: the command keeps running in the background"));
                print_message(&attach_hint(target, id));
                0
            }
            Self::Detached => {
                print_message(&format!("{target}: detached; the command keeps running"));
                print_message(&attach_hint(target, id));
                0
            }
        }
    }
}

/// How to follow it again.
pub(crate) fn attach_hint(target: &Destination, id: &ExecutionId) -> String {
    format!("follow it with `telexec attach {target} {id}`")
}

/// How to print events.
pub(crate) struct OutputMode<'a> {
    pub(crate) target: &'a Destination,
    /// As JSON lines.
    pub(crate) json: bool,
    /// The terminal is in raw mode, where a line feed does not return the carriage.
    pub(crate) raw: bool,
}

/// Prints events until they or `interaction` end. An error abandons the execution.
pub(crate) async fn follow(
    execution: Execution,
    mode: OutputMode<'_>,
    interaction: impl Future<Output = Result<FollowEnd, Failure>>,
) -> Result<FollowEnd, Failure> {
    tokio::select! {
        ending = write_events(execution, mode) => ending,
        ending = interaction => ending,
    }
}

async fn write_events(mut execution: Execution, mode: OutputMode<'_>) -> Result<FollowEnd, Failure> {
    let mut output = OutputWriter::start()?;
    while let Some(event) = execution.next().await {
        let event = event.map_err(|error| call_failure(exit::of_lost(&error), mode.target, &error))?;
        if mode.json {
            let line = json::line(&event).map_err(|error| Failure::new(exit::LOST, &error))?;
            output.write(OutputStream::Stdout, line.into()).await?;
        }
        match event {
            Event::Output(chunk) if !mode.json => output.write(chunk.stream, chunk.data).await?,
            Event::Gap(position) => output.write(OutputStream::Stderr, mode.gap(position).into()).await?,
            Event::Started(_) | Event::Output(_) => {}
            Event::Exited(exited) => return output.finish().await.map(|()| FollowEnd::Exited(exited)),
            Event::Promoted => return output.finish().await.map(|()| FollowEnd::Promoted),
        }
    }
    Err(Failure::message(exit::LOST, format!("{}: the agent did not report how the command ended", mode.target)))
}

impl OutputMode<'_> {
    /// Written to the output stream, so that it appears where the output is missing.
    fn gap(&self, position: u64) -> String {
        let end = if self.raw { "\r\n" } else { "\n" };
        format!("telexec: {}: output is missing here: it is available from position {position} on{end}", self.target)
    }
}
