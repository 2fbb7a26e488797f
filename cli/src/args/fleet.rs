//! The command line of `telexec fleet`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use telexec_executor::{ExecutionId, Signal, parse_size};
use tracing_subscriber::filter::LevelFilter;

use super::executions::{parse_id, parse_signal};
use super::{CommandArgs, complete};
use crate::config::ConnectArgs;
use crate::syntax::{HostCount, parse_timeout};

const HOSTS: &str = "Hosts";
const SCHEDULING: &str = "Scheduling";
const OUTPUT: &str = "Output";

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_value_name = "attach|ps|kill",
    override_usage = "telexec fleet [FLAGS] -w HOSTS -c 'SHELL TEXT'\n       \
                      telexec fleet [FLAGS] -w HOSTS -- PROGRAM [ARG]...\n       \
                      telexec fleet attach|ps|kill [FLAGS] [ID]",
    after_help = "\
HOSTS is a comma-separated list of:
  web1                  a configured target, or a host name, with --port
  web1:7443, unix:///…  an address, as for TARGET
  web[01-32,40]         a range, zero-padded like its first number; [0-9/3] takes every third
  @web                  a group from the configuration or the inventory; @all is every target in it
  dns:NAME:PORT         every address of a DNS name; certificates must match the name
  srv:_telexec._tcp.example.org
                        every target of a DNS service (SRV)

Exit codes:
  0      exit code 0 on all hosts
  1      otherwise; the summary distinguishes failed, timed out, refused, unreachable and lost
  130    after Ctrl-C twice within a second; a single Ctrl-C lists the hosts that are still running
With -S, the highest code of all hosts instead of 1; codes are those of `telexec exec`.

DUR is a number of seconds, or a duration such as 500ms, 10s, 5m, 1h30m.
SIZE is a number of bytes, or a size such as 512K, 256M, 2GiB; K is 1,024.
N|% is a number of hosts, or a percentage such as 10%.

With --json, each line is one of these; the first form and exited are as in `telexec exec --json`:
  {\"host\":…,\"event\":\"started\"|\"stdout\"|\"stderr\"|\"gap\",…}
  {\"host\":…,\"event\":\"outcome\",\"outcome\":…,\"exit_code\":…,\"message\":…,\"exited\":…}
  {\"event\":\"summary\",\"hosts\":…,\"seconds\":…,\"ok\":…,\"failed\":…,…}
  {\"event\":\"fleet\",\"fleet_id\":…}                   first, with -d
The outcome is the last event of a host: ok, failed, timed_out, unreachable, refused, lost, cancelled or not_run.

Examples:
  telexec fleet -w 'web[01-32],@db' -- uptime
  telexec fleet -b -w @web -- cat /etc/os-release
  telexec fleet --batch 10% --max-failures 1 -w @web -c 'systemctl restart app && check-app'
  telexec fleet -w dns:agents.default.svc:7443 --pick 3 -- df -h /
  ID=$(telexec fleet -d -w @build -- make world); telexec fleet ps $ID; telexec fleet attach -b $ID"
)]
pub(crate) struct FleetArgs {
    #[command(subcommand)]
    pub(crate) action: Option<FleetAction>,
    #[command(flatten)]
    pub(crate) command: FleetCommandArgs,
    #[command(flatten)]
    pub(crate) hosts: HostArgs,
    /// Print the selected hosts and exit; with -b, folded into ranges
    #[arg(long, help_heading = HOSTS)]
    pub(crate) list_hosts: bool,
    #[command(flatten)]
    pub(crate) schedule: ScheduleArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum FleetAction {
    /// Follow a run started with `fleet -d`; Ctrl-C leaves it running
    Attach(Box<FleetAttachArgs>),
    /// Show the state of a run started with `fleet -d`; without ID, list the runs started from this machine
    Ps(FleetPsArgs),
    /// Send a signal to a run started with `fleet -d`
    Kill(FleetKillArgs),
}

#[derive(Debug, Args)]
pub(crate) struct FleetCommandArgs {
    #[command(flatten)]
    pub(crate) command: CommandArgs,
    /// Send standard input to all hosts
    #[arg(short = 'i', long, conflicts_with = "detach")]
    pub(crate) stdin: bool,
    /// Run as this user [default: the configured user, or the agent's]
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Working directory
    #[arg(long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// Timeout on each host, after which the command is ended
    #[arg(short = 'u', long, value_name = "DUR", value_parser = parse_timeout)]
    pub(crate) timeout: Option<Duration>,
    /// Run in the background and print an ID for `fleet attach`, `ps` and `kill`
    #[arg(short = 'd', long)]
    pub(crate) detach: bool,
    /// Check whether each agent would run the command, without running it
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
    #[arg(short = 'g', long, value_name = "NAME", add = complete::groups())]
    pub(crate) group: Vec<String>,
    /// All configured targets
    #[arg(short = 'a', long)]
    pub(crate) all: bool,
    /// Exclude hosts; may be repeated
    #[arg(short = 'x', long, value_name = "HOSTS", add = complete::hosts())]
    pub(crate) exclude: Vec<String>,
    /// Read hosts from a file, one or more per line; - is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) hosts_file: Option<PathBuf>,
    /// Read hosts from the JSON output of a command: a list of names or an Ansible inventory; -w and -x select from it
    #[arg(long, value_name = "COMMAND")]
    pub(crate) inventory: Option<String>,
    /// Port of hosts given without one [default: the configured port, or 7443]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
    /// Pick N of the hosts at random
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(crate) pick: Option<usize>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = SCHEDULING)]
pub(crate) struct ScheduleArgs {
    /// Number of hosts in parallel [default: the configured number, or 64]
    #[arg(short = 'f', long, value_name = "N", value_parser = parse_count)]
    pub(crate) fanout: Option<usize>,
    /// Connection timeout; same as --connect-timeout
    #[arg(short = 't', value_name = "DUR", value_parser = parse_timeout, conflicts_with = "connect_timeout")]
    pub(crate) connect_wait: Option<Duration>,
    /// Run in batches of this many hosts, each starting when the previous one is done
    #[arg(long, value_name = "N|%")]
    pub(crate) batch: Option<HostCount>,
    /// Start no more hosts after more than this many failures [default with --batch: 0]
    #[arg(long, value_name = "N|%")]
    pub(crate) max_failures: Option<HostCount>,
    /// Stop at the first failure: start no more hosts and end running commands
    #[arg(short = 'k', long)]
    pub(crate) fail_fast: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = OUTPUT)]
pub(crate) struct OutputArgs {
    /// Gather standard output and print it when all hosts are done, identical output once
    #[arg(short = 'b', long)]
    pub(crate) gather: bool,
    /// Gather standard error as well
    #[arg(short = 'B')]
    pub(crate) gather_all: bool,
    /// Gather, and show differences from the most common output
    #[arg(long)]
    pub(crate) diff: bool,
    /// Print in the order of the hosts; with -b, gather line by line
    #[arg(short = 'L', long)]
    pub(crate) in_order: bool,
    /// Do not prefix lines with the host
    #[arg(short = 'N', long)]
    pub(crate) no_prefix: bool,
    /// Maximum output to keep per host until it is printed, with -b, -B, -L and --diff
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = parse_size)]
    pub(crate) keep: u64,
    /// Also write DIR/HOST/stdout, stderr and exit.json
    #[arg(long, value_name = "DIR")]
    pub(crate) outdir: Option<PathBuf>,
    /// Print events as JSON lines
    #[arg(long, conflicts_with_all = ["gather", "gather_all", "diff", "in_order", "no_prefix"])]
    pub(crate) json: bool,
    /// Print no progress and no summary
    #[arg(short = 'q', long)]
    pub(crate) quiet: bool,
    /// Exit with the highest exit code of all hosts
    #[arg(short = 'S', long)]
    pub(crate) max_code: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Uses the hosts recorded on this machine when the run was started, unless -w, -g, … select
