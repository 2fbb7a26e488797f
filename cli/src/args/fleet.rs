//! The command line of `telexec fleet`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use telexec_executor::{ExecutionId, Signal, parse_size};
use tracing_subscriber::filter::LevelFilter;

use super::agent::{QueueArg, parse_id};
use super::executions::parse_signal;
use super::{CommandArgs, FleetCpArgs, FleetGetArgs, complete};
use crate::config::ConnectArgs;
use crate::connect::ReconnectArgs;
use crate::syntax::{HostCount, parse_duration, parse_pair, parse_timeout};

const HOSTS: &str = "Hosts";
const SCHEDULING: &str = "Scheduling";
const OUTPUT: &str = "Output";

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    mut_args(|argument| match argument.get_id().as_str() {
        "env_file" | "memory" | "cpus" => argument.hide_short_help(true),
        _ => argument,
    }),
    subcommand_value_name = "cp|get|attach|ps|kill|ping|info",
    override_usage = "telexec fleet [FLAGS] -w HOSTS -c 'SHELL TEXT'\n       \
                      telexec fleet [FLAGS] -w HOSTS PROGRAM [ARG]...\n       \
                      telexec fleet cp|get|attach|ps|kill|ping|info [FLAGS] [ARG]... [-w HOSTS]",
    after_long_help = "\
HOSTS is a comma-separated list of:
  web1                  a configured target, or a host name, with --port
  web1:7443, unix:///…  an address, as for TARGET
  web[01-32,40]         a range, zero-padded like its first number; [0-9/3] takes every third
  @web                  a group from the inventory or the configuration; @all is every host in it
  dns:NAME:PORT         every address of a DNS name; certificates must match the name
  srv:_telexec._tcp.example.org
                        every target of a DNS service (SRV)
  nats://SERVER/web1    an agent behind a NATS server; nats://SERVER/label:web is every one with that label

Exit codes:
  0      exit code 0 on all hosts
  1      otherwise; the summary distinguishes failed, timed out, refused, unreachable and lost
  2      invalid command line, configuration or inventory; nothing was run
  130    after Ctrl-C twice within a second; a single Ctrl-C lists the hosts that are still running
With -S, the highest code of all hosts instead of 1; codes are those of `telexec exec`.

An inventory is a file of Ansible's (INI or YAML, with group_vars and host_vars beside it), a directory of such \
files, or a script; or else a command with its arguments that prints one, or a list of names, as JSON. -a selects \
all of its hosts, -w and -g some of them; without these nothing runs. A host's certificate must \
be valid for its inventory name, even if ansible_host gives a different address. Variables: telexec_port (ansible_port \
is that of ssh), telexec_server_name, and telexec_target: any TARGET. ansible_user and ansible_become are not used: \
the user is -l. A host with the same name as a configured target uses that target's settings.

On a terminal, control characters in the output of hosts are escaped, except tabs and colors.

A subcommand is the word right after fleet; after any flag it is the program.

DUR is a number of seconds, or a duration such as 500ms, 10s, 5m, 1h30m.
SIZE is a number of bytes, or a size such as 512K, 256M, 2GiB; K is 1,024.
N|% is a number of hosts, or a percentage such as 10%.

