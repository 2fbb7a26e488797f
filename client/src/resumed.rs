//! The events of one execution, across any number of connections.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use telexec_executor::{
    Attach, Command, Event, Execution, Executor, ExecutorError, ExitCause, OnDisconnect, Output, Started,
};
use tokio::time::{Instant, timeout, timeout_at};

use crate::RemoteExecutor;
use crate::cancel_on_drop::CancelOnDrop;
use crate::error::{Forgotten, GivenUp, gone, lost};
use crate::following::{Overdue, ending_time};
use crate::outage::Outage;

/// A connection that lasts this long ends the outage, even without new events.
const STABLE_INTERVAL: Duration = Duration::from_secs(1);

/// How far the agent's promotion may lag behind the time that is kept here.
const PROMOTION_MARGIN: Duration = Duration::from_secs(1);

/// A promotion that the agent does not report is taken to have happened this much later: clocks and timers are not exact.
const PROMOTION_LAG: Duration = Duration::from_millis(20);

/// The times at which a command is to be promoted, ended and reported.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// From its start until it goes to the background, if it still runs.
    yield_after: Option<Duration>,
    /// When the agent ends it.
    pub(crate) deadline: Option<Instant>,
    overdue: Option<Overdue>,
    ending_time: Duration,
    /// How to attach again, apart from the position.
    again: Attach,
}

impl Bounds {
    /// For an attach.
    pub(crate) fn of_attach(from: Attach) -> Self {
        Self { yield_after: None, deadline: None, overdue: None, ending_time: ending_time(None), again: from }
    }

    /// For a command that starts now.
    pub(crate) fn of(command: &Command) -> Self {
        let yield_after = command.yield_after();
        let promotion = yield_after.and_then(|delay| Instant::now().checked_add(delay));
        // once in the background it does not apply
        let deadline = command.deadline().map(Instant::from_std).filter(|at| promotion.is_none_or(|soon| *at <= soon));
        let (on_disconnect, disconnect_grace) = (command.on_disconnect(), command.disconnect_grace());
        let again = Attach { on_disconnect, disconnect_grace, ..Attach::start() };
        let ending_time = ending_time(command.kill_grace());
        Self { yield_after, deadline, overdue: Overdue::of(command), ending_time, again }
    }
}

/// An execution that is followed again when its connection is lost.
pub(crate) struct Resumed {
    executor: RemoteExecutor,
    started: Started,
    followed: Execution,
    /// Followed by the call that has started it.
    is_first: bool,
    /// When it goes to the background, if it still runs.
    promotion: Option<Instant>,
    overdue: Option<Overdue>,
    /// An agent that was ending the command when this connection was made has ended it after this time.
    ending_time: Duration,
    again: Attach,
    outage: Outage,
    /// Ends the command if this is dropped before the end.
    cancel_on_drop: CancelOnDrop,
    /// When this connection was made.
    since: Instant,
    /// Whether it has delivered a new event.
    has_progressed: bool,
    /// The command had ended when this connection was made.
    had_ended: bool,
}

impl Resumed {
    pub(crate) fn new(
        executor: RemoteExecutor,
        followed: Execution,
        bounds: Bounds,
        outage: Outage,
        cancel_on_drop: CancelOnDrop,
    ) -> Self {
        Self {
            executor,
            started: followed.started().clone(),
            is_first: !outage.has_begun(),
            promotion: bounds.yield_after.and_then(|delay| Instant::now().checked_add(delay)),
            overdue: bounds.overdue,
            ending_time: bounds.ending_time,
            again: bounds.again,
            outage,
            cancel_on_drop,
            since: Instant::now(),
            has_progressed: false,
            had_ended: false,
            followed,
        }
    }

    /// To the exit, or to the first error that cannot be recovered from.
    pub(crate) fn into_execution(self) -> Execution {
        let started = self.started.clone();
        let events = stream::unfold(Some(self), |resumed| async move {
            let mut resumed = resumed?;
            let event = resumed.next().await;
            let goes_on = event.as_ref().is_ok_and(|event| !event.is_last());
            Some((event, goes_on.then_some(resumed)))
        });
        Execution::new(started, events)
    }

    async fn next(&mut self) -> Result<Event, ExecutorError> {
        loop {
            match self.event().await {
                Ok(Event::Exited(exited)) if exited.cause == ExitCause::Cancelled && self.was_given_up() => {
                    self.cancel_on_drop.disarm();
                    return Err(lost(self.executor.endpoint(), GivenUp));
                }
                Ok(event) => {
                    if let Some(event) = self.news(event) {
                        return Ok(event);
                    }
                }
                Err(error) => self.resume(error).await?,
            }
        }
    }

    /// Whether the agent has ended the command since this side was out of reach: it had when this connection was made, or
    /// was about to, and so nothing else came. Nobody else has a reason to.
    fn was_given_up(&self) -> bool {
        let was_ending = !self.is_first && !self.has_progressed && self.since.elapsed() < self.ending_time;
        self.again.on_disconnect == OnDisconnect::Kill && (self.had_ended || was_ending)
    }