other hosts.

Example:
  telexec fleet attach -b fleet-0192f0c47a51-3e7b")]
pub(crate) struct FleetAttachArgs {
    /// ID printed by `fleet -d`
    #[arg(value_parser = parse_id)]
    pub(crate) id: ExecutionId,
    #[command(flatten)]
    pub(crate) hosts: HostArgs,
    #[command(flatten)]
    pub(crate) schedule: ScheduleArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 running or exit code 0 on all hosts, 1 otherwise.

Example:
  telexec fleet ps fleet-0192f0c47a51-3e7b")]
pub(crate) struct FleetPsArgs {
    /// ID printed by `fleet -d`
    #[arg(value_parser = parse_id)]
    pub(crate) id: Option<ExecutionId>,
    /// Print one JSON object per line: the host, and its execution as in `telexec ps --json`
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) hosts: HostArgs,
    #[command(flatten)]
    pub(crate) schedule: ScheduleArgs,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 sent to all hosts, 1 the execution is unknown on a host, or a host is unreachable.

Example:
  telexec fleet kill -s INT fleet-0192f0c47a51-3e7b")]
pub(crate) struct FleetKillArgs {
    /// ID printed by `fleet -d`
    #[arg(value_parser = parse_id)]
    pub(crate) id: ExecutionId,
    /// Signal name or number: TERM, SIGTERM or 15
    #[arg(short = 's', long, value_name = "SIGNAL", default_value = "TERM", value_parser = parse_signal)]
    pub(crate) signal: Signal,
    #[command(flatten)]
    pub(crate) hosts: HostArgs,
    #[command(flatten)]
    pub(crate) schedule: ScheduleArgs,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

fn parse_count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "expected a number greater than 0".to_owned())
}

impl FleetArgs {
    /// The log level of the subcommand, or else of the command itself.
    pub(crate) fn log_level(&self) -> LevelFilter {
        match &self.action {
            None => self.connect.log_level,
            Some(FleetAction::Attach(args)) => args.connect.log_level,
            Some(FleetAction::Ps(args)) => args.connect.log_level,
            Some(FleetAction::Kill(args)) => args.connect.log_level,
        }
    }
}

impl OutputArgs {
    /// For jobs without output.
    pub(crate) fn none() -> Self {
        Self {
            gather: false,
            gather_all: false,
            diff: false,
            in_order: false,
            no_prefix: false,
            keep: 0,
            outdir: None,
            json: false,
            quiet: false,
            max_code: false,
        }
    }
}