With --json, each line is one of these; the first form and exited are as in `telexec exec --json`:
  {\"host\":…,\"event\":\"started\"|\"stdout\"|\"stderr\"|\"gap\",…}
  {\"host\":…,\"event\":\"outcome\",\"outcome\":…,\"exit_code\":…,\"message\":…,\"exited\":…}
  {\"event\":\"summary\",\"hosts\":…,\"seconds\":…,\"ok\":…,\"failed\":…,…}
  {\"event\":\"fleet\",\"fleet_id\":…}                   first, with -d
The outcome is the last event of a host: ok, failed, timed_out, unreachable, refused, not_found, lost, cancelled or not_run.",
    after_help = "\
Examples:
  telexec fleet -w 'web[01-32],@db' uptime
  telexec fleet --inventory hosts.ini -w @eu --batch 10% --batch-wait 30s -c 'systemctl restart app'
  ID=$(telexec fleet -d -w @build make world); telexec fleet attach -b $ID"
)]
pub(crate) struct FleetArgs {
    #[command(subcommand)]
    pub(crate) action: Option<FleetAction>,
    #[command(flatten)]
    pub(crate) command: FleetCommandArgs,
    #[command(flatten)]
    pub(crate) hosts: HostArgs,
    /// Print the selected hosts and exit; with -b, folded into ranges
    #[arg(long, hide_short_help = true, help_heading = HOSTS)]
    pub(crate) list_hosts: bool,
    #[command(flatten)]
    pub(crate) schedule: ScheduleArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) queue: QueueArg,
    #[command(flatten)]
    pub(crate) reconnect: ReconnectArgs,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum FleetAction {
    /// Copy files to all hosts
    Cp(Box<FleetCpArgs>),
    /// Copy a file or directory from all hosts
    Get(Box<FleetGetArgs>),
    /// Follow a run started with -d; Ctrl-C leaves it running
    Attach(Box<FleetAttachArgs>),
    /// Show the state of a run started with -d, or list executions
    Ps(Box<FleetPsArgs>),
    /// Send a signal to a run started with -d
    Kill(Box<FleetKillArgs>),
    /// Check whether agents are serving
    #[command(
        after_long_help = "\
Prints a line for each host that answers, and on standard error those that do not.

Exit codes: 0 all are serving, 1 otherwise, 2 invalid command line or configuration.

With --json, each line is one of these; durations are in seconds, and the second is of a host that does not answer:
  {\"host\":…,\"serving\":…,\"round_trip\":…}
  {\"host\":…,\"event\":\"outcome\",\"outcome\":…,\"message\":…,…}",
        after_help = "\
Example:
  telexec fleet ping -w 'web[01-32],@db'"
    )]
    Ping(Box<FleetQueryArgs>),
    /// Show information about agents and their machines
    #[command(
        after_long_help = "\
Prints a table of the hosts that answer, and on standard error those that do not. RUNNING is the number of \
executions that run, CERTIFICATE the day on which the agent's certificate expires, POLICY the first digits of the SHA-256 of its policy. \
(reload failed) marks what the agent could not read again after a change: what it read before is in use.

Exit codes: 0 all answered, 1 otherwise, 2 invalid command line or configuration.

With --json, each line is a host, with the fields of `telexec info --json`; for a host that does not answer \
it is the outcome, as in `telexec fleet --json`.",
        after_help = "\
Examples:
  telexec fleet info -w @web
  telexec fleet info --json -a | jq -r 'select(.containment != \"cgroup-v2\") | .host'"
    )]
    Info(Box<FleetQueryArgs>),
}

