//! The command line and its help.
#![allow(rustdoc::broken_intra_doc_links, reason = "clap shows these comments as help, where `[:PORT]` is no link")]

mod agent;
mod approvals;
mod certs;
mod check;
mod command;
mod complete;
mod config;
mod cp;
mod exec;
mod executions;
mod fleet;
mod fleet_copy;
mod forward;
mod habits;
pub(crate) mod help;
mod mcp;
mod quick;
mod receipt;
mod ssh;
mod tool;

use std::path::PathBuf;

use clap::{Args, FromArgMatches, Parser};

use self::agent::AnyAgentArg;
pub(crate) use self::approvals::{ApprovalsArgs, ReviewArgs};
pub(crate) use self::certs::{
    CA_DAYS, CertsAction, CertsArgs, CertsCrlArgs, CertsEnrollArgs, CertsInitArgs, CertsIssueArgs, CertsListArgs,
    CertsNames, CertsRenewArgs, CertsRevokeArgs, CertsServeArgs, CertsTokenArgs, CertsUsage, RevokeReason,
};
pub(crate) use self::check::CheckArgs;
pub(crate) use self::command::CommandArgs;
pub(crate) use self::complete::{FIND_EXECUTIONS, FIND_GROUPS};
pub(crate) use self::config::{ConfigAction, ConfigArgs};
pub(crate) use self::cp::{CopyArgs, CpArgs};
pub(crate) use self::exec::ExecArgs;
pub(crate) use self::executions::{AttachArgs, InputArgs, KillArgs, LogsArgs, PsArgs, WaitArgs};
pub(crate) use self::fleet::{
    FleetAction, FleetArgs, FleetAttachArgs, FleetCommandArgs, FleetKillArgs, FleetPsArgs, FleetQueryArgs, HostArgs,
    OutputArgs, ParallelArgs, ScheduleArgs,
};
pub(crate) use self::fleet_copy::{FleetCopyArgs, FleetCpArgs, FleetGetArgs};
pub(crate) use self::forward::{ConnectToArgs, ForwardArgs};
pub(crate) use self::mcp::{HttpArgs, McpArgs, TypedTarget};
pub(crate) use self::receipt::{ReceiptAction, ReceiptArgs, ReceiptGetArgs, ReceiptKeyArgs, ReceiptVerifyArgs};
pub(crate) use self::ssh::SshArgs;
pub(crate) use self::tool::{ToolArgs, ToolOptions, ToolStyle};
use crate::config::ConnectArgs;

/// Run commands on remote machines through telexec agents
#[derive(Debug, Parser)]
#[command(
    name = "telexec",
    version,
    after_help = "\
TARGET is one of:
  local                   an agent inside this process; needs no setup
  unix:///PATH            the Unix socket of an agent on this machine
  HOST[:PORT]             an agent over TCP with TLS; the port is 7443, or as configured
  vsock://CID:PORT        an agent in a virtual machine of this host
  vsock-uds:///PATH:PORT  the same, through a Unix socket of Firecracker or Cloud Hypervisor
  nats://SERVER/NAME      an agent that is reached by way of a NATS server (telexec-nats)
  NAME                    a configured target, rather than a host: see telexec config --help

Examples:
  telexec exec local -c 'echo hello'
  telexec exec -it unix:///run/telexec/agent.sock bash
  telexec fleet -w 'web[01-32],@db' uptime"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) subcommand: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Subcommand {
    /// Run a command and stream its output
    Exec(Box<ExecArgs>),
    /// Check whether an agent permits a command, without running it
    #[command(
        override_usage = "telexec check [FLAGS] TARGET -c 'SHELL TEXT'\n       \
                          telexec check [FLAGS] TARGET PROGRAM [ARG]...",
        after_help = "\
Exit codes: 0 allowed, 2 invalid command line, 125 refused, 127 no such @NAME, 255 unreachable.

Examples:
  telexec check build-7 -c 'systemctl restart nginx'
  telexec check --as spiffe://example.org/ops/anna build-7 df -h
  telexec check --json --user nobody build-7 make check | jq .reason",
        after_long_help = "\
It does not check whether programs and directories exist. \"user\" is the user it would run as. A named command that no rule permits is refused, also if there is none.

If the command is not allowed, \"not met\" lists the conditions of the nearest rule that do not hold, each with \
what the command has instead. All of them would have to hold. \"recorded\" is yes if the agent makes a session recording.

\"tool pattern\" is what an AI tool (see telexec tool) would ask permission for: the command's only program with any \
arguments, such as ls **; empty if it runs several programs, or if they cannot be determined. \"uses sudo\" is yes for \
su, doas, pkexec and run0 too, and \"not known\" if the programs cannot be determined, or are not shown to you.

DUR is a number of seconds, or a duration such as 500ms, 10s, 5m, 1h30m.
SIZE is a number of bytes, or a size such as 512K, 256M, 2GiB; K is 1,024.
FILE of --env-file has lines NAME=VALUE, or NAME alone, which passes on the caller's own variable.

