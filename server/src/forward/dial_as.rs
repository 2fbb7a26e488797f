//! Connects to a Unix socket as another user than the agent's own.
//!
//! A process of that user connects, since the kernel then decides whether it may and the other side sees that user. It
//! passes the connection to the agent and ends.

use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;

use telexec_executor::ExecutorError;
use telexec_files::dial::receive;
use telexec_proto::convert::{ForwardFailure, ForwardStep};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;

use super::dial::DialError;
use crate::admission::Stack;
use crate::identity::Identity;
use crate::run_as::{Purpose, start};

/// Connects, as long as this is awaited.
///
/// # Errors
/// The process cannot be started, or the system refuses to connect.
pub(super) async fn dial_as(
    stack: &Stack,
    identity: &Identity,
    user: &str,
    path: &str,
) -> Result<UnixStream, DialError> {
    let failed = |error: &io::Error| DialError::Failed(ForwardFailure::new(ForwardStep::Dial, path, error));
    stack.start_limiter.count(identity)?;
    let (channel, stdin) = ask(path).await.map_err(|error| failed(&error))?;
    // dropped, and with that ended, when this is no longer awaited
    let process = start(&stack.engine, Purpose::Dial, identity.as_str(), Some(user), Some(stdin.into())).await?;
    let answer = channel.async_io(Interest::READABLE, || receive(&channel)).await;
    drop(process);
    let answer = answer.map_err(|error| ExecutorError::Internal(format!("the process that connects: {error}")))?;
    let taken = answer.and_then(|connection| {
        connection.set_nonblocking(true)?;
        UnixStream::from_std(connection)
    });
    taken.map_err(|error| failed(&error))
}

/// Both ends of a channel, in which the path is already.
async fn ask(path: &str) -> io::Result<(UnixStream, StdUnixStream)> {
    let (channel, stdin) = StdUnixStream::pair()?;
    channel.set_nonblocking(true)?;
    let mut channel = UnixStream::from_std(channel)?;
    channel.write_all(path.as_bytes()).await?;
    channel.shutdown().await?;
    Ok((channel, stdin))
}