#[derive(Debug, Args)]
pub(crate) struct FleetCommandArgs {
    #[command(flatten)]
    pub(crate) command: CommandArgs,
    /// Send standard input to all hosts
    #[arg(short = 'i', long, conflicts_with = "detach")]
    pub(crate) stdin: bool,
    /// Run as this user [default: the configured user, or the agent's]
    #[arg(short = 'l', long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Working directory
    #[arg(long, hide_short_help = true, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// Timeout on each host, after which the command is ended
    #[arg(long, value_name = "DUR", value_parser = parse_timeout)]
    pub(crate) timeout: Option<Duration>,
    /// The same, as a number with a unit: -u 30s
    #[arg(short = 'u', hide_short_help = true, value_name = "DUR", value_parser = parse_short_timeout)]
    #[arg(conflicts_with = "timeout")]
    pub(crate) short_timeout: Option<Duration>,
    /// Have each agent sign a receipt of what ran and how it ended; see --outdir and telexec receipt get
    #[arg(long, hide_short_help = true)]
    pub(crate) receipt: bool,
    /// Run in the background and print an ID for attach, ps and kill
    #[arg(short = 'd', long)]
    pub(crate) detach: bool,
    /// Check whether the agents would run it, without running it
    #[arg(long, conflicts_with_all = ["detach", "stdin"])]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = HOSTS)]
pub(crate) struct HostArgs {
    /// Hosts; may be repeated
    #[arg(short = 'w', long = "hosts", value_name = "HOSTS", add = complete::hosts())]
    pub(crate) hosts: Vec<String>,
    /// Hosts of a group: -g web is -w @web; may be repeated
    #[arg(short = 'g', long, hide_short_help = true, value_name = "NAME", add = complete::groups())]
    pub(crate) group: Vec<String>,
    /// All hosts of the inventory, or else all configured targets
    #[arg(short = 'a', long)]
    pub(crate) all: bool,
    /// Exclude hosts; may be repeated
    #[arg(short = 'x', long, value_name = "HOSTS", add = complete::hosts())]
    pub(crate) exclude: Vec<String>,
    /// Read hosts from a file, one or more per line; - is standard input
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    pub(crate) hosts_file: Option<PathBuf>,
    /// Read hosts from an Ansible inventory, or the output of a command
    #[arg(long, value_name = "FILE|COMMAND")]
    pub(crate) inventory: Option<String>,
    /// Port of hosts given without one [default: the configured port, or 7443]
    #[arg(long, hide_short_help = true, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
    /// Pick N of the hosts at random
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = parse_count)]
    pub(crate) pick: Option<usize>,
}

/// For jobs of which none depends on another.
#[derive(Debug, Args)]
#[command(next_help_heading = SCHEDULING)]
pub(crate) struct ParallelArgs {
    /// Number of hosts in parallel [default: the configured number, or 64]
    #[arg(short = 'f', long, value_name = "N", value_parser = parse_count)]
    pub(crate) fanout: Option<usize>,
    /// Connection timeout; same as --connect-timeout
    #[arg(short = 't', hide_short_help = true, value_name = "DUR", value_parser = parse_timeout, conflicts_with = "connect_timeout")]
    pub(crate) connect_wait: Option<Duration>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = SCHEDULING)]
pub(crate) struct ScheduleArgs {
    #[command(flatten)]
    pub(crate) parallel: ParallelArgs,
    /// Run in batches, each starting when the one before is done
    #[arg(long, value_name = "N|%")]
    pub(crate) batch: Option<HostCount>,
    /// Time to wait between batches
    #[arg(long, hide_short_help = true, value_name = "DUR", value_parser = parse_duration, requires = "batch")]
    pub(crate) batch_wait: Option<Duration>,
    /// Start no more hosts after more than this many failures [default with --batch: 0]
    #[arg(long, hide_short_help = true, value_name = "N|%")]
    pub(crate) max_failures: Option<HostCount>,
    /// Stop at the first failure: start no more hosts and end running commands
    #[arg(short = 'k', long, hide_short_help = true)]
    pub(crate) fail_fast: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = OUTPUT)]
pub(crate) struct OutputArgs {
    /// Print standard output at the end, identical output once
    #[arg(short = 'b', long)]
    pub(crate) gather: bool,
    /// The same with standard error as well
    #[arg(short = 'B', hide_short_help = true)]
    pub(crate) gather_all: bool,
    /// The same as differences from the most common output
    #[arg(long, hide_short_help = true)]
    pub(crate) diff: bool,
    /// Print in the order of the hosts; with -b, gather line by line
    #[arg(short = 'L', long, hide_short_help = true)]
    pub(crate) in_order: bool,
    /// Do not prefix lines with the host
    #[arg(short = 'N', long, hide_short_help = true)]
    pub(crate) no_prefix: bool,
    /// Maximum output to keep per host until it is printed, with -b, -B, -L and --diff
    #[arg(long, hide_short_help = true, value_name = "SIZE", default_value = "16M", value_parser = parse_size)]
    pub(crate) keep: u64,
    /// Also write DIR/HOST/stdout, stderr and exit.json, and receipt with --receipt
    #[arg(long, hide_short_help = true, value_name = "DIR")]
    pub(crate) outdir: Option<PathBuf>,
    /// Print events as JSON lines
    #[arg(long, conflicts_with_all = ["gather", "gather_all", "diff", "in_order", "no_prefix"])]
    pub(crate) json: bool,
    /// Print no progress, no failures and no summary
    #[arg(short = 'q', long)]
    pub(crate) quiet: bool,
    /// Exit with the highest exit code of all hosts
    #[arg(short = 'S', long, hide_short_help = true)]
    pub(crate) max_code: bool,
}

