//! Between the wire and the domain: the only place that names both.

mod command;
mod event;
mod execution;
mod file;
mod forward;
mod status;
mod time;

pub use command::{attach_from_wire, attach_to_wire, command_from_wire, command_to_wire};
pub use command::{size_from_wire, size_to_wire};
pub use event::{already_running_to_wire, event_from_wire, event_to_wire, exited_to_wire};
pub use execution::{
    execution_from_wire, execution_to_wire, page_from_wire, page_to_wire, query_from_wire, query_to_wire,
};
pub use file::{file_info_from_wire, file_info_to_wire, path_from_wire, path_to_wire, sha256_from_wire};
pub use forward::{ForwardFailure, ForwardStep, forward_failure_from_status, forward_failure_to_status};
pub use status::{error_from_status, error_to_status};
pub use time::duration_to_wire;

use telexec_executor::ExecutorError;

/// The other side did not keep to the protocol.
fn unexpected(what: &str) -> ExecutorError {
    ExecutorError::Internal(format!("invalid answer from the agent: {what}"))
}
