//! What is sent to an execution while it is followed: standard input and the window size; and the detach keys.

use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use telexec_executor::{ExecutionId, ExecutorError, Input, TerminalSize};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::signal::unix::{SignalKind, signal};

use super::FollowEnd;
use crate::connect::{Link, call_failure, is_lost};
use crate::output::{Failure, exit, print_message_async, with_causes};
use crate::syntax::Destination;
use crate::terminal::{self, DetachFilter, DetachKeys, EscapeFilter, RawMode, stdin};

/// Input waiting to be sent. Well below the message size that agents accept.
const PENDING_BYTES: usize = 1024 * 1024;
/// How long an agent has to answer someone who wants to leave a session that looks dead.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long to send input that was typed before the detach keys.
const FINAL_INPUT_TIMEOUT: Duration = Duration::from_secs(1);

/// The execution that receives it.
pub(crate) struct Interaction<'a> {
    pub(crate) target: &'a Destination,
    pub(crate) link: &'a Link,
    pub(crate) id: &'a ExecutionId,
}

/// Where input is written.
#[derive(Clone, Copy)]
pub(crate) enum InputPosition {
    /// At this offset: nobody else writes.
    At(u64),
    /// At the end of what all have written, which was `last` after the last write.
    End { last: Option<u64> },
}

/// How to forward standard input.
pub(crate) struct StdinOptions {
    pub(crate) position: InputPosition,
    /// Standard input is a terminal, to be put into raw mode.
    pub(crate) raw: bool,
    /// The detach keys.
    pub(crate) keys: Option<DetachKeys>,
    /// Print a message when the command stops accepting input.
    pub(crate) warn_unread: bool,
}

/// Why reading standard input ended.
enum ReadEnd {
    End,
    DetachKeys,
    /// `~.` while the connection was lost.
    Left,
}

/// How forwarding standard input ended.
enum StdinResult {
    Sent,
    /// The command does not accept it, for this reason. Its event stream reports how it ended.
    Unread(String),
    Detached,
    Left,
}