    /// The next event of this connection.
    async fn event(&mut self) -> Result<Event, ExecutorError> {
        let event = self.followed.next();
        let event = match self.promotion {
            // the agent reports a promotion only to the call that started the command
            Some(at) if !self.is_first => timeout_at(at.checked_add(PROMOTION_LAG).unwrap_or(at), event)
                .await
                .unwrap_or(Some(Ok(Event::Promoted))),
            _ => event.await,
        };
        event.unwrap_or_else(|| Err(lost(self.executor.endpoint(), "the agent sent no more events of the command")))
    }

    /// The part of an event that was not delivered before.
    fn news(&mut self, event: Event) -> Option<Event> {
        let event = match event {
            Event::Started(_) => return None,
            Event::Output(output) => {
                let output = after(output, self.cancel_on_drop.position)?;
                self.cancel_on_drop.position = output.position + output.data.len() as u64;
                Event::Output(output)
            }
            Event::Gap(position) => {
                self.cancel_on_drop.position = position;
                event
            }
            Event::Exited(_) | Event::Promoted => {
                self.cancel_on_drop.disarm();
                event
            }
        };
        self.has_progressed = true;
        Some(event)
    }

    /// Attaches again, at the position where it was lost.
    async fn resume(&mut self, error: ExecutorError) -> Result<(), ExecutorError> {
        if self.has_progressed || self.since.elapsed() >= STABLE_INTERVAL {
            self.outage.is_over();
        }
        self.outage.pause(error).await.map_err(gone)?;
        let (id, position) = (self.cancel_on_drop.id(), self.cancel_on_drop.position);
        let (again, promotion) = (Attach { position, ..self.again }, self.promotion);
        let attach = || self.executor.attach_before(self.overdue, id, unbound_when_promoted(again, promotion));
        let followed = self.outage.repeat(attach).await.map_err(|error| self.failed(error))?;
        self.outage.answered();
        if *followed.started() != self.started {
            return Err(self.forgotten(None));
        }
        self.followed = followed;
        self.is_first = false;
        self.since = Instant::now();
        self.has_progressed = false;
        let has_ended = self.has_ended().await?;
        self.had_ended = has_ended;
        // a command that has ended meanwhile is not reported as promoted
        self.promotion = self.promotion.filter(|_| !has_ended);
        Ok(())
    }

    /// Whether it has ended already, if that matters; not, where the agent does not say. Only when it is to be reported as
    /// promoted is the answer waited for.
    async fn has_ended(&mut self) -> Result<bool, ExecutorError> {
        let get = || self.executor.get(self.cancel_on_drop.id());
        let info = if self.promotion.is_some_and(|at| at <= Instant::now()) {
            match self.outage.repeat(get).await {
                Err(error @ ExecutorError::Denied { .. }) => Err(error),
                info => Ok(info.map_err(|error| self.failed(error))?),
            }
        } else if self.again.on_disconnect == OnDisconnect::Kill {
            timeout(STABLE_INTERVAL, get()).await.unwrap_or(Err(ExecutorError::DeadlineExceeded))
        } else {
            return Ok(false);
        };
        Ok(info.is_ok_and(|info| info.exited.is_some()))
    }

    /// Interprets the agent's error for an attach.
    fn failed(&self, error: ExecutorError) -> ExecutorError {
        match error {
            // OutOfRange: another execution has that id
            ExecutorError::NotFound(_) | ExecutorError::OutOfRange { .. } => self.forgotten(Some(error)),
            error => gone(error),
        }
    }

    fn forgotten(&self, source: Option<ExecutorError>) -> ExecutorError {
        lost(self.executor.endpoint(), Forgotten { id: self.cancel_on_drop.id().clone(), source })
    }
}

/// A command that goes to the background about now is bound to nobody.
fn unbound_when_promoted(from: Attach, promotion: Option<Instant>) -> Attach {
    let margin = PROMOTION_MARGIN.min(from.disconnect_grace / 2);
    match promotion {
        Some(at) if at <= Instant::now() + margin => Attach::position(from.position),
        _ => from,
    }
}

/// The part of a chunk from a position on.
fn after(output: Output, position: u64) -> Option<Output> {
    let known = usize::try_from(position.saturating_sub(output.position)).ok()?;
    let data = (known < output.data.len()).then(|| output.data.slice(known..))?;
    Some(Output { stream: output.stream, data, position: output.position + known as u64 })
}

#[cfg(test)]
mod tests {
    use telexec_executor::OutputStream;

    use super::*;

    #[test]
    fn what_was_delivered_is_not_delivered_again() {
        let chunk =
            |data: &'static [u8], position| Output { stream: OutputStream::Stderr, data: data.into(), position };
        for (position, rest) in [
            (0, Some(chunk(b"abc", 4))),
            (4, Some(chunk(b"abc", 4))),
            (5, Some(chunk(b"bc", 5))),
            (6, Some(chunk(b"c", 6))),
            (7, None),
            (u64::MAX, None),
        ] {
            assert_eq!(after(chunk(b"abc", 4), position), rest);
        }
    }
}
