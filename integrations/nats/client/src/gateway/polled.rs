//! Follows an execution that was not started by a message: the agent is asked for each event.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use telexec_executor::{Attach, ExecutionId, OnDisconnect};
use telexec_proto::v1::{
    AttachRequest, ExecutionEvent, GetExecutionRequest, GetExecutionResponse, Started, execution_event,
};
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

use super::Gateway;
use super::answers::not_found;
use super::executions::Events;
use crate::cancel::CancelOnDrop;
use crate::events::is_last;

/// An agent answers after half of it that nothing has happened.
const TIMEOUT: Duration = Duration::from_secs(60);
const RETRY_DELAY: Duration = Duration::from_millis(500);

struct Polled {
    gateway: Gateway,
    agent: String,
    request: AttachRequest,
    /// Since then the agent does not answer.
    away: Option<Instant>,
    /// Ends the command if this is dropped before the end.
    cancel: CancelOnDrop,
}

/// Its events from a position on.
pub(super) async fn follow(gateway: Gateway, agent: String, id: ExecutionId, from: Attach) -> Result<Events, Status> {
    let request = GetExecutionRequest { execution_id: id.to_string() };
    let found: GetExecutionResponse = gateway.ask("GetExecution", &request).await?;
    let found = found.execution.ok_or_else(|| not_found(id.as_str()))?;
    let started = Started { execution_id: id.to_string(), pid: found.pid, start_time: found.start_time };
    let started = ExecutionEvent { event: Some(execution_event::Event::Started(started)), position: 0 };
    let cancel = gateway.cancel_on_drop(id.as_str(), from.on_disconnect == OnDisconnect::Kill);
    let request = AttachRequest { execution_id: id.to_string(), position: from.position, ..AttachRequest::default() };
    let polled = Polled { gateway, agent, request, away: None, cancel };
    let events = stream::unfold(Some(polled), |polled| async move {
        let mut polled = polled?;
        let event = polled.next().await;
        let goes_on = event.as_ref().is_ok_and(|event| !is_last(event));
        if event.as_ref().is_ok_and(is_last) || event.as_ref().is_err_and(|status| status.code() == Code::NotFound) {
            polled.cancel.disarm();
        }
        Some((event, goes_on.then_some(polled)))
    });
    Ok(stream::iter([Ok(started)]).chain(events).boxed())
}

impl Polled {
    async fn next(&mut self) -> Result<ExecutionEvent, Status> {
        use execution_event::Event;
        loop {
            let asked = Instant::now();
            let answer = self.gateway.0.nats.ask(&self.agent, "Attach", &self.request, TIMEOUT).await;
            let event: ExecutionEvent = match answer {
                Ok(event) => event,
                Err(status) if status.code() == Code::DeadlineExceeded => {
                    self.away = None;
                    continue;
                }
                Err(status) if matches!(status.code(), Code::Unavailable | Code::ResourceExhausted) => {
                    let away = *self.away.get_or_insert(asked);
                    if away.elapsed() >= self.gateway.0.options.give_up_after {
                        return Err(Status::unavailable(status.message()));
                    }
                    sleep(RETRY_DELAY).await;
                    continue;
                }
                Err(status) => return Err(status),
            };
            self.away = None;
            match &event.event {
                Some(Event::Stdout(data) | Event::Stderr(data)) => {
                    self.request.position = event.position.saturating_add(data.len() as u64);
                }
                Some(Event::Gap(gap)) => self.request.position = gap.resume_position,
                _ => {}
            }
            return Ok(event);
        }
    }
}
