//! The command lines of `telexec ps`, `attach`, `logs`, `wait`, `input` and `kill`.

use clap::Args;
use telexec_executor::{InvalidCommand, Signal};

use super::agent::{AgentArg, ExecutionArg, ExecutionsArg, QueueArg};
use super::complete;
use crate::config::ConnectArgs;
use crate::connect::ReconnectArgs;
use crate::syntax::parse_pair;
use crate::terminal::DetachKeys;

#[derive(Debug, Args)]
#[command(
    after_long_help = "\
Lists your own executions, oldest first. Callers whose policy allows it, and root on the agent's own \
Unix socket if the agent has no policy, see everyone's, with a column IDENTITY if there are several \
identities. STATE is running, lingering (it has exited, but processes that it started still run), or \
how it ended. CPU is the processor time of all its processes, MEMORY the most that they used at any time, as cgroups count \
them; - if they do not. Executions that have ended are kept for an hour, unless the agent is configured otherwise.

With --json, each line is one of these; durations are in seconds, exited is as in `telexec exec --json`, or null, and what \
is not counted in usage is null:
  {\"execution_id\":…,\"state\":\"running\",\"pid\":…,\"start_time\":…,\"user\":…,\"identity\":…,
   \"command\":…,\"argv\":[…],\"shell\":…,\"login\":…,\"working_directory\":…,\"terminal\":…,
   \"labels\":{…},\"processes\":…,\"position\":…,\"exited\":…,
   \"usage\":{\"user_time\":…,\"system_time\":…,\"peak_memory_bytes\":…,\"read_bytes\":…,
            \"written_bytes\":…,\"peak_processes\":…}}

Exit codes: 0 listed, 2 invalid command line or configuration, 125 refused by the agent, 255 the agent is \
unreachable or the connection was lost.",
    after_help = "\
Examples:
  telexec ps unix:///run/telexec/agent.sock
  telexec ps -a --label job=nightly build-7
  telexec ps -q build-7 | xargs telexec kill build-7"
)]
pub(crate) struct PsArgs {
    #[command(flatten)]
    pub(crate) agent: AgentArg,
    /// Include executions that have ended
    #[arg(short = 'a', long)]
    pub(crate) all: bool,
    /// List only executions with this label; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub(crate) label: Vec<(String, String)>,
    /// Print only execution IDs
    #[arg(short = 'q', long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// Do not truncate lines to the width of the terminal
    #[arg(long, visible_alias = "wide")]
    pub(crate) no_trunc: bool,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[derive(Debug, Args)]
#[command(
    after_long_help = "\
Prints the output from the beginning, as far as the agent still has it, then follows it. Ctrl-C \
detaches with exit code 130; the command keeps running unless --kill-on-disconnect is given.

With -i, standard input is forwarded to the command, if it was started with -i. If it has a terminal, \
all keys are forwarded, including Ctrl-C; the detach keys detach.

Exit codes: as for `telexec exec`, 255 also instead of 0 if part of the output is missing; 0 also after the \
detach keys, 125 if there is no such execution. The command's own code in any case: telexec wait.

KEYS is a comma-separated list of characters, or ctrl- and one of a-z @ [ \\ ] ^ _.",
    after_help = "\
Examples:
  telexec attach build-7 0192f0c4-7a51-7d4e-9c3f-6f1d2b8e4a90
  telexec attach -i --detach-keys ctrl-a,d build-7 my-shell"
)]
pub(crate) struct AttachArgs {
    #[command(flatten)]
    pub(crate) agent: AgentArg,
    #[command(flatten)]
    pub(crate) execution: ExecutionArg,
    /// Forward standard input to the command
    #[arg(short = 'i', long)]
    pub(crate) stdin: bool,
    /// Start at this position, in bytes of output of both streams together
    #[arg(long, hide_short_help = true, value_name = "POSITION", default_value = "0", value_parser = parse_position)]
    pub(crate) from: u64,
    /// Skip earlier output
    #[arg(long, conflicts_with = "from")]
    pub(crate) no_history: bool,
    /// Kill the command when telexec exits first or loses the connection
    #[arg(long)]
    pub(crate) kill_on_disconnect: bool,
    /// With -i and a terminal: key sequence that detaches; '' for none
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q")]
    pub(crate) detach_keys: DetachKeys,
    /// Print events as JSON lines; see `telexec exec --help`
    #[arg(long)]
    pub(crate) json: bool,
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
Prints the output so far, from the beginning, as far as the agent still has it: standard output and standard \
error to the same streams here. Lines of --tail are those of both streams together.

Exit codes: 0 printed, 2 invalid command line or configuration, 125 refused by the agent, or no such execution, \
130 after Ctrl-C, 255 the agent is unreachable or the connection was lost. The command's own code: telexec wait.",
    after_help = "\
Examples:
  telexec logs build-7 0192f0c4-7a51-7d4e-9c3f-6f1d2b8e4a90
  telexec logs -f --tail 20 build-7 nightly"
)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    pub(crate) agent: AgentArg,
    #[command(flatten)]
    pub(crate) execution: ExecutionArg,
    /// Follow the output until the command ends
    #[arg(short = 'f', long)]
    pub(crate) follow: bool,
    /// Start with the last N lines [default: all]
    #[arg(short = 'n', long, value_name = "N", value_parser = parse_tail)]
    pub(crate) tail: Option<usize>,
    #[command(flatten)]
    pub(crate) reconnect: ReconnectArgs,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[derive(Debug, Args)]
