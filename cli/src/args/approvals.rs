//! The command lines of `telexec approvals`, `approve` and `reject`.

use clap::Args;

use super::agent::AgentArg;
use crate::config::ConnectArgs;

#[derive(Debug, Args)]
#[command(
    after_long_help = "\
An agent's policy may permit a command only once another identity has approved it. Lists the requests that you have made, and \
those that you may approve or reject. STATE is pending, approved, rejected or used (the command was started). Pending requests are \
dropped after an hour; all are dropped when the agent restarts.

With ID, shows the request in full, as the agent has resolved it. Words and texts with spaces, control or invisible characters are \
quoted as bash reads them: 'a b', $'a\\nb'.

With --json, one object per line; what is not set is null or empty, and request is null in the list if it is long:
  {\"approval_id\":…,\"state\":\"pending\",\"identity\":…,\"named_command\":…,\"rules\":[…],\"create_time\":…,\"expire_time\":…,
   \"reviewer\":…,\"review_reason\":…,\"review_time\":…,\"execution_id\":…,
   \"request\":{\"command\":…,\"argv\":[…],\"shell\":…,\"login\":…,\"user\":…,\"working_directory\":…,\"environment\":{…},
              \"clear_environment\":…,\"stdin\":…,\"stdin_base64\":…,\"accepts_input\":…,\"terminal\":…,\"reason\":…,
              \"labels\":{…},\"detached\":…,\"yield_after\":…,\"timeout\":…,\"kill_grace\":…,\"disconnect_grace\":…,
              \"limits\":{…},\"max_output_bytes\":…,\"merge_output\":…,\"report_working_directory\":…,
              \"kills_descendants\":…,\"reuses_running\":…,\"no_new_privileges\":…,\"receipt\":…}}",
    after_help = "\
Exit codes: 0 listed, 2 invalid command line or configuration, 125 refused by the agent, or no such request, 255 the agent is \
unreachable.

Examples:
  telexec approvals web1
  telexec approvals web1 5f0c9a41d2"
)]
pub(crate) struct ApprovalsArgs {
    #[command(flatten)]
    pub(crate) agent: AgentArg,
    /// ID of a request: show only this one, in full
    pub(crate) id: Option<String>,
    /// Print one JSON object per request
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReviewArgs {
    #[command(flatten)]
    pub(crate) agent: AgentArg,
    /// ID of the request (see `telexec approvals`)
    pub(crate) id: String,
    /// Reason, for the caller and the audit log
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}