With --json, one object:
  {\"allowed\":…,\"reason\":…,\"missing\":[…],\"needs_approval\":…,\"recorded\":…,\"user\":…,\"programs\":[…],\"permission_pattern\":…,
   \"uses_sudo\":…,\"understood\":…}
If understood is false, programs may be incomplete, permission_pattern is empty, and uses_sudo is true or null. \
user is \"\" if the agent has no such user, and null if the command is refused."
    )]
    Check(Box<CheckArgs>),
    /// Run a command on many machines at once
    Fleet(Box<FleetArgs>),
    /// Run a command, with the command line of ssh: for programs that call ssh
    Ssh(SshArgs),
    /// Copy files to and from a machine
    Cp(CpArgs),
    /// List executions
    Ps(PsArgs),
    /// Attach to an execution and follow its output
    Attach(AttachArgs),
    /// Print the output of an execution
    Logs(LogsArgs),
    /// Wait until executions have ended
    Wait(WaitArgs),
    /// Send input to an execution
    Input(InputArgs),
    /// Send a signal to executions
    Kill(KillArgs),
    /// Forward ports and Unix sockets to or from an agent's machine
    Forward(ForwardArgs),
    /// Join standard input and output to a connection from an agent's machine
    Connect(ConnectToArgs),
    /// Call an AI tool with JSON parameters, or list the tools
    Tool(ToolArgs),
    /// Serve the tools to MCP clients over standard input and output, or HTTP
    Mcp(McpArgs),
    /// Check whether an agent is serving
    Ping(PingArgs),
    /// Show information about an agent and its machine
    Info(InfoArgs),
    /// List the named commands of an agent
    Commands(CommandsArgs),
    /// List the requests for approval of commands
    Approvals(ApprovalsArgs),
    /// Approve another identity's command
    #[command(after_help = "\
Its caller can then run the command, once, within the time that the policy sets. Look at it first: telexec approvals TARGET ID.

Exit codes: 0 approved, 2 invalid command line or configuration, 125 refused by the agent, or no such request, 255 the agent is \
unreachable.

Example:
  telexec approve --reason 'incident 4711' web1 5f0c9a41d2")]
    Approve(ReviewArgs),
    /// Reject another identity's command
    #[command(after_help = "\
An approved command that has not started yet can still be rejected. The same command of the same caller is refused for an hour.

Exit codes: 0 rejected, 2 invalid command line or configuration, 125 refused by the agent, or no such request, 255 the agent is \
unreachable.

Example:
  telexec reject --reason 'not during the sale' web1 5f0c9a41d2")]
    Reject(ReviewArgs),
    /// Get and verify receipts: signed statements of what agents have run
    Receipt(ReceiptArgs),
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
  telexec man --dir ~/.local/share/man && man -M ~/.local/share/man telexec-exec")]
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
Exit codes: 0 serving, 1 not serving, 2 invalid command line or configuration, 255 unreachable.

Example:
  telexec ping unix:///run/telexec/agent.sock")]
pub(crate) struct PingArgs {
    #[command(flatten)]
    pub(crate) agent: AnyAgentArg,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 shown, 2 invalid command line or configuration, 125 refused by the agent, 255 unreachable.

Example:
  telexec info --json local | jq -r .kernel")]
pub(crate) struct InfoArgs {
    #[command(flatten)]
    pub(crate) agent: AnyAgentArg,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[derive(Debug, Args)]
#[command(
    after_long_help = "\
An agent's configuration defines named commands, and its policy decides who may run them: they are listed whether you may or \
not, which telexec check reports. Run one by its name: telexec exec TARGET @NAME [ARGUMENT]... Braces stand for the argument, which \
must match the whole word: {1..9} is a number, {a,b} one of these, and {NAME} matches a regular expression of the configuration.

With --json, one object per line:
  {\"name\":…,\"description\":…,\"argv\":[…],\"parameters\":[{\"name\":…,\"word\":…,\"pattern\":…,\"values\":[…]}],
   \"user\":…,\"timeout_ms\":…,\"accepts_input\":…,\"accepts_terminal\":…}",
    after_help = "\
Exit codes: 0 listed, 2 invalid command line or configuration, 125 refused by the agent, 255 unreachable.

Examples:
  telexec commands web1
  telexec exec web1 @restart-web web-3"
)]
pub(crate) struct CommandsArgs {
    #[command(flatten)]
    pub(crate) agent: AnyAgentArg,
    /// Print one JSON object per command
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// The command line of this process. Exits where it is invalid, or asks for help.
pub(crate) fn parse() -> Cli {
    let mut line: Vec<_> = std::env::args_os().collect();
    if let Some(words) = ssh::words(&mut line) {
        return Cli { subcommand: Subcommand::Ssh(SshArgs { words }) };
    }
    if let Some(error) = habits::misread_text(&line) {
        error.exit();
    }
    if let Some(cli) = quick::parse(&line) {
        return cli;
    }
    let in_full = line.iter().take_while(|word| *word != "--").any(|word| word == "--help" || word == "help");
    let definition = if in_full { help::complete() } else { help::brief() };
    let parsed = definition.try_get_matches_from(&line).and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.unwrap_or_else(|error| habits::explained(help::without_environment(error, &line), &line).exit())
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
