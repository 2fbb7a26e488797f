//! Two helps from one definition: `-h` has the flags that are needed most and fits a screen, `--help` has everything.
//!
//! clap's own long help spreads each flag over several lines.

use std::ffi::OsString;

use clap::builder::Resettable;
use clap::error::{ContextKind, Error};
use clap::{Command, CommandFactory};

use super::Cli;

/// Of subcommands that say nothing else.
const EXIT_CODES: &str = "Exit codes: 0 success, 2 invalid command line or configuration, 1 or 255 any other failure.";

/// The definition, for `-h`.
pub(crate) fn brief() -> Command {
    with_pointer(Cli::command(), "telexec")
}

/// The definition with nothing hidden, for `--help` and manual pages.
pub(crate) fn complete() -> Command {
    in_full(Cli::command())
}

/// The error with the usage that is shown where no variable sets a flag: clap shows such flags as if they were needed.
pub(super) fn without_environment(mut error: Error, line: &[OsString]) -> Error {
    let usage = match without_variables(brief()).try_get_matches_from(line) {
        Err(plain) => plain.get(ContextKind::Usage).cloned(),
        Ok(_) => None,
    };
    if let (Some(_), Some(usage)) = (error.get(ContextKind::Usage), usage) {
        error.insert(ContextKind::Usage, usage);
    }
    error
}

fn without_variables(command: Command) -> Command {
    command.mut_args(|argument| argument.env(Resettable::Reset)).mut_subcommands(without_variables)
}

/// Says at the end where the rest is.
fn with_pointer(command: Command, name: &str) -> Command {
    let command = command.mut_subcommands(|subcommand| {
        let name = format!("{name} {}", subcommand.get_name());
        with_pointer(subcommand, &name)
    });
    let is_hidden = command.get_arguments().any(clap::Arg::is_hide_short_help_set);
    if !is_hidden && command.get_after_long_help().is_none() {
        return command;
    }
    let pointer = format!("All flags, exit codes and more: {name} --help");
    let text = command.get_after_help().map_or_else(|| pointer.clone(), |text| format!("{text}\n\n{pointer}"));
    command.after_help(text)
}

/// The long text goes before that of `-h`, which has the examples.
fn in_full(command: Command) -> Command {
    let [long, short] =
        [command.get_after_long_help(), command.get_after_help()].map(|text| text.map(ToString::to_string));
    let has_codes = [&long, &short].into_iter().flatten().any(|text| text.contains("Exit codes:"));
    let codes = (!has_codes && !command.has_subcommands()).then(|| EXIT_CODES.to_owned());
    let text = [long, codes, short].into_iter().flatten().collect::<Vec<_>>().join("\n\n");
    let command = command.mut_args(|argument| argument.hide_short_help(false)).mut_subcommands(in_full);
    command.after_help(text).after_long_help(Resettable::Reset)
}
