//! What is approved: one start, as the agent has resolved it.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use telexec_executor::{Command, ExecutorError, Program};
use telexec_proto::convert::{command_from_wire, command_to_wire};
use telexec_proto::v1::{ExecuteRequest, TerminalSize};

use crate::analysis::CommandAnalysis;
use crate::digest::sha256;
use crate::policy::Facts;

/// A longer request is nothing that somebody could look at.
const MAX_REQUEST_BYTES: usize = 64 * 1024;
/// It does not matter, and windows are resized.
const ANY_SIZE: TerminalSize = TerminalSize { columns: 80, rows: 24 };

/// A start. It equals another one that is the same but for its id.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    /// Of all that it is.
    digest: String,
    /// The request as others see it, encoded.
    shown: Bytes,
    pub(crate) named_command: Option<String>,
}

impl PartialEq for Start {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Start {
    /// # Errors
    /// [`ExecutorError::Denied`]: it is too long.
    pub(crate) fn new(facts: &Facts) -> Result<Self, ExecutorError> {
        let command = &facts.command;
        check_length(at_least(command))?;
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
        check_length(request.encoded_len())?;
        let user_id = facts.place().map(|place| place.uid);
        // the last one may contain anything
        let all = format!("{user_id:?} {:?} {}", command.named_command(), sha256(&request.encode_to_vec()));
        if facts.are_of_named_command() {
            // what its definition sets may be secrets of the configuration
            let given = facts.variables();
            request.environment.retain(|name, _| given.contains(name.as_str()));
        }
        Ok(Self {
            digest: sha256(all.as_bytes()),
            shown: request.encode_to_vec().into(),
            named_command: command.named_command().map(str::to_owned),
        })
    }

    /// The request as others see it.
    pub(crate) fn shown(&self) -> ExecuteRequest {
        // it was encoded here
        ExecuteRequest::decode(self.shown.clone()).unwrap_or_default()
    }

    /// The command, for records.
    ///
    /// # Errors
    /// [`ExecutorError::Internal`]: it is none.
    pub(crate) fn command(&self) -> Result<(Command, Arc<CommandAnalysis>), ExecutorError> {
        let request = self.shown();
        let analysis = CommandAnalysis::new(Some(request.shell.as_str()).filter(|shell| !shell.is_empty()));
        let command = command_from_wire(request, None).map_err(|error| ExecutorError::Internal(error.to_string()))?;
        let command = match &self.named_command {
            Some(name) => command.with_named_command(name),
            None => command,
        };
        Ok((command, analysis))
    }

    /// What is kept of it.
    pub(crate) fn bytes(&self) -> usize {
        self.shown.len()
    }
}

/// The length of a request, or less.
fn at_least(command: &Command) -> usize {
    let program = match command.program() {
        Program::Shell { text, .. } => text.len(),
        Program::Argv(argv) => argv.iter().map(String::len).sum(),
    };
    let pairs = command.environment().iter().chain(command.labels());
    program + command.stdin().len() + pairs.map(|(key, value)| key.len() + value.len()).sum::<usize>()
}

fn check_length(bytes: usize) -> Result<(), ExecutorError> {
    if bytes <= MAX_REQUEST_BYTES {
        return Ok(());
    }
    Err(ExecutorError::denied(format!(
        "another identity's approval is required, but the request has {bytes} bytes or more, and at most \
         {MAX_REQUEST_BYTES} can be approved"
    )))
}
