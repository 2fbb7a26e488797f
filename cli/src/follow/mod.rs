//! Follows an execution, for `exec` from its start and for `attach` later: its output, its input (`interaction`), and
//! how it ends.

mod interaction;
mod section;

use std::fmt;
use std::io::{self, IsTerminal};
use std::time::Duration;

use futures_util::StreamExt;
use telexec_executor::{Event, Execution, ExecutionId, ExecutorError, Exited, OutputStream};

pub(crate) use self::interaction::{InputPosition, Interaction, StdinOptions};
pub(crate) use self::section::{Section, SectionEvent};
use crate::config::ConnectArgs;
use crate::connect::{Outages, call_failure};
use crate::output::{Failure, OutputWriter, exit, json, print_message, print_message_async};
use crate::syntax::Destination;

/// Shorter outages are not reported.
const OUTAGE_DELAY: Duration = Duration::from_millis(300);

/// Why following ended.
pub(crate) enum FollowEnd {
    /// The command has ended. With `incomplete`, part of its output was not received.
    Exited { exited: Box<Exited>, incomplete: bool },
    /// It keeps running in the background.
    Promoted,
    /// The detach keys were typed.
    Detached,
    /// `~.` was typed while the connection was lost.
    Left,
}

impl FollowEnd {
    /// Prints what the output does not show, and returns the exit code.
    pub(crate) fn report(&self, target: &Destination, again: &AttachHint<'_>) -> u8 {
        match self {
            Self::Exited { exited, incomplete } => {
                if let Some(explanation) = exit::explanation(exited) {
                    print_message(&format!("{target}: {explanation}"));
                }
                match exit::of_exit(exited) {
                    0 if *incomplete => {
                        print_message(&format!(
                            "{target}: the command exited with 0, but part of its output is missing"
                        ));
                        exit::LOST
                    }
                    code => code,
                }
            }
            Self::Promoted => {
                print_message(&format!("{target}: the command keeps running in the background"));
                print_message(&again.to_string());
                0
            }
            Self::Detached => {
                print_message(&format!("{target}: detached; the command keeps running"));
                print_message(&again.to_string());
                0
            }
            Self::Left => {
                let rest = match again.ends_after {
                    None => "the command keeps running".to_owned(),
                    Some(grace) => {
                        format!(
                            "the command ends unless it is followed again within {}",
                            humantime::format_duration(grace)
                        )
                    }
                };
                print_message(&format!("{target}: left while the connection was lost; {rest}"));
                print_message(&again.text(again.ends_after.is_some()));
                exit::LOST
            }
        }
    }
}

/// How to follow it again: a command that works where this one did.
pub(crate) struct AttachHint<'a> {
    pub(crate) target: &'a Destination,
    pub(crate) id: &'a ExecutionId,
    /// Keys typed here went to it.
    pub(crate) interactive: bool,
    /// How long it waits for a caller whose connection is lost. `None`: it does not depend on one.
    pub(crate) ends_after: Option<Duration>,
    pub(crate) connect: &'a ConnectArgs,
}

impl fmt::Display for AttachHint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(false))
    }
}

impl AttachHint<'_> {
    /// `as_caller`: as the one that the command waits for, which others do not keep from ending.
    fn text(&self, as_caller: bool) -> String {
        let (target, id) = (self.target.to_string(), self.id.to_string());
        let mut words = vec!["telexec".to_owned(), "attach".to_owned()];
        words.extend(self.interactive.then(|| "-i".to_owned()));
        words.extend(as_caller.then(|| "--kill-on-disconnect".to_owned()));
        words.extend(self.connect.given());
        words.extend([target, id]);
        // a word that no shell takes has a NUL, and there is none
        let command = shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" "));
        format!("follow it with `{command}`")
    }
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
    outages: Outages,
    interaction: impl Future<Output = Result<FollowEnd, Failure>>,
) -> Result<FollowEnd, Failure> {
    tokio::select! {
        ending = write_events(execution, &mode) => ending,
        ending = interaction => ending,
        never = report_outages(&mode, outages) => never,
    }
}

/// Prints that a connection is lost, to who sees it, and that it is there again.
async fn report_outages(mode: &OutputMode<'_>, mut outages: Outages) -> ! {
    if !io::stderr().is_terminal() {
        std::future::pending::<()>().await;
    }
    let print = async |text: String| match mode.raw {
        true => print_message_async(format!("{text}\r")).await,
        false => print_message_async(text).await,
    };
    loop {
        outages.until(true).await;
        // most are over at once
        if tokio::time::timeout(OUTAGE_DELAY, outages.until(false)).await.is_ok() {
            continue;
        }
        let leave = if mode.raw { "; to leave, type ~. on a new line" } else { "" };
        let limit = humantime::format_duration(outages.limit);
        print(format!("{}: connection lost, reconnecting for up to {limit}{leave}", mode.target)).await;
        outages.until(false).await;
        print(format!("{}: reconnected", mode.target)).await;
    }
}

async fn write_events(mut execution: Execution, mode: &OutputMode<'_>) -> Result<FollowEnd, Failure> {
    let mut output = if mode.raw { OutputWriter::to_terminal() } else { OutputWriter::start() }?;
    let mut incomplete = false;
    while let Some(event) = execution.next().await {
        let event = event.map_err(|error| {
            let is_ended = matches!(error, ExecutorError::Denied { .. });
            let failure = call_failure(exit::of_lost(&error), mode.target, &error);
            failure.hint(is_ended.then_some(
                "the command had started: the agent ended this call, and with it the command unless it was detached",
            ))
        })?;
        if mode.json {
            let line = json::line(&event).map_err(|error| Failure::new(exit::LOST, &error))?;
            output.write(OutputStream::Stdout, line.into()).await?;
        }
        match event {
            Event::Output(chunk) if !mode.json => output.write(chunk.stream, chunk.data).await?,
            Event::Gap(position) => {
                incomplete = true;
                // as JSON it is an event
                if !mode.json {
                    output.write(OutputStream::Stderr, mode.gap(position).into()).await?;
                }
            }
            Event::Started(_) | Event::Output(_) => {}
            Event::Exited(exited) => {
                incomplete |= exit::loss(&exited).is_some();
                return output.finish().await.map(|()| FollowEnd::Exited { exited: exited.into(), incomplete });
            }
            Event::Promoted => return output.finish().await.map(|()| FollowEnd::Promoted),
        }
    }
    Err(Failure::message(exit::LOST, format!("{}: the agent did not report how the command ended", mode.target)))
}

impl OutputMode<'_> {
    /// Written to the output stream, so that it appears where the output is missing.
    pub(crate) fn gap(&self, position: u64) -> String {
        let end = if self.raw { "\r\n" } else { "\n" };
        format!("telexec: {}: output is missing here: it is available from position {position} on{end}", self.target)
    }
}