impl Interaction<'_> {
    /// Returns only after the detach keys or an error. `window` is the current size of the command's terminal.
    pub(crate) async fn run(
        &self,
        feed: Option<StdinOptions>,
        window: Option<TerminalSize>,
    ) -> Result<FollowEnd, Failure> {
        let input = async {
            match feed {
                Some(feed) => self.forward_stdin(feed).await,
                None => std::future::pending().await,
            }
        };
        let window = async {
            match window {
                Some(size) => self.follow_window(size).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ending = input => ending,
            ending = window => ending,
        }
    }

    async fn forward_stdin(
        &self,
        StdinOptions { position, raw, keys, warn_unread }: StdinOptions,
    ) -> Result<FollowEnd, Failure> {
        let raw = raw.then(RawMode::enter).transpose()?;
        let escape = (raw.is_some() && self.link.outages.may_end()).then(EscapeFilter::new);
        match self.send_stdin(position, keys, escape).await? {
            StdinResult::Detached => return Ok(FollowEnd::Detached),
            StdinResult::Left => return Ok(FollowEnd::Left),
            StdinResult::Sent => {}
            StdinResult::Unread(reason) => {
                // leave raw mode: otherwise no key would have any effect, not even Ctrl-C
                drop(raw);
                if warn_unread {
                    print_message_async(format!("{}: input is not forwarded: {reason}", self.target)).await;
                }
                return std::future::pending().await;
            }
        }
        std::future::pending().await
    }

    /// Forwards standard input. The detach keys are recognized even while the command does not read.
    async fn send_stdin(
        &self,
        mut position: InputPosition,
        keys: Option<DetachKeys>,
        escape: Option<EscapeFilter>,
    ) -> Result<StdinResult, Failure> {
        let (typed, mut pending) = tokio::io::duplex(PENDING_BYTES);
        let sent = {
            let mut sending = pin!(self.send(&mut pending, &mut position));
            let last = tokio::select! {
                last = self.read(typed, keys, escape) => last.map_err(|error| unreadable(&error))?,
                sent = &mut sending => return self.stdin_result(sent),
            };
            match last {
                ReadEnd::DetachKeys => {
                    let _ = tokio::time::timeout(FINAL_INPUT_TIMEOUT, sending).await;
                    return Ok(StdinResult::Detached);
                }
                ReadEnd::Left => return Ok(StdinResult::Left),
                ReadEnd::End => sending.await,
            }
        };
        match sent {
            Ok(()) => self.stdin_result(self.write(Bytes::new(), true, &mut position).await),
            failed => self.stdin_result(failed),
        }
    }

    /// Reads standard input until its end or the keys that leave it.
    async fn read(
        &self,
        mut typed: DuplexStream,
        keys: Option<DetachKeys>,
        mut escape: Option<EscapeFilter>,
    ) -> io::Result<ReadEnd> {
        let mut filter = keys.as_ref().map(DetachFilter::new);
        let mut chunks = stdin::read()?;
        while let Some(mut chunk) = chunks.recv().await.transpose()? {
            if let Some(escape) = &mut escape {
                match self.without_escape(escape, &chunk).await {
                    Some(passed) => chunk = passed.into(),
                    None => return Ok(ReadEnd::Left),
                }
            }
            let Some(filter) = &mut filter else {
                typed.write_all(&chunk).await?;
                continue;
            };
            let (passed, detached) = filter.pass(&chunk);
            typed.write_all(&passed).await?;
            if detached {
                return Ok(ReadEnd::DetachKeys);
            }
        }
        if let Some(escape) = &mut escape {
            typed.write_all(escape.rest()).await?;
        }
        if let Some(filter) = &mut filter {
            typed.write_all(&filter.rest()).await?;
        }
        Ok(ReadEnd::End)
    }

    /// The input for the command; `None`: the session is left.
    async fn without_escape(&self, escape: &mut EscapeFilter, typed: &[u8]) -> Option<Vec<u8>> {
        let (mut input, mut rest) = escape.pass(typed);
        while let Some(after) = rest {
            if !self.is_connected().await {
                return None;
            }
            input.extend(b"~.");
            let (more, next) = escape.pass(after);
            input.extend(more);
            rest = next;
        }
        Some(input)
    }

    /// Whether the agent answers. Until the keepalive fails, only that shows that a connection is lost.
    async fn is_connected(&self) -> bool {
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, self.link.executor.get(self.id));
        !self.link.outages.is_lost() && answer.await.is_ok_and(|answer| !is_lost(&answer))
    }

    fn stdin_result(&self, sent: Result<(), ExecutorError>) -> Result<StdinResult, Failure> {
        match sent {
            Ok(()) => Ok(StdinResult::Sent),
            Err(
                error @ (ExecutorError::FailedPrecondition { .. }
                | ExecutorError::NotFound(_)
                | ExecutorError::ShuttingDown),
            ) => Ok(StdinResult::Unread(with_causes(&error))),
            Err(error) => Err(call_failure(exit::of_lost(&error), self.target, &error)),
        }
    }

    /// Sends pending input, in as large chunks as available.
    async fn send(&self, pending: &mut DuplexStream, position: &mut InputPosition) -> Result<(), ExecutorError> {
        let mut buffer = bytes::BytesMut::new();
        loop {
            buffer.reserve(PENDING_BYTES);
            // an in-process pipe does not fail
            match pending.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => return Ok(()),
                Ok(_) => self.write(buffer.split().freeze(), false, position).await?,
            }
        }
    }

    async fn write(&self, data: Bytes, close: bool, position: &mut InputPosition) -> Result<(), ExecutorError> {
        match position {
            InputPosition::At(offset) => *offset = self.link.write(self.id, data, close, *offset).await?,
            InputPosition::End { last } => *last = Some(self.append(data, close, *last).await?),
        }
        Ok(())
    }

    /// Writes after what others have written; `last` is the end after the last write. If the connection is lost meanwhile,
    /// what has arrived since is taken for this input, which is exact unless others write at this moment.
    async fn append(&self, data: Bytes, close: bool, last: Option<u64>) -> Result<u64, ExecutorError> {
        // an empty write returns the offset of the end
        let end = async || self.link.write(self.id, Bytes::new(), false, 0).await;
        let last = match last {
            Some(last) => last,
            None => end().await?,
        };
        let written = self.link.executor.write_input(self.id, Input { data: data.clone(), offset: None, close }).await;
        if !(self.link.outages.may_end() && is_lost(&written)) {
            return written;
        }
        let end = end().await?;
        let arrived = usize::try_from(end.saturating_sub(last)).unwrap_or(usize::MAX).min(data.len());
        self.link.write(self.id, data.slice(arrived..), close, end).await
    }

    /// Sends every new window size; the agent has `known`.
    async fn follow_window(&self, mut known: TerminalSize) -> Result<FollowEnd, Failure> {
        let failed = |error: io::Error| Failure::new(exit::LOST, &error).context("cannot watch the size of the window");
        let mut changes = signal(SignalKind::window_change()).map_err(failed)?;
        loop {
            let size = terminal::size().unwrap_or(known);
            if size != known {
                // other errors do not matter: the event stream reports an ended command and a lost connection
                let _ = self.link.repeat(|| self.link.executor.resize(self.id, size)).await;
                known = size;
            }
            if changes.recv().await.is_none() {
                std::future::pending::<()>().await;
            }
        }
    }
}

fn unreadable(error: &io::Error) -> Failure {
    Failure::new(exit::LOST, error).context("cannot read standard input")
}
