//! The command line of `telexec fleet`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use telexec_executor::{ExecutionId, Signal, parse_size};
use tracing_subscriber::filter::LevelFilter;

use super::executions::parse_signal;
use super::{CommandArgs, complete};
use crate::config::ConnectArgs;
use crate::syntax::{Share, parse_timeout};

const HOSTS: &str = "Hosts";
const PACE: &str = "Pace";
const OUTPUT: &str = "Output";

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_value_name = "attach|ps|kill",
    override_usage = "telexec fleet [FLAGS] -w HOSTS -c 'SHELL TEXT'\n       \
                      telexec fleet [FLAGS] -w HOSTS -- PROGRAM [ARG]...\n       \
                      telexec fleet attach|ps|kill [FLAGS] [ID]",
    after_help = "\
HOSTS are, with commas between:
  web1                  a configured target, or a host at --port
  web1:7443, unix:///…  an address, as any TARGET
  web[01-32,40]         a range, padded as its first number is; [0-9/3] is every third
  @web                  a group of the configuration or the inventory; @all is every target there
  dns:NAME:PORT         every address of a name, whose certificates are for the name
  srv:_telexec._tcp.example.org
                        every target of a service

Exit codes:
  0      it ended with 0 everywhere
  1      it did not: the summary tells failed, timed out, refused, unreachable and lost apart
  130    after Ctrl-C, twice within a second; once, it tells what still runs
With -S, the largest of all hosts in place of 1; each is as of `telexec exec`.

DUR is a number of seconds, or such as 500ms, 10s, 5m, 1h30m.
SIZE is a number of bytes, or such as 512K, 256M, 2GiB; K is 1,024.
N|% is a number of hosts, or such as 10%.