#[derive(Debug, Args)]
#[command(
    after_long_help = "\
Uses the hosts recorded on this machine when the run was started, unless -w, -g, … select other hosts. Ctrl-C \
detaches with exit code 130; the commands keep running.

Exit codes: as for `telexec fleet`.",
    after_help = "\
Example:
  telexec fleet attach -b fleet-0192f0c47a51-3e7b"
)]
pub(crate) struct FleetAttachArgs {
    /// ID printed by `fleet -d`, or a unique prefix of one recorded here
    #[arg(value_parser = parse_id)]
    pub(crate) id: ExecutionId,
    #[command(flatten)]
    pub(crate) hosts: HostArgs,
    #[command(flatten)]
    pub(crate) parallel: ParallelArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) queue: QueueArg,
    #[command(flatten)]
    pub(crate) reconnect: ReconnectArgs,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[derive(Debug, Args)]
#[command(
    after_long_help = "\
With ID, shows how many hosts are in each state. With hosts and no ID, lists all their executions, as `telexec ps` \
does for one. With neither, lists the runs that were started from this machine with `fleet -d`, and asks their hosts \
for the state. In each, not found is what an agent does not know, or does not show to this identity.

Exit codes: 0 running or exit code 0 on all hosts (without ID: all answered; with neither: listed), 1 otherwise, 2 invalid command line \
or configuration.",
    after_help = "\
Examples:
  telexec fleet ps fleet-0192f0c47a51-3e7b
  telexec fleet ps -w @web --label job=nightly"
)]
pub(crate) struct FleetPsArgs {
    /// ID printed by `fleet -d`, or a unique prefix of one recorded here
    #[arg(value_parser = parse_id)]
    pub(crate) id: Option<ExecutionId>,
    /// Print one JSON object per line: the host, and its execution as in `telexec ps --json`
    #[arg(long)]
    pub(crate) json: bool,
    /// Without ID: include executions that have ended
    #[arg(long, conflicts_with = "id")]
    pub(crate) exited: bool,
    /// Without ID: list only executions with this label; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_pair, conflicts_with = "id")]
    pub(crate) label: Vec<(String, String)>,
    /// Do not truncate lines to the width of the terminal
    #[arg(long, hide_short_help = true, visible_alias = "wide")]
    pub(crate) no_trunc: bool,
    #[command(flatten)]
    pub(crate) hosts: HostArgs,
    #[command(flatten)]
    pub(crate) parallel: ParallelArgs,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[derive(Debug, Args)]
#[command(
    after_long_help = "\
Exit codes: 0 sent to all hosts, 1 the execution is unknown on a host, or a host is unreachable, 2 invalid command \
line or configuration.",
    after_help = "\
Example:
  telexec fleet kill -s INT fleet-0192f0c47a51-3e7b"
)]
pub(crate) struct FleetKillArgs {
    /// ID printed by `fleet -d`, or a unique prefix of one recorded here
    #[arg(value_parser = parse_id)]
    pub(crate) id: ExecutionId,
    /// Signal name or number: TERM, SIGTERM or 15
    #[arg(short = 's', long, value_name = "SIGNAL", default_value = "TERM", value_parser = parse_signal)]
    pub(crate) signal: Signal,
    #[command(flatten)]
    pub(crate) hosts: HostArgs,
    #[command(flatten)]
    pub(crate) parallel: ParallelArgs,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[derive(Debug, Args)]
pub(crate) struct FleetQueryArgs {
    /// Print one JSON object per line, as hosts answer
    #[arg(long)]
    pub(crate) json: bool,
    /// Print no progress, no failures and no summary
    #[arg(short = 'q', long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) hosts: HostArgs,
    #[command(flatten)]
    pub(crate) parallel: ParallelArgs,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// -u is the timeout, as in clush and pdsh; elsewhere it is the user, who may be a number.
fn parse_short_timeout(text: &str) -> Result<Duration, String> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("-u is the timeout, and needs a unit: -u {text}s; the user is -l"));
    }
    let hint = if text.starts_with(|first: char| first.is_ascii_alphabetic()) { "; the user is -l" } else { "" };
    parse_timeout(text).map_err(|error| format!("{error}{hint}"))
}

