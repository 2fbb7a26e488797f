//! The command line of `telexec exec`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use telexec_executor::ExecutionId;

use super::CommandArgs;
use super::agent::{AnyAgentArg, QueueArg, parse_id};
use crate::config::ConnectArgs;
use crate::connect::ReconnectArgs;
use crate::syntax::{parse_duration, parse_timeout};
use crate::terminal::DetachKeys;

#[derive(Debug, Args)]
#[command(
    mut_arg("argv", |argv| argv.required_unless_present_any(["command", "tty"])),
    override_usage = "telexec exec [FLAGS] TARGET -c 'SHELL TEXT'\n       \
                      telexec exec [FLAGS] TARGET PROGRAM [ARG]...\n       \
                      telexec exec -it [FLAGS] TARGET",
    after_long_help = "\
Without a program, -it starts the login shell that the agent's machine has for the user. As a program, @NAME is a named command \
of the agent: see telexec commands --help.

Exit codes:
  the command's own, or
  0      moved to the background: -d, --yield-after, or the detach keys
  2      invalid command line or configuration; nothing was run
  124    timed out
  125    refused by the agent: policy, limits, invalid request, no such user or directory
  126    the program or shell cannot be executed
  127    the program, shell or named command was not found
  128+n  killed by signal n; 130 after Ctrl-C
  255    the agent is unreachable, or the connection was lost;
         or the agent ended the command, as it shut down or the policy no longer permits it;
         also instead of 0 if part of the output, or the receipt of --receipt-file, is missing

DUR is a number of seconds, or a duration such as 500ms, 10s, 5m, 1h30m.
SIZE is a number of bytes, or a size such as 512K, 256M, 2GiB; K is 1,024.
KEYS is a comma-separated list of characters, or ctrl- and one of a-z @ [ \\ ] ^ _.

FILE of --env-file has docker's format: lines NAME=VALUE, where everything after the = is the value, \
quotes and spaces too, or NAME alone, which passes on the caller's own variable (as -e NAME does; an error \
if it is not set). Empty lines and lines that begin with # are skipped. -e replaces what a file sets.