With --json, each line is one of these; the first, and exited, are as of `telexec exec --json`:
  {\"host\":…,\"event\":\"started\"|\"stdout\"|\"stderr\"|\"gap\",…}
  {\"host\":…,\"event\":\"outcome\",\"outcome\":…,\"exit_code\":…,\"message\":…,\"exited\":…}
  {\"event\":\"summary\",\"hosts\":…,\"seconds\":…,\"ok\":…,\"failed\":…,…}
  {\"event\":\"fleet\",\"fleet_id\":…}                   first, with -d
The outcome is the last of a host: ok, failed, timed_out, unreachable, refused, lost, cancelled or not_run.

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
    pub(crate) what: FleetCommandArgs,
    #[command(flatten)]
    pub(crate) hosts: HostArgs,
    /// Print which hosts that are, and do nothing; with -b, in few words
    #[arg(long, help_heading = HOSTS)]
    pub(crate) list_hosts: bool,
    #[command(flatten)]
    pub(crate) pace: PaceArgs,
    #[command(flatten)]
    pub(crate) show: ShowArgs,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum FleetAction {
    /// Follow what `fleet -d` started; Ctrl-C leaves it running
    Attach(Box<FleetAttachArgs>),
    /// Tell what became of it; without ID, list what was started from here
    Ps(FleetPsArgs),
    /// Send it a signal
    Kill(FleetKillArgs),
}

#[derive(Debug, Args)]
pub(crate) struct FleetCommandArgs {
    #[command(flatten)]
    pub(crate) command: CommandArgs,
    /// Send standard input to all
    #[arg(short = 'i', long, conflicts_with = "detach")]
    pub(crate) stdin: bool,
    /// Run as this user [default: as configured, or the agent's own]
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Start in this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// End it after so long, on each host
    #[arg(short = 'u', long, value_name = "DUR", value_parser = parse_timeout)]
    pub(crate) timeout: Option<Duration>,
    /// Start it in the background everywhere, and print an id that `fleet attach`, `ps` and `kill` take
    #[arg(short = 'd', long)]
    pub(crate) detach: bool,
    /// Ask each agent whether it would run it, and run nothing
    #[arg(long, conflicts_with_all = ["detach", "stdin"])]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = HOSTS)]
pub(crate) struct HostArgs {
    /// These; may be repeated
    #[arg(short = 'w', long = "hosts", value_name = "HOSTS", add = complete::hosts())]
    pub(crate) hosts: Vec<String>,
    /// This group: -g web is -w @web; may be repeated
    #[arg(short = 'g', long, value_name = "NAME", add = complete::groups())]
    pub(crate) group: Vec<String>,
    /// Every configured target
    #[arg(short = 'a', long)]
    pub(crate) all: bool,
    /// But not these; may be repeated
    #[arg(short = 'x', long, value_name = "HOSTS", add = complete::hosts())]
    pub(crate) exclude: Vec<String>,
    /// Those in a file, some on each line; - is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) hosts_file: Option<PathBuf>,
    /// Those that a program prints as JSON: a list of names, or an inventory as Ansible's; -w and -x select from it
    #[arg(long, value_name = "COMMAND")]
    pub(crate) inventory: Option<String>,
    /// The port of hosts that are named without one [default: as configured, or 7443]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
    /// Only so many of them, chosen at random
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(crate) pick: Option<usize>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = PACE)]
pub(crate) struct PaceArgs {
    /// Work on so many hosts at once [default: as configured, or 64]
    #[arg(short = 'f', long, value_name = "N", value_parser = parse_count)]
    pub(crate) fanout: Option<usize>,
    /// Longest wait for a connection; the same as --connect-timeout
    #[arg(short = 't', value_name = "DUR", value_parser = parse_timeout, conflicts_with = "connect_timeout")]
    pub(crate) patience: Option<Duration>,
    /// Begin with so many hosts, and with the next so many when all of these are done
    #[arg(long, value_name = "N|%")]
    pub(crate) batch: Option<Share>,
    /// Begin with no more hosts once more than so many have failed [default with --batch: 0]
    #[arg(long, value_name = "N|%")]
    pub(crate) max_failures: Option<Share>,
    /// Stop at the first failure: begin with no more hosts, and end what runs
    #[arg(short = 'k', long)]
    pub(crate) fail_fast: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = OUTPUT)]
pub(crate) struct ShowArgs {
    /// Gather: print what hosts wrote to standard output when all are done, the same once
    #[arg(short = 'b', long)]
    pub(crate) gather: bool,
    /// Gather standard error too
    #[arg(short = 'B')]
    pub(crate) gather_all: bool,
    /// Gather, and show how others differ from what most hosts wrote
    #[arg(long)]
    pub(crate) diff: bool,
    /// In the order of the hosts; with -b, gather each line for itself
    #[arg(short = 'L', long)]
    pub(crate) in_order: bool,
    /// Do not put the host before its lines
    #[arg(short = 'N', long)]
    pub(crate) no_prefix: bool,
    /// Keep so much of each host's output until it is printed, with -b, -B, -L and --diff
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = parse_size)]
    pub(crate) keep: u64,
    /// Write DIR/HOST/stdout, stderr and exit.json besides
    #[arg(long, value_name = "DIR")]
    pub(crate) outdir: Option<PathBuf>,
    /// Print events as JSON lines
    #[arg(long, conflicts_with_all = ["gather", "gather_all", "diff", "in_order", "no_prefix"])]
    pub(crate) json: bool,
    /// Print neither progress nor summary
    #[arg(short = 'q', long)]
    pub(crate) quiet: bool,
    /// Exit with the largest exit code of all hosts
    #[arg(short = 'S', long)]
    pub(crate) max_code: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The hosts are those that it was started on from here; -w and the like give others, by the same names.

Example:
  telexec fleet attach -b fleet-0192f0c47a51-3e7b")]
pub(crate) struct FleetAttachArgs {
    /// What `fleet -d` printed
    pub(crate) id: ExecutionId,
    #[command(flatten)]
    pub(crate) hosts: HostArgs,
    #[command(flatten)]
    pub(crate) pace: PaceArgs,
    #[command(flatten)]
    pub(crate) show: ShowArgs,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 it runs or ended with 0 everywhere, 1 it does not.

Example:
  telexec fleet ps fleet-0192f0c47a51-3e7b")]
pub(crate) struct FleetPsArgs {
    /// What `fleet -d` printed
    pub(crate) id: Option<ExecutionId>,
    /// Print a JSON object a line: a host and its execution as of `telexec ps --json`
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) hosts: HostArgs,
    #[command(flatten)]
    pub(crate) pace: PaceArgs,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 sent to all, 1 it is not known somewhere, or a host could not be reached.

Example:
  telexec fleet kill -s INT fleet-0192f0c47a51-3e7b")]
pub(crate) struct FleetKillArgs {
    /// What `fleet -d` printed
    pub(crate) id: ExecutionId,
    /// Which signal, by name or number: TERM, SIGTERM or 15
    #[arg(short = 's', long, value_name = "SIGNAL", default_value = "TERM", value_parser = parse_signal)]
    pub(crate) signal: Signal,
    #[command(flatten)]
    pub(crate) hosts: HostArgs,
    #[command(flatten)]
    pub(crate) pace: PaceArgs,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

fn parse_count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "give a number above 0".to_owned())
}

impl FleetArgs {
    /// As the flags that count say.
    pub(crate) fn log_level(&self) -> LevelFilter {
        match &self.action {
            None => self.connect.log_level,
            Some(FleetAction::Attach(args)) => args.connect.log_level,
            Some(FleetAction::Ps(args)) => args.connect.log_level,
            Some(FleetAction::Kill(args)) => args.connect.log_level,
        }
    }
}

impl ShowArgs {
    /// For what has no output.
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
