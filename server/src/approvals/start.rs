//! What is approved: one start, as the agent has resolved it.

use prost::Message;
use telexec_executor::ExecutionId;
use telexec_proto::convert::command_to_wire;
use telexec_proto::v1::{ExecuteRequest, TerminalSize};

use crate::policy::Facts;

/// A longer request is no matter for a review.
const MAX_REQUEST_BYTES: usize = 64 * 1024;
/// It does not matter, and windows are resized.
const ANY_SIZE: TerminalSize = TerminalSize { columns: 80, rows: 24 };

/// A start.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    /// All that it is by, without its id.
    request: ExecuteRequest,
    user_id: Option<u32>,
    /// The same as far as others may see it.
    shown: ExecuteRequest,
    pub(crate) named_command: Option<String>,
    /// The id that the request gives it.
    pub(crate) execution_id: Option<ExecutionId>,
}

impl Start {
    /// # Errors
    /// It is too long, in words for the caller.
    pub(crate) fn new(facts: &Facts) -> Result<Self, String> {
        let command = &facts.command;
        let mut request = command_to_wire(command);
        request.execution_id.clear();
        request.terminal = request.terminal.map(|_| ANY_SIZE);
        if let Some(place) = facts.place() {
            request.user.clone_from(&place.user);
            request.working_directory.clone_from(&place.working_directory);
            if !request.command.is_empty() {
                request.shell = place.shell.clone().unwrap_or_default();
            }
            request.no_new_privileges = place.no_new_privileges;
        }
        let bytes = request.encoded_len();
        if bytes > MAX_REQUEST_BYTES {
            return Err(too_long(bytes));
        }
        Ok(Self {
            shown: shown(&request, facts),
            request,
            user_id: facts.place().map(|place| place.uid),
            named_command: command.named_command().map(str::to_owned),
            execution_id: command.execution_id().cloned(),
        })
    }

    /// Whether it is the same but for its id.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.request == other.request && self.user_id == other.user_id && self.named_command == other.named_command
    }

    /// To whom it is shown: callers see no definitions of named commands.
    pub(crate) fn shown(&self, to_reviewer: bool) -> Option<ExecuteRequest> {
        (to_reviewer || self.named_command.is_none()).then(|| self.shown.clone())
    }
}

/// Without the variables that the definition of a named command sets, which may be secrets of the configuration.
fn shown(request: &ExecuteRequest, facts: &Facts) -> ExecuteRequest {
    let mut shown = request.clone();
    if facts.are_of_named_command() {
        let given = facts.variables();
        shown.environment.retain(|name, _| given.contains(name.as_str()));
    }
    shown
}

fn too_long(bytes: usize) -> String {
    format!(
        "another identity would have to approve this, but the request has {bytes} bytes, and at most {MAX_REQUEST_BYTES} \
         can be approved"
    )
}