fn parse_count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "expected a number greater than 0".to_owned())
}

impl FleetArgs {
    /// The log level of the subcommand, or else of the command itself.
    pub(crate) fn log_level(&self) -> LevelFilter {
        match &self.action {
            None => self.connect.log_level,
            Some(FleetAction::Cp(args)) => args.common.connect.log_level,
            Some(FleetAction::Get(args)) => args.common.connect.log_level,
            Some(FleetAction::Attach(args)) => args.connect.log_level,
            Some(FleetAction::Ps(args)) => args.connect.log_level,
            Some(FleetAction::Kill(args)) => args.connect.log_level,
            Some(FleetAction::Ping(args) | FleetAction::Info(args)) => args.connect.log_level,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Subcommand};

    fn parse(line: &str) -> Result<Box<FleetArgs>, String> {
        let line = ["telexec", "fleet"].into_iter().chain(line.split(' '));
        match Cli::try_parse_from(line).map_err(|error| error.to_string())?.subcommand {
            Subcommand::Fleet(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_program_begins_with_the_first_word_that_is_no_flag() {
        for (line, program) in [
            ("-w @web uptime", "uptime"),
            ("-w @web -- uptime", "uptime"),
            ("-w @web -b ls -l --json", "ls -l --json"),
            ("-w @web grep -- -w -c", "grep -- -w -c"),
            ("-w @web ps aux", "ps aux"),
            ("-q ping -w @web", "ping -w @web"),
            ("uptime -w @web", "uptime -w @web"),
        ] {
            let args = parse(line).unwrap();
            assert!(args.action.is_none(), "{line}");
            assert_eq!(args.command.command.argv.join(" "), program, "{line}");
        }
        assert!(parse("-w @web --nope uptime").unwrap_err().contains("--nope"));
        assert!(parse("-w @web -c a b").is_err());
    }

    #[test]
    fn a_subcommand_is_the_first_word() {
        assert!(matches!(parse("ps -w @web").unwrap().action, Some(FleetAction::Ps(args)) if args.id.is_none()));
        assert!(matches!(parse("ps x").unwrap().action, Some(FleetAction::Ps(args)) if args.id.is_some()));
        assert!(matches!(parse("ping -w @web").unwrap().action, Some(FleetAction::Ping(_))));
    }

    #[test]
    fn the_user_is_l_and_the_timeout_u() {
        let args = parse("-l nobody -u 5s -w @web id").unwrap();
        assert_eq!(
            (args.command.user.as_deref(), args.command.short_timeout),
            (Some("nobody"), Some(Duration::from_secs(5)))
        );
        assert_eq!(parse("--timeout 5 -w @web id").unwrap().command.timeout, Some(Duration::from_secs(5)));
        // a number may be that of a user
        assert!(parse("-u 1000 -w @web id").unwrap_err().contains("the user is -l"));
        assert!(parse("-u nobody -w @web id").unwrap_err().contains("the user is -l"));
        assert!(!parse("-u 5x -w @web id").unwrap_err().contains("the user"));
    }
}
