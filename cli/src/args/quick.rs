//! Valid lines of subcommands that are used often: the definition of all takes longer than the way to an agent.

use std::ffi::OsString;

use clap::{Args, Command, FromArgMatches};

use super::{AttachArgs, Cli, ExecArgs, InputArgs, KillArgs, LogsArgs, PsArgs, WaitArgs};

type Define = fn(Command) -> Command;

const SUBCOMMANDS: [(&str, Define); 7] = [
    ("attach", AttachArgs::augment_args),
    ("exec", ExecArgs::augment_args),
    ("input", InputArgs::augment_args),
    ("kill", KillArgs::augment_args),
    ("logs", LogsArgs::augment_args),
    ("ps", PsArgs::augment_args),
    ("wait", WaitArgs::augment_args),
];

/// `None`: perhaps valid, perhaps not, or it asks for help.
pub(super) fn parse(line: &[OsString]) -> Option<Cli> {
    let word = line.get(1)?;
    let (name, define) = SUBCOMMANDS.iter().find(|(name, _)| word == name)?;
    let definition = Command::new("telexec").subcommand(define(Command::new(*name)));
    let matches = definition.try_get_matches_from(line).ok()?;
    Cli::from_arg_matches(&matches).ok()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn each_is_defined_as_among_all() {
        let all = Cli::command();
        for (name, define) in SUBCOMMANDS {
            let (one, same) = (define(Command::new(name)), all.find_subcommand(name).unwrap());
            let settings = |command: &Command| {
                let [arguments, groups] = [
                    command.get_arguments().map(|argument| format!("{argument:?}")).collect::<Vec<_>>(),
                    command.get_groups().map(|group| format!("{group:?}")).collect(),
                ];
                let flags = [
                    command.is_allow_external_subcommands_set(),
                    command.is_args_conflicts_with_subcommands_set(),
                    command.is_trailing_var_arg_set(),
                    command.has_subcommands(),
                ];
                (arguments, groups, flags)
            };
            assert_eq!(settings(&one), settings(same), "{name}");
        }
    }

    #[test]
    fn only_valid_lines_of_these_are_understood() {
        let parsed = |line: &str| parse(&line.split(' ').map(OsString::from).collect::<Vec<_>>()).is_some();
        assert!(parsed("telexec exec local true") && parsed("telexec ps web1"));
        for other in ["telexec exec -h", "telexec exec local --no-such-flag", "telexec ping local", "telexec"] {
            assert!(!parsed(other), "{other}");
        }
    }
}
