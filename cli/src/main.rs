//! `telexec`: the operator's command.

mod args; // what can be typed, and its help
mod commands; // the subcommands
mod config; // the configuration file, and what a target comes to with it
mod connect; // from a target to a connected agent
mod follow; // an execution's output, and what is typed for it
mod output; // what is printed, and the exit code
mod syntax; // what people write: targets, sets of hosts, durations
mod terminal; // the terminal, standard input and signals of this process

use std::process::ExitCode;

use clap::Parser;

use self::args::Cli;

fn main() -> ExitCode {
    #[cfg(all(target_os = "linux", target_env = "gnu", target_feature = "crt-static"))]
    telexec_engine::look_up_in_files();
    commands::complete();
    ExitCode::from(commands::run(Cli::parse()))
}
