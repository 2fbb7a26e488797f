//! The stream of an execution's events to a caller.

use std::pin::Pin;

use futures_util::stream::PollNext;
use futures_util::{Stream, StreamExt, stream};
use telexec_executor::{Event, Execution, ExecutionId, ExecutorError, ExitCause};
use telexec_proto::convert::{already_running_to_wire, error_to_status, event_to_wire};
use telexec_proto::v1::ExecutionEvent;
use tonic::Status;

/// The responses of a call that has several. Dropping it, when the call is cancelled or its connection is lost, drops what the
/// call does.
pub(crate) type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The events of an execution.
pub(crate) type EventStream = Responses<ExecutionEvent>;

/// The response to a start or an attach.
///
/// # Errors
/// The start or attach failed.
pub(crate) fn answer(execution: Result<Execution, ExecutorError>) -> Result<EventStream, Status> {
    match execution {
        Ok(execution) => {
            let id = execution.id().clone();
            Ok(execution.flat_map(move |event| stream::iter(to_wire(event, &id))).boxed())
        }
        Err(ExecutorError::AlreadyRunning(info)) => Ok(stream::iter([Ok(already_running_to_wire(*info))]).boxed()),
        Err(error) => Err(error_to_status(&error)),
    }
}

/// The same responses until `failure`, which is then the last. If both are ready, `first` has priority.
pub(crate) fn ended_by<T: Send + 'static>(
    events: Responses<T>,
    failure: impl Future<Output = Status> + Send + 'static,
    first: PollNext,
) -> Responses<T> {
    let failure = stream::once(failure).map(|status| Some(Err(status)));
    // a merged stream would otherwise end with the later of the two
    let events = events.map(Some).chain(stream::iter([None]));
    stream::select_with_strategy(events, failure, move |(): &mut ()| first)
        .scan(false, |over, item| {
            let item = if *over { None } else { item };
            *over = matches!(item, Some(Err(_)));
            std::future::ready(item)
        })
        .boxed()
}

/// The messages of one event: the event, and after an end by deadline also that status.
fn to_wire(
    event: Result<Event, ExecutorError>,
    id: &ExecutionId,
) -> impl Iterator<Item = Result<ExecutionEvent, Status>> + use<> {
    let late = matches!(&event, Ok(Event::Exited(exited)) if exited.cause == ExitCause::DeadlineExceeded);
    let status = late.then(|| Err(error_to_status(&ExecutorError::DeadlineExceeded)));
    let event = event.map(|event| event_to_wire(event, id)).map_err(|error| error_to_status(&error));
    [event].into_iter().chain(status)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use futures_util::FutureExt;
    use telexec_executor::Started;
    use telexec_proto::v1::execution_event::Event as Wire;

    use super::*;

    #[test]
    fn the_start_is_sent_while_the_command_is_silent() {
        let started = Started { id: ExecutionId::generate(), pid: 1, start_time: SystemTime::UNIX_EPOCH };
        let mut events = answer(Ok(Execution::new(started, stream::pending()))).unwrap();
        let first = events.next().now_or_never().flatten().unwrap().unwrap();
        assert!(matches!(first.event, Some(Wire::Started(_))), "{first:?}");
        assert!(events.next().now_or_never().is_none());
    }
}
