//! The event stream of one execution.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, stream};
use telexec_executor::{Command, Event, ExecutorError};
use telexec_proto::convert::event_from_wire;
use tokio::time::Instant;

use crate::error;
use crate::events::Events;

/// The agent's default time from SIGTERM to SIGKILL.
const DEFAULT_KILL_GRACE: Duration = Duration::from_secs(2);
/// Longer times might overflow the clock.
const MAX_KILL_GRACE: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Extra time for the report of an end.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// A running command's stream. Dropping it resets the stream, upon which the agent ends the command.
pub(crate) struct Following {
    events: Events,
    overdue: Option<Overdue>,
    endpoint: Arc<str>,
}

/// When an agent that keeps deadlines would have reported the end, even of a command that had to be killed.
#[derive(Clone, Copy)]
pub(crate) struct Overdue {
    at: Instant,
    /// While output arrives, it is postponed by this, so that slow readers get all of it.
    quiet: Duration,
}

impl Overdue {
    /// For this command; `None`: it has no deadline.
    pub(crate) fn of(command: &Command) -> Option<Self> {
        let quiet = ending_time(command.kill_grace());
        let at = command.deadline().and_then(|deadline| deadline.checked_add(quiet))?;
        Some(Self { at: at.into(), quiet })
    }
}

/// How long an agent takes to end a command with this kill grace (`None`: the default), and to report that.
pub(crate) fn ending_time(kill_grace: Option<Duration>) -> Duration {
    kill_grace.unwrap_or(DEFAULT_KILL_GRACE).min(MAX_KILL_GRACE) + REPORT_TIMEOUT
}

impl Following {
    pub(crate) fn new(events: Events, overdue: Option<Overdue>, endpoint: Arc<str>) -> Self {
        Self { events, overdue, endpoint }
    }

    /// The next event. Must not be called after the exit or an error.
    pub(crate) async fn next(&mut self) -> Result<Event, ExecutorError> {
        let message = match &self.overdue {
            None => self.events.next().await,
            Some(overdue) => {
                let until = overdue.at.max(Instant::now() + overdue.quiet);
                let message = tokio::time::timeout_at(until, self.events.next()).await;
                message.map_err(|_| ExecutorError::DeadlineExceeded)?
            }
        };
        match message {
            Ok(Some(event)) => event_from_wire(event),
            Ok(None) => Err(error::lost(&self.endpoint, "the agent did not report how the command ended")),
            Err(status) => Err(error::following(status, &self.endpoint)),
        }
    }

    /// The remaining events, to the exit or the first error. The status after an exit is ignored.
    pub(crate) fn into_stream(self) -> impl Stream<Item = Result<Event, ExecutorError>> + Send {
        stream::unfold(Some(self), |following| async move {
            let mut following = following?;
            let event = following.next().await;
            let goes_on = event.as_ref().is_ok_and(|event| !event.is_last());
            Some((event, goes_on.then_some(following)))
        })
    }
}
