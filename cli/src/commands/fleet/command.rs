//! What is to run, as it is sent to each host.

use std::sync::Arc;
use std::time::Duration;

use telexec_executor::{Command, ExecutionId, OnDisconnect};

use super::hosts::Host;
use crate::args::FleetCommandArgs;
use crate::output::{Failure, exit};

/// The label of all executions of one `fleet -d`.
pub(crate) const LABEL: &str = "telexec.fleet";
/// Of a host's name, so much fits into an id.
const NAME_BYTES: usize = 80;

/// Makes each host's command.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    args: Arc<FleetCommandArgs>,
    /// Of what goes to the background.
    fleet: Option<ExecutionId>,
}

impl Recipe {
    /// # Errors
    /// There is nothing to run, or it can be nobody's command.
    pub(crate) fn new(args: FleetCommandArgs, fleet: Option<ExecutionId>) -> Result<Self, Failure> {
        if args.command.text.is_none() && args.command.argv.is_empty() {
            return Err(Failure::text(exit::USAGE, "no command given")
                .advice(Some("use -c 'SHELL TEXT' or -- PROGRAM [ARG]...; see `telexec fleet --help`")));
        }
        let this = Self { args: Arc::new(args), fleet };
        this.build(None, None).map_err(|error| Failure::new(exit::REFUSED, &error))?;
        Ok(this)
    }

    /// # Errors
    /// The host's user is none.
    pub(crate) fn command(&self, host: &Host) -> Result<Command, telexec_executor::InvalidCommand> {
        self.build(host.place.user.as_ref(), self.fleet.as_ref().map(|fleet| id_on(fleet, &host.name)))
    }

    /// In words.
    pub(crate) fn text(&self) -> String {
        self.args.command.in_words()
    }

    fn build(
        &self,
        user: Option<&String>,
        id: Option<Result<ExecutionId, telexec_executor::InvalidCommand>>,
    ) -> Result<Command, telexec_executor::InvalidCommand> {
        let args = &self.args;
        let mut builder = args.command.builder();
        if let Some(user) = args.user.as_ref().or(user) {
            builder = builder.user(user);
        }
        if let Some(directory) = &args.workdir {
            builder = builder.working_directory(directory);
        }
        if let Some(timeout) = args.timeout {
            builder = builder.timeout(timeout);
        }
        if let Some(id) = id.transpose()? {
            builder = builder.execution_id(id).on_disconnect(OnDisconnect::Detach).yield_after(Duration::ZERO);
        }
        let fleet = self.fleet.iter().map(|fleet| (LABEL.to_owned(), fleet.to_string()));
        builder.accepts_input(args.stdin).labels(fleet).build()
    }
}

/// A host's execution of a fleet: the id says both, so that nothing needs to be remembered to find it again.
pub(crate) fn id_on(fleet: &ExecutionId, host: &str) -> Result<ExecutionId, telexec_executor::InvalidCommand> {
    let fits = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let name: String = host.chars().map(fits).collect();
    // the end of a path tells more than its beginning
    let name = name.get(name.len().saturating_sub(NAME_BYTES)..).unwrap_or_default();
    format!("{fleet}.{name}").parse()
}