With --json, each line is one of these events; durations are in seconds:
  {\"event\":\"started\",\"execution_id\":…,\"pid\":…,\"start_time\":…}
  {\"event\":\"stdout\",\"position\":…,\"text\":…}     or \"base64\" instead of \"text\", if it is not UTF-8
  {\"event\":\"stderr\",\"position\":…,\"text\":…}     likewise
  {\"event\":\"exited\",\"cause\":…,\"exit_code\":…,\"signal\":…,\"wall_time\":…,\"receipt\":…,…}
  {\"event\":\"promoted\"}                        last, instead of exited: moved to the background
  {\"event\":\"gap\",\"resume_position\":…}         output before this position is no longer available
  {\"event\":\"queued\",\"execution_id\":…}         instead of all others: with -d and --queue",
    after_help = "\
Examples:
  telexec exec local -c 'echo hello; echo oops >&2; exit 3'
  telexec exec --timeout 30s -e LANG=C -u builder build-7 make -j8 all
  telexec exec -i unix:///run/telexec/agent.sock sha256sum < file
  telexec exec -it build-7 vim notes.txt
  telexec exec web1 @restart-web web-3
  telexec attach build-7 $(telexec exec -d build-7 make all)"
)]
pub(crate) struct ExecArgs {
    #[command(flatten)]
    pub(crate) agent: AnyAgentArg,
    #[command(flatten)]
    pub(crate) command: CommandArgs,
    /// Forward standard input to the command
    #[arg(short = 'i', long, alias = "interactive")]
    pub(crate) stdin: bool,
    /// Allocate a terminal; with -i, all keys typed here go to the command
    #[arg(short = 't', long)]
    pub(crate) tty: bool,
    /// Run as this user [default: the agent's default user]
    #[arg(short = 'u', visible_short_alias = 'l', long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Working directory
    #[arg(short = 'w', long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// Timeout, after which the command is ended
    #[arg(long, value_name = "DUR", value_parser = parse_timeout)]
    pub(crate) timeout: Option<Duration>,
    /// Print events as JSON lines
    #[arg(long)]
    pub(crate) json: bool,
    /// Run in the background and print the execution ID; with -i, its input stays open
    #[arg(short = 'd', long, conflicts_with_all = ["yield_after", "on_disconnect"], help_heading = BACKGROUND)]
    pub(crate) detach: bool,
    /// Move to the background if still running after this time
    #[arg(long, hide_short_help = true, value_name = "DUR", value_parser = parse_duration, help_heading = BACKGROUND)]
    pub(crate) yield_after: Option<Duration>,
    /// Kill or detach the command when telexec exits first or loses the connection. With detach, ctrl-p ctrl-q leave -it
    #[arg(long, value_name = "POLICY", value_enum, default_value = "kill")]
    #[arg(help_heading = BACKGROUND)]
    pub(crate) on_disconnect: DisconnectPolicy,
    /// With -it and --on-disconnect=detach: key sequence that detaches; '' for none
    #[arg(long, hide_short_help = true, value_name = "KEYS", default_value = "ctrl-p,ctrl-q")]
    #[arg(help_heading = BACKGROUND)]
    pub(crate) detach_keys: DetachKeys,
    /// If the policy requires another identity's approval, wait up to this long for it
    #[arg(long, hide_short_help = true, value_name = "DUR", value_parser = parse_timeout)]
    pub(crate) wait_approval: Option<Duration>,
    /// Have the agent sign a receipt of what ran and how it ended; see --json and telexec receipt get
    #[arg(long, hide_short_help = true)]
    pub(crate) receipt: bool,
    /// Like --receipt, and write the receipt to FILE, which must not exist
    #[arg(long, hide_short_help = true, value_name = "FILE", conflicts_with_all = ["detach", "yield_after"])]
    pub(crate) receipt_file: Option<PathBuf>,
    /// Execution ID to use; repeating a request with the same ID attaches to the first execution
    #[arg(long, hide_short_help = true, value_name = "ID", help_heading = BACKGROUND, value_parser = parse_id)]
    pub(crate) id: Option<ExecutionId>,
    #[command(flatten)]
    pub(crate) queue: QueueArg,
    #[command(flatten)]
    pub(crate) reconnect: ReconnectArgs,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

const BACKGROUND: &str = "Background";

// no doc comments on the values: clap would spread the help of every flag over several lines
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DisconnectPolicy {
    Kill,
    Detach,
}

impl ExecArgs {
    /// Whether the agent is to sign a receipt.
    pub(crate) fn wants_receipt(&self) -> bool {
        self.receipt || self.receipt_file.is_some()
    }

    /// Whether keys typed here go to a terminal there.
    pub(crate) fn interactive(&self) -> bool {
        self.stdin && self.tty && !self.detach
    }

    /// Whether the command keeps running when this process exits first.
    pub(crate) fn survives_disconnect(&self) -> bool {
        self.detach || self.on_disconnect == DisconnectPolicy::Detach
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Subcommand};

    fn exec(line: &[&str]) -> ExecArgs {
        let line = ["telexec", "exec"].iter().chain(line);
        match Cli::try_parse_from(line).unwrap().subcommand {
            Subcommand::Exec(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_stand_on_both_sides_of_the_target() {
        for line in [
            ["--timeout", "5", "local", "-c", "-x"],
            ["local", "--timeout", "5", "-c", "-x"],
            ["-c", "-x", "local", "--timeout", "5"],
        ] {
            let args = exec(&line);
            assert_eq!(args.command.text.as_deref(), Some("-x"));
            assert_eq!(args.timeout, Some(Duration::from_secs(5)));
        }
    }

    #[test]
    fn user_and_limits_are_read() {
        let line = ["-u", "nobody", "--memory", "1G", "--max-processes", "9", "--cpus", "0.5", "local", "-c", "x"];
        let args = exec(&line);
        assert_eq!(args.user.as_deref(), Some("nobody"));
        let command = &args.command;
        assert_eq!((command.memory, command.max_processes, command.cpus), (Some(1 << 30), Some(9), Some(0.5)));
    }

    #[test]
    fn what_follows_two_dashes_is_verbatim() {
        let args = exec(&["-e", "A=b=c", "h:1", "--", "-c", "--", "--json", ""]);
        assert_eq!(args.command.argv, ["-c", "--", "--json", ""]);
        assert_eq!(args.command.env, [("A".to_owned(), "b=c".to_owned())]);
        assert!(!args.json);
    }

    #[test]
    fn the_first_word_after_the_target_begins_the_program() {
        for line in [
            &["-u", "me", "h", "ls", "-l", "--json", "--", "-u", "x", ""][..],
            &["h", "-u", "me", "ls", "-l", "--json", "--", "-u", "x", ""],
            &["h", "-u", "me", "--", "ls", "-l", "--json", "--", "-u", "x", ""],
            &["-u", "me", "--", "h", "ls", "-l", "--json", "--", "-u", "x", ""],
        ] {
            let args = exec(line);
            assert_eq!(args.command.argv, ["ls", "-l", "--json", "--", "-u", "x", ""], "{line:?}");
            assert_eq!((args.user.as_deref(), args.json), (Some("me"), false), "{line:?}");
        }
        // a program may be called like a subcommand, and a lone dash is a word
        assert_eq!(exec(&["h", "exec", "-c"]).command.argv, ["exec", "-c"]);
        assert_eq!(exec(&["h", "-", "-x"]).command.argv, ["-", "-x"]);
    }

    #[test]
    fn lines_that_make_no_sense_are_refused() {
        for line in [
            &["local"][..],
            &["-i", "local"],
            &["local", "-e", "NO_SUCH_VARIABLE_IS_SET", "x"],
            &["local", "--env-file", "/no/such/file", "x"],
            &["local", "--"],
            &["local", "-c", "x", "--", "y"],
            &["local", "-c", "x", "y"],
            &["local", "-x", "y"],
            &["local", "--login", "y"],
            &["no where", "-c", "x"],
            &["local", "-e", "=b", "-c", "x"],
            &["local", "--timeout", "0", "-c", "x"],
            &["local", "--memory", "0", "-c", "x"],
            &["local", "--memory", "-1", "-c", "x"],
            &["local", "--max-processes", "0", "-c", "x"],
            &["local", "--max-processes", "4294967296", "-c", "x"],
            &["local", "--cpus", "0", "-c", "x"],
            &["local", "--cpus", "nan", "-c", "x"],
            &["local", "--cpus", "inf", "-c", "x"],
            &["local", "--shell", "sh", "--", "x"],
            &["local", "-d", "--yield-after", "1", "-c", "x"],
            &["local", "-d", "--on-disconnect", "kill", "-c", "x"],
            &["local", "--on-disconnect", "x", "-c", "x"],
            &["local", "--detach-keys", "ctrl-", "-c", "x"],
            &["local", "--id", "../x", "-c", "x"],
            &["local", "--label", "x", "-c", "x"],
        ] {
            let line = ["telexec", "exec"].iter().chain(line);
            let refused = Cli::try_parse_from(line.clone()).is_err_and(|error| error.exit_code() == 2);
            assert!(refused, "{line:?}");
        }
    }
}
