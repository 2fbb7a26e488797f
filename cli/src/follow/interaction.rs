//! What goes to an execution while it is followed: standard input, the size of the window, and the keys that leave it.

use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use telexec_client::RemoteExecutor;
use telexec_executor::{ExecutionId, Executor, ExecutorError, Input, TerminalSize};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::signal::unix::{SignalKind, signal};

use super::Ending;
use crate::connect::call_failure;
use crate::output::{Failure, exit, say_meanwhile};
use crate::syntax::Destination;
use crate::terminal::{self, DetachFilter, DetachKeys, RawMode, stdin};

/// Input that waits to be taken. A message of this size is far from what an agent refuses.
const PENDING_BYTES: usize = 1024 * 1024;
/// For what was typed before the detach keys, if the command takes it.
const LAST_INPUT: Duration = Duration::from_secs(1);

/// The execution that it goes to.
pub(crate) struct Interaction<'a> {
    pub(crate) target: &'a Destination,
    pub(crate) executor: &'a RemoteExecutor,
    pub(crate) id: &'a ExecutionId,
}

/// How standard input is sent.
pub(crate) struct Feed {
    /// Bytes of input before it; `None`: others may write too.
    pub(crate) offset: Option<u64>,
    /// It is a terminal, whose keys all go to the command.
    pub(crate) raw: bool,
    /// But for these.
    pub(crate) keys: Option<DetachKeys>,
    /// Say so if the command takes no more.
    pub(crate) tell_unread: bool,
}

/// Why no more of standard input is read.
enum Last {
    End,
    DetachKeys,
}

/// What became of standard input.
enum Fed {
    Sent,
    /// The command does not take it, for this reason. How it ended, if it did, is told by its own stream.
    Unread(String),
    Detached,
}

impl Interaction<'_> {
    /// Ends only when the detach keys are typed, or by an error. `window` is the size that the command's terminal has.
    pub(crate) async fn run(&self, feed: Option<Feed>, window: Option<TerminalSize>) -> Result<Ending, Failure> {
        let input = async {
            match feed {
                Some(feed) => self.feed(feed).await,
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

    async fn feed(&self, Feed { offset, raw, keys, tell_unread }: Feed) -> Result<Ending, Failure> {
        let raw = raw.then(RawMode::enter).transpose()?;
        match self.send_stdin(offset, keys).await? {
            Fed::Detached => return Ok(Ending::Detached),
            Fed::Sent => {}
            Fed::Unread(reason) => {
                // without it no key would do anything any more, Ctrl-C neither
                drop(raw);
                if tell_unread {
                    say_meanwhile(format!("{}: input is not forwarded: {reason}", self.target)).await;
                }
                return std::future::pending().await;
            }
        }
        std::future::pending().await
    }

    /// Sends standard input, piece by piece. While the command does not take it, the detach keys are still found.
    async fn send_stdin(&self, mut offset: Option<u64>, keys: Option<DetachKeys>) -> Result<Fed, Failure> {
        let (typed, mut pending) = tokio::io::duplex(PENDING_BYTES);
        let sent = {
            let mut sending = pin!(self.send(&mut pending, &mut offset));
            let last = tokio::select! {
                last = read(typed, keys) => last.map_err(|error| unreadable(&error))?,
                sent = &mut sending => return self.fed(sent),
            };
            match last {
                Last::DetachKeys => {
                    let _ = tokio::time::timeout(LAST_INPUT, sending).await;
                    return Ok(Fed::Detached);
                }
                Last::End => sending.await,
            }
        };
        match sent {
            Ok(()) => self.fed(self.write(Bytes::new(), true, &mut offset).await),
            failed => self.fed(failed),
        }
    }

    fn fed(&self, sent: Result<(), ExecutorError>) -> Result<Fed, Failure> {
        match sent {
            Ok(()) => Ok(Fed::Sent),
            Err(
                error @ (ExecutorError::FailedPrecondition { .. }
                | ExecutorError::NotFound(_)
                | ExecutorError::ShuttingDown),
            ) => Ok(Fed::Unread(error.to_string())),
            Err(error) => Err(call_failure(exit::of_lost(&error), self.target, &error)),
        }
    }

    /// Sends what comes, as much at once as there is.
    async fn send(&self, pending: &mut DuplexStream, offset: &mut Option<u64>) -> Result<(), ExecutorError> {
        let mut buffer = bytes::BytesMut::new();
        loop {
            buffer.reserve(PENDING_BYTES);
            // the pipe is in this process, and does not fail
            match pending.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => return Ok(()),
                Ok(_) => self.write(buffer.split().freeze(), false, offset).await?,
            }
        }
    }

    async fn write(&self, data: Bytes, close: bool, offset: &mut Option<u64>) -> Result<(), ExecutorError> {
        let end = self.executor.write_input(self.id, Input { data, offset: *offset, close }).await?;
        *offset = offset.map(|_| end);
        Ok(())
    }

    /// Tells each new size of the window; `told` is known.
    async fn follow_window(&self, mut told: TerminalSize) -> Result<Ending, Failure> {
        let failed = |error: io::Error| Failure::new(exit::LOST, &error).during("cannot watch the size of the window");
        let mut changes = signal(SignalKind::window_change()).map_err(failed)?;
        loop {
            let size = terminal::size().unwrap_or(told);
            if size != told {
                // one that has ended needs no size, and a lost connection is told by the stream
                let _ = self.executor.resize(self.id, size).await;
                told = size;
            }
            if changes.recv().await.is_none() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Reads standard input up to its end or the detach keys.
async fn read(mut typed: DuplexStream, keys: Option<DetachKeys>) -> io::Result<Last> {
    let mut filter = keys.as_ref().map(DetachFilter::new);
    let mut chunks = stdin::read()?;
    while let Some(chunk) = chunks.recv().await.transpose()? {
        let Some(filter) = &mut filter else {
            typed.write_all(&chunk).await?;
            continue;
        };
        let (passed, detached) = filter.pass(&chunk);
        typed.write_all(&passed).await?;
        if detached {
            return Ok(Last::DetachKeys);
        }
    }
    if let Some(filter) = &mut filter {
        typed.write_all(&filter.rest()).await?;
    }
    Ok(Last::End)
}

fn unreadable(error: &io::Error) -> Failure {
    Failure::new(exit::LOST, error).during("cannot read standard input")
}
