//! The agent that a subcommand calls, and the executions there.

use clap::Args;
use telexec_executor::{ExecutionId, InvalidCommand};

use super::complete;
use crate::syntax::{Destination, parse_agent};

/// Of what needs no agent that keeps running.
#[derive(Debug, Args)]
pub(crate) struct AnyAgentArg {
    /// Agent: local, HOST[:PORT], unix:///PATH or a configured NAME (see telexec -h)
    #[arg(add = complete::targets())]
    pub(crate) target: Destination,
}

/// Of what acts on executions: those of `local` end with telexec.
#[derive(Debug, Args)]
pub(crate) struct AgentArg {
    /// Agent: HOST[:PORT], unix:///PATH or a configured NAME (see telexec -h)
    #[arg(value_parser = parse_agent, add = complete::targets())]
    pub(crate) target: Destination,
}

#[derive(Debug, Args)]
pub(crate) struct ExecutionArg {
    /// Execution ID, or a unique prefix of one (see `telexec ps`)
    #[arg(value_parser = parse_id, add = complete::executions())]
    pub(crate) id: ExecutionId,
}

#[derive(Debug, Args)]
pub(crate) struct ExecutionsArg {
    /// Execution IDs, or unique ID prefixes (see `telexec ps`)
    #[arg(required = true, value_name = "ID", value_parser = parse_id, add = complete::executions())]
    pub(crate) ids: Vec<ExecutionId>,
}

/// An execution ID; the error does not name the field, which the flag already does.
pub(super) fn parse_id(text: &str) -> Result<ExecutionId, String> {
    text.parse().map_err(|error: InvalidCommand| error.reason.into_owned())
}
