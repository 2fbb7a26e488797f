//! The statuses that calls are answered with.

use prost::Message;
use telexec_executor::InvalidCommand;
use telexec_proto::convert::error_to_status;
use tonic::{Response, Status};

use crate::request_memory::Reservation;

/// An answer, if there is room for it.
///
/// # Errors
/// RESOURCE_EXHAUSTED.
pub(crate) fn counted<T: Message>(reservation: &Reservation, answer: T) -> Result<Response<T>, Status> {
    match reservation.add(answer.encoded_len()) {
        Ok(()) => Ok(Response::new(answer)),
        Err(excess) => Err(error_to_status(&excess.into())),
    }
}

/// INVALID_ARGUMENT, with the field.
pub(crate) fn invalid(error: InvalidCommand) -> Status {
    error_to_status(&error.into())
}
