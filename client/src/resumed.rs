//! The events of one execution, across any number of connections.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use telexec_executor::{Attach, Command, Event, Execution, Executor, ExecutorError, Output, Started};
use tokio::time::{Instant, timeout_at};

use crate::RemoteExecutor;
use crate::cancel_on_drop::CancelOnDrop;
use crate::error::{Forgotten, gone, lost};
use crate::following::Overdue;
use crate::outage::Outage;

/// A connection that lasts so long counts as one, whether or not it told anything.
const STEADY: Duration = Duration::from_secs(1);

/// What is due to happen to a command.
#[derive(Clone, Copy, Default)]
pub(crate) struct Bounds {
    /// From its start until it goes to the background, if it still runs.
    yield_after: Option<Duration>,
    /// When the agent ends it.
    pub(crate) deadline: Option<Instant>,
    overdue: Option<Overdue>,
}

impl Bounds {
    /// Of a command that is to start now.
    pub(crate) fn of(command: &Command) -> Self {
        let yield_after = command.yield_after();
        let promotion = yield_after.and_then(|delay| Instant::now().checked_add(delay));
        // in the background it does not matter
        let deadline = command.deadline().map(Instant::from_std).filter(|at| promotion.is_none_or(|soon| *at <= soon));
        Self { yield_after, deadline, overdue: Overdue::of(command) }
    }
}

/// An execution that is followed again when its connection is lost.
pub(crate) struct Resumed {
    executor: RemoteExecutor,
    started: Started,
    followed: Execution,
    /// By the call that has started it.
    is_first: bool,
    /// When it goes to the background, if it still runs.
    promotion: Option<Instant>,
    overdue: Option<Overdue>,
    outage: Outage,
    /// Dropped with this, before the end: the command is ended.
    cancel_on_drop: CancelOnDrop,
    /// Since when this connection is there.
    since: Instant,
    /// It has told something new.
    has_progressed: bool,
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
            outage,
            cancel_on_drop,
            since: Instant::now(),
            has_progressed: false,
            followed,
        }
    }

    /// To the exit, or to the first error that is not made up for.
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
                Ok(event) => {
                    if let Some(event) = self.news(event) {
                        return Ok(event);
                    }
                }
                Err(error) => self.resume(error).await?,
            }
        }
    }

    /// What this connection tells next.
    async fn event(&mut self) -> Result<Event, ExecutorError> {
        let event = self.followed.next();
        let event = match self.promotion {
            // only the call that has started it is told that by the agent
            Some(at) if !self.is_first => timeout_at(at, event).await.unwrap_or(Some(Ok(Event::Promoted))),
            _ => event.await,
        };
        event.unwrap_or_else(|| Err(lost(self.executor.endpoint(), "the agent sent no more events of the command")))
    }

    /// What of an event was not told before.
    fn news(&mut self, event: Event) -> Option<Event> {
        let event = match event {
            Event::Started(_) => return None,
            Event::Output(output) => Event::Output(after(output, self.cancel_on_drop.position)?),
            event => event,
        };
        match &event {
            Event::Output(output) => self.cancel_on_drop.position = output.position + output.data.len() as u64,
            Event::Gap(position) => self.cancel_on_drop.position = *position,
            event if event.is_last() => self.cancel_on_drop.disarm(),
            _ => {}
        }
        self.has_progressed = true;
        Some(event)
    }

    /// Follows it again, from where it was lost.
    async fn resume(&mut self, error: ExecutorError) -> Result<(), ExecutorError> {
        if self.has_progressed || self.since.elapsed() >= STEADY {
            self.outage.is_over();
        }
        self.outage.pause(error).await.map_err(gone)?;
        let (id, from) = (self.cancel_on_drop.id(), Attach::position(self.cancel_on_drop.position));
        let attach = || self.executor.attach_before(self.overdue, id, from);
        let followed = self.outage.repeat(attach).await.map_err(|error| self.failed(error))?;
        if *followed.started() != self.started {
            return Err(self.forgotten(None));
        }
        self.followed = followed;
        self.is_first = false;
        self.since = Instant::now();
        self.has_progressed = false;
        self.forgo_promotion_if_ended().await
    }

    /// One that has ended meanwhile need not be told to be in the background.
    async fn forgo_promotion_if_ended(&mut self) -> Result<(), ExecutorError> {
        if self.promotion.is_none_or(|at| Instant::now() < at) {
            return Ok(());
        }
        let info = self.outage.repeat(|| self.executor.get(self.cancel_on_drop.id())).await;
        if info.map_err(|error| self.failed(error))?.exited.is_some() {
            self.promotion = None;
        }
        Ok(())
    }

    /// What the agent's answer to one who comes back means.
    fn failed(&self, error: ExecutorError) -> ExecutorError {
        match error {
            // the second: it knows another one by that id
            ExecutorError::NotFound(_) | ExecutorError::OutOfRange { .. } => self.forgotten(Some(error)),
            error => gone(error),
        }
    }

    fn forgotten(&self, source: Option<ExecutorError>) -> ExecutorError {
        lost(self.executor.endpoint(), Forgotten { id: self.cancel_on_drop.id().clone(), source })
    }
}

/// What of a chunk is at and after a position.
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
    fn what_was_told_is_not_told_again() {
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
