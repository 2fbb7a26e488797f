//! The events of one execution, as they arrive.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, stream};
use telexec_executor::{Command, Event, ExecutorError};
use telexec_proto::convert::event_from_wire;
use telexec_proto::v1::ExecutionEvent;
use tokio::time::Instant;
use tonic::Streaming;

use crate::error;

/// An agent's own default for the time from SIGTERM to SIGKILL.
const DEFAULT_KILL_GRACE: Duration = Duration::from_secs(2);
/// More than that cannot be added to a clock for sure.
const LONGEST_GRACE: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// For an end that was due to be reported.
const SLACK: Duration = Duration::from_secs(5);

/// A running command's stream. Dropping it resets the stream, which tells the agent to end the command.
pub(crate) struct Following {
    stream: Streaming<ExecutionEvent>,
    overdue: Option<Overdue>,
    endpoint: Arc<str>,
}

/// When an agent that keeps deadlines would have reported the end, even of a command that had to be killed.
#[derive(Clone, Copy)]
pub(crate) struct Overdue {
    at: Instant,
    /// Output that is still arriving puts it off so long: a slow reader gets all of it.
    quiet: Duration,
}

impl Overdue {
    /// Of this command; `None`: it has no deadline.
    pub(crate) fn of(command: &Command) -> Option<Self> {
        let quiet = command.kill_grace().unwrap_or(DEFAULT_KILL_GRACE).min(LONGEST_GRACE) + SLACK;
        let at = command.deadline().and_then(|deadline| deadline.checked_add(quiet))?;
        Some(Self { at: at.into(), quiet })
    }
}

impl Following {
    pub(crate) fn new(stream: Streaming<ExecutionEvent>, overdue: Option<Overdue>, endpoint: Arc<str>) -> Self {
        Self { stream, overdue, endpoint }
    }

    /// The next event; not to be called after the exit or an error.
    pub(crate) async fn next(&mut self) -> Result<Event, ExecutorError> {
        let message = match &self.overdue {
            None => self.stream.message().await,
            Some(overdue) => {
                let until = overdue.at.max(Instant::now() + overdue.quiet);
                let message = tokio::time::timeout_at(until, self.stream.message()).await;
                message.map_err(|_| ExecutorError::DeadlineExceeded)?
            }
        };
        match message {
            Ok(Some(event)) => event_from_wire(event),
            Ok(None) => Err(error::lost(&self.endpoint, "the agent did not report how the command ended")),
            Err(status) => Err(error::following(status, &self.endpoint)),
        }
    }

    /// What is left, to the exit or the first error. The status after an exit has nothing to add to it.
    pub(crate) fn into_stream(self) -> impl Stream<Item = Result<Event, ExecutorError>> + Send {
        stream::unfold(Some(self), |following| async move {
            let mut following = following?;
            let event = following.next().await;
            let goes_on = event.as_ref().is_ok_and(|event| !event.is_last());
            Some((event, goes_on.then_some(following)))
        })
    }
}