#[command(
    after_long_help = "\
Prints nothing of their output. Ctrl-C stops waiting with exit code 130; the commands keep running.

Exit codes: as for telexec exec, 125 also if there is no such execution (the others are waited for all the same). Of \
several executions the highest, and each that did not exit with 0 is named on standard error.",
    after_help = "\
Examples:
  telexec wait build-7 0192f0c4-7a51-7d4e-9c3f-6f1d2b8e4a90
  telexec wait build-7 $(telexec ps -q build-7) && telexec exec build-7 make install"
)]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    pub(crate) agent: AgentArg,
    #[command(flatten)]
    pub(crate) executions: ExecutionsArg,
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
TEXT is sent with a trailing newline, standard input as is. The command must have been started with \
-i, and accepts one writer at a time. Returns once all of it is written to the command's input.

Exit codes: 0 sent, 1 the execution accepts no (more) input, 2 invalid command line or configuration, 125 \
refused by the agent, or no such execution, 255 the agent is unreachable or the connection was lost.",
    after_help = "\
Examples:
  telexec input build-7 my-shell 'make all'
  telexec input --close build-7 my-sort < names
  telexec input --close -n build-7 my-sort ''       # only closes its input"
)]
pub(crate) struct InputArgs {
    #[command(flatten)]
    pub(crate) agent: AgentArg,
    #[command(flatten)]
    pub(crate) execution: ExecutionArg,
    /// Text to send [default: standard input]
    #[arg(allow_hyphen_values = true)]
    pub(crate) text: Option<String>,
    /// Send TEXT without a trailing newline
    #[arg(short = 'n', long, requires = "text")]
    pub(crate) no_newline: bool,
    /// Close the command's input afterwards
    #[arg(long)]
    pub(crate) close: bool,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[derive(Debug, Args)]
#[command(
    after_long_help = "\
The signal is sent to every process of an execution. KILL always ends them all. It is not \
an error if an execution has already ended.

Exit codes: 0 sent, 2 invalid command line or configuration, 125 refused by the agent, or no such execution \
(the others get the signal all the same), 255 the agent is unreachable or the connection was lost.",
    after_help = "\
Examples:
  telexec kill build-7 0192f0c4-7a51-7d4e-9c3f-6f1d2b8e4a90
  telexec kill -s INT build-7 first second
  telexec kill -s 9 build-7 $(telexec ps -q build-7)"
)]
pub(crate) struct KillArgs {
    #[command(flatten)]
    pub(crate) agent: AgentArg,
    #[command(flatten)]
    pub(crate) executions: ExecutionsArg,
    /// Signal name or number: TERM, SIGTERM or 15
    #[arg(short = 's', long, value_name = "SIGNAL", default_value = "TERM", value_parser = parse_signal)]
    #[arg(add = complete::signals())]
    pub(crate) signal: Signal,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// `all` is docker's and the default.
fn parse_tail(text: &str) -> Result<usize, &'static str> {
    match text {
        "all" => Ok(LogsArgs::ALL_LINES),
        number => number.parse().map_err(|_| "expected a number of lines, or all"),
    }
}

impl LogsArgs {
    const ALL_LINES: usize = usize::MAX;

    /// How many of the last lines to print; `None`: all.
    pub(crate) fn last_lines(&self) -> Option<usize> {
        self.tail.filter(|lines| *lines != Self::ALL_LINES)
    }
}

fn parse_position(text: &str) -> Result<u64, &'static str> {
    text.parse().map_err(|_| "expected a number of bytes")
}

pub(super) fn parse_signal(text: &str) -> Result<Signal, String> {
    text.to_ascii_uppercase().parse().map_err(|error: InvalidCommand| error.reason.into_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::args::{Cli, Subcommand};

    fn parse(line: &str) -> Result<Subcommand, i32> {
        let line = ["telexec"].into_iter().chain(line.split(' '));
        Cli::try_parse_from(line).map(|cli| cli.subcommand).map_err(|error| error.exit_code())
    }

    #[test]
    fn signals_are_names_or_numbers_and_term_is_the_default() {
        for (flags, number) in [("", 15), ("-s INT ", 2), ("-s sigint ", 2), ("--signal 9 ", 9), ("-s RTMIN+1 ", 35)] {
            match parse(&format!("kill {flags}h:1 a b")).unwrap() {
                Subcommand::Kill(args) => assert_eq!((args.signal.number(), args.executions.ids.len()), (number, 2)),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn lines_that_make_no_sense_are_refused() {
        for line in [
            "ps",
            "ps local",
            "ps -q --json h:1",
            "ps --label a h:1",
            "attach h:1",
            "attach local a",
            "attach h:1 ../a",
            "attach --from 1 --no-history h:1 a",
            "attach --from -1 h:1 a",
            "attach --detach-keys ctrl-1 h:1 a",
            "input local a",
            "input -n h:1 a",
            "kill h:1",
            "kill local a",
            "kill -s NOPE h:1 a",
            "kill -s 0 h:1 a",
        ] {
            assert_eq!(parse(line).err(), Some(2), "{line}");
        }
    }
}
