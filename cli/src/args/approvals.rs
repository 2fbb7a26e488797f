//! The command lines of `telexec approvals`, `approve` and `reject`.

use clap::Args;

use super::agent::AgentArg;
use crate::config::ConnectArgs;

#[derive(Debug, Args)]
#[command(
    after_long_help = "\
An agent's policy may permit a command only once another identity has approved it. Lists the requests that you have made, and \
those that you may approve or reject. STATE is pending, approved, rejected or used: it was started. Requests that nobody approves \
are dropped after an hour, and all when the agent restarts.

With ID, shows the request in full: what would run is in quotes where that matters, and as the agent has resolved it.

With --json, one object per line; what is not known is null, and request is an ExecuteRequest of telexec's protocol:
  {\"approval_id\":…,\"state\":\"pending\",\"identity\":…,\"named_command\":…,\"rules\":[…],\"create_time\":…,\"expire_time\":…,
   \"reviewer\":…,\"review_reason\":…,\"review_time\":…,\"execution_id\":…,
   \"request\":{\"command\":…,\"argv\":[…],\"shell\":…,\"login\":…,\"user\":…,\"working_directory\":…,\"environment\":{…},
              \"clear_environment\":…,\"stdin_bytes\":…,\"accepts_input\":…,\"terminal\":…,\"reason\":…,\"labels\":{…},
              \"background\":…,\"no_new_privileges\":…}}",
    after_help = "\
Exit codes: 0 listed, 2 invalid command line or configuration, 125 refused by the agent, or no such approval, 255 the agent is \
unreachable.

Examples:
  telexec approvals web1
  telexec approvals web1 5f0c9a41d2"
)]
pub(crate) struct ApprovalsArgs {
    #[command(flatten)]
    pub(crate) agent: AgentArg,
    /// Show only this one, in full
    pub(crate) id: Option<String>,
    /// Print one JSON object per approval
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The command starts when its caller runs it again, once, within the time that the policy sets. Look at it first: telexec approvals \
TARGET ID.

Exit codes: 0 approved, 2 invalid command line or configuration, 125 refused by the agent, or no such approval, 255 the agent is \
unreachable.

Example:
  telexec approve --reason 'incident 4711' web1 5f0c9a41d2")]
pub(crate) struct ApproveArgs {
    #[command(flatten)]
    pub(crate) review: ReviewArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
What is approved, and not started yet, can be rejected too. The same command of the same caller stays rejected for an hour.

Exit codes: 0 rejected, 2 invalid command line or configuration, 125 refused by the agent, or no such approval, 255 the agent is \
unreachable.

Example:
  telexec reject --reason 'not during the sale' web1 5f0c9a41d2")]
pub(crate) struct RejectArgs {
    #[command(flatten)]
    pub(crate) review: ReviewArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReviewArgs {
    #[command(flatten)]
    pub(crate) agent: AgentArg,
    /// Approval ID (see `telexec approvals`)
    pub(crate) id: String,
    /// Reason, for the requester and the audit log
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}
