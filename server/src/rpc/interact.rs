//! `Interact`: one call that starts or attaches to a command, and sends its input.

use std::sync::Arc;

use futures_util::stream::PollNext;
use futures_util::{Stream, StreamExt};
use telexec_executor::{ExecutionId, ExecutionState, Executor, ExecutorError, Input, InvalidCommand};
use telexec_proto::convert::{attach_from_wire, error_to_status, size_from_wire};
use telexec_proto::v1::InteractRequest;
use telexec_proto::v1::interact_request::Request as Step;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;
use tracing::Instrument;

use crate::call::deadline::Deadline;
use crate::call::events::{EventStream, answer, ended_by};
use crate::call::status::invalid;
use crate::request_memory::Reservation;

/// Starts or attaches as the first request says, and carries out the others until the command ends.
///
/// # Errors
/// The first request is malformed, or fails.
pub(crate) async fn interact<E: Executor + 'static>(
    executor: Arc<E>,
    mut requests: impl Stream<Item = Result<InteractRequest, Status>> + Unpin + Send + 'static,
    deadline: &Deadline,
    reservation: Arc<Reservation>,
) -> Result<EventStream, Status> {
    let first = requests.next().await.transpose()?.and_then(|request| request.request);
    let (execution, follows) = match first {
        Some(Step::Start(request)) => (executor.execute(deadline.command(request)?).await, false),
        Some(Step::Attach(request)) => {
            let (id, from) = attach_from_wire(&request).map_err(invalid)?;
            (executor.attach(&id, from).await, true)
        }
        _ => return Err(invalid(InvalidCommand::new("request", "must be start or attach, since it is the first"))),
    };
    reservation.release();
    let id = execution.as_ref().ok().map(|execution| execution.id().clone());
    let events = answer(execution)?;
    let Some(id) = id else { return Ok(events) };
    let steps = Steps { executor, id, reservation }.follow(requests);
    let events = with_steps(events, steps);
    Ok(if follows { deadline.until(events) } else { events })
}

/// The events, while the steps are carried out; a failed step ends them.
fn with_steps(events: EventStream, steps: impl Future<Output = Status> + Send + 'static) -> EventStream {
    // a task of its own: input must continue while the caller does not read, or is flooded with output
    let steps = AbortOnDropHandle::new(tokio::spawn(steps.in_current_span()));
    let failed =
        async { steps.await.unwrap_or_else(|error| error_to_status(&ExecutorError::Internal(error.to_string()))) };
    // events have priority: the end of the command explains why a step failed
    ended_by(events, failed, PollNext::Left)
}

struct Steps<E> {
    executor: Arc<E>,
    id: ExecutionId,
    /// The memory of the current request.
    reservation: Arc<Reservation>,
}

impl<E: Executor> Steps<E> {
    /// Carries out the steps in order; returns when one fails.
    async fn follow(self, mut requests: impl Stream<Item = Result<InteractRequest, Status>> + Unpin + Send) -> Status {
        while let Some(request) = requests.next().await {
            let step = match request {
                Ok(request) => request.request,
                // a message that is too long, say; after a lost connection this is not received
                Err(status) => return status,
            };
            if let Err(status) = self.take(step).await {
                return status;
            }
            self.reservation.release();
        }
        // fails for a command without input, which does not matter
        let _ = self.executor.write_input(&self.id, Input { close: true, ..Input::default() }).await;
        std::future::pending().await
    }

    async fn take(&self, step: Option<Step>) -> Result<(), Status> {
        // as with a pipe, a command need not read all of its input; its exit status reports the rest
        let reads_no_more = matches!(step, Some(Step::Stdin(_)));
        let taken = match step {
            Some(Step::Stdin(data)) => self.write(Input { data, ..Input::default() }).await,
            Some(Step::CloseStdin(true)) => self.write(Input { close: true, ..Input::default() }).await,
            Some(Step::CloseStdin(false)) => Ok(()),
            Some(Step::Resize(size)) => self.executor.resize(&self.id, size_from_wire(size).map_err(invalid)?).await,
            Some(Step::Signal(signal)) => {
                let signal = signal.parse().map_err(invalid)?;
                self.executor.signal(&self.id, signal).await.map(|_| ())
            }
            Some(Step::Start(_) | Step::Attach(_)) => {
                return Err(invalid(InvalidCommand::new(
                    "request",
                    "must not be start or attach, since it is not the first",
                )));
            }
            None => return Err(invalid(InvalidCommand::new("request", "is empty"))),
        };
        match taken {
            Err(ExecutorError::FailedPrecondition { .. }) if reads_no_more && self.accepts_input().await => Ok(()),
            Err(ExecutorError::FailedPrecondition { .. }) if self.has_ended().await => Ok(()),
            taken => taken.map_err(|error| error_to_status(&error)),
        }
    }

    /// An empty write succeeds for any input, also for one that is closed.
    async fn accepts_input(&self) -> bool {
        self.write(Input::default()).await.is_ok()
    }

    async fn write(&self, input: Input) -> Result<(), ExecutorError> {
        self.executor.write_input(&self.id, input).await.map(|_| ())
    }

    async fn has_ended(&self) -> bool {
        self.executor.get(&self.id).await.is_ok_and(|info| info.state != ExecutionState::Running)
    }
}
