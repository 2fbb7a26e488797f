//! The command line of `telexec mcp`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{ToolOptions, complete};
use crate::config::ConnectArgs;
use crate::connect::ReconnectArgs;
use crate::syntax::{Destination, InvalidDestination, parse_timeout};

const HTTP: &str = "HTTP";

#[derive(Debug, Args)]
#[command(
    after_long_help = "\
An MCP client starts this command and speaks MCP over its standard input and output. The tools are \
those of `telexec tool`: bash, exec_command, and task_output, task_input, task_stop and task_list for \
commands that exec_command moves to the background; read_file, write_file, edit_file, list_directory, \
glob and grep for files. With several targets, each tool has a parameter `target`.

A call that requests progress receives the command's output as progress notifications. Cancelling a \
call ends its command, and so does a client that closes standard input or exits. Tasks keep running, \
except those on the target local.

Targets are connected to on first use. A command survives a lost connection. If this command is killed, \
agents wait for the time of --reconnect, and then end what its calls run.

With --commands, each named command of the agents (see telexec commands) is a tool, and there are no other tools. To enforce \
that, permit only these commands, and GetAgent, in the agents' policies. Targets must be reachable at the start, and a change \
of the definitions needs a restart. If targets define a command of the same name differently, the tool has the description and \
the parameters of the first.

Put credentials in the configuration or in flags: MCP clients seldom pass on the environment.

With --listen, clients connect to http://IP:PORT/mcp (streamable HTTP), or https with TLS. Without TLS \
only loopback addresses are served, to every user of the machine or those who know the token. With TLS, \
callers need a certificate of --client-ca, the token, or both. The certificate files and the token file \
are reloaded when they change.

All callers act with the credentials that telexec has for the targets, and share the tasks: each can \
read, write to and stop those of the others. A session belongs to the certificate that began it, and has \
its own working directory and knows which files it has read; in MCP since 2026-07-28, which has no \
sessions, neither carries over.

Exit codes: 0 the client closed standard input, 1 it did not speak MCP, 2 invalid command line or \
configuration, or no named commands, 125 refused by an agent, 255 an agent is unreachable (with --commands), 128+n killed by \
signal n.",
    after_help = "\
Examples:
  telexec mcp local
  telexec mcp build-7 web1
  telexec mcp --commands web1
  telexec mcp --user ci --deny 'rm -rf /' build-7
  telexec mcp --listen tcp://127.0.0.1:7480 --token-file ~/.config/telexec/mcp-token build-7"
)]
pub(crate) struct McpArgs {
    /// Agent: local, HOST[:PORT], unix:///PATH or a configured NAME (see telexec -h)
    #[arg(required = true, value_name = "TARGET", value_parser = parse_typed, add = complete::targets())]
    pub(crate) targets: Vec<TypedTarget>,
    /// Serve the agents' named commands as tools, in place of bash, exec_command and the tools for files
    #[arg(long, conflicts_with_all = ["user", "deny"])]
    pub(crate) commands: bool,
    #[command(flatten)]
    pub(crate) options: ToolOptions,
    #[command(flatten)]
    pub(crate) http: HttpArgs,
    #[command(flatten)]
    pub(crate) reconnect: ReconnectArgs,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// A target, and how it was typed: by that name clients know it.
#[derive(Clone, Debug)]
pub(crate) struct TypedTarget {
    pub(crate) name: String,
    pub(crate) destination: Destination,
}

fn parse_typed(text: &str) -> Result<TypedTarget, InvalidDestination> {
    Ok(TypedTarget { name: text.to_owned(), destination: text.parse()? })
}

/// Streamable HTTP instead of standard input and output.
#[derive(Debug, Args)]
#[command(next_help_heading = HTTP)]
pub(crate) struct HttpArgs {
    /// Serve HTTP at this address instead of standard input and output
    #[arg(long, value_name = "tcp://IP:PORT", value_parser = parse_address)]
    pub(crate) listen: Option<SocketAddr>,
    /// Bearer token that callers must send; the file must be accessible to its owner only
    #[arg(long, value_name = "FILE", requires = "listen")]
    pub(crate) token_file: Option<PathBuf>,
    /// Certificate for TLS
    #[arg(long, hide_short_help = true, value_name = "PEM", requires_all = ["listen", "tls_key"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its private key
    #[arg(long, hide_short_help = true, value_name = "PEM", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// CA that must have issued the certificates of callers
    #[arg(long, hide_short_help = true, value_name = "PEM", requires = "tls_cert")]
    pub(crate) client_ca: Option<PathBuf>,
    /// Revocation lists of that CA; a connection whose certificate is revoked is closed
    #[arg(long, hide_short_help = true, value_name = "PEM", requires = "client_ca")]
    pub(crate) client_crl: Option<PathBuf>,
    /// End a session and its commands after this time without its client
    #[arg(long, hide_short_help = true, value_name = "DUR", value_parser = parse_timeout, default_value = "5m", requires = "listen")]
    pub(crate) session_timeout: Duration,
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let address = text.strip_prefix("tcp://").and_then(|address| address.parse().ok());
    address.ok_or_else(|| "expected an address such as tcp://127.0.0.1:7480".to_owned())
}
