//! The command lines of `telexec ps`, `attach`, `input` and `kill`.

use clap::Args;
use telexec_executor::{ExecutionId, Signal};

use super::complete;
use crate::config::ConnectArgs;
use crate::syntax::{Destination, parse_agent, parse_pair};
use crate::terminal::DetachKeys;

#[derive(Debug, Args)]
#[command(after_help = "\
Only your own executions are listed, oldest first; to root on the agent's own Unix socket, if the agent has no policy, and to \
those whom its policy gives them, those of everybody, with a column IDENTITY if they are of several identities. STATE is running, lingering (it has exited, and \
processes that it left behind run on), or how it ended. Those that ended are remembered for an hour, \
unless the agent is configured otherwise.

With --json, each line is one of these; times are in seconds, and exited is as `telexec exec --json` has it, or null:
  {\"execution_id\":…,\"state\":\"running\",\"pid\":…,\"start_time\":…,\"user\":…,\"identity\":…,
   \"command\":…,\"argv\":[…],\"shell\":…,\"login\":…,\"working_directory\":…,\"terminal\":…,
   \"labels\":{…},\"processes\":…,\"position\":…,\"exited\":…}

Examples:
  telexec ps unix:///run/telexec/agent.sock
  telexec ps -a --label job=nightly build-7:7443
  telexec ps -q build-7:7443 | xargs telexec kill build-7:7443")]
pub(crate) struct PsArgs {
    /// Where: unix:///PATH, HOST:PORT, a configured NAME, or a virtual machine (see `telexec --help`)
    #[arg(value_parser = parse_agent, add = complete::targets())]
    pub(crate) target: Destination,
    /// Also those that have ended
    #[arg(short = 'a', long)]
    pub(crate) all: bool,
    /// Only those with this label; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub(crate) label: Vec<(String, String)>,
    /// Print the ids and nothing else
    #[arg(short = 'q', long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// Do not cut lines to the width of the terminal
    #[arg(long, visible_alias = "wide")]
    pub(crate) no_trunc: bool,
    /// Print a JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Output comes from the beginning, as far as it is kept, and goes on as it arrives. Ctrl-C leaves the \
command, which runs on unless --kill-on-disconnect is given; the exit code is 130.

With -i, what is typed goes to the command, if it was started with -i. If it has a terminal, so does \
every key, Ctrl-C too, and the detach keys lead back here.

Exit codes: as of `telexec exec`; 0 also after the detach keys, 125 if there is no such execution.

KEYS are characters, or ctrl- and one of a-z @ [ \\ ] ^ _, with commas between.

Examples:
  telexec attach build-7:7443 0192f0c4-7a51-7d4e-9c3f-6f1d2b8e4a90
  telexec attach -i --detach-keys ctrl-a,d build-7:7443 my-shell")]
pub(crate) struct AttachArgs {
    /// Where: unix:///PATH, HOST:PORT, a configured NAME, or a virtual machine (see `telexec --help`)
    #[arg(value_parser = parse_agent, add = complete::targets())]
    pub(crate) target: Destination,
    /// Which execution; `telexec ps` lists them
    pub(crate) id: ExecutionId,
    /// Send standard input, as it comes, until it ends
    #[arg(short = 'i', long)]
    pub(crate) stdin: bool,
    /// Begin after so many bytes of output, of both streams together
    #[arg(long, value_name = "POSITION", default_value = "0")]
    pub(crate) from: u64,
    /// Begin with what it writes from now on
    #[arg(long, conflicts_with = "from")]
    pub(crate) no_history: bool,
    /// End the command when this ends before it
    #[arg(long)]
    pub(crate) kill_on_disconnect: bool,
    /// With -i and a terminal: keys that leave it; '' for none
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q")]
    pub(crate) detach_keys: DetachKeys,
    /// Print events as JSON lines; see `telexec exec --help`
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
TEXT is sent with a newline after it, standard input as it is. The command must have been started \
with -i, and must have one writer at a time. This returns once the command's input has all of it.

Exit codes: 0 sent, 1 the command takes no input (any more) or is not there, 255 the agent is unreachable or was lost.

Examples:
  telexec input build-7:7443 my-shell 'make all'
  telexec input --close build-7:7443 my-sort < names
  telexec input --close -n build-7:7443 my-sort ''       only ends its input")]
pub(crate) struct InputArgs {
    /// Where: unix:///PATH, HOST:PORT, a configured NAME, or a virtual machine (see `telexec --help`)
    #[arg(value_parser = parse_agent, add = complete::targets())]
    pub(crate) target: Destination,
    /// Which execution; `telexec ps` lists them
    pub(crate) id: ExecutionId,
    /// What to send [default: standard input]
    #[arg(allow_hyphen_values = true)]
    pub(crate) text: Option<String>,
    /// Send TEXT without a newline after it
    #[arg(short = 'n', long, requires = "text")]
    pub(crate) no_newline: bool,
    /// End the command's input after it
    #[arg(long)]
    pub(crate) close: bool,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The signal goes to every process of an execution. KILL ends all of them for certain. An execution \
that has ended already is no error.

Exit codes: 0 sent, 1 an id is not known, 255 the agent is unreachable or was lost.

Examples:
  telexec kill build-7:7443 0192f0c4-7a51-7d4e-9c3f-6f1d2b8e4a90
  telexec kill -s INT build-7:7443 first second
  telexec kill -s 9 build-7:7443 $(telexec ps -q build-7:7443)")]
pub(crate) struct KillArgs {
    /// Where: unix:///PATH, HOST:PORT, a configured NAME, or a virtual machine (see `telexec --help`)
    #[arg(value_parser = parse_agent, add = complete::targets())]
    pub(crate) target: Destination,
    /// Which executions; `telexec ps` lists them
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<ExecutionId>,
    /// Which signal, by name or number: TERM, SIGTERM or 15
    #[arg(short = 's', long, value_name = "SIGNAL", default_value = "TERM", value_parser = parse_signal)]
    pub(crate) signal: Signal,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

pub(super) fn parse_signal(text: &str) -> Result<Signal, String> {
    text.to_ascii_uppercase().parse().map_err(|error: telexec_executor::InvalidCommand| error.reason.into_owned())
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
                Subcommand::Kill(args) => assert_eq!((args.signal.number(), args.ids.len()), (number, 2)),
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
