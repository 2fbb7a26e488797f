//! The agent that a subcommand calls, and the executions there.

use std::time::Duration;

use clap::Args;
use telexec_executor::{ExecutionId, InvalidCommand};

use super::complete;
use crate::syntax::{Destination, parse_agent, parse_timeout};

const MAX_QUEUE: Duration = Duration::from_secs(24 * 60 * 60);

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

/// Of what can wait for an agent that is away.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct QueueArg {
    /// Wait up to this long (24h at most) for an agent that is away. For targets behind a NATS server
    #[arg(long, hide_short_help = true, value_name = "DUR", value_parser = parse_queue, help_heading = "Connection")]
    pub(crate) queue: Option<Duration>,
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

/// Agents refuse requests that are good for longer.
fn parse_queue(text: &str) -> Result<Duration, String> {
    match parse_timeout(text)? {
        queue if queue > MAX_QUEUE => Err("must not be more than 24h".to_owned()),
        queue => Ok(queue),
    }
}

/// An execution ID; the error does not name the field, which the flag already does.
pub(super) fn parse_id(text: &str) -> Result<ExecutionId, String> {
    text.parse().map_err(|error: InvalidCommand| error.reason.into_owned())
}
