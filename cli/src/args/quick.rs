//! A fast path for valid command lines of frequent subcommands: building clap's definition of all subcommands takes longer than a
//! call of an agent.

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

/// `None`: the full definition decides. It is another subcommand, an error or a request for help.
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
    fn lines_mean_what_they_mean_to_the_full_definition() {
        for line in [
            "telexec exec web1 true",
            "telexec exec web1 -- ls -la --help",
            "telexec exec -it --rm-env A -e B=c web1 bash",
            "telexec exec -it -e B=c --user nobody web1 bash",
            "telexec exec --timeout 5s -d web1 -c true",
            "telexec exec web1 -c true x y",
            "telexec exec web1",
            "telexec exec -it web1",
            "telexec exec --version",
            "telexec ps --json web1",
            "telexec logs -f web1 5f0c9a41d2",
            "telexec kill -s HUP web1 5f0c9a41d2",
            "telexec wait web1 a b",
            "telexec input web1 5f0c9a41d2 --close",
            "telexec attach web1",
        ] {
            let line: Vec<_> = line.split(' ').map(OsString::from).collect();
            let full = Cli::command().try_get_matches_from(&line);
            let full = full.and_then(|matches| Cli::from_arg_matches(&matches)).map(|cli| format!("{cli:?}"));
            assert_eq!(parse(&line).map(|cli| format!("{cli:?}")), full.ok(), "{line:?}");
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
