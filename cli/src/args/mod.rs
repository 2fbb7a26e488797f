//! The command line and its help.

mod certs;
mod command;
mod complete;
mod config;
mod exec;
mod executions;
mod fleet;
mod mcp;
mod tool;

use std::path::PathBuf;

use clap::{Args, Parser};

pub(crate) use self::certs::{CertsAction, CertsArgs, CertsInitArgs, CertsIssueArgs};
pub(crate) use self::command::CommandArgs;
pub(crate) use self::config::{ConfigAction, ConfigArgs};
pub(crate) use self::exec::ExecArgs;
pub(crate) use self::executions::{AttachArgs, InputArgs, KillArgs, PsArgs};
pub(crate) use self::fleet::{
    FleetAction, FleetArgs, FleetAttachArgs, FleetCommandArgs, FleetKillArgs, FleetPsArgs, HostArgs, OutputArgs,
    ScheduleArgs,
};
pub(crate) use self::mcp::McpArgs;
pub(crate) use self::tool::{ToolArgs, ToolOptions, ToolStyle};
use crate::config::ConnectArgs;
use crate::syntax::Destination;

/// Run commands on remote machines through telexec agents
#[derive(Debug, Parser)]
#[command(
    name = "telexec",
    version,
    after_help = "\
TARGET is one of:
  local                   an agent inside this process; needs no setup
  unix:///PATH            the Unix socket of an agent on this machine
  HOST:PORT               an agent over TCP with mutual TLS (also tcp://HOST:PORT)
  vsock://CID:PORT        an agent in a virtual machine of this host
  vsock-uds:///PATH:PORT  the same, through a Unix socket of Firecracker or Cloud Hypervisor
  NAME                    a configured target: see telexec config --help

Examples:
  telexec exec local -c 'echo hello'
  telexec exec -it unix:///run/telexec/agent.sock -- bash
  telexec exec --cert me.pem --key me.key --ca ca.pem build-7:7443 -- uname -a
  telexec fleet -w 'web[01-32],@db' -- uptime"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) subcommand: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Subcommand {
    /// Run a command and stream its output
    Exec(Box<ExecArgs>),
    /// Check whether an agent would run a command, without running it; takes the flags of exec
    #[command(
        override_usage = "telexec check [FLAGS] TARGET -c 'SHELL TEXT'\n       \
                          telexec check [FLAGS] TARGET -- PROGRAM [ARG]...",
        after_help = "\
Exit codes: 0 allowed, 125 refused, 255 the agent is unreachable.

Examples:
  telexec check build-7:7443 -c 'systemctl restart nginx'
  telexec check --json --user nobody build-7:7443 -- make check | jq .reason"
    )]
    Check(Box<ExecArgs>),
    /// Run a command on many machines at once
    Fleet(Box<FleetArgs>),
    /// List executions
    Ps(PsArgs),
    /// Attach to an execution and follow its output
    Attach(AttachArgs),
    /// Send input to an execution
    Input(InputArgs),
    /// Send a signal to executions
    Kill(KillArgs),
    /// Call an AI tool with JSON parameters, or list the tools
    Tool(ToolArgs),
    /// Serve the tools to an MCP client over standard input and output
    Mcp(McpArgs),
    /// Check whether an agent is serving
    Ping(PingArgs),
    /// Show information about an agent and its machine
    Info(InfoArgs),
    /// Manage a private CA, for evaluation and small fleets
    Certs(CertsArgs),
    /// Show the configuration: targets, credentials and groups
    Config(ConfigArgs),
    /// Print a shell completion script, which also completes target and group names
    #[command(after_help = "\
Examples:
  telexec completions bash > ~/.local/share/bash-completion/completions/telexec
  telexec completions zsh > ~/.zfunc/_telexec
  telexec completions fish > ~/.config/fish/completions/telexec.fish")]
    Completions {
        /// Shell
        #[arg(value_enum)]
        shell: CompletionShell,
    },
    /// Print or install the manual pages
    #[command(after_help = "\
Examples:
  telexec man | man -l -
  telexec man --dir ~/.local/share/man && man telexec-exec")]
    Man {
        /// Write all pages below this directory, by section: man1, man5, man8
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

// no doc comments on the values: clap would spread the help of every flag over several lines
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum CompletionShell {
    Bash,
    Elvish,
    Fish,
    Powershell,
    Zsh,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 serving, 1 shutting down, 255 unreachable.

Example:
  telexec ping unix:///run/telexec/agent.sock")]
pub(crate) struct PingArgs {
    /// Agent to use: local, unix:///PATH, HOST:PORT, a configured NAME, or a virtual machine (see `telexec --help`)
    #[arg(add = complete::targets())]
    pub(crate) target: Destination,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  telexec info --json local | jq -r .kernel")]
pub(crate) struct InfoArgs {
    /// Agent to use: local, unix:///PATH, HOST:PORT, a configured NAME, or a virtual machine (see `telexec --help`)
    #[arg(add = complete::targets())]
    pub(crate) target: Destination,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }
}
