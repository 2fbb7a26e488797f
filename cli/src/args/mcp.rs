//! The command line of `telexec mcp`.

use clap::Args;

use super::{ToolOptions, complete};
use crate::config::ConnectArgs;
use crate::syntax::Destination;

#[derive(Debug, Args)]
#[command(after_help = "\
An MCP client starts this command and speaks MCP over its standard input and output. The tools are \
those of `telexec tool`: bash, exec_command, and task_output, task_input, task_stop and task_list for \
commands that exec_command moves to the background. With several targets, each tool has a parameter \
`target`.

A call that requests progress receives the command's output as progress notifications. Cancelling a \
call ends its command, and so does a client that closes standard input or exits. Tasks keep running, \
except those on the target local.

Targets are connected to on first use. A call survives a lost connection, unless the agent's policy \
denies the caller's role signals or background executions: then its command ends with the connection.

Put credentials in the configuration or in flags: MCP clients seldom pass on the environment.

Exit codes: 0 the client closed standard input, 1 it did not speak MCP, 128+n killed by signal n.

Examples:
  telexec mcp local
  telexec mcp build-7 web1:7443
  telexec mcp --user ci --deny 'rm -rf /' build-7")]
pub(crate) struct McpArgs {
    /// Agent to use: local, unix:///PATH, HOST:PORT, a configured NAME, or a virtual machine (see `telexec --help`)
    #[arg(required = true, value_name = "TARGET", add = complete::targets())]
    pub(crate) targets: Vec<Destination>,
    #[command(flatten)]
    pub(crate) options: ToolOptions,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}
