//! gRPC statuses of calls.

use prost::Message;
use telexec_executor::InvalidCommand;
use telexec_proto::convert::error_to_status;
use tonic::{Response, Status};

use crate::request_memory::Reservation;

/// A response, if its size fits the caller's memory limit.
///
/// # Errors
/// RESOURCE_EXHAUSTED: it does not.
pub(crate) fn counted<T: Message>(reservation: &Reservation, answer: T) -> Result<Response<T>, Status> {
    match reservation.add(answer.encoded_len()) {
        Ok(()) => Ok(Response::new(answer)),
        Err(excess) => Err(error_to_status(&excess.into())),
    }
}

/// INVALID_ARGUMENT that names the field.
pub(crate) fn invalid(error: InvalidCommand) -> Status {
    error_to_status(&error.into())
}
