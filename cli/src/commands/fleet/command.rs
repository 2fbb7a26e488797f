//! The command that is sent to each host.

use std::sync::Arc;
use std::time::Duration;

use telexec_executor::{Command, ExecutionId, OnDisconnect};

use super::hosts::Host;
use crate::args::FleetCommandArgs;
use crate::output::{Failure, exit};

/// The label of all executions of a `fleet -d`.
pub(crate) const LABEL: &str = "telexec.fleet";
/// Maximum length of the host's name in an execution ID.
const MAX_NAME_BYTES: usize = 80;

/// Builds the command of each host.
#[derive(Clone, Debug)]
pub(crate) struct CommandTemplate {
    args: Arc<FleetCommandArgs>,
    /// The ID of the run, if it is in the background.
    fleet: Option<ExecutionId>,
}

impl CommandTemplate {
    /// # Errors
    /// There is no command, or it is invalid on any host.
    pub(crate) fn new(args: FleetCommandArgs, fleet: Option<ExecutionId>) -> Result<Self, Failure> {
        if args.command.text.is_none() && args.command.argv.is_empty() {
            return Err(Failure::message(exit::USAGE, "no command given")
                .hint(Some("use PROGRAM [ARG]..., or -c 'SHELL TEXT'; see `telexec fleet --help`")));
        }
        let this = Self { args: Arc::new(args), fleet };
        this.build(None, None).map_err(|error| Failure::new(exit::REFUSED, &error))?;
        Ok(this)
    }

    /// # Errors
    /// The configured user of the host is invalid.
    pub(crate) fn command(&self, host: &Host) -> Result<Command, telexec_executor::InvalidCommand> {
        self.build(host.resolved.user.as_ref(), self.fleet.as_ref().map(|fleet| execution_id_on(fleet, &host.name)))
    }

    /// The command as text.
    pub(crate) fn text(&self) -> String {
        self.args.command.to_text()
    }

    fn build(
        &self,
        user: Option<&String>,
        id: Option<Result<ExecutionId, telexec_executor::InvalidCommand>>,
    ) -> Result<Command, telexec_executor::InvalidCommand> {
        let args = &self.args;
        let mut builder = args.command.builder();
        if let Some(user) = &args.user {
            builder = builder.user(user);
        }
        if let Some(user) = user {
            builder = builder.default_user(user);
        }
        if let Some(directory) = &args.workdir {
            builder = builder.working_directory(directory);
        }
        if let Some(timeout) = args.timeout.or(args.short_timeout) {
            builder = builder.timeout(timeout);
        }
        if let Some(id) = id.transpose()? {
            builder = builder.execution_id(id).on_disconnect(OnDisconnect::Detach).yield_after(Duration::ZERO);
        }
        let fleet = self.fleet.iter().map(|fleet| (LABEL.to_owned(), fleet.to_string()));
        builder.accepts_input(args.stdin).receipt(args.receipt).labels(fleet).build()
    }
}

/// The execution ID on a host. It is derived from the run's ID and the name, so that it need not be stored.
pub(crate) fn execution_id_on(
    fleet: &ExecutionId,
    host: &str,
) -> Result<ExecutionId, telexec_executor::InvalidCommand> {
    let fits = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let name: String = host.chars().map(fits).collect();
    // the end of a path is more specific than its beginning
    let name = name.get(name.len().saturating_sub(MAX_NAME_BYTES)..).unwrap_or_default();
    format!("{fleet}.{name}").parse()
}
