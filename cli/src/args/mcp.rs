//! The command line of `telexec mcp`.

use clap::Args;

use super::{ToolOptions, complete};
use crate::config::ConnectArgs;
use crate::syntax::Destination;

#[derive(Debug, Args)]
#[command(after_help = "\
A client starts it, and speaks MCP on its standard input and output. The tools are those of \
`telexec tool`: bash, exec_command, and task_output, task_input, task_stop and task_list for what \
exec_command leaves to the background. With several targets, each tool has a parameter `target`.

A call that asks for progress is told the command's output as it comes. A call that is cancelled \
ends its command, and so does a client that closes standard input or is gone. Tasks go on, but for \
those of the target local.

A target need not be reachable before something is asked of it. A call survives a lost connection, \
unless the agent's policy lets its role signal nothing, or leave nothing in the background: then \
its command ends with the connection.

Credentials stand in the configuration, or in flags: clients seldom pass the environment on.

Exit codes: 0 the client closed standard input, 1 it did not speak MCP, 128+n signal n ended it.

Examples:
  telexec mcp local
  telexec mcp build-7 web1:7443
  telexec mcp --user ci --deny 'rm -rf /' build-7")]
pub(crate) struct McpArgs {
    /// Where: local, unix:///PATH, HOST:PORT, a configured NAME, or a virtual machine (see `telexec --help`)
    #[arg(required = true, value_name = "TARGET", add = complete::targets())]
    pub(crate) targets: Vec<Destination>,
    #[command(flatten)]
    pub(crate) options: ToolOptions,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}
