//! The deadlines of calls (grpc-timeout), counted from the moment their requests were received.

use std::time::Instant;

use futures_util::stream::PollNext;
use telexec_proto::convert::{command_from_wire, error_to_status};
use telexec_proto::timeout;
use telexec_proto::v1::ExecuteRequest;
use telexec_tool::{Command, ExecutorError};
use tonic::{Request, Status};

use crate::events::{EventStream, ended_by};
use crate::execution_service::invalid;

/// When the call is to be answered; `None`: it may take for ever.
///
/// # Errors
/// The header is malformed.
pub(crate) fn deadline<T>(request: &Request<T>) -> Result<Option<Instant>, Status> {
    let received = Instant::now();
    let Some(value) = request.metadata().get(timeout::HEADER) else { return Ok(None) };
    // so long a time that no clock holds it is no deadline
    Ok(received.checked_add(timeout::parse(value.as_bytes()).map_err(invalid)?))
}

/// The command that is asked for, to be ended at the call's deadline.
///
/// # Errors
/// It is malformed, or the deadline has passed already.
pub(crate) fn command_before(request: ExecuteRequest, deadline: Option<Instant>) -> Result<Command, Status> {
    let command = command_from_wire(request, deadline).map_err(invalid)?;
    match deadline {
        Some(deadline) if deadline <= Instant::now() => Err(error_to_status(&ExecutorError::DeadlineExceeded)),
        _ => Ok(command),
    }
}

/// The status of a deadline, once it has passed.
pub(crate) async fn passed(deadline: Option<Instant>) -> Status {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
    error_to_status(&ExecutorError::DeadlineExceeded)
}

/// The same events, until the deadline: of calls that only follow a command.
pub(crate) fn until(deadline: Option<Instant>, events: EventStream) -> EventStream {
    match deadline {
        Some(_) => ended_by(events, passed(deadline), PollNext::Right),
        None => events,
    }
}
